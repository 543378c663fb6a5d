package zklock

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestPausedLeaderHasNotHeardOfABeat: a follower answers a beat, and the leader pauses
// before the follower has told it of the session. When it goes on, it finds sessions
// expired by what it has heard before.
func TestPausedLeaderHasNotHeardOfABeat(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	server := testengine.New(t, testengine.ZooKeeperEnsemble)
	lead, followers := leader(t, server)
	b, other := sidecar(t, "zk://"+followers[1].Addr(), 30*time.Second)
	live(t, other)
	done := 0
	for tries := 0; done < 3; tries++ { // the follower may just have told it
		if tries == 40 {
			if done == 0 {
				t.Skipf("the machine is too busy: none of %d attempts was in time", tries)
			}
			return
		}
		if heardTooLate(t, b, other, lead, followers[0].Addr(), ttl) {
			done++
		}
	}
}

// heardTooLate pauses the leader just after a beat; false: the machine was too slow for that.
func heardTooLate(t testing.TB, b *Backend, other *lease, lead testengine.Node, follower string, ttl time.Duration) bool {
	_, l := sidecar(t, "zk://"+follower, ttl)
	opened := time.Now()
	q := request(lock.Resource(lock.NewHoldID()), lock.Exclusive)
	g, err := l.Acquire(t.Context(), q)
	if err != nil {
		return false
	}
	w := queue(t, b, other, request(q.Resource, lock.Exclusive))
	last := opened.Add(ttl * 17 / 20) // the last moment for a beat that is in time
	if time.Now().After(last) {
		return false
	}
	time.Sleep(time.Until(last))
	sent := time.Now()
	if err := beat(t.Context(), l); err != nil {
		if errors.Is(err, lock.ErrUnavailable) || sent.Sub(last) > ttl/20 { // not answered, or late
			return false
		}
		t.Fatalf("Heartbeat: %v", err)
	}
	resume := testengine.Pause(t, lead)
	time.Sleep(time.Until(opened.Add(ttl*17/10 + 100*time.Millisecond))) // less than followers wait for it
	resume()
	select {
	case <-w.done:
		if w.at.Sub(sent) < ttl {
			t.Fatalf("another was granted %s after a beat that was answered: %v", w.at.Sub(sent), w.err)
		}
		return false
	case <-time.After(time.Until(sent.Add(ttl))):
	}
	goesOn := true
	eventually(t, "the lease goes on, or was over later", func() error {
		err := beat(t.Context(), l)
		if errors.Is(err, lock.ErrLeaseLost) {
			goesOn = false
			return nil
		}
		return err
	})
	if goesOn {
		release(t, l, g)
	}
	release(t, other, w.granted())
	return goesOn
}

// lossOf tells when a lease was told to be over.
func lossOf(t testing.TB, l *lease) func() time.Time {
	var at atomic.Pointer[time.Time]
	var wg sync.WaitGroup
	wg.Go(func() {
		<-l.driver.set.Done()
		now := time.Now()
		at.Store(&now)
	})
	t.Cleanup(func() {
		_ = l.Close(t.Context())
		wg.Wait()
	})
	return func() time.Time {
		if p := at.Load(); p != nil {
			return *p
		}
		return time.Time{}
	}
}

// TestServerThatAllowsLess: the only server that can be reached makes the session live
// less long than the TTL. The holder knows before another is granted.
func TestServerThatAllowsLess(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	server := testengine.New(t, testengine.ZooKeeperUneven)
	all := hosts(server.URL())
	b, other := sidecar(t, "zk://"+all[1], 30*time.Second)
	live(t, other)
	for range 10 { // a busy machine may be too late
		r, url := newRoad(t, "zk://"+all[0]+","+all[2])
		_, l := sidecar(t, url, ttl)
		lost, stop := lossOf(t, l), beating(t, l, ttl/10)
		q := request(lock.Resource(lock.NewHoldID()), lock.Exclusive) // a lease without an answer may still get the last one
		if _, err := l.Acquire(t.Context(), q); err != nil {
			continue
		}
		q.ID = lock.NewHoldID()
		w := queue(t, b, other, q)
		r.Shut(all[0])
		r.sever()
		time.Sleep(ttl / 2) // as long as it may stay there
		r.set(func(r *road) { r.lost, r.deaf = true, true })
		release(t, other, w.granted())
		knew := stop().Add(ttl)
		if at := lost(); !at.IsZero() && at.Before(knew) {
			knew = at
		}
		if early := knew.Sub(w.at); early > 0 {
			t.Errorf("another was granted %s before the holder knew", early)
		}
		return
	}
	t.Error("no lock is held")
}

// TestServerThatAllowsLessIsLeft: where another server can be reached again in time,
// the lease goes on.
func TestServerThatAllowsLessIsLeft(t *testing.T) {
	t.Parallel()
	server := testengine.New(t, testengine.ZooKeeperUneven)
	all := hosts(server.URL())
	for range 10 { // a busy machine may be too late
		r, url := newRoad(t, "zk://"+all[0]+","+all[2])
		_, l := sidecar(t, url, 2*time.Second)
		before := r.Dials(all[2])
		r.Shut(all[0])
		r.sever()
		eventually(t, "the other server is tried", func() error {
			if beat(t.Context(), l) == nil {
				t.Fatalf("a beat succeeds at a server that allows less: %v", r.Targets())
			}
			if r.Dials(all[2]) == before {
				return errors.New("it is not")
			}
			return nil
		})
		r.Shut("")
		time.Sleep(1200 * time.Millisecond) // that server would have let it expire
		if beat(t.Context(), l) == nil {
			return
		}
	}
	t.Error("no lease goes on")
}

// TestSessionsShorterThanTicks: sessions may be shorter than the time in which followers tell the
// leader of theirs. No session that beats ends, whenever in a tick that is.
func TestSessionsShorterThanTicks(t *testing.T) {
	t.Parallel()
	const ttl = 500 * time.Millisecond
	server := testengine.New(t, testengine.ZooKeeperSlowTicks)
	for range 8 { // the phase of ticks and reports is another each time
		lead, followers := leader(t, server)
		b := open(t, "zk://"+followers[0].Addr())
		l := newLease(t, b, ttl)
		lost, stop := lossOf(t, l), beating(t, l, ttl/3)
		time.Sleep(5 * time.Second)
		renewed := stop()
		if at := lost(); !at.IsZero() && at.Before(renewed.Add(ttl)) { // later, beats may have been late
			t.Fatalf("the session ended %s after a beat that was answered", at.Sub(renewed))
		}
		resume := testengine.Pause(t, lead)
		time.Sleep(150 * time.Millisecond)
		resume()
	}
}
