package localapi

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

func (s *sidecar) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// closed waits until the server closes c.
func closed(t testing.TB, c net.Conn) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("not closed: %v", err)
	}
}

// Clients that connect and do not speak, or not to the end, are not waited for.
func TestSilentClients(t *testing.T) {
	s := start(t, func(_ *session.Options, o *Options) {
		o.Limits.Handshake = 50 * time.Millisecond
		o.Limits.Body = 50 * time.Millisecond
		o.Limits.Idle = 50 * time.Millisecond
	})
	for name, said := range map[string]string{
		"nothing":             "",
		"half a preface":      "PRI * HT",
		"preface only":        http2Preface,
		"half a header":       "GET /healthz HT",
		"half a body":         "POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
		"idle after a call":   "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"garbage":             "\x00\x01\x02\x03\r\n\r\n",
		"TLS":                 "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"preface and garbage": http2Preface + strings.Repeat("\xff", 100),
	} {
		t.Run(name, func(t *testing.T) {
			var c net.Conn
			eventually(t, "it has spoken in time", func() bool {
				c = s.dial(t)
				_, err := c.Write([]byte(said))
				return err == nil
			})
			closed(t, c)
		})
	}
	eventually(t, "all slots free", func() bool { return s.server.places.count() == 0 })
}

// One byte at a time is slow, not wrong.
func TestSlowSniff(t *testing.T) {
	s := start(t)
	for text, want := range map[string]string{
		"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}": "HTTP/1.1 200 OK\r\n",
		"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":                             "HTTP/1.1 200 OK\r\n",
		`{"requestId":"1","getLock":{"resource":"r"}}` + "\n":                  `{"requestId":"1","lock":{"resource":"r","holders":[],"waiters":[]}}` + "\n",
	} {
		c := s.dial(t)
		for _, b := range []byte(text) {
			if _, err := c.Write([]byte{b}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Microsecond) // so that it is often read alone
		}
		if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != want {
			t.Errorf("%q: %q %v", text, line, err)
		}
	}
}

// 10,000 connections that want nothing do not keep out one that does, once they
// are gone, and cost the sidecar no more than its limit of them.
func TestTenThousandConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("many files")
	}
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Connections = 500 })
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{}) // was there before
	for range 10 {
		conns := make([]net.Conn, 0, 1000)
		for range 1000 {
			var c net.Conn
			eventually(t, "a connection is made", func() bool {
				var err error
				c, err = net.Dial("unix", s.socket)
				if err != nil && !errors.Is(err, syscall.EAGAIN) { // else nobody has had time to accept the others
					t.Fatal(err)
				}
				return err == nil
			})
			conns = append(conns, c)
		}
		x.acquire("1", tryOnce("r"))
		x.release("2", x.answer("1").GetGranted().GetLockId())
		for _, c := range conns {
			_ = c.Close()
		}
	}
	eventually(t, "served again", func() bool {
		a, err := s.http(t).Get("http://x/v1/info")
		if err != nil { // closed without a word: too many are being told at the moment
			return false
		}
		return a.Body.Close() == nil && a.StatusCode == 200
	})
}

// A holder that is killed loses its lock at once, though a child of it still
// has the socket open.
func TestKilledHolderWithAChild(t *testing.T) {
	s := start(t)
	app := exec.Command("/proc/self/exe")
	app.Env = append(os.Environ(), childEnv+"=holder", socketEnv+"="+s.socket)
	app.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that the clean-up finds the child
	app.Stderr = os.Stderr
	out, err := app.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-app.Process.Pid, syscall.SIGKILL)
		_ = app.Wait()
	})
	said := make(chan string, 2)
	go func() {
		for sc, n := bufio.NewScanner(out), 0; n < 2 && sc.Scan(); n++ {
			said <- sc.Text()
		}
	}()
	for range 2 {
		if w := within(t, said); w != "held" && w != "kept" {
			t.Fatalf("the app says %q", w)
		}
	}
	st, err := s.manager.Everybody().Get(t.Context(), "r")
	if err != nil || len(st.Holders) != 1 || int(st.Holders[0].Owner.PID) != app.Process.Pid {
		t.Fatalf("%v %v", st, err)
	}
	x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	x.acquire("1", &pb.AcquireRequest{Resource: "r"})
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	killed := time.Now()
	if err := app.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if x.answer("1").GetGranted() == nil {
		t.Fatal("not granted")
	}
	t.Logf("granted %s after the kill", time.Since(killed))
	if syscall.Kill(-app.Process.Pid, 0) != nil {
		t.Error("the child was not there: this test shows nothing")
	}
}

// A session with liveness PROCESS outlives the connection that opened it, and
// not the process.
func TestProcessSession(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Fatal("curl is not installed: make test-deps")
	}
	s := start(t)
	_, body := call(t, s.http(t), "POST", "/v1/sessions", `{"liveness":"PROCESS"}`)
	id := field(t, body, "sessionId")
	if code, body := call(t, s.http(t), "POST", "/v1/sessions/"+id+"/locks", `{"resource":"r"}`); code != 200 {
		t.Fatal(body)
	}
	out, err := exec.Command(curl, "-s", "--unix-socket", s.socket, "http://x/v1/sessions", "-d", `{"liveness":"PROCESS"}`).Output()
	if err != nil {
		t.Fatal(err)
	}
	other := field(t, string(out), "sessionId")
	eventually(t, "ended", func() bool {
		code, _ := call(t, s.http(t), "POST", "/v1/sessions/"+other+"/locks", `{"resource":"other"}`)
		return code == http.StatusNotFound
	})
	if i := s.manager.Info(); i.Holds != 1 || i.Sessions != 1 {
		t.Errorf("%+v", i)
	}
}

func TestHealth(t *testing.T) {
	s := start(t)
	c := healthpb.NewHealthClient(s.dialGRPC(t))
	for _, name := range []string{"", "locksidecar.v1.LockSidecar"} {
		a, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || a.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v %v", name, a, err)
		}
	}
	if _, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "x"}); status.Code(err) != codes.NotFound {
		t.Errorf("unknown service: %v", err)
	}
	w, err := c.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := w.Recv(); err != nil || a.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Fatalf("%v %v", a, err)
	}
	go func() { _ = s.manager.Drain(t.Context()) }()
	if a, err := w.Recv(); err != nil || a.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v %v", a, err)
	}
	if code, body := call(t, s.http(t), "GET", "/readyz", ""); code != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, body := call(t, s.http(t), "POST", "/v1/hold", `{"resource":"r"}`); code != http.StatusServiceUnavailable || infoOf(t, jsonStatus(t, body)).GetReason() != "DRAINING" {
		t.Errorf("hold: %d %s", code, body)
	}
}

// Stop ends every kind of call soon, each with a reason.
func TestStop(t *testing.T) { overEachWire(t, testStop) }

func testStop(t *testing.T, w wireName) {
	s := start(t)
	c := s.streams(t, w)
	x := s.stream(t, c, &pb.OpenSessionRequest{})
	x.acquire("1", &pb.AcquireRequest{Resource: "r"})
	x.answer("1")
	watch, err := c.WatchLocks(t.Context(), &pb.WatchLocksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := watch.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	a := post(t, s.http(t), t.Context(), "/v1/hold", `{"resource":"h"}`)
	hold := lines(t, a.Body)
	within(t, hold)
	waiting := make(chan string, 1)
	go func() {
		_, body := call(t, s.http(t), "POST", "/v1/hold", `{"resource":"h"}`)
		waiting <- body
	}()
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	began := time.Now()
	s.stop()
	if d := time.Since(began); d > stopLimit+20*time.Second {
		t.Errorf("took %s", d)
	}
	for err == nil {
		_, err = x.Recv()
	}
	if r := reasonOf(t, err); r != reasonDraining {
		t.Errorf("session: %s", r)
	}
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	if r := reasonOf(t, err); r != reasonDraining {
		t.Errorf("watch: %s", r)
	}
	var last map[string]map[string]any
	for m := range hold {
		last = m
	}
	if last["error"]["code"] != float64(codes.Unavailable) {
		t.Errorf("hold: %v", last)
	}
	// It may have been granted what the first one let go.
	if body := strings.TrimSpace(within(t, waiting)); !strings.Contains(body[strings.LastIndexByte(body, '\n')+1:], "DRAINING") {
		t.Errorf("waiting hold: %s", body)
	}
}

func FuzzSniff(f *testing.F) {
	for _, s := range []string{"", "P", "PRI", "PRI * HTTP/2.0", http2Preface, "PRI * HTTP/1.1\r\n", "POST / HTTP/1.1\r\n", "GET", "PUT", "\x00", "pri * http/2.0", "{", "{}\n", "P{"} {
		f.Add([]byte(s), 1)
		f.Add([]byte(s), 100)
	}
	f.Fuzz(func(t *testing.T, said []byte, chunk int) {
		p, read, err := sniff(&chunks{data: said, size: max(1, chunk)})
		if !bytes.HasPrefix(said, read) {
			t.Fatalf("%q changed to %q", said, read)
		}
		isPreface := bytes.HasPrefix(said, []byte(http2Preface[:sniffLength]))
		isLines := bytes.HasPrefix(said, []byte("{"))
		isStart := strings.HasPrefix(http2Preface[:sniffLength], string(said))
		switch {
		case isPreface && (p != protocolGRPC || err != nil), // HTTP/2
			!isPreface && isStart && err == nil,                                     // ended too early
			isLines && (p != protocolLines || err != nil),                           // JSON
			!isPreface && !isStart && !isLines && (p != protocolHTTP || err != nil): // anything else
			t.Fatalf("%q: %v %v", said, p, err)
		}
		if len(read) > sniffLength {
			t.Fatalf("read %d bytes", len(read))
		}
	})
}

// chunks is a connection that gives its data in pieces.
type chunks struct {
	net.Conn
	data []byte
	size int
}

func (c *chunks) Read(b []byte) (int, error) {
	if len(c.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), c.size)], c.data)
	c.data = c.data[n:]
	return n, nil
}

func FuzzBody(f *testing.F) {
	for _, s := range []string{
		"", "{}", "null", "[]", `{"resource":"r"}`, `{"resource":"r","wait":"5s","mode":"SHARED","maxHold":"1.5s","metadata":{"a":"b"}}`,
		`{"wait":"-1s"}`, `{"wait":5}`, `{"mode":3}`, `{"x":1}`, "{\"resource\":\"\xff\"}", `{"resource":"a","resource":"b"}`, `{"metadata":{"a":{}}}`, `{"wait":null}`, `{`, `{"wait":"1e9s"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var q pb.AcquireRequest
		err := decode(body, &q)
		if err == nil {
			_, err = acquireRequestOf("id", &q)
		}
		if err != nil {
			st := toStatus(err)
			if httpCode(st) != http.StatusBadRequest {
				t.Fatalf("%q: %v", body, st)
			}
			if _, line := marshalStatus(st); bytes.Count(line, []byte("\n")) != 1 {
				t.Fatalf("%q: %q", body, line)
			}
		}
	})
}

// An app that opens session after session, each over a connection that it closes,
// takes no files from others. (peercred sees to that for PROCESS sessions, where the
// kernel lets it.)
func TestSessionsHoldNoFiles(t *testing.T) {
	s := start(t)
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := files()
	const n = 100
	for range n {
		c := s.http(t)
		if code, body := call(t, c, "POST", "/v1/sessions", `{"ttl":"60s"}`); code != 200 {
			t.Fatal(body)
		}
		c.CloseIdleConnections()
	}
	eventually(t, "closed", func() bool { return s.server.places.count() == 0 })
	if took := files() - before; took > n/10 {
		t.Errorf("%d sessions take %d files", n, took)
	}
}
