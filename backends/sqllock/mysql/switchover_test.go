package mysql

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The old primary is read-only and alive, with all its connections: bells, and those who
// ring them, go with the heartbeats to the new one.
func TestBellsFollowTheHeartbeats(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.MariaDBPair)
	url := with(s.URL(), "failover-grace=0s")
	var deaf atomic.Int64 // bells that were not there
	b := openWith(t, url, func(command string, _ time.Duration, err error) {
		if command == "ring" && err != nil {
			deaf.Add(1)
		}
	})
	t.Cleanup(func() { _ = b.Close() })
	l := leaseOf(t, b)
	_, other := sidecar(t, url, 30*time.Second)
	handOver := func() {
		t.Helper()
		r := unique("r")
		g := hold(t, l, r)
		next := acquire(t, other, exclusive(r))
		eventually(t, "it waits", func() error { return waits(t, b, r) })
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		if err := other.Release(t.Context(), r, next.granted().ID); err != nil {
			t.Fatal(err)
		}
	}
	handOver()
	testengine.FailOver(t, s, testengine.KeepData)
	for _, l := range []lock.Lease{l, other} {
		eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	}
	for _, id := range []lock.LeaseID{l.ID(), other.ID()} {
		eventually(t, "the bell is on the new server", func() error {
			if number(t, b, "SELECT COALESCE(IS_USED_LOCK(?), 0)", bellName(id)) == 0 {
				return errors.New("it is not")
			}
			return nil
		})
	}
	before := deaf.Load()
	handOver()
	if n := deaf.Load() - before; n > 0 {
		t.Errorf("%d bells were rung where they are not", n)
	}
}

// The server that opened the first lease is the one that is asked, though a host in front of
// it takes writes again: one connection that fails does not lead there.
func firstLeaseKeepsItsServer(t *testing.T, first, second testengine.Server) {
	admin, _ := sidecar(t, first.URL(), 30*time.Second) // both have tables
	sidecar(t, second.URL(), 30*time.Second)
	execute(t, admin, "SET GLOBAL read_only=1")
	road := testengine.Through(t, second)
	url := strings.Replace(first.URL(), "/locksidecar", ","+mustParse(t, road.URL()).Addrs[0]+"/locksidecar", 1)
	_, l := sidecar(t, url, 30*time.Second)
	g := hold(t, l, "r")
	execute(t, admin, "SET GLOBAL read_only=0")
	road.Inject(testengine.Cut)
	if _, err := l.Acquire(t.Context(), exclusive("other")); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Acquire while the server cannot be reached: %v", err)
	}
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Error(err)
	}
}
