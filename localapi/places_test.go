package localapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

func few(_ *session.Options, o *Options) {
	o.Limits.Connections = 16
	o.Limits.Handshake = time.Hour // no limit of time helps here
	o.Limits.Idle = time.Hour
	o.Limits.Body = time.Hour
}

// Clients that keep their connections and want nothing do not keep out one that
// wants something, however many they are, and cost no lock.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	for name, said := range map[string]string{
		"silent":        "",
		"half a header": "GET /healthz HT",
		"half a body":   "POST /v1/hold HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
		"half gRPC":     http2Preface,
		"half a line":   `{"requestId":"1","open":`,
		"spoke once":    "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, few)
			x := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
			x.acquire("1", &pb.AcquireRequest{Resource: "r"})
			lockID := x.answer("1").GetGranted().GetLockId()
			for range 50 {
				c := s.dial(t)
				if _, err := c.Write([]byte(said)); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Log(err)
				}
			}
			eventually(t, "served", func() bool { // one in a call of its own is not idle
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/v1/info", nil)
				if err != nil {
					t.Fatal(err)
				}
				a, err := s.http(t).Do(r)
				return err == nil && a.Body.Close() == nil && a.StatusCode == 200
			})
			if n := s.server.places.count(); n > 16 {
				t.Errorf("%d connections", n)
			}
			if x.release("2", lockID).GetReleased() == nil {
				t.Error("the holder was closed to make room")
			}
		})
	}
}

// Connections in use are not closed for another.
func TestTooManyConnections(t *testing.T) {
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.Connections = 3 })
	var held []*stream
	for range 3 {
		held = append(held, s.stream(t, s.api(t), &pb.OpenSessionRequest{}))
	}
	code, body := call(t, s.http(t), "GET", "/v1/info", "")
	st := jsonStatus(t, body)
	if code != http.StatusTooManyRequests || !strings.Contains(st.GetMessage(), "at most 3 connections") {
		t.Errorf("HTTP: %d %s", code, body)
	}
	if info := infoOf(t, st); info.GetReason() != "LIMIT_EXCEEDED" || info.GetMetadata()["max"] != "3" {
		t.Errorf("HTTP: %v", info)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := s.api(t).GetInfo(ctx, &pb.GetInfoRequest{}); err == nil || !strings.Contains(err.Error(), "UNAVAILABLE") && !strings.Contains(err.Error(), "Unavailable") {
		t.Errorf("gRPC: %v", err)
	}
	held[0].cancel() // its connection is idle now
	eventually(t, "served again", func() bool {
		code, _ := call(t, s.http(t), "GET", "/v1/info", "")
		return code == 200
	})
}

// TestPlaces is the order in which connections of several users make room.
func TestPlaces(t *testing.T) {
	of := func(uid uint32) *conn { return &conn{peer: &peercred.Peer{UID: uid}} }
	admit := func(p *places, c *conn) *conn {
		t.Helper()
		evicted, err := p.admit(c)
		if err != nil {
			t.Fatal(err)
		}
		return evicted
	}
	refused := func(p *places, c *conn, limit string, n int) {
		t.Helper()
		var l *session.LimitError
		if _, err := p.admit(c); !errors.As(err, &l) || l.Limit != limit || l.Max != n {
			t.Errorf("admit: %v, want %s %d", err, limit, n)
		}
	}
	t.Run("the limit of one user", func(t *testing.T) {
		p := newPlaces(8, each(3, 0, 0))
		var mine []*conn
		for range 3 {
			c := of(1)
			admit(p, c)
			p.enter(c)
			mine = append(mine, c)
		}
		refused(p, of(1), "connections of one user", 3)
		p.leave(mine[2])
		p.leave(mine[0])
		if got := admit(p, of(1)); got != mine[2] {
			t.Error("not the one that was idle for longest")
		}
		p.free(mine[2]) // its Close comes later
		if p.count() != 3 {
			t.Errorf("%d taken", p.count())
		}
	})
	t.Run("who has the most makes room", func(t *testing.T) {
		p := newPlaces(8, each(6, 0, 0))
		p.firstWord = 0
		var first *conn
		for i := range 6 {
			c := of(1)
			admit(p, c)
			if i == 0 {
				first = c
			}
		}
		busy := of(2)
		admit(p, busy)
		p.enter(busy)
		admit(p, of(3))
		if got := admit(p, of(2)); got != first {
			t.Error("somebody else made room")
		}
	})
	t.Run("who has less makes no room", func(t *testing.T) {
		p := newPlaces(4, each(4, 0, 0))
		for range 3 {
			c := of(1)
			admit(p, c)
			p.enter(c)
		}
		admit(p, of(2))
		refused(p, of(1), "connections", 4)
	})
	t.Run("a place for each user", func(t *testing.T) {
		p := newPlaces(32, each(32, 0, 0))
		for range 30 { // all but the reserve
			c := of(1)
			admit(p, c)
			p.enter(c)
		}
		refused(p, of(1), "connections", 32)
		c := of(2)
		admit(p, c)
		p.enter(c)
		refused(p, of(2), "connections", 32)
		admit(p, of(3))
	})
	t.Run("a first request that is on its way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := newPlaces(8, each(2, 0, 0))
			fresh, used := of(1), of(1)
			admit(p, fresh)
			admit(p, used)
			refused(p, of(1), "connections of one user", 2)
			p.enter(used)
			p.leave(used)
			if got := admit(p, of(1)); got != used {
				t.Error("not the one that had its answer")
			}
			time.Sleep(firstWord)
			if got := admit(p, of(1)); got != fresh { // it says nothing
				t.Error("the silent one made no room")
			}
		})
	})
	t.Run("nothing is left", func(t *testing.T) {
		p := newPlaces(4, each(4, 0, 0))
		for range 20 {
			c := of(1)
			admit(p, c)
			p.enter(c)
			p.free(c) // before the call has ended
			p.leave(c)
		}
		if p.taken != 0 || len(p.users) != 0 {
			t.Errorf("%d taken by %d users", p.taken, len(p.users))
		}
	})
}

// A session of an app whose connection is closed already could not be ended by
// the app's end: nobody watches it any more. It is not opened.
func TestOpenSessionOnAClosedConnection(t *testing.T) {
	s := start(t)
	w, err := peercred.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	uc := s.dial(t).(*net.UnixConn) // the other end of which is us as well
	p, err := peercred.Identify(uc)
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{UnixConn: uc, peer: p, places: s.server.places, counted: s.server.unread}
	if err := w.Watch(p, uc, func() {}); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	api := &service{Server: s.server}
	if _, err := api.OpenSession(withConn(t.Context(), c), &pb.OpenSessionRequest{}); !errors.Is(err, errGone) {
		t.Errorf("OpenSession: %v", err)
	}
	if n := s.manager.Info().Sessions; n != 0 {
		t.Errorf("%d sessions", n)
	}
}

// An app that dies while it is looked at. This is for the race detector.
func TestPeerDiesDuringGreet(t *testing.T) {
	s := start(t)
	for range 30 {
		app := exec.Command("/proc/self/exe")
		app.Env = append(os.Environ(), childEnv+"=passer-by", socketEnv+"="+s.socket, "GORACE=atexit_sleep_ms=0")
		if err := app.Run(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all places free", func() bool { return s.server.places.count() == 0 })
}
