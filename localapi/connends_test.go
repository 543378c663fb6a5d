package localapi

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"
	"weak"

	"google.golang.org/grpc"

	"github.com/locksidecar/locksidecar/localapi/peercred"
)

// accepted is a connection that a server has given a place.
func accepted(t *testing.T, s *Server) *conn {
	t.Helper()
	uc, _ := pair(t)
	p, err := peercred.Identify(uc)
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{UnixConn: uc, peer: p, places: s.places, counted: s.unread}
	if s.o.Manager != nil {
		s.name(c)
	}
	if _, err := s.places.admit(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// TestEndOfAConnection: it ends the calls, the watches, and all that is counted for it,
// once.
func TestEndOfAConnection(t *testing.T) {
	s := New(Options{})
	c := accepted(t, s)
	calls := c.calls(t.Context())
	ignored := 0
	if err := c.listenForHangUp(func(*net.UnixConn, func()) (func(), error) { return func() { ignored++ }, nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.unread.take(c, 5); err != nil {
		t.Fatal(err)
	}
	if calls.Err() != nil {
		t.Fatal("the calls end before the connection does")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if calls.Err() == nil {
		t.Error("the calls go on")
	}
	if later := c.calls(t.Context()); later.Err() == nil {
		t.Error("a call begins on a connection that is closed")
	}
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the second time: %v", err)
	}
	if ignored != 1 {
		t.Errorf("the watch was ended %d times", ignored)
	}
	if s.places.count() != 0 || len(s.unread.taken) != 0 {
		t.Errorf("%d places, unread by %v", s.places.count(), s.unread.taken)
	}
	if err := s.unread.take(c, 5); err != nil || len(s.unread.taken) != 0 {
		t.Errorf("an answer that comes later is counted: %v, %v", s.unread.taken, err)
	}
	if c.peer.Retain() {
		t.Error("the peer is still watched")
	}
	if err := c.listenForHangUp(func(*net.UnixConn, func()) (func(), error) { return func() { ignored++ }, nil }); err != nil || ignored != 2 {
		t.Errorf("a watch that begins later was ended %d times, %v", ignored-1, err)
	}
}

// TestHangUp: it ends the calls that are there and those that come, and the connection
// stays for the answers.
func TestHangUp(t *testing.T) {
	s := New(Options{})
	for name, early := range map[string]bool{"before the first call": true, "during a call": false} {
		t.Run(name, func(t *testing.T) {
			c := accepted(t, s)
			defer func() { _ = c.Close() }()
			var hangUp func()
			if err := c.listenForHangUp(func(_ *net.UnixConn, f func()) (func(), error) {
				hangUp = f
				return func() {}, nil
			}); err != nil {
				t.Fatal(err)
			}
			if early {
				hangUp()
			}
			calls := c.calls(t.Context())
			if !early {
				if calls.Err() != nil {
					t.Error("the call has ended before")
				}
				hangUp()
			}
			if calls.Err() == nil {
				t.Error("the call goes on")
			}
			if _, err := c.Write([]byte("x")); err != nil {
				t.Errorf("no answer can be given: %v", err)
			}
		})
	}
	c := accepted(t, s)
	defer func() { _ = c.Close() }()
	no := errors.New("no")
	if err := c.listenForHangUp(func(*net.UnixConn, func()) (func(), error) { return nil, no }); !errors.Is(err, no) {
		t.Errorf("a watch that fails: %v", err)
	}
}

// TestNotOurConnections: a call that came over no connection of the server is nobody's,
// and gRPC gets none but those.
func TestNotOurConnections(t *testing.T) {
	if _, err := permit(t.Context()); err == nil {
		t.Error("a call without a connection is permitted")
	}
	other, _ := pair(t)
	var creds unixCredentials
	if _, _, err := creds.ServerHandshake(other); err == nil {
		t.Error("a connection that was not identified is served")
	}
	if _, _, err := creds.ClientHandshake(context.Background(), "", other); err == nil {
		t.Error("the server is a client")
	}
	c := accepted(t, New(Options{}))
	c.allowed = true
	if got, info, err := creds.ServerHandshake(c); got != c || info.AuthType() != "SO_PEERCRED" || err != nil {
		t.Errorf("%v %v %v", got, info, err)
	}
	if got, err := permit(withConn(t.Context(), c)); got != c || err != nil {
		t.Errorf("%v %v", got, err)
	}
}

// TestGivenToAServerThatStops: the connection is closed.
func TestGivenToAServerThatStops(t *testing.T) {
	s := New(Options{})
	c := accepted(t, s)
	_ = s.httpConns.Close()
	_ = s.httpConns.Close() // grpc-go and net/http do so, too
	s.httpConns.give(c)
	if s.places.count() != 0 {
		t.Error("it was not closed")
	}
	if _, err := s.httpConns.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if a := s.httpConns.Addr(); a.Network() != "unix" {
		t.Errorf("%v", a)
	}
}

// TestGivenWithoutADeadline: that of the handshake is not the protocol's.
func TestGivenWithoutADeadline(t *testing.T) {
	s := New(Options{})
	uc, client := pair(t)
	c := &conn{UnixConn: uc}
	_ = c.SetDeadline(time.Unix(1, 0))
	go s.httpConns.give(c)
	got, err := s.httpConns.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := got.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// TestNothingKeepsAConnection: what has ended is forgotten, not only closed.
func TestNothingKeepsAConnection(t *testing.T) {
	s := start(t)
	w, err := peercred.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	watching, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	watched := make(chan error, 1)
	go func() { watched <- w.Run(watching) }()
	defer func() {
		stop()
		if err := within(t, watched); err != nil {
			t.Error(err)
		}
	}()
	for name, text := range map[string]string{
		"a session":   opening + `{"requestId":"1","acquire":{"resource":"r"}}` + "\n",
		"a look":      `{"requestId":"1","getLock":{"resource":"r"}}` + "\n",
		"a watch":     `{"requestId":"1","watchLocks":{"prefix":"none"}}` + "\n",
		"a refusal":   "{}\n",
		"not a word":  "",
		"half a line": "{",
	} {
		t.Run(name, func(t *testing.T) {
			serve := func() weak.Pointer[conn] {
				ours, client := pair(t)
				p, err := peercred.Identify(ours)
				if err != nil {
					t.Fatal(err)
				}
				c := &conn{UnixConn: ours, peer: p, places: s.server.places, counted: s.server.unread, allowed: true, space: s.manager.Everybody()}
				if _, err := s.server.places.admit(c); err != nil {
					t.Fatal(err)
				}
				served := make(chan struct{})
				go func() {
					defer close(served)
					s.server.serveLines(c, w)
				}()
				if _, err := io.WriteString(client, text); err != nil {
					t.Fatal(err)
				}
				if len(text) > 1 {
					if _, err := client.Read(make([]byte, 1)); err != nil {
						t.Fatal(err)
					}
				}
				_ = client.Close()
				within(t, served)
				return weak.Make(c)
			}
			gone := serve()
			eventually(t, "forgotten", func() bool {
				runtime.GC()
				return gone.Value() == nil
			})
			if n := s.server.places.count(); n != 0 {
				t.Errorf("%d places are taken", n)
			}
		})
	}
}

// oneStream is a call over gRPC as the server sees it.
type oneStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // what it is about
}

func (x *oneStream) Context() context.Context { return x.ctx }

// TestNothingKeepsAStream is the same for calls over gRPC that answer with a stream.
func TestNothingKeepsAStream(t *testing.T) {
	s := New(Options{})
	c := accepted(t, s)
	c.allowed = true
	type key struct{}
	serve := func() weak.Pointer[[100]byte] {
		kept := new([100]byte)
		st := &oneStream{ctx: context.WithValue(withConn(t.Context(), c), key{}, kept)}
		err := s.streamEdge(nil, st, &grpc.StreamServerInfo{FullMethod: "m"}, func(_ any, st grpc.ServerStream) error {
			if st.Context().Err() != nil {
				t.Error("it has ended before")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		return weak.Make(kept)
	}
	gone := serve()
	eventually(t, "forgotten", func() bool {
		runtime.GC()
		return gone.Value() == nil
	})
	if n := c.longCalls.Load(); n != 0 {
		t.Errorf("%d calls are counted", n)
	}
}
