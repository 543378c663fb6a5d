package localapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/session"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// sidecar is a real server on a real socket, over the embedded store.
type sidecar struct {
	socket  string
	manager *session.Manager
	server  *Server
	stop    func() // idempotent
}

func start(t testing.TB, change ...func(*session.Options, *Options)) *sidecar {
	t.Helper()
	so := session.Options{Backend: embedded.New(), Sidecar: "test-sidecar"}
	lo := Options{Socket: filepath.Join(socketDir(t), "s.sock"), Version: "v0-test", Store: func() string { return "embedded:" }}
	for _, f := range change {
		f(&so, &lo)
	}
	m, err := session.New(so)
	if err != nil {
		t.Fatal(err)
	}
	lo.Manager = m
	s := New(lo)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	mdone, sdone := make(chan error, 1), make(chan error, 1)
	go func() { mdone <- errors.Join(m.Run(ctx), so.Backend.Close()) }()
	sctx, scancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { sdone <- s.Run(sctx) }()
	stopped := false
	c := &sidecar{socket: lo.Socket, manager: m, server: s, stop: func() {
		if stopped {
			return
		}
		stopped = true
		scancel()
		if err := within(t, sdone); err != nil {
			t.Errorf("server: %v", err)
		}
		cancel()
		if err := within(t, mdone); err != nil {
			t.Errorf("manager: %v", err)
		}
		if i := m.Info(); i.InFlight != 0 || i.Waiters != 0 || i.Sessions != 0 { // whatever a test has done
			t.Errorf("counted at the end: %d in flight, %d waiters, %d sessions", i.InFlight, i.Waiters, i.Sessions)
		}
	}}
	t.Cleanup(c.stop)
	select {
	case <-s.Listening():
	case err := <-sdone:
		sdone <- err
		t.Fatalf("server did not start: %v", err)
	}
	eventually(t, "ready", func() bool { return m.Ready() == nil })
	return c
}

// socketDir is a private directory with a path that is short enough.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "lst")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

const patience = time.Minute

func within[T any](t testing.TB, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came in time")
		panic("unreachable")
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	eventuallyIn(t, patience, what, ok)
}

// eventuallyIn is for what takes long on a busy machine.
func eventuallyIn(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	pause := 2 * time.Millisecond
	for end := time.Now().Add(limit); !ok(); pause = min(pause+pause/4, 25*time.Millisecond) { // looks take the processors from it
		if time.Now().After(end) {
			t.Fatalf("not %s in time", what)
		}
		time.Sleep(pause)
	}
}

// api is a gRPC client of the sidecar.
func (s *sidecar) api(t testing.TB) pb.LockSidecarClient {
	t.Helper()
	return pb.NewLockSidecarClient(s.dialGRPC(t))
}

func (s *sidecar) dialGRPC(t testing.TB, o ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+s.socket, append(o, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

// http is an HTTP client of the sidecar.
func (s *sidecar) http(t testing.TB) *http.Client {
	t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// call makes one HTTP request and gives status and body.
func call(t testing.TB, c *http.Client, method, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		r.Body = nil
		r.ContentLength = 0
	}
	a, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(b)
}

// field reads one field of a JSON object.
func field(t testing.TB, object, name string) string {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(object), &m); err != nil {
		t.Fatalf("%q: %v", object, err)
	}
	s, _ := m[name].(string)
	return s
}

// infoOf finds reason and metadata of an error in a status.
func infoOf(t testing.TB, st *statuspb.Status) *errdetails.ErrorInfo {
	t.Helper()
	for _, d := range st.GetDetails() {
		var info errdetails.ErrorInfo
		if err := d.UnmarshalTo(&info); err == nil {
			if info.GetDomain() != errorDomain {
				t.Errorf("domain %q", info.GetDomain())
			}
			return &info
		}
	}
	t.Fatalf("no ErrorInfo in %v", st)
	return nil
}

func reasonOf(t testing.TB, err error) reason {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	return reason(infoOf(t, status.Convert(err).Proto()).GetReason())
}

func jsonStatus(t testing.TB, body string) *statuspb.Status {
	t.Helper()
	var st statuspb.Status
	if err := protojson.Unmarshal([]byte(body), &st); err != nil {
		t.Fatalf("%q is no status: %v", body, err)
	}
	return &st
}

// stream is a Session stream with the answers sorted out.
type stream struct {
	t testing.TB
	pb.LockSidecar_SessionClient
	id     string
	events []*pb.Event
	cancel context.CancelFunc
}

func (s *sidecar) stream(t testing.TB, c pb.LockSidecarClient, open *pb.OpenSessionRequest) *stream {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	st, err := c.Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	x := &stream{t: t, LockSidecar_SessionClient: st, cancel: cancel}
	x.send(&pb.SessionRequest{RequestId: "open", Request: &pb.SessionRequest_Open{Open: open}})
	x.id = x.answer("open").GetOpened().GetSessionId()
	return x
}

func (x *stream) send(q *pb.SessionRequest) {
	x.t.Helper()
	if err := x.Send(q); err != nil && !errors.Is(err, io.EOF) {
		x.t.Fatal(err)
	}
}

// answer receives until the answer to id comes; events on the way are kept.
func (x *stream) answer(id string) *pb.SessionResponse {
	x.t.Helper()
	for {
		a, err := x.Recv()
		if err != nil {
			x.t.Fatalf("waiting for %q: %v", id, err)
		}
		if e := a.GetEvent(); e != nil {
			x.events = append(x.events, e)
			continue
		}
		if a.GetRequestId() == id {
			return a
		}
		x.t.Fatalf("waiting for %q, got %v", id, a)
	}
}

func (x *stream) acquire(id string, q *pb.AcquireRequest) {
	x.send(&pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Acquire{Acquire: q}})
}

func (x *stream) release(id, lockID string) *pb.SessionResponse {
	x.t.Helper()
	x.send(&pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: lockID}}})
	return x.answer(id)
}

// lost receives until a loss is told.
func (x *stream) lost() *pb.Lost {
	x.t.Helper()
	for {
		for i, e := range x.events {
			if e.GetLost() != nil {
				x.events = x.events[i+1:]
				return e.GetLost()
			}
		}
		x.events = nil
		a, err := x.Recv()
		if err != nil {
			x.t.Fatalf("waiting for a loss: %v", err)
		}
		if e := a.GetEvent(); e != nil {
			x.events = append(x.events, e)
		}
	}
}

func compact(s string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(s)) != nil {
		return s
	}
	return b.String()
}
