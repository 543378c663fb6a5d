package localapi

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"testing"

	"github.com/locksidecar/locksidecar/session"
)

func TestZZIdle(t *testing.T) {
	s := start(t, func(so *session.Options, o *Options) {
		o.Limits.Connections = 9000
		o.Limits.ConnectionsPerUID = 9000
		so.Limits.SessionsPerUID = 9000
	})
	runtime.GC()
	runtime.GC()
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	const n = 3000
	g := runtime.NumGoroutine()
	line := make([]byte, 4096)
	for i := range n {
		c := s.dial(t)
		fmt.Fprint(c, opening)
		if _, err := c.Read(line); err != nil {
			t.Fatal(err)
		}
		if os.Getenv("PAIR") != "" {
			in := bufio.NewReaderSize(c, 64)
			fmt.Fprintf(c, `{"requestId":"1","acquire":{"resource":"r%d"}}`+"\n", i)
			l, _ := in.ReadString('\n')
			id := l[len(`{"requestId":"1","granted":{"lockId":"`):][:32]
			fmt.Fprintf(c, `{"requestId":"2","release":{"lockId":"%s"}}`+"\n", id)
			in.ReadString('\n')
		}
		_ = io.EOF
	}
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&b)
	t.Logf("heap %d stack %d goroutines %d", (b.HeapAlloc-a.HeapAlloc)/n, (b.StackInuse-a.StackInuse)/n, (runtime.NumGoroutine()-g)/n)
	f, _ := os.Create("/tmp/l3/heap.pb.gz")
	pprof.Lookup("heap").WriteTo(f, 0)
	f.Close()
	f, _ = os.Create("/tmp/l3/g.txt")
	pprof.Lookup("goroutine").WriteTo(f, 1)
	f.Close()
}
