package zklock

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestServerChange: the server that the lease is connected to is gone. Holds,
// places in queues and watches move to another one.
func TestServerChange(t *testing.T) {
	s := testengine.Shared(t, testengine.ZooKeeperEnsemble)
	r, url := newRoad(t, s.URL())
	b, l := sidecar(t, url, 10*time.Second)
	beating(t, l, time.Second)
	other, o := sidecar(t, s.URL(), 10*time.Second)
	beating(t, o, time.Second)
	mine, taken := hold(t, l, "change-mine", lock.Exclusive), hold(t, o, "change-taken", lock.Exclusive)
	w := queue(t, b, l, request("change-taken", lock.Exclusive))

	before := r.Targets()
	if len(before) != 1 {
		t.Fatalf("connected to %v", before)
	}
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() == before[0] {
			testengine.Crash(t, n, testengine.KeepData)
		}
	}
	eventually(t, "it is at another server", func() error {
		if now := r.Targets(); len(now) != 1 || now[0] == before[0] {
			return errors.New(strings.Join(now, ", "))
		}
		return beat(t.Context(), l)
	})
	w.pending()
	release(t, o, taken)
	release(t, l, w.granted())
	eventually(t, "it is forced", func() error {
		err := other.ForceRelease(t.Context(), "change-mine", mine.ID, 0)
		if errors.Is(err, lock.ErrNotHolder) { // of an attempt without an answer
			return nil
		}
		return err
	})
	event(t, l, mine.ID)
	noEvent(t, l)
}

// TestExpiry: nothing of a sidecar arrives any more. Its holds are granted to
// others only when it knows that they are lost, and when it can be heard again it
// learns it from the store, and opens another lease.
func TestExpiry(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	r, url := newRoad(t, s.URL())
	const ttl = 3 * time.Second // a busy machine may stand still for a second or two
	b, l := sidecar(t, url, ttl)
	stop := beating(t, l, ttl/4)
	ob, o := sidecar(t, s.URL(), 10*time.Second)
	beating(t, o, time.Second)
	hold(t, l, "expiry-1", lock.Exclusive)
	hold(t, l, "expiry-2", lock.Shared)
	first := queue(t, ob, o, request("expiry-1", lock.Exclusive))
	second := queue(t, ob, o, request("expiry-2", lock.Exclusive))
	time.Sleep(2 * ttl)
	first.pending()
	second.pending()

	r.set(func(r *road) { r.lost = true })
	first.granted()
	second.granted()
	renewed := stop()
	for _, w := range []*wait{first, second} {
		if took := w.at.Sub(renewed); took < ttl {
			t.Errorf("granted %s after a lease of %s was renewed", took, ttl)
		}
		release(t, o, w.g)
	}
	r.set(func(r *road) { r.lost = false })
	eventually(t, "the store says that the lease is lost", func() error {
		switch err := beat(t.Context(), l); {
		case errors.Is(err, lock.ErrLeaseLost):
			return nil
		case errors.Is(err, lock.ErrUnavailable):
			return err
		default:
			t.Fatalf("Heartbeat: %v", err)
			return nil
		}
	})
	if _, err := l.Acquire(t.Context(), request("late", lock.Exclusive)); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Acquire on a lost lease: %v", err)
	}
	noEvent(t, l) // what is lost with the lease needs no other news
	again := newLease(t, b, ttl)
	beating(t, again, ttl/4)
	if again.driver.leaseNode.s.ID() == l.driver.leaseNode.s.ID() {
		t.Error("it has the session of the old one")
	}
	release(t, again, hold(t, again, "expiry-1", lock.Exclusive))
}

// TestPausedLeader: the ensemble elects another one. Nothing is lost, and the
// old leader, who does not know, does not prove anybody's life.
func TestPausedLeader(t *testing.T) {
	s := testengine.Shared(t, testengine.ZooKeeperEnsemble)
	_, l := sidecar(t, s.URL(), 20*time.Second)
	ob, o := sidecar(t, s.URL(), 20*time.Second)
	beating(t, l, time.Second)
	beating(t, o, time.Second)
	g := hold(t, l, "paused", lock.Exclusive)
	w := queue(t, ob, o, request("paused", lock.Exclusive))

	lead, _ := leader(t, s)
	resume := testengine.Pause(t, lead)
	eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	w.pending()
	release(t, l, g)
	if g2 := w.granted(); g2.Fence <= g.Fence {
		t.Errorf("broken law: fence %d after %d", g2.Fence, g.Fence)
	}
	release(t, o, w.g)
	resume()
	noEvent(t, l)
	noEvent(t, o)
}

// TestQuorumLost: one server alone, cut off from the others, still has a copy of
// everything. It proves nothing and grants nothing. When the others are back, both leases go on.
func TestQuorumLost(t *testing.T) { backendtest.Again(t, testQuorumLost) } // not beside others: the servers are theirs, too

func testQuorumLost(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeperEnsemble)
	lead, rest := leader(t, s)
	r, free := unique(), unique()
	// The first is connected to the follower that is left alone.
	_, l := sidecar(t, "zk://"+rest[0].Addr(), 40*time.Second)
	_, o := sidecar(t, s.URL(), 40*time.Second)
	g := hold(t, l, r, lock.Exclusive)
	eventually(t, "both are renewed", func() error { return errors.Join(beat(t.Context(), l), beat(t.Context(), o)) })
	resume := []func(){testengine.Pause(t, lead), testengine.Pause(t, rest[1])}

	// All at the same time: each request takes as long as it waits for an answer, and the leader counts the time in which it
	// hears nothing of a lease, though it is paused.
	var all sync.WaitGroup
	all.Go(func() {
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
			if err := beat(t.Context(), l); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Heartbeat without a quorum: %v", err)
				return
			}
		}
	})
	for _, r := range []lock.Resource{r, free} {
		for _, l := range []*lease{l, o} {
			q := request(r, lock.Exclusive)
			q.Try = true
			all.Go(func() {
				if g, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) && (!errors.Is(err, lock.ErrHeld) || r == free) {
					t.Errorf("Acquire without a quorum: %+v, %v", g, err)
				}
			})
		}
	}
	all.Wait()
	for _, f := range resume {
		f()
	}
	leader(t, s) // that they agree again may take them long, on a busy machine
	var lost error
	eventually(t, "both leases live", func() error {
		err := errors.Join(beat(t.Context(), l), beat(t.Context(), o))
		if errors.Is(err, lock.ErrLeaseLost) {
			lost, err = err, nil
		}
		return err
	})
	if lost != nil {
		t.Fatalf("when the quorum is back: %v", lost)
	}
	noEvent(t, l)
	refused(t, o, r, lock.Shared)
	release(t, l, g)
	release(t, o, hold(t, o, r, lock.Exclusive))
}

// TestDataLost: servers that come back empty do not take a client that has seen
// more than they have. So the lease is not renewed, and another one can be opened.
func TestDataLost(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.ZooKeeper)
	const ttl = 5 * time.Second
	b, l := sidecar(t, s.URL()+"/app", ttl)
	stop := beating(t, l, ttl/4)
	hold(t, l, "r", lock.Exclusive)
	stop()
	testengine.Restart(t, s, testengine.DropData)
	for end := time.Now().Add(ttl); time.Now().Before(end); {
		if err := beat(t.Context(), l); !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrLeaseLost) {
			t.Fatalf("Heartbeat: %v", err)
		}
	}
	noEvent(t, l)
	again := newLease(t, b, ttl)
	beating(t, again, ttl/4)
	release(t, again, hold(t, again, "r", lock.Exclusive))
}

// TestServerAllowsTooShortSessions: a lease that the server would let expire
// early is not opened, and the error says what to do.
func TestServerAllowsTooShortSessions(t *testing.T) {
	t.Parallel()
	b := openAt(t, testengine.Shared(t, testengine.ZooKeeper).URL()) // up to 60 s
	defer func() { _ = b.Close() }()
	_, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
	if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "maxSessionTimeout=90000") || !strings.Contains(err.Error(), "at most 40s") {
		t.Errorf("OpenLease: %v", err)
	}
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 40 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
