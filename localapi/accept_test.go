package localapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/net/http2"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// logTo makes a sidecar write all that it logs to out.
func logTo(out *logLines) func(*session.Options, *Options) {
	return func(_ *session.Options, o *Options) {
		o.Logger = hclog.New(&hclog.LoggerOptions{Output: out, Level: hclog.Debug})
	}
}

// noFiles is a listener of a process that may open no more files.
type noFiles struct {
	until time.Time // then it is closed
	asked int
}

func (l *noFiles) AcceptUnix() (*net.UnixConn, error) {
	if l.asked++; time.Now().Before(l.until) {
		return nil, syscall.EMFILE
	}
	return nil, net.ErrClosed
}

// TestAcceptGoesOn: where no connection can be taken, the sidecar tries again, without
// haste, and says so every ten seconds, until it stops.
func TestAcceptGoesOn(t *testing.T) {
	for name, ended := range map[string]bool{"until the listener is closed": false, "until the end": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out logLines
				s := New(Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &out})})
				l := &noFiles{until: time.Now().Add(25 * time.Second)}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began := time.Now()
				if ended {
					time.AfterFunc(24*time.Second+acceptPause/2, cancel)
				}
				s.accept(ctx, l, nil, nil)
				s.running.Wait()
				if took, want := time.Since(began), 25*time.Second; !ended && took != want || ended && took >= want {
					t.Errorf("it took %s", took)
				}
				if l.asked < 100 || l.asked > 1000 {
					t.Errorf("it tried %d times in 25 s", l.asked)
				}
				if n := strings.Count(out.String(), "[ERROR] cannot accept connections; trying again and again: error=\"too many open files\""); n != 3 {
					t.Errorf("%d lines: %s", n, out.String())
				}
			})
		})
	}
}

// pair is a connection to nobody's server: our end, and that of the client.
func pair(t *testing.T) (ours, client *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(socketDir(t), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	d, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	_ = d.SetDeadline(time.Now().Add(patience))
	if ours, err = l.AcceptUnix(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ours.Close() })
	return ours, d.(*net.UnixConn)
}

// idle is a manager that does not run.
func idle(t *testing.T) *session.Manager {
	t.Helper()
	store := embedded.New()
	t.Cleanup(func() { _ = store.Close() })
	m, err := session.New(session.Options{Backend: store})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestUnknownPeers: a connection whose peer cannot be told, or not be watched, is closed,
// and the log says why.
func TestUnknownPeers(t *testing.T) {
	for name, x := range map[string]struct {
		enter func(*Server, *net.UnixConn)
		says  string
	}{
		"who it is": {func(s *Server, c *net.UnixConn) {
			_ = c.Close()
			s.enter(t.Context(), c, nil)
		}, "[ERROR] cannot tell who has connected: error="},
		"its groups": {func(s *Server, uc *net.UnixConn) {
			c := &conn{UnixConn: uc, peer: &peercred.Peer{UID: 1 << 30}, places: s.places, counted: s.unread}
			if _, err := s.places.admit(c); err != nil {
				t.Error(err)
			}
			_ = uc.Close()
			s.greet(t.Context(), c, nil)
		}, "[ERROR] cannot tell who has connected: error=\"read peer groups"},
		"its end": {func(s *Server, c *net.UnixConn) {
			w, err := peercred.NewWatcher()
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			s.enter(t.Context(), c, w)
		}, "[ERROR] cannot tell when the client ends: error="},
	} {
		t.Run(name, func(t *testing.T) {
			var out logLines
			s := New(Options{
				Manager: idle(t),
				Logger:  hclog.New(&hclog.LoggerOptions{Output: &out}),
				Access:  Access{AllowGIDs: []uint32{1 << 30}},
			})
			ours, client := pair(t)
			x.enter(s, ours)
			closed(t, client)
			s.running.Wait()
			if n := s.places.count(); n != 0 {
				t.Errorf("%d places are taken", n)
			}
			if !strings.Contains(out.String(), x.says) {
				t.Errorf("log: %s", out.String())
			}
		})
	}
}

// TestTurnedAway: a client for which there is no place is told so in its own protocol,
// whose connection ends then. The log has it, too.
func TestTurnedAway(t *testing.T) {
	const why = "limit reached: at most 1 connections"
	var out logLines
	s := start(t, logTo(&out), func(_ *session.Options, o *Options) { o.Limits.Connections, o.Limits.ConnectionsPerUID = 1, 5 })
	s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	logged := func() {
		t.Helper()
		eventually(t, "logged", func() bool {
			return strings.Contains(out.String(), "[WARN]  connection refused: pid=") && strings.Contains(out.String(), why)
		})
	}
	t.Run("HTTP", func(t *testing.T) {
		c := s.dial(t)
		if _, err := io.WriteString(c, "POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: 16\r\n\r\n"+`{"resource":"r"}`); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(c)
		a, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = a.Body.Close() }()
		b, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != http.StatusTooManyRequests || a.Status != "429 Too Many Requests" || !a.Close ||
			a.ContentLength != int64(len(b)) || a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %v %q %v", a.Status, a.Header, b, err)
		}
		if info := infoOf(t, jsonStatus(t, string(b))); info.GetReason() != string(reasonLimit) || info.GetMetadata()["limit"] != "connections" || info.GetMetadata()["max"] != "1" {
			t.Errorf("%v", info)
		}
		if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
			t.Errorf("then %q %v", rest, err)
		}
		_ = c.Close()
		logged()
	})
	t.Run("gRPC", func(t *testing.T) {
		c := s.dial(t)
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		f := http2.NewFramer(c, c)
		if err := f.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		if first, err := f.ReadFrame(); err != nil || first.Header().Type != http2.FrameSettings {
			t.Fatalf("%v %v", first, err)
		}
		last, err := f.ReadFrame()
		away, ok := last.(*http2.GoAwayFrame)
		if !ok || away.LastStreamID != 0 || away.ErrCode != http2.ErrCodeEnhanceYourCalm || string(away.DebugData()) != why {
			t.Errorf("%v %v", last, err)
		}
		if more, err := f.ReadFrame(); err == nil {
			t.Errorf("then %v", more)
		}
		_ = c.Close()
		logged()
	})
	t.Run("lines", func(t *testing.T) {
		c := s.says(t, opening)
		c.refusedWith("", reasonLimit, why)
		c.ends()
		_ = c.c.Close()
		logged()
	})
	t.Run("where too many are told", func(t *testing.T) {
		taken := func(n int) {
			s.server.asides.mu.Lock()
			defer s.server.asides.mu.Unlock()
			s.server.asides.all += n
		}
		taken(maxAsides)
		if said, err := io.ReadAll(s.dial(t)); err != nil || len(said) > 0 {
			t.Errorf("%q %v", said, err)
		}
		taken(-maxAsides)
	})
}

// TestAsides: who has many that are told why they are refused keeps nobody else from being told.
func TestAsides(t *testing.T) {
	a := asides{of: make(map[session.Principal]int)}
	who := func(i int) session.Principal { return session.Peer{Principal: fmt.Sprint("pod:", i)}.Who() }
	take := func(i int) (n int) {
		for a.take(who(i)) {
			n++
		}
		return n
	}
	if n := take(0); n != maxAsides/2 {
		t.Errorf("one who is alone has %d", n)
	}
	for i := range maxAsides / 2 / fewAsides {
		if n := take(1 + i); n != fewAsides {
			t.Errorf("another one has %d", n)
		}
	}
	if n := take(100); n != 0 {
		t.Errorf("there is room for %d more", n)
	}
	for who, n := range a.of {
		for range n {
			a.give(who)
		}
	}
	if a.all != 0 || len(a.of) != 0 {
		t.Errorf("left: %d, %v", a.all, a.of)
	}
}

// TestRefusalsAreCounted: of the connections of one principal that are refused, the first is logged at once, and how
// many there were every ten seconds as long as there are any. Another principal's have lines of their own.
func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out logLines
		s := New(Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &out})})
		of := func(name string) *conn { return &conn{peer: &peercred.Peer{}, principal: name} }
		full := &session.LimitError{Limit: "connections of one pod", Max: 64}
		logged := func(want ...string) {
			t.Helper()
			synctest.Wait()
			out.mu.Lock()
			defer out.mu.Unlock()
			lines := strings.Split(strings.TrimSuffix(out.text.String(), "\n"), "\n")
			out.text.Reset()
			if len(want) == 0 && len(lines) == 1 && lines[0] == "" {
				return
			}
			ok := len(lines) == len(want)
			for i := range want {
				ok = ok && strings.Contains(strings.Join(lines, "\n"), want[i])
			}
			if !ok {
				t.Errorf("logged %q, want %q", lines, want)
			}
		}
		for range 1000 {
			s.refusals.count(of("pod:shop/a"), full)
		}
		s.refusals.count(of("pod:bank/b"), full)
		logged(`connection refused: pid=0 uid=0 principal=pod:shop/a error="limit reached: at most 64 connections of one pod"`,
			`connection refused: pid=0 uid=0 principal=pod:bank/b`)
		time.Sleep(refusalsEvery - time.Millisecond)
		logged()
		time.Sleep(time.Millisecond)
		logged(`connections refused: pid=0 uid=0 principal=pod:shop/a count=999 in=10s error=`)
		s.refusals.count(of("pod:shop/a"), full)
		s.refusals.count(of("pod:bank/b"), full) // of which there was none in the meantime
		logged(`connection refused: pid=0 uid=0 principal=pod:bank/b`)
		s.refusals.count(of("pod:shop/a"), &session.LimitError{Limit: "connections of one space", Max: 5}) // another reason
		logged(`connection refused: pid=0 uid=0 principal=pod:shop/a error="limit reached: at most 5 connections of one space"`)
		time.Sleep(refusalsEvery)
		logged(`principal=pod:shop/a count=1 in=10s`)
		time.Sleep(refusalsEvery)
		logged()
		for i := range 2 * maxRefused {
			s.refusals.count(of(fmt.Sprint("pod:", i)), full)
		}
		if n := len(s.refusals.of); n != maxRefused+1 {
			t.Errorf("it counts %d", n)
		}
		s.beginStop() // what is left is logged
		synctest.Wait()
		if !strings.Contains(out.String(), fmt.Sprintf("count=%d", maxRefused-1)) {
			t.Errorf("at the end: %s", out.String())
		}
		s.running.Wait()
		s.workers.Close()
	})
}

// TestStopDoesNotWaitForTheSilent: a server that stops waits for no client whose protocol
// it does not know yet, nor for half a line.
func TestStopDoesNotWaitForTheSilent(t *testing.T) {
	var out logLines
	s := start(t, logTo(&out), func(_ *session.Options, o *Options) { o.Limits.Handshake = time.Hour })
	var all []net.Conn
	for _, text := range []string{"", "PRI * HT", `{"requestId":"o","op`} {
		c := s.dial(t)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	eventually(t, "seen", func() bool { return s.server.places.count() == len(all) })
	s.stop()
	for _, c := range all {
		_, _ = io.Copy(io.Discard, c) // what half a line is told depends on how far it was read
	}
	if n := strings.Count(out.String(), "[DEBUG] connection closed before its first request: pid="); n < 2 {
		t.Errorf("%d lines: %s", n, out.String())
	}
}

// TestStopWaitsForWhatRuns: when Run returns, nothing of the server is left.
func TestStopWaitsForWhatRuns(t *testing.T) {
	s := start(t)
	var ended atomic.Bool
	s.server.running.Go(func() {
		<-s.server.stopping.Done()
		time.Sleep(50 * time.Millisecond)
		ended.Store(true)
	})
	s.stop()
	if !ended.Load() {
		t.Error("it returned before")
	}
}

// TestStopWhileClientsConnect: nor for one that has connected at that moment.
func TestStopWhileClientsConnect(t *testing.T) {
	s := New(Options{Limits: Limits{Handshake: time.Hour}, Access: Access{AllowGIDs: []uint32{1 << 30}}})
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for range 150 {
		uc, _ := pair(t)
		c := &conn{UnixConn: uc, peer: &peercred.Peer{UID: 1 << 30}, places: s.places, counted: s.unread} // whose groups have to be asked for
		if _, err := s.places.admit(c); err != nil {
			t.Fatal(err)
		}
		greeted := make(chan struct{})
		go func() {
			defer close(greeted)
			s.greet(stopped, c, nil)
		}()
		within(t, greeted)
	}
	if n := s.places.count(); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

// forbidden is a sidecar that lets none of us in: neither our uid nor our groups are
// allowed, and it runs as somebody else.
func forbidden(t *testing.T) *sidecar {
	t.Helper()
	s := start(t)
	lo := Options{Manager: s.manager, Socket: filepath.Join(socketDir(t), "s.sock"), Access: Access{AllowUIDs: []uint32{1 << 30}, AdminUIDs: []uint32{1 << 30}}}
	server := New(lo)
	server.o.Access.self = 1 << 30
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := within(t, done); err != nil {
			t.Error(err)
		}
	})
	within(t, server.Listening())
	return &sidecar{socket: lo.Socket, manager: s.manager, server: server, stop: func() {}}
}

// TestForbidden: who may not use the API is told so by each call of each protocol, and
// learns nothing.
func TestForbidden(t *testing.T) {
	s := forbidden(t)
	c := s.http(t)
	for _, path := range []string{"/v1/info", "/healthz", "/readyz", "/metrics", "/openapi.json", "/none"} {
		code, body := call(t, c, http.MethodGet, path, "")
		st := jsonStatus(t, body)
		if code != http.StatusForbidden || infoOf(t, st).GetReason() != string(reasonPermission) || !strings.HasSuffix(st.GetMessage(), "may not use this sidecar") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	g := s.api(t)
	_, err := g.GetInfo(t.Context(), &pb.GetInfoRequest{})
	if r := reasonOf(t, err); r != reasonPermission {
		t.Errorf("GetInfo: %v", err)
	}
	w, err := g.WatchLocks(t.Context(), &pb.WatchLocksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = w.Recv(); reasonOf(t, err) != reasonPermission {
		t.Errorf("WatchLocks: %v", err)
	}
	x := s.says(t, opening)
	x.refusedWith("", reasonPermission, fmt.Sprintf("uid %d, gid", syscall.Getuid()))
	x.ends()
}
