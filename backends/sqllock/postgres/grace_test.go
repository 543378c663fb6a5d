package postgres

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A server takes over that lacks the last heartbeat of a holder, which does not reach it. So that lease is over there earlier than its
// holder knows. The sidecars that do reach it have a shorter TTL. Nobody is granted what the holder relies on all the same.
func TestLastHeartbeatIsLost(t *testing.T) {
	t.Parallel()
	again(t, testLastHeartbeatIsLost)
}

func testLastHeartbeatIsLost(t testing.TB) {
	const short, long = 4 * time.Second, 30 * time.Second
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, keeper := sidecar(t, road.URL(), short)
	keepBeating(t, keeper)
	_, holder := sidecar(t, s.URL(), long)
	held := hold(t, holder, "r", lock.Exclusive)
	began := time.Now()
	fork := forkBeside(t, s, keeper)
	time.Sleep(long/3 - time.Since(began)) // so often a sidecar renews its lease
	relies := time.Now().Add(long)
	beat(t, holder)
	lead(t, road, fork, keeper)
	eventually(t, "the new server grants", func() error {
		_, err := keeper.Acquire(t.Context(), try("r"))
		return err
	})
	isOver(t, relies, held)
}

// A sidecar is started again, and a server takes over that knows of its lease before, which was closed, and not of the next one. That
// sidecar does not reach the new server, and those that do have a shorter TTL. Nobody is granted what it relies on.
func TestLeaseAfterAClosedOneIsUnknown(t *testing.T) {
	t.Parallel()
	again(t, testLeaseAfterAClosedOneIsUnknown)
}

func testLeaseAfterAClosedOneIsUnknown(t testing.TB) {
	const short, long = 4 * time.Second, 20 * time.Second
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, keeper := sidecar(t, road.URL(), short)
	keepBeating(t, keeper)
	b, before := sidecar(t, s.URL(), long)
	if err := before.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	fork := forkBeside(t, s, keeper)
	holder := leaseOf(t, b, long)
	held := hold(t, holder, "r", lock.Exclusive)
	relies := time.Now().Add(long)
	beat(t, holder)
	lead(t, road, fork, keeper)
	eventually(t, "the new server grants", func() error {
		_, err := keeper.Acquire(t.Context(), try("r"))
		return err
	})
	isOver(t, relies, held)
}

// A server takes over that lacks the last exclusive grants. A shared grant there has no smaller fence than those, whether somebody shared
// the lock before or a server that has taken over is asked for it for the first time (promise 2).
func TestSharedFenceAtAServerThatLacksGrants(t *testing.T) {
	t.Parallel()
	again(t, testSharedFenceAtAServerThatLacksGrants)
}

func testSharedFenceAtAServerThatLacksGrants(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, l := sidecar(t, with(road.URL(), "failover-grace=100ms"), lock.MaxTTL)
	_, other := sidecar(t, s.URL(), lock.MaxTTL)
	take := func(l lock.Lease, m lock.Mode) (g lock.Grant) {
		t.Helper()
		eventually(t, "it is granted", func() (err error) {
			q := try("r")
			q.Mode = m
			g, err = l.Acquire(t.Context(), q)
			return err
		})
		if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Fatal(err)
		}
		return g
	}
	take(other, lock.Exclusive)
	fork := forkBeside(t, s, l)
	before := take(other, lock.Exclusive)
	lead(t, road, fork, l)
	for _, m := range []lock.Mode{lock.Shared, lock.Shared, lock.Exclusive, lock.Shared} {
		g := take(l, m)
		if g.Fence < before.Fence || m == lock.Exclusive && g.Fence == before.Fence {
			t.Errorf("broken law: the fence of a %s grant is %d, and was %d before", m, g.Fence, before.Fence)
		}
		before = g
	}
}

// A server grants since a moment that is ahead of its clock, which was set back. A shared grant beside a hold that was downgraded has a fence
// from that moment. The exclusive one after both has a larger one (promise 2).
func TestFenceAfterADowngradedHoldWhereTheClockIsBehind(t *testing.T) {
	t.Parallel()
	again(t, testFenceAfterADowngradedHoldWhereTheClockIsBehind)
}

func testFenceAfterADowngradedHoldWhereTheClockIsBehind(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	_, l := sidecar(t, s.URL(), lock.MaxTTL)
	h := &harness{&served.Store{Server: s}}
	h.execute(t, "UPDATE {meta} SET value=? WHERE name='server'", time.Now().Add(time.Hour).UnixMicro())
	held := hold(t, l, "r", lock.Exclusive)
	if err := l.Downgrade(t.Context(), "r", held.ID); err != nil {
		t.Fatal(err)
	}
	beside := hold(t, l, "r", lock.Shared)
	for _, g := range []lock.Grant{beside, held} {
		if err := l.Release(t.Context(), "r", g.ID); err != nil {
			t.Fatal(err)
		}
	}
	if g := hold(t, l, "r", lock.Exclusive); g.Fence <= beside.Fence {
		t.Errorf("broken law: fence %d after %d", g.Fence, beside.Fence)
	}
}
