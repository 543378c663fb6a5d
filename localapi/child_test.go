package localapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// childEnv makes the test binary play an app. Its value says which:
//
//	holder: takes the resource "r" over HTTP, starts a grandchild that keeps the
//	  same socket open, says "held", and stays.
//	passer-by: connects to the socket many times and ends at once.
//	flooder: opens many Session streams on one connection, asks on each as much as
//	  it can and reads nothing. It tries a resource that the test holds, if so
//	  told: those answers are long. Else it releases what it has not. Says "stuck"
//	  when no more goes in, and stays.
//	keeper: that grandchild. Says "kept" and stays.
//	sidecar: serves the socket, over the embedded store, says "ready", and stays.
const (
	childEnv  = "LOCALAPI_TEST_CHILD"
	socketEnv = "LOCALAPI_TEST_SOCKET"
	countEnv  = "LOCALAPI_TEST_COUNT" // of the flooder's streams
	tryEnv    = "LOCALAPI_TEST_TRY"   // the resource that it tries
	wireEnv   = "LOCALAPI_TEST_WIRE"  // what it speaks: gRPC, or lines
	takeEnv   = "LOCALAPI_TEST_TAKE"  // the resource that the flooder takes first, on its first stream; with "/" at its end, one below it on each
	stallEnv  = "LOCALAPI_TEST_STALL" // the sidecar's Limits.Stall
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
	case "flooder":
		flood()
	case "sidecar":
		serveSidecar()
	case "keeper":
		_, _ = os.Stdout.WriteString("kept\n")
	}
	time.Sleep(5 * time.Minute) // longer than any test waits for what happens to a living app
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

func flood() {
	n, err := strconv.Atoi(os.Getenv(countEnv))
	must(err)
	if os.Getenv(wireEnv) == string(overLines) {
		floodLines(n)
		return
	}
	cc, err := grpc.NewClient("unix:"+os.Getenv(socketEnv), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(err)
	c := pb.NewLockSidecarClient(cc)
	q := &pb.SessionRequest{RequestId: strings.Repeat("k", 100), Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: "none"}}}
	if r := os.Getenv(tryEnv); r != "" {
		q.Request = &pb.SessionRequest_Acquire{Acquire: tryOnce(r)}
	}
	var sent atomic.Int64
	for i := range n {
		st, err := c.Session(context.Background())
		must(err)
		_ = st.Send(&pb.SessionRequest{RequestId: "open", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{}}})
		if _, err := st.Recv(); err != nil {
			break // cut off
		}
		if r := taken(i); r != "" {
			must(st.Send(&pb.SessionRequest{RequestId: "take", Request: &pb.SessionRequest_Acquire{Acquire: tryOnce(r)}}))
			a, err := st.Recv()
			must(err)
			if a.GetGranted() == nil {
				must(errors.New(a.String()))
			}
		}
		go func() {
			for st.Send(q) == nil {
				sent.Add(1)
			}
		}()
	}
	sayStuck(&sent)
}

func floodLines(n int) {
	line := `{"requestId":"` + strings.Repeat("k", 100) + `","release":{"lockId":"none"}}` + "\n"
	var sent atomic.Int64
	for i := range n {
		c, err := (&net.Dialer{}).Dial("unix", os.Getenv(socketEnv))
		must(err)
		_, err = io.WriteString(c, opening)
		must(err)
		in := bufio.NewReader(c)
		_, err = in.ReadString('\n')
		must(err)
		if r := taken(i); r != "" {
			_, err = io.WriteString(c, `{"requestId":"take","acquire":{"resource":"`+r+`","wait":"0s"}}`+"\n")
			must(err)
			a, err := in.ReadString('\n')
			must(err)
			if !strings.Contains(a, `"granted"`) {
				must(errors.New(a))
			}
		}
		go func() {
			for {
				if _, err := io.WriteString(c, line); err != nil {
					return
				}
				sent.Add(1)
			}
		}()
	}
	sayStuck(&sent)
}

// taken is what a stream of the flooder takes first; empty: nothing.
func taken(i int) string {
	r := os.Getenv(takeEnv)
	switch {
	case strings.HasSuffix(r, "/"):
		return r + strconv.Itoa(i)
	case i > 0:
		return ""
	default:
		return r
	}
}

func serveSidecar() {
	stall, err := time.ParseDuration(os.Getenv(stallEnv))
	must(err)
	m, err := session.New(session.Options{Backend: embedded.New(), Sidecar: "child", TTL: lock.MaxTTL})
	must(err)
	s := New(Options{Manager: m, Socket: os.Getenv(socketEnv), Limits: Limits{Stall: stall}})
	go func() { must(m.Run(context.Background())) }()
	go func() {
		for <-s.Listening(); m.Ready() != nil; {
			time.Sleep(time.Millisecond)
		}
		_, _ = os.Stdout.WriteString("ready\n")
	}()
	must(s.Run(context.Background()))
}

// sayStuck says so when no more is sent.
func sayStuck(sent *atomic.Int64) {
	for before := int64(-1); ; time.Sleep(500 * time.Millisecond) {
		now := sent.Load()
		if now == before {
			break
		}
		before = now
	}
	_, _ = os.Stdout.WriteString("stuck\n")
}

func must(err error) {
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}
