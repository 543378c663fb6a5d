package proc

import (
	"net"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestListening(t *testing.T) {
	table := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0
   1: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 222 1 0
   2: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 333 1 0
`
	if diff := cmp.Diff([]string{"111"}, listening(table, 0x1F90)); diff != "" {
		t.Errorf("listening (-want +got):\n%s", diff)
	}
}

func TestListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := Listener(l.Addr().(*net.TCPAddr).Port); got != os.Getpid() {
		t.Errorf("process %d listens, want %d", got, os.Getpid())
	}
}
