package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// longHold does not end while a test runs: a forced release ends it.
	longHold = 10 * time.Minute
	// shortHold is waited for.
	shortHold = time.Second
)

// keeping is a request with a MinHold.
func keeping(r lock.Resource, m lock.Mode, d time.Duration) lock.Request {
	q := request(r, m)
	q.MinHold = d
	return q
}

// keep takes with a MinHold what must be free.
func (e *env) keep(s *sidecar, r lock.Resource, m lock.Mode, d time.Duration) lock.Grant {
	e.Helper()
	q := keeping(r, m, d)
	q.Try = true
	g, err := e.try(s, q)
	if err != nil {
		e.Fatalf("Acquire(%s) with a MinHold of what is free: %v", m, s.blame(err))
	}
	e.is(g, q)
	return g
}

// kept checks that the store keeps others out for a hold that nobody has any more.
func (e *env) kept(b lock.Backend, g lock.Grant, by *sidecar) {
	e.Helper()
	for _, h := range e.get(b, g.Resource).Holders {
		switch {
		case h.ID != g.ID:
		case h.Kept <= 0 || h.Kept > longHold || h.Sidecar != by.name || h.Fence != g.Fence || h.Owner.PID == 0:
			e.Fatalf("a hold that is kept is shown as %+v", h)
		default:
			return
		}
	}
	e.Fatalf("the hold %s is not kept", g.ID)
}

// freed ends what is kept, by a forced release, which takes no grace.
func (e *env) freed(b lock.Backend, g lock.Grant) {
	e.Helper()
	e.force(e.ctx, b, g.Resource, g.ID, patience).ok()
	e.notHolder("ForceRelease of what was kept, again", b.ForceRelease(e.ctx, g.Resource, g.ID, 0))
}

// notBefore checks that w was granted no sooner than so long after a moment.
func (e *env) notBefore(w *waiter, since time.Time, d time.Duration) lock.Grant {
	e.Helper()
	g := w.granted()
	took := w.at.Sub(since)
	if took < d-d/200 { // store and test may count time on two clocks that are not quite as fast
		e.Errorf("granted %s after a hold of at least %s began", took, d)
	}
	return g
}

// testMinHold: what is released is kept, for everybody, and then granted to who waits.
func testMinHold(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.keep(a, r, lock.Exclusive, longHold)
	if h := e.get(b.b, r).Holders; len(h) != 1 || h[0].Kept != 0 {
		e.Errorf("a hold that somebody has is shown as %+v", h)
	}
	e.refused(b, r, lock.Exclusive)
	first := e.queue(b, r, lock.Exclusive)
	e.release(a, g)
	e.kept(b.b, g, a)
	e.notHolder("Release of what is kept", a.Release(e.ctx, r, g.ID))
	for _, s := range []*sidecar{a, b} {
		held := e.refused(s, r, lock.Exclusive)
		if hs := held.Status.Holders; len(hs) != 1 || hs[0].ID != g.ID || hs[0].Kept <= 0 || hs[0].Kept > longHold {
			e.Errorf("who is refused is told of %+v", hs)
		}
	}
	if hs := e.list(b.b, string(r), lock.Page{Limit: 10}); len(hs) != 1 || len(hs[0].Holders) != 1 || hs[0].Holders[0].Kept <= 0 {
		e.Errorf("what is kept is listed as %+v", hs)
	}
	first.blocked()
	e.freed(b.b, g)
	g1 := first.granted()
	if g1.Fence <= g.Fence {
		e.Errorf("broken law: fence %d after %d", g1.Fence, g.Fence)
	}
	e.release(b, g1)
	for _, d := range []time.Duration{-1, lock.MaxMinHold + 1} {
		if _, err := a.Acquire(e.ctx, keeping(r, lock.Exclusive, d)); !errors.Is(err, lock.ErrInvalid) {
			e.Errorf("Acquire with a MinHold of %s: got %v, want ErrInvalid", d, err)
		}
	}
	e.release(b, e.acquire(b, r, lock.Exclusive))
}

// testMinHoldOver: the store itself ends what is kept, in time, whether or not somebody waits.
func testMinHoldOver(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, alone, past := e.name("r"), e.name("alone"), e.name("past")
	start := time.Now()
	g := e.keep(a, r, lock.Exclusive, shortHold)
	w := e.start(b, keeping(r, lock.Exclusive, shortHold))
	e.release(a, g)
	gw := e.notBefore(w, start, shortHold)
	if took := w.at.Sub(start); took > shortHold+e.h.Recheck()+2*slack {
		e.slow("granted only %s after a hold of at least %s began", took, shortHold)
	}
	// Of who has waited, it counts from the grant.
	next := e.start(a, request(r, lock.Exclusive))
	e.release(b, gw)
	e.release(a, e.notBefore(next, start, 2*shortHold))

	start = time.Now()
	e.release(a, e.keep(a, alone, lock.Exclusive, shortHold))
	g = e.keep(a, past, lock.Exclusive, shortHold)
	granted := time.Now()
	e.eventually("the resource is free", func() bool { return len(e.get(b.b, alone).Holders) == 0 })
	if took := time.Since(start); took < shortHold-shortHold/200 {
		e.Errorf("free %s after a hold of at least %s began", took, shortHold)
	}
	e.release(b, e.acquire(b, alone, lock.Exclusive))

	// It ends no hold that somebody has.
	e.eventually("the time is over", func() bool { return time.Since(granted) > shortHold+e.h.TTL() })
	if h := e.get(b.b, past).Holders; len(h) != 1 || h[0].Kept != 0 {
		e.Errorf("a hold that somebody has is shown as %+v", h)
	}
	e.release(a, g)
	e.release(b, e.acquire(b, past, lock.Exclusive))
}

// testMinHoldOfTheDead: the end of the lease, by its TTL or by Close, does not end it.
func testMinHoldOfTheDead(e *env) {
	b, closes := e.sidecar(), e.sidecar()
	dead := e.mortal()
	r, short, closed := e.name("r"), e.name("short"), e.name("closed")
	g := e.keep(dead, r, lock.Exclusive, longHold)
	ended := dead.ttl + shortHold
	start := time.Now()
	e.keep(dead, short, lock.Exclusive, ended)
	gc := e.keep(closes, closed, lock.Exclusive, longHold)
	w := e.start(b, request(short, lock.Exclusive))
	waits := e.queue(b, r, lock.Exclusive)
	if err := closes.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
	e.kept(b.b, gc, closes)
	e.refused(b, closed, lock.Exclusive)
	dead.silence()
	e.eventually("nobody has it, and it is kept", func() bool {
		st := e.get(b.b, r)
		return len(st.Holders) == 1 && st.Holders[0].Kept > 0
	})
	e.refused(b, r, lock.Exclusive)
	e.kept(b.b, g, dead)
	e.release(b, e.notBefore(w, start, ended))
	waits.blocked()
	e.freed(b.b, g)
	e.freed(b.b, gc)
	e.release(b, waits.granted())
	e.release(b, e.acquire(b, closed, lock.Exclusive))
}

// testMinHoldForced: a forced release ends it, from its beginning on.
func testMinHoldForced(e *env) {
	a, b := e.sidecar(), e.sidecar()
	for i, grace := range []time.Duration{0, 300 * time.Millisecond, 2 * patience} {
		r := e.name(fmt.Sprint("r", i))
		g := e.keep(a, r, lock.Exclusive, longHold)
		w := e.queue(b, r, lock.Exclusive)
		f := e.force(e.ctx, b.b, r, g.ID, grace)
		switch {
		case grace == 0:
			f.ok()
			a.taken(g.ID)
		case grace < patience:
			a.event(lock.Revoked, g.ID)
			f.over(w, grace)
			_ = a.Release(e.ctx, r, g.ID) // what a sidecar does after a loss
		default:
			a.event(lock.Revoked, g.ID)
			e.release(a, g)
		}
		f.ok()
		e.release(b, w.granted())
	}
	dead := e.mortal()
	r := e.name("dead")
	g := e.keep(dead, r, lock.Exclusive, longHold)
	f := e.force(e.ctx, b.b, r, g.ID, longHold)
	dead.event(lock.Revoked, g.ID)
	dead.silence()
	f.ok() // when the lease is over
	e.release(b, e.acquire(b, r, lock.Exclusive))
}

// testMinHoldShared: each reader keeps writers out for itself, and nobody else.
func testMinHoldShared(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.keep(a, r, lock.Shared, longHold)
	other := e.acquire(b, r, lock.Shared)
	e.release(a, g)
	e.kept(b.b, g, a)
	e.refused(b, r, lock.Exclusive)
	e.release(b, e.acquire(b, r, lock.Shared))
	e.release(b, other)
	e.refused(b, r, lock.Exclusive)
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	w := e.queue(b, r, lock.Exclusive)
	e.freed(a.b, g)
	e.release(b, w.granted())
}

// testMinHoldDowngraded: a writer that became a reader keeps writers out.
func testMinHoldDowngraded(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.keep(a, r, lock.Exclusive, longHold)
	if err := a.Downgrade(e.ctx, r, g.ID); err != nil {
		e.Fatalf("Downgrade: %v", err)
	}
	e.release(a, g)
	e.kept(b.b, g, a)
	e.notHolder("Downgrade of what is kept", a.Downgrade(e.ctx, r, g.ID))
	e.release(b, e.acquire(b, r, lock.Shared))
	e.refused(b, r, lock.Exclusive)
	e.freed(b.b, g)
	e.release(b, e.acquire(b, r, lock.Exclusive))
}

// testMinHoldOfPermit: the slot stays taken.
func testMinHoldOfPermit(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, two := e.name("r"), lock.Permits(2)
	g := e.keep(a, r, two, longHold)
	e.release(a, g)
	e.kept(b.b, g, a)
	e.otherLimit(b, r, lock.Permits(3), true)
	second := e.acquire(b, r, two)
	if second.Fence.Slot() == g.Fence.Slot() {
		e.Errorf("broken law: slot %d is kept, and granted", g.Fence.Slot())
	}
	e.refused(b, r, two)
	w := e.queue(a, r, two)
	e.release(b, second)
	third := w.granted()
	if third.Fence.Slot() != second.Fence.Slot() {
		e.Errorf("slot %d, want %d, which is not kept", third.Fence.Slot(), second.Fence.Slot())
	}
	e.freed(b.b, g)
	fourth := e.acquire(b, r, two)
	if fourth.Fence.Slot() != g.Fence.Slot() {
		e.Errorf("slot %d, want %d, which is not kept any more", fourth.Fence.Slot(), g.Fence.Slot())
	}
	e.release(a, third)
	e.release(b, fourth)
}

// testMinHoldReplyLost: who asks again finds the hold, and a release whose answer is lost is one.
func testMinHoldReplyLost(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	q := keeping(r, lock.Exclusive, longHold)
	e.lost(a.b, acquiring(a, q))
	var g lock.Grant
	if err := e.answered(func() (err error) { g, err = a.Acquire(e.ctx, q); return err }); err != nil {
		e.Fatalf("Acquire again: %v", err)
	}
	e.lost(a.b, func(ctx context.Context) error { return a.Release(ctx, r, g.ID) })
	if err := e.tryRelease(a, g); err != nil && !errors.Is(err, lock.ErrNotHolder) {
		e.Fatalf("Release again: %v", err)
	}
	e.kept(b.b, g, a)
	if got, err := a.Acquire(e.ctx, q); !errors.Is(err, lock.ErrNotHolder) {
		e.Errorf("Acquire of what was released, and is kept: got %+v, %v; want ErrNotHolder", got, err)
	}
	e.kept(b.b, g, a)
	e.freed(b.b, g)
	e.release(b, e.acquire(b, r, lock.Exclusive))
}

// testMinHoldUnderLoad: none of many sidecars is granted what another had, before that one's time is over.
func testMinHoldUnderLoad(e *env) {
	const least = 50 * time.Millisecond
	ss := e.sidecars(3)
	r := e.name("r")
	var mu sync.Mutex
	var earliest time.Time // when the last grant can have been made at the earliest
	n := 0
	e.load(loadTime, ss, 6, func(s *sidecar, _ int) error {
		asked := time.Now()
		q := keeping(r, lock.Exclusive, least)
		var g lock.Grant
		if err := persist(e.ctx, func() (err error) { g, err = s.Acquire(e.ctx, q); return err }); err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		now := time.Now()
		mu.Lock()
		if took := now.Sub(earliest); n > 0 && took < least-least/200 {
			e.Errorf("granted %s after another grant", took)
		}
		n++
		if earliest = earliest.Add(least); asked.After(earliest) {
			earliest = asked
		}
		mu.Unlock()
		return e.leave(s, r, g.ID)
	})
	e.Logf("%d grants", n)
	for _, h := range e.get(ss[0].b, r).Holders {
		_ = ss[0].b.ForceRelease(e.ctx, r, h.ID, 0)
	}
}

// testArbiterMinHold: a hold with a MinHold is never handed on, shared or parked by a sidecar, and ends
// what is parked.
func testArbiterMinHold(e *env) {
	a, b := e.arbitrated(arbiter.Options{Park: time.Hour}, longTTL), e.arbitrated(arbiter.Options{}, longTTL)
	r := e.name("r")
	a.parks(r)
	g := e.keep(a.sidecar, r, lock.Exclusive, longHold)
	own, other := e.queue(a.sidecar, r, lock.Exclusive), e.queue(b.sidecar, r, lock.Exclusive)
	e.release(a.sidecar, g)
	e.kept(b.b, g, a.sidecar)
	own.blocked()
	other.blocked()
	e.refused(a.sidecar, r, lock.Exclusive)
	e.freed(b.b, g)
	e.release(a.sidecar, own.granted())
	e.release(b.sidecar, other.granted())
	e.eventually("nothing is left", func() bool {
		st := e.get(b.b, r)
		return len(st.Holders) == 0 || st.Holders[0].Parked
	})
}
