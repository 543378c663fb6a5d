package redislock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// All are led to another server and back to the first, whose mark is old. Who starts there then knows nothing of the other
// server. It waits for a TTL as soon as one of them is back, because another one may still rely on what
// it was granted meanwhile.
func TestNewcomerOnTheWayBack(t *testing.T) { again(t, testNewcomerOnTheWayBack) }

func testNewcomerOnTheWayBack(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	const grace = 5 * time.Minute
	longAtWork(t, s, grace)
	withGrace := "?restart-grace=" + grace.String()
	newcomer := func() (lock.Lease, error) {
		b := openAt(t, s.URL()+withGrace)
		t.Cleanup(func() { _ = b.Close() })
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: grace, Sidecar: "newcomer"})
		if err == nil {
			swallow(l)
		}
		return l, err
	}
	if l, err := newcomer(); err != nil {
		t.Fatalf("a newcomer on a server that has long been at work: %v", err)
	} else if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	way, holders := testengine.Through(t, s), testengine.Through(t, s)
	b, first := sidecar(t, way.URL()+withGrace, grace)
	_, holder := sidecar(t, holders.URL()+noGrace, grace)
	fork := testengine.ForkRedis(t, s)
	lead := func(to testengine.Server) {
		for _, p := range []*testengine.Proxy{way, holders} {
			p.Retarget(testengine.Nodes(t, to)[0].Addr())
			p.Inject(testengine.Sever)
		}
	}
	lead(fork)
	for _, l := range []lock.Lease{first, holder, holder} { // the second heartbeat trusts
		eventually(t, "the lease lives on the fork", func() error { return beat(t.Context(), l) })
	}
	hold(t, holder, "r")
	lead(s)
	eventually(t, "the first one is back", func() error { return beat(t.Context(), first) })
	if _, err := driverNamed(b, first.ID()).lookAround(t.Context()); err != nil { // as its chores do about now
		t.Fatal(err)
	}
	l, err := newcomer()
	if err == nil {
		if _, err := try(t, l, "r"); err == nil {
			t.Error("broken law: two holders: a newcomer, and one that has not heard of the way back")
		}
		_ = l.Close(t.Context())
	}
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "granted again in") {
		t.Errorf("a newcomer after the way back: got %v, want that locks are granted again later", err)
	}
}

// longAtWork has a server know that its mark is old.
func longAtWork(t testing.TB, s testengine.Server, grace time.Duration) {
	t.Helper()
	b, l := sidecar(t, s.URL()+noGrace, grace)
	p := &b.pasts[0]
	p.mu.Lock()
	p.since -= 2 * grace
	p.mu.Unlock()
	if _, err := driverNamed(b, l.ID()).lookAround(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A server has long been at work with sidecars of a short TTL. One of a long TTL need not wait for as long as that.
func TestNewcomerWithALongerGrace(t *testing.T) { again(t, testNewcomerWithALongerGrace) }

func testNewcomerWithALongerGrace(t testing.TB) {
	s := testengine.New(t, testengine.Redis)
	b, l := sidecar(t, s.URL()+"?restart-grace=1s", 5*time.Minute)
	p := &b.pasts[0]
	p.mu.Lock()
	p.since -= time.Hour
	p.mu.Unlock()
	fresh := openAt(t, s.URL()+"?restart-grace=10m")
	defer func() { _ = fresh.Close() }()
	eventually(t, "a newcomer with a long grace has a lease", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		n, err := fresh.OpenLease(t.Context(), lock.LeaseOptions{TTL: lock.MaxTTL, Sidecar: "fresh"})
		if err == nil {
			swallow(n)
			err = n.Close(t.Context())
		}
		return err
	})
}

// A node of a Cluster was restarted on which a sidecar has nothing. When it uses the first of the node's buckets, it
// looks at the others, too. So their grace runs at the same time, and not once for each, whenever that is used first.
func TestIdleBucketsOfARestartedNode(t *testing.T) { again(t, testIdleBucketsOfARestartedNode) }

func testIdleBucketsOfARestartedNode(t testing.TB) {
	s := partialCluster(t)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	d := driverOf(t, b, l)
	n := testengine.Nodes(t, s)[0]
	var at []*slot // what the node has
	for _, s0 := range d.slots {
		if nodeOf(t, s, b, b.keys.buckets[s0.index].leases).Addr() == n.Addr() {
			at = append(at, s0)
		}
	}
	used := func(s *slot) (looks bool) {
		t.Helper()
		eventually(t, "a bucket is used", func() error {
			s.open.Store(false)
			d.renewed = b.clock()
			return d.openSlot(t.Context(), s)
		})
		select {
		case <-d.looks:
			return true
		default:
			return false
		}
	}
	if used(at[0]) {
		t.Error("it looks around although nothing has happened")
	}
	before, _, _ := b.pasts[at[1].index].counted(0)
	testengine.Restart(t, n, testengine.KeepData)
	if !used(at[0]) {
		t.Fatal("after the restart it looks at the bucket alone that it uses")
	}
	eventually(t, "it knows of another one of the node", func() error {
		_, err := d.lookAround(t.Context())
		if now, _, _ := b.pasts[at[1].index].counted(0); err == nil && now == before {
			err = errors.New("not yet")
		}
		return err
	})
}
