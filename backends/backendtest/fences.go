package backendtest

import (
	"github.com/locksidecar/locksidecar/lock"
)

// testFencesGrow takes one resource in turn with everything that could make a
// store forget its counter in between.
func testFencesGrow(e *env) {
	r := e.name("r")
	f := fences{e: e}
	a, b := e.sidecar(), e.sidecar()
	for _, s := range []*sidecar{a, b, a} {
		g := e.acquire(s, r, lock.Exclusive)
		f.check(g)
		e.release(s, g)
		g1 := e.acquire(a, r, e.shared())
		f.check(g1)
		var g2 lock.Grant
		if e.sharing() {
			g2 = e.acquire(b, r, lock.Shared)
			f.check(g2)
		}
		w := e.queue(s, r, lock.Exclusive)
		e.release(a, g1)
		if e.sharing() {
			e.release(b, g2)
		}
		f.check(w.granted())
		e.release(s, w.grant)
	}

	c := e.sidecar() // a sidecar that restarts: another connection, another lease
	g := e.acquire(c, r, lock.Exclusive)
	f.check(g)
	if err := c.Close(e.ctx); err != nil {
		e.Errorf("Close: %v", err)
	}
	d := e.sidecar()
	g = e.acquire(d, r, lock.Exclusive)
	f.check(g)

	w := e.queue(a, r, lock.Exclusive)
	if err := b.b.ForceRelease(e.ctx, r, g.ID, 0); err != nil {
		e.Fatalf("ForceRelease: %v", err)
	}
	f.check(w.granted())
	e.release(a, w.grant)

	m := e.mortal()
	g = e.acquire(m, r, lock.Exclusive)
	f.check(g)
	w = e.queue(b, r, lock.Exclusive)
	m.silence()
	f.check(w.granted())
	e.release(b, w.grant)
}

func testFenceAfterCounterDeleted(e *env) {
	r := e.name("r")
	f := fences{e: e}
	for range 3 {
		for range 3 {
			s := e.sidecar()
			g := e.acquire(s, r, lock.Exclusive)
			f.check(g)
			e.release(s, g)
			g = e.acquire(s, r, e.shared())
			f.check(g)
			e.release(s, g)
		}
		e.h.(CounterDeleter).DeleteCounter(e.TB, r)
	}
}

// fences checks the fences of one resource, in the order of the grants. Whatever ends a hold
// between two of them, the numbers of the store leave room for those of a cohort: an arbiter
// hands on the last grant of the store under the fences that follow.
type fences struct {
	e         *env
	exclusive lock.Fence // the largest of an exclusive grant
	last      lock.Fence // the largest of all
}

func (f *fences) check(g lock.Grant) {
	f.e.Helper()
	switch {
	case g.Mode == lock.Exclusive && g.Fence <= f.last:
		f.e.Errorf("broken law: an exclusive grant has fence %d after %d", g.Fence, f.last)
	case g.Mode == lock.Shared && g.Fence < f.exclusive:
		f.e.Errorf("broken law: a shared grant has fence %d after %d", g.Fence, f.exclusive)
	case g.Mode == lock.Exclusive && g.Fence < f.last+lock.FenceRange,
		g.Mode == lock.Shared && f.exclusive > 0 && g.Fence < f.exclusive+lock.FenceRange:
		f.e.Errorf("broken law: between the fences %d and %d of two grants of the store there is no room for the %d of a cohort", f.last, g.Fence, lock.FenceRange)
	}
	f.last = max(f.last, g.Fence)
	if g.Mode == lock.Exclusive {
		f.exclusive = g.Fence
	}
}
