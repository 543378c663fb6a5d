package rows

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestKilledHold: a link that the server ends is the end of the hold, and told at once:
// long before anybody would ask. The engine's hold ends, too.
func TestKilledHold(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a, b := open1(t, s.URL(), 10*time.Minute), open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		kept, g := a.hold(r+"/kept", lock.Exclusive), a.hold(r, lock.Exclusive)
		w := b.queue(request(r, lock.Exclusive))
		kill(t, s, a.connection(g.ID))
		a.lost(g)
		if next := w.granted(); next.Fence <= g.Fence {
			t.Errorf("broken law: fence %d after %d", next.Fence, g.Fence)
		}
		if err := a.Release(t.Context(), r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what was lost: %v", err)
		}
		if err := a.beat(); err != nil {
			t.Errorf("Heartbeat: %v", err)
		}
		b.held(kept.Resource, lock.Exclusive)
		a.release(kept)
	})
}

// TestHeartbeatTellsOfKilledHold: no event is ever read.
func TestHeartbeatTellsOfKilledHold(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, s.URL(), 10*time.Minute)
		g := a.hold(name(t), lock.Exclusive)
		kill(t, s, a.connection(g.ID))
		eventually(t, "a heartbeat tells", func() error {
			news, err := a.Heartbeat(t.Context())
			if want := (lock.Event{Kind: lock.Vanished, Resource: g.Resource, ID: g.ID}); err == nil && (len(news) != 1 || news[0] != want) {
				err = fmt.Errorf("it tells %+v", news)
			}
			return err
		})
	})
}

// TestKilledInHeartbeat: a link may end while an answer is on its way on it.
func TestKilledInHeartbeat(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		for range 8 {
			g := a.hold(r, lock.Exclusive)
			n := a.connection(g.ID)
			ctx, cancel := context.WithCancel(t.Context())
			beaten := make(chan error, 1)
			go func() {
				var err error
				for ctx.Err() == nil && err == nil {
					err = a.beat()
				}
				beaten <- err
			}()
			kill(t, s, n)
			a.lost(g)
			cancel()
			if err := <-beaten; err != nil {
				t.Errorf("Heartbeat: %v", err)
			}
			if t.Failed() {
				return
			}
		}
	})
}

// TestReleaseOfKilledHold: the release comes at the same time as the end of the link.
func TestReleaseOfKilledHold(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		for range 5 {
			g := a.hold(r, lock.Exclusive)
			n := a.connection(g.ID)
			killed := make(chan struct{})
			go func() {
				defer close(killed)
				kill(t, s, n)
			}()
			err := a.Release(t.Context(), r, g.ID)
			<-killed
			if err != nil && !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("Release of a hold whose link is killed: %v", err)
			}
			if st, err := a.b.Get(t.Context(), r); err != nil || len(st.Holders) > 0 {
				t.Errorf("after the release there is %+v, %v", st, err)
			}
		}
	})
}

// TestKilledWait: a wait for a stranger survives whatever happens to its statement and
// to its link.
func TestKilledWait(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		app := newStranger(t, s.URL())
		app.locks(r)
		w := a.queue(request(r, lock.Exclusive))
		first := a.connection(w.q.ID)
		exec(t, s.URL(), fmt.Sprintf("KILL QUERY %d", first))
		kill(t, s, first)
		eventually(t, "it waits on another connection", func() error {
			if a.connection(w.q.ID) == first {
				return errors.New("it does not")
			}
			return nil
		})
		time.Sleep(rowWait + rowWait/2) // longer than one statement waits
		w.blocked()
		app.unlocks()
		w.granted()
	})
}

// TestPartition: a machine that vanishes from the network keeps nobody out for much
// longer than its lease, and nobody gets in before.
func TestPartition(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		const ttl = 4 * time.Second // a busy machine may stand still for a second or two
		a, b := open1(t, road.URL(), ttl), open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		g, g2 := a.hold(r, lock.Exclusive), a.hold(r+"/stranger", lock.Exclusive)
		app := newStranger(t, s.URL())
		renewed := time.Now()
		if err := a.beat(); err != nil {
			t.Fatal(err)
		}
		road.Inject(testengine.HoldAll)
		w := b.queue(request(r, lock.Exclusive))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := a.Heartbeat(ctx); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Heartbeat without an answer: %v", err)
		}
		app.gets(g2.Resource)
		if took := time.Since(renewed); took < ttl {
			t.Errorf("a stranger has the row %s after a heartbeat of a lease of %s", took, ttl)
		}
		next := w.granted()
		if took := time.Since(renewed); took < ttl {
			t.Errorf("granted %s after a heartbeat of a lease of %s", took, ttl)
		}
		if next.Fence <= g.Fence {
			t.Errorf("broken law: fence %d after %d", next.Fence, g.Fence)
		}
		if err := road.Heal(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the lease is lost", func() error {
			if err := a.beat(); !errors.Is(err, lock.ErrLeaseLost) {
				return fmt.Errorf("heartbeat: %w", err)
			}
			return nil
		})
	})
}

// TestShortSilence: a network that comes back within the TTL has cost nothing.
func TestShortSilence(t *testing.T) {
	strictly(t, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		a, b := open1(t, road.URL(), 30*time.Second), open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		g := a.hold(r, lock.Exclusive)
		for range 2 {
			road.Inject(testengine.HoldAll)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			if _, err := a.Heartbeat(ctx); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Heartbeat without an answer: %v", err)
			}
			cancel()
			if err := road.Heal(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a heartbeat is answered", a.beat)
		}
		b.held(r, lock.Shared)
		a.release(g)
	})
}

// TestSilentLink: one hold's link does not answer any more, and everything else does.
// That hold is lost before its row could be free, and costs the lease nothing.
func TestSilentLink(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		const ttl = 10 * time.Second
		road := testengine.Through(t, s)
		a := open1(t, road.URL(), ttl)
		kept, g := a.hold(name(t)+"/kept", lock.Exclusive), a.hold(name(t)+"/silent", lock.Exclusive)
		proven := time.Now()
		if err := a.beat(); err != nil {
			t.Fatal(err)
		}
		road.Mute("row` WHERE name=_binary'" + string(g.Resource) + "'")
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(ttl / 10):
				}
				if err := a.beat(); errors.Is(err, lock.ErrLeaseLost) {
					t.Errorf("Heartbeat: %v", err)
				}
			}
		})
		a.lost(g)
		if took := time.Since(proven); took > ttl {
			t.Error(backendtest.Busy(fmt.Errorf("it is lost only %s after it was proven for %s", took, ttl)))
		}
		close(stop)
		wg.Wait()
		if err := a.beat(); err != nil {
			t.Errorf("Heartbeat: %v", err)
		}
		a.release(kept)
		newStranger(t, s.URL()).gets(g.Resource)
	})
}

// TestCut: a sidecar whose connections are all cut holds no rows: they are free for
// strangers at once, and the app is told at once.
func TestCut(t *testing.T) {
	strictly(t, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		a, b := open1(t, road.URL(), 10*time.Minute), open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		g := a.hold(r, lock.Exclusive)
		blocked := newStranger(t, s.URL())
		blocked.locks(r + "/blocked")
		a.queue(request(r+"/blocked", lock.Exclusive))
		app := newStranger(t, s.URL())
		road.Inject(testengine.Cut)
		a.lost(g)
		app.gets(r)
		b.held(r, lock.Shared)
		blocked.unlocks()
		app.gets(r + "/blocked") // what a link waited for is out of the way after one wait
		if err := road.Heal(); err != nil {
			t.Fatal(err)
		}
		w := b.queue(request(r, lock.Exclusive))
		app.unlocks()
		w.granted()
	})
}

// TestCutInAcquire: the answer to a request is lost: asking again gets the lock, or
// giving it up leaves nothing.
func TestCutInAcquire(t *testing.T) {
	strictly(t, func(t testing.TB, s testengine.Server) {
		for _, at := range []string{"NOWAIT", "COMMIT"} {
			road := testengine.Through(t, s)
			a, b := open1(t, road.URL(), 10*time.Minute), open1(t, s.URL(), 10*time.Minute)
			q := request(name(t), lock.Exclusive)
			var sprung <-chan struct{}
			if at == "NOWAIT" {
				sprung = road.LoseReply(at, testengine.Sever)
			}
			_, err := a.Acquire(t.Context(), q)
			if at == "COMMIT" {
				sprung = road.LoseReply(at, testengine.Sever)
				err = a.Release(t.Context(), q.Resource, q.ID)
			}
			<-sprung
			if err != nil && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("cut after %s: %v", at, err)
			}
			eventually(t, "it is given up", func() error {
				if err := a.Release(t.Context(), q.Resource, q.ID); !errors.Is(err, lock.ErrNotHolder) {
					return err
				}
				return nil
			})
			b.release(b.hold(q.Resource, lock.Exclusive))
		}
	})
}

// TestRestart: a server that was restarted has no row locks any more. The holds are
// lost, and the apps are told; nobody is granted by the engine before.
func TestRestart(t *testing.T) {
	alone(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, s.URL(), 10*time.Minute)
		g := a.hold("r", lock.Exclusive)
		testengine.Restart(t, s, testengine.KeepData)
		a.lost(g)
		var next lock.Grant
		eventually(t, "it is granted again", func() (err error) {
			q := request("r", lock.Exclusive)
			q.Try = true
			if next, err = a.Acquire(t.Context(), q); errors.Is(err, lock.ErrUnavailable) {
				_ = a.Release(t.Context(), q.Resource, q.ID)
			}
			return err
		})
		if next.Fence <= g.Fence {
			t.Errorf("broken law: fence %d after %d", next.Fence, g.Fence)
		}
	})
}

// TestSwitchOver: another server has taken over, and the old one is alive and read-only,
// with the links to it and their row locks. The holds are lost: strangers look at the new
// server. The engine's are not, until the apps were told.
func TestSwitchOver(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.MariaDBPair, testengine.MySQLPair} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind)
			a := open1(t, s.URL()+"?failover-grace=0s", 5*time.Second)
			g := a.hold("r", lock.Exclusive)
			testengine.FailOver(t, s, testengine.KeepData)
			eventually(t, "a heartbeat of the new server tells", func() error {
				news, err := a.Heartbeat(t.Context())
				if want := (lock.Event{Kind: lock.Vanished, Resource: g.Resource, ID: g.ID}); err == nil && (len(news) != 1 || news[0] != want) {
					err = fmt.Errorf("it tells %+v", news)
				}
				return err
			})
			newStranger(t, s.URL()).locks("r") // on the new server
			w := a.queue(request("r", lock.Exclusive))
			w.blocked()
		})
	}
}
