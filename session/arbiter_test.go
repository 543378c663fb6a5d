package session

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
)

// arbitrated starts a sidecar that hands holds on by itself, and parks them.
func (e *env) arbitrated(change ...func(*Options)) (*sidecar, *arbiter.Backend) {
	e.t.Helper()
	var b *arbiter.Backend
	return e.sidecar(append(change, func(o *Options) {
		b = arbiter.New(e.store, arbiter.Options{Turns: arbiter.MaxTurns, Park: time.Second, Clock: o.Clock})
		o.Backend, o.Parked = b, func() int { return b.Stats().Parked }
	})...), b
}

// comesBack parks the resource.
func comesBack(t *testing.T, s *Session, b *arbiter.Backend) {
	t.Helper()
	for range 2 {
		if _, err := s.Release(context.Background(), must(t, s, exclusive).LockID, ""); err != nil {
			t.Fatal(err)
		}
	}
	if b.Stats().Parked != 1 {
		t.Errorf("%+v, want one hold that is parked", b.Stats())
	}
}

// The end of an app hands on what it had here.
func TestArbiterAppDies(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, b := e.arbitrated()
		dies, next, zombie := sc.session(), sc.session(), sc.session()
		first := must(t, zombie, exclusive)
		w1, w2 := begin(dies, exclusive), begin(next, exclusive)
		if _, err := zombie.Release(context.Background(), first.LockID, ""); err != nil {
			t.Error(err)
		}
		g1, err := w1.wait()
		isErr(t, err, nil)
		dies.Close()
		g2, err := w2.wait()
		isErr(t, err, nil)
		if g1.Fence <= first.Fence || g2.Fence <= g1.Fence || b.Stats().Saved != 2 {
			t.Errorf("fences %d, %d, %d; %+v", first.Fence, g1.Fence, g2.Fence, b.Stats())
		}
		_, err = zombie.Release(context.Background(), first.LockID, "")
		isErr(t, err, lock.ErrNotHolder)
		if n, _ := e.holders("r"); n != 1 {
			t.Error("broken law: who had it two grants ago has released it")
		}
		next.Close()
		time.Sleep(2 * time.Second)
		e.free()
	})
}

// A hold that ends by its max_hold is handed on when its app has let go, or its grace is over.
func TestArbiterMaxHold(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, _ := e.arbitrated()
		hangs, next := sc.session(), sc.session()
		g := must(t, hangs, with(exclusive, func(r *AcquireRequest) { r.MaxHold = time.Second }))
		w := begin(next, exclusive)
		began := e.now()
		if lost := lostEvent(t, hangs); lost.LockID != g.LockID || lost.Reason != MaxHold {
			t.Errorf("lost: %+v", lost)
		}
		g2, err := w.wait()
		isErr(t, err, nil)
		if took := e.now() - began; took != time.Second+DefaultLostGrace {
			t.Errorf("the next was granted after %v", took)
		}
		_, err = hangs.Release(context.Background(), g.LockID, "")
		isLost(t, err, MaxHold)
		// The late release has not ended the next hold.
		if _, err := next.Release(context.Background(), g2.LockID, ""); err != nil {
			t.Error(err)
		}
	})
}

// What is parked holds up no stop, and is free after it.
func TestArbiterDrain(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, b := e.arbitrated()
		comesBack(t, sc.session(), b)
		began := e.now()
		isErr(t, sc.Drain(context.Background()), nil)
		if err := sc.stop(); err != nil {
			t.Error(err)
		}
		if took := e.now() - began; took != 0 {
			t.Errorf("the stop took %v", took)
		}
		e.free()
	})
}

// The end of the lease ends what was handed on, with a notice, and what is parked: the
// next grant is one of the next lease.
func TestArbiterLeaseLost(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, b := e.arbitrated()
		s, holds := sc.session(), sc.session()
		comesBack(t, s, b)
		other := with(exclusive, func(r *AcquireRequest) { r.Resource = "other" })
		g := must(t, s, other)
		w := begin(holds, other)
		if _, err := s.Release(context.Background(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		handed, err := w.wait()
		isErr(t, err, nil)
		e.jump.Store(int64(20 * time.Second)) // the sidecar stood still
		before := b.Stats().Saved
		next := must(t, s, exclusive)
		if next.Fence%lock.FenceRange != 0 || b.Stats().Saved != before {
			t.Errorf("fence %d: granted from what was parked on a lease that is over", next.Fence)
		}
		if lost := lostEvent(t, holds); lost.LockID != handed.LockID || lost.Reason != LeaseExpired {
			t.Errorf("lost: %+v", lost)
		}
		synctest.Wait()
	})
}

// A watch tells that a hold is parked, and that an app has it again, though the store has it
// under the same id.
func TestArbiterWatched(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc, b := e.arbitrated()
		s := sc.session()
		ctx, cancel := context.WithCancel(t.Context())
		var saw []bool
		var watch sync.WaitGroup
		watch.Go(func() {
			err := sc.Watch(ctx, "", minWatchInterval, func(ev WatchEvent) error {
				if ev.Kind == Changed {
					saw = append(saw, ev.Status.Holders[0].Parked)
				}
				return nil
			})
			isErr(t, err, context.Canceled)
		})
		synctest.Wait()
		_, err := s.Release(t.Context(), must(t, s, exclusive).LockID, "")
		isErr(t, err, nil)
		for range 2 {
			g := must(t, s, exclusive)
			time.Sleep(2 * minWatchInterval)
			_, err = s.Release(t.Context(), g.LockID, "")
			isErr(t, err, nil)
			if sc.Info().Parked != 1 || b.Stats().Parked != 1 {
				t.Errorf("%+v; %+v", sc.Info(), b.Stats())
			}
			time.Sleep(2 * minWatchInterval)
		}
		cancel()
		watch.Wait()
		if !slices.Equal(saw, []bool{false, true, false, true}) {
			t.Errorf("parked: %v", saw)
		}
	})
}
