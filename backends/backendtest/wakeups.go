package backendtest

import (
	"math"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// testWakeUp: whatever makes room wakes the waiter, long before it would look
// again by itself.
func testWakeUp(e *env) {
	const enough = 150 * time.Millisecond // less than any re-check
	b := e.sidecar()
	r := e.name("r")
	rounds := map[string]func(a *sidecar) (w *waiter, makeRoom func()){
		"Release": func(a *sidecar) (*waiter, func()) {
			g := e.acquire(a, r, lock.Exclusive)
			return e.queue(b, r, lock.Exclusive), func() { e.release(a, g) }
		},
		"Cancel": func(a *sidecar) (*waiter, func()) {
			e.acquire(a, r, lock.Shared)
			front := e.queue(a, r, lock.Exclusive)
			return e.queue(b, r, lock.Shared), front.cancel
		},
		"Downgrade": func(a *sidecar) (*waiter, func()) {
			g := e.acquire(a, r, lock.Exclusive)
			return e.queue(b, r, lock.Shared), func() {
				if err := a.Downgrade(e.ctx, r, g.ID); err != nil {
					e.Errorf("Downgrade: %v", err)
				}
			}
		},
		"ForceRelease": func(a *sidecar) (*waiter, func()) {
			g := e.acquire(a, r, lock.Exclusive)
			return e.queue(b, r, lock.Exclusive), func() {
				if err := a.b.ForceRelease(e.ctx, r, g.ID, 0); err != nil {
					e.Errorf("ForceRelease: %v", err)
				}
			}
		},
		"CloseOfHolder": func(a *sidecar) (*waiter, func()) {
			e.acquire(a, r, lock.Exclusive)
			return e.queue(b, r, lock.Exclusive), func() { _ = a.Close(e.ctx) }
		},
		"CloseOfWaiter": func(a *sidecar) (*waiter, func()) {
			g := e.acquire(b, r, lock.Shared)
			e.queue(a, r, lock.Exclusive)
			w := e.queue(b, r, lock.Shared)
			return w, func() { _ = a.Close(e.ctx); w.granted(); e.release(b, g) }
		},
	}
	if !e.sharing() || !e.ordered() { // a reader behind a writer
		delete(rounds, "Cancel")
		delete(rounds, "CloseOfWaiter")
	}
	if !e.sharing() || e.limits.Downgrade != "" {
		delete(rounds, "Downgrade")
	}
	for name, round := range rounds {
		// The best of some: a loaded machine can be late, a store that polls always is.
		best := time.Duration(math.MaxInt64)
		for i := 0; i < 10 && best > enough; i++ {
			a := e.sidecar()
			w, makeRoom := round(a)
			start := time.Now()
			makeRoom()
			g := w.granted()
			best = min(best, w.at.Sub(start))
			e.release(b, g)
			_ = a.Close(e.ctx) // what else it holds
		}
		if best > enough {
			e.slow("%s: from making room to the grant it took %s at best", name, best)
		}
	}
}

// testLostWakeUps: hints are hints. A waiter that gets none finds its grant by
// looking, and so does one behind a lease that died.
func testLostWakeUps(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, r2 := e.name("r"), e.name("r2")
	g := e.acquire(a, r, lock.Exclusive)
	dead := e.mortal()
	e.acquire(dead, r2, lock.Exclusive)
	w, next := e.queue(b, r, lock.Exclusive), e.queue(b, r, lock.Exclusive)
	w2 := e.queue(b, r2, lock.Exclusive)
	restore := e.h.(WakeupDropper).DropWakeups(e.TB, b.b)
	defer restore()
	late := e.start(b, request(r, lock.Exclusive)) // one that comes when there are no hints already
	late.queued()

	limit := e.h.Recheck() + slack
	for _, w := range []*waiter{w, next, late} {
		start := time.Now()
		e.release(a, g)
		g, a = w.granted(), b
		if took := w.at.Sub(start); took > limit {
			e.slow("without a hint the grant took %s", took)
		}
	}
	e.release(b, g)
	e.release(b, e.inTime(dead, w2))
}
