package localapi

import (
	"net"
	"os"
	"os/exec"
	"time"
)

// childEnv makes the test binary play an app. Its value says which:
//
//	holder: takes the resource "r" over HTTP, starts a grandchild that keeps the
//	  same socket open, says "held", and stays.
//	passer-by: connects to the socket many times and ends at once.
//	keeper: that grandchild. Says "kept" and stays.
const (
	childEnv  = "LOCALAPI_TEST_CHILD"
	socketEnv = "LOCALAPI_TEST_SOCKET"
)

func child() {
	switch os.Getenv(childEnv) {
	case "holder":
		hold()
	case "passer-by":
		for range 20 {
			_, err := (&net.Dialer{}).Dial("unix", os.Getenv(socketEnv))
			must(err)
		}
		os.Exit(0)
	case "keeper":
		_, _ = os.Stdout.WriteString("kept\n")
	}
	time.Sleep(time.Minute)
}

func hold() {
	c, err := (&net.Dialer{}).Dial("unix", os.Getenv(socketEnv))
	must(err)
	body := `{"resource":"r"}`
	_, err = c.Write([]byte("POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n" + body))
	must(err)
	_, err = c.Read(make([]byte, 4096))
	must(err)
	f, err := c.(*net.UnixConn).File()
	must(err)
	keeper := exec.Command("/proc/self/exe")
	keeper.Env = append(os.Environ(), childEnv+"=keeper")
	keeper.ExtraFiles = []*os.File{f}
	keeper.Stdout = os.Stdout
	must(keeper.Start())
	_, _ = os.Stdout.WriteString("held\n")
}

func must(err error) {
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}
