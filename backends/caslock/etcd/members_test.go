package etcd

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// storeAt opens a store with these members.
func storeAt(t *testing.T, addrs, options string) *store {
	t.Helper()
	cfg, err := parseURL("etcd://" + addrs + options)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(cfg)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// turnNow is the connection to the member whose turn it is; nil: it was not made yet.
func (s *store) turnNow() *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turn
}

var look = caslock.Txn{Read: []caslock.Range{{Key: "x"}}}

// A watch begins at a member that takes connections and says nothing. Requests move on to the next
// one, and so does the watch.
func TestWatchLeavesASilentMember(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := storeAt(t, silent.Addr().String()+","+testengine.Nodes(t, testengine.Shared(t, testengine.Etcd))[0].Addr(), "?timeout=1s")
	ctx, cancel := context.WithCancel(t.Context())
	ready, over := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(over)
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_ = s.Watch(ctx, "x", func() {
				select {
				case ready <- struct{}{}:
				default:
				}
			}, func(caslock.KV) {})
		}
	}()
	defer func() {
		cancel()
		<-over
	}()
	eventually(t, "the watch begins", func() error {
		if s.turnNow() == nil {
			return errors.New("nobody has asked for a connection")
		}
		return nil
	})
	eventually(t, "a request is answered", func() error {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, caslock.ErrNoAnswer)
		defer cancel()
		_, err := s.Do(ctx, look)
		return err
	})
	select {
	case <-ready:
	case <-time.After(patience / 2):
		t.Errorf("the watch stays at the member that says nothing")
	}
}

// Requests come two at a time, and the first of two members says nothing when a user logs in. Both of them turn to the other one
// together: the second one does not turn back.
func TestManyLeaveASilentMember(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	server := testengine.New(t, testengine.Etcd)
	authenticate(t, server)
	s := storeAt(t, "sidecar:s%40cret@"+silent.Addr().String()+","+testengine.Nodes(t, server)[0].Addr(), "?timeout=3s")
	var answered atomic.Int32
	for end := time.Now().Add(patience / 2); answered.Load() == 0; {
		var both sync.WaitGroup
		for range 2 {
			both.Go(func() {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Second, caslock.ErrNoAnswer)
				defer cancel()
				if _, err := s.Do(ctx, look); err == nil {
					answered.Add(1)
				}
			})
		}
		if both.Wait(); time.Now().After(end) {
			t.Fatal("the member that answers is not asked")
		}
	}
}

// An app that waits no longer for an answer says nothing about the member that was asked, and nor
// does what the member refuses. Its connection stays, with the requests and the watch on it.
func TestWhoDoesNotTurnToTheNextMember(t *testing.T) {
	t.Parallel()
	server := testengine.New(t, testengine.Etcd)
	addr := testengine.Nodes(t, server)[0].Addr()
	s := storeAt(t, addr+","+addr, "?timeout=10s")
	put := caslock.Txn{Then: []caslock.Write{{Key: "x", Value: []byte("x")}}}
	eventually(t, "a request is answered", func() error {
		_, err := s.Do(t.Context(), put)
		return err
	})
	before := s.turnNow()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Do(gone, put); err == nil || s.turnNow() != before {
		t.Errorf("an app that is gone: %v; another member: %t", err, s.turnNow() != before)
	}
	restore := fill(t, server)
	if _, err := s.Do(t.Context(), put); err == nil || s.turnNow() != before {
		t.Errorf("a full store: %v; another member: %t", err, s.turnNow() != before)
	}
	restore()
	if _, err := s.Do(t.Context(), put); err != nil {
		t.Error(err)
	}
}

// fill raises the alarm of a server whose database is full. restore takes it back.
func fill(t *testing.T, s testengine.Server) (restore func()) {
	t.Helper()
	c := stranger(t, s)
	st, err := c.Status(t.Context(), "http://"+testengine.Nodes(t, s)[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	set := func(a pb.AlarmRequest_AlarmAction) {
		_, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), &pb.AlarmRequest{Action: a, MemberID: st.Header.MemberId, Alarm: pb.AlarmType_NOSPACE})
		if err != nil {
			t.Fatal(err)
		}
	}
	set(pb.AlarmRequest_ACTIVATE)
	return func() { set(pb.AlarmRequest_DEACTIVATE) }
}

// A store that is full takes no locks and no heartbeats, and says what a person has to do. All goes on when
// there is room again.
func TestStoreIsFull(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Etcd)
	_, l := sidecar(t, s.URL(), 2*time.Minute)
	kept := hold(t, l, "kept")
	restore := fill(t, s)
	if _, err := l.Acquire(t.Context(), request("r")); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "disarm the alarm") {
		t.Errorf("Acquire: %v", err)
	}
	if err := beat(t.Context(), l); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("a heartbeat: %v", err)
	}
	restore()
	eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	release(t, l, kept)
	release(t, l, hold(t, l, "r"))
}
