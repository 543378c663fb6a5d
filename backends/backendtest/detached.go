package backendtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
)

// testDetach: a hold that is detached is there for nobody and keeps others out, until who has its key
// attaches it with the same fence; and it ends when that one lets go of it for good.
func testDetach(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.detachable(a, r, lock.Exclusive)
	if h := e.get(b.b, r).Holders; len(h) != 1 || h[0].Kept != 0 || h[0].Detached {
		e.Errorf("a hold that somebody has is shown as %+v", h)
	}
	w := e.queue(b, r, lock.Exclusive)
	key := e.detach(a, g, longHold)
	if err := a.Detach(e.ctx, r, g.ID, key, longHold); err != nil {
		e.Errorf("Detach, the same again: %v", err)
	}
	e.loose(b.b, g, a)
	e.notHolder("Release of what is detached", a.Release(e.ctx, r, g.ID))
	e.notHolder("Detach of what is detached under another key", a.Detach(e.ctx, r, g.ID, lock.NewSecret().Key(), longHold))
	e.noHandle(b, g, lock.NewSecret().Key())
	other := g
	other.Mode = lock.Permits(1)
	if got, err := b.Acquire(e.ctx, attaching(other, key)); !errors.Is(err, lock.ErrNoHandle) {
		e.Errorf("attach in another mode: got %+v, %v; want ErrNoHandle", got, err)
	}
	e.loose(b.b, g, a)
	w.blocked()

	got := e.attach(b, g, key, longHold)
	if h := e.get(a.b, r).Holders; len(h) != 1 || h[0].ID != got.ID || h[0].Kept != 0 || h[0].Detached || h[0].Sidecar != b.name {
		e.Errorf("a hold that is attached is shown as %+v", h)
	}
	e.set(a, got, key, longHold)
	e.refused(a, r, lock.Exclusive)
	e.release(b, got) // it is what it was
	e.loose(a.b, got, b)
	again := e.attach(b, got, key, longHold)
	next := e.detach(b, again, longHold)
	e.noHandle(a, again, key)
	last := e.attach(a, again, next, longHold)
	w.blocked()
	if err := a.Detach(e.ctx, r, last.ID, next, 0); err != nil {
		e.Fatalf("Detach for good: %v", err)
	}
	gw := w.granted()
	if gw.Fence <= g.Fence {
		e.Errorf("broken law: fence %d after %d", gw.Fence, g.Fence)
	}
	e.noHandle(a, last, next)
	e.release(b, gw)
	for _, ttl := range []time.Duration{-1, lock.MinDetach - 1, lock.MaxDetach + 1} {
		g := e.detachable(a, r, lock.Exclusive)
		if err := a.Detach(e.ctx, r, g.ID, key, ttl); !errors.Is(err, lock.ErrInvalid) {
			e.Errorf("Detach for %s: got %v, want ErrInvalid", ttl, err)
		}
		e.release(a, g)
	}
}

// testDetachTakenOver: what is attached can be attached elsewhere, and ended, by who has the key; its
// lease is told.
func testDetachTakenOver(e *env) {
	a, b, c := e.sidecar(), e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.detachable(a, r, lock.Exclusive)
	w := e.queue(c, r, lock.Exclusive)
	key := e.detach(a, g, longHold)
	first := e.attach(a, g, key, longHold)
	second := e.attach(b, first, key, longHold)
	a.taken(first.ID)
	e.notHolder("Release of what was taken over", a.Release(e.ctx, r, first.ID))
	e.notHolder("Detach of what was taken over", a.Detach(e.ctx, r, first.ID, lock.NewSecret().Key(), longHold))
	third := e.attach(b, second, key, longHold) // by another app of the same sidecar
	b.taken(second.ID)
	_ = b.Release(e.ctx, r, second.ID) // what a sidecar does after a loss
	w.blocked()
	e.set(c, third, key, 0)
	b.taken(third.ID)
	e.release(c, w.granted())
	e.noHandle(b, third, key)
}

// testDetachOver: the store itself ends what is detached, in time, and when that was moved, then.
func testDetachOver(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, moved, had := e.name("r"), e.name("moved"), e.name("had")
	g := e.detachable(a, r, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	start := time.Now()
	key := e.detach(a, g, shortHold)
	gw := e.notBefore(w, start, shortHold)
	if took := w.at.Sub(start); took > shortHold+e.h.Recheck()+2*slack {
		e.slow("granted only %s after it was detached for %s", took, shortHold)
	}
	e.noHandle(a, g, key)
	e.release(b, gw)

	g = e.detachable(a, moved, lock.Exclusive)
	key = e.detach(a, g, longHold)
	w = e.queue(b, moved, lock.Exclusive)
	start = time.Now()
	e.set(b, g, key, shortHold)
	e.release(b, e.notBefore(w, start, shortHold))
	g = e.detachable(b, moved, lock.Exclusive)
	start = time.Now()
	key = e.detach(b, g, shortHold)
	e.set(a, g, key, longHold)
	e.eventually("the first time is over", func() bool { return time.Since(start) > 2*shortHold })
	e.loose(a.b, g, b)
	e.set(a, g, key, 0)
	e.notThere(a.b, moved)

	// It ends no hold that somebody has.
	g = e.detachable(a, had, lock.Exclusive)
	g = e.attach(b, g, e.detach(a, g, shortHold), shortHold)
	start = time.Now()
	e.eventually("the time is over", func() bool { return time.Since(start) > shortHold+e.h.TTL() })
	if h := e.get(b.b, had).Holders; len(h) != 1 || h[0].ID != g.ID || h[0].Kept != 0 {
		e.Errorf("a hold that somebody has is shown as %+v", h)
	}
	e.release(b, g)
	e.release(a, e.acquire(a, had, lock.Exclusive))

	// Who asks for it again then has nothing, and nothing is left.
	g = e.detachable(a, had, lock.Exclusive)
	key = e.detach(a, g, shortHold)
	latest := time.Now().Add(shortHold + e.h.Recheck() + slack/3) // the detach may have taken a while, and a store may be late
	q := attaching(g, key)
	if err := e.answered(func() (err error) { _, err = b.Acquire(e.ctx, q); return err }); err != nil {
		e.Fatalf("attach: %v", e.inVain(key, err))
	}
	e.eventually("the time is over", func() bool { return time.Now().After(latest) })
	if err := e.answered(func() (err error) { _, err = b.Acquire(e.ctx, q); return err }); !errors.Is(err, lock.ErrNoHandle) {
		e.Errorf("attach again: %v, want ErrNoHandle", err)
	}
	e.release(a, e.acquire(a, had, lock.Exclusive))
}

// notThere waits until a resource is free.
func (e *env) notThere(b lock.Backend, r lock.Resource) {
	e.Helper()
	e.eventually("the resource is free", func() bool { return len(e.get(b, r).Holders) == 0 })
}

// testDetachOfTheDead: the end of the lease that has detached or attached a hold does not end it. Another lease does
// that, for who has had it attached.
func testDetachOfTheDead(e *env) {
	b := e.sidecar()
	r, other, ended, early := e.name("r"), e.name("other"), e.name("ended"), e.name("early")
	dead := e.mortal()
	g, g2, g3 := e.detachable(dead, r, lock.Exclusive), e.detachable(dead, other, lock.Exclusive), e.detachable(dead, ended, lock.Exclusive)
	key, key2, key3 := e.detach(dead, g, longHold), e.detach(dead, g2, longHold), e.detach(dead, g3, longHold)
	g4 := e.detachable(dead, early, lock.Exclusive)
	key4 := e.detach(dead, g4, longHold)
	g, g3, g4 = e.attach(dead, g, key, longHold), e.attach(dead, g3, key3, longHold), e.attach(dead, g4, key4, longHold)
	w := e.queue(b, r, lock.Exclusive)
	dead.silence()
	// Its sidecar may count its lease as over before the store does.
	if err := e.answered(func() error { return b.Detach(e.ctx, early, g4.ID, key4, 0) }); err != nil {
		e.Errorf("Detach for good, on another lease and at once: %v", err)
	}
	e.release(b, e.acquire(b, early, lock.Exclusive))
	e.eventually("nobody has it, and it is detached", func() bool {
		st := e.get(b.b, r)
		return len(st.Holders) == 1 && st.Holders[0].Detached
	})
	e.loose(b.b, g, dead)
	e.loose(b.b, g2, dead)
	e.eventually("what the dead lease had is ended", func() bool {
		err := b.Detach(e.ctx, ended, g3.ID, key3, 0)
		if err != nil && !errors.Is(err, lock.ErrNotHolder) {
			e.Errorf("Detach for good, on another lease: %v", err)
		}
		return err == nil
	})
	e.release(b, e.acquire(b, ended, lock.Exclusive))
	closes := e.sidecar()
	g = e.attach(closes, g, key, longHold)
	if err := closes.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
	e.loose(b.b, g, closes)
	w.blocked()
	e.set(b, g, key, 0)
	e.release(b, w.granted())
	e.set(b, g2, key2, 0)
	e.release(b, e.acquire(b, other, lock.Exclusive))
}

// testDetachForced: a forced release ends what is detached at once, and what is attached as any hold.
func testDetachForced(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.detachable(a, r, lock.Exclusive)
	key := e.detach(a, g, longHold)
	e.freed(b.b, g)
	e.noHandle(b, g, key)
	for i, grace := range []time.Duration{0, 2 * patience} {
		r := e.name(fmt.Sprint("r", i))
		g := e.detachable(a, r, lock.Exclusive)
		key := e.detach(a, g, longHold)
		g = e.attach(b, g, key, longHold)
		f := e.force(e.ctx, a.b, r, g.ID, grace)
		if grace > 0 {
			b.event(lock.Revoked, g.ID)
			e.noHandle(a, g, key)
			e.release(b, g)
		}
		f.ok()
		if grace == 0 {
			b.taken(g.ID)
		}
		e.release(a, e.acquire(a, r, lock.Exclusive))
		e.noHandle(a, g, key)
	}
}

// testDetachWhateverClocksDo: a clock of the store that went ahead ends what is detached too soon. When the clock goes
// back, it stays over for who has its key: others may have it.
func testDetachWhateverClocksDo(e *env) {
	h, shift := e.h.(ClockShifter).OwnClock(e.TB)
	e.h = h
	for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
		a := e.sidecar()
		g := e.detachable(a, e.name(m.String()), lock.Exclusive)
		key := e.detach(a, g, 20*time.Second) // the store may not clear it away before
		shift(longHold)
		b := e.sidecar()
		g2 := e.acquire(b, g.Resource, m)
		shift(0)
		e.noHandle(b, g, key)
		e.holds(b.b, g.Resource, []lock.HoldID{g2.ID}, nil)
		e.release(b, g2)
		e.release(b, e.acquire(b, g.Resource, lock.Exclusive))
		_ = b.Close(e.ctx) // its lease may be dated ahead
	}
}

// testDetachShared: each reader is detached for itself.
func testDetachShared(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g, g2 := e.detachable(a, r, lock.Shared), e.detachable(a, r, lock.Shared)
	key, key2 := e.detach(a, g, longHold), e.detach(a, g2, longHold)
	e.refused(b, r, lock.Exclusive)
	e.release(b, e.acquire(b, r, lock.Shared))
	g = e.attach(b, g, key, longHold)
	w := e.queue(a, r, lock.Exclusive)
	e.set(b, g2, key2, 0)
	w.blocked()
	if err := b.Detach(e.ctx, r, g.ID, key, 0); err != nil {
		e.Fatalf("Detach for good: %v", err)
	}
	e.release(a, w.granted())
}

// testDetachPermit: the slot stays taken, and goes along.
func testDetachPermit(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, two := e.name("r"), lock.Permits(2)
	g := e.detachable(a, r, two)
	key := e.detach(a, g, longHold)
	second := e.acquire(b, r, two)
	if second.Fence.Slot() == g.Fence.Slot() {
		e.Errorf("broken law: slot %d is detached, and granted", g.Fence.Slot())
	}
	e.refused(b, r, two)
	g = e.attach(b, g, key, longHold)
	e.refused(a, r, two)
	if err := b.Detach(e.ctx, r, g.ID, key, 0); err != nil {
		e.Fatalf("Detach for good: %v", err)
	}
	third := e.acquire(a, r, two)
	if third.Fence.Slot() != g.Fence.Slot() {
		e.Errorf("slot %d, want %d", third.Fence.Slot(), g.Fence.Slot())
	}
	e.release(a, third)
	e.release(b, second)
}

// testDetachReplyLost: who asks again finds what was done.
func testDetachReplyLost(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.detachable(a, r, lock.Exclusive)
	key := lock.NewSecret().Key()
	e.lost(a.b, func(ctx context.Context) error { return a.Detach(ctx, r, g.ID, key, longHold) })
	if err := e.answered(func() error { return a.Detach(e.ctx, r, g.ID, key, longHold) }); err != nil {
		e.Fatalf("Detach again: %v", err)
	}
	e.loose(b.b, g, a)

	q := attaching(g, key)
	e.lost(b.b, acquiring(b, q))
	var got lock.Grant
	if err := e.answered(func() (err error) { got, err = b.Acquire(e.ctx, q); return err }); err != nil || got.Fence != g.Fence {
		e.Fatalf("attach again: %+v, %v", got, err)
	}
	e.lost(b.b, func(ctx context.Context) error { return b.Detach(ctx, r, got.ID, key, 0) })
	if err := e.answered(func() error { return b.Detach(e.ctx, r, got.ID, key, 0) }); err != nil && !errors.Is(err, lock.ErrNotHolder) {
		e.Fatalf("Detach for good, again: %v", err)
	}
	e.release(a, e.acquire(a, r, lock.Exclusive))

	// Whoever has given it up has nothing: it is detached again.
	g = e.detachable(a, r, lock.Exclusive)
	key = e.detach(a, g, longHold)
	q = attaching(g, key)
	e.lost(b.b, acquiring(b, q))
	if err := e.answered(func() error { return b.Release(e.ctx, r, q.ID) }); err != nil && !errors.Is(err, lock.ErrNotHolder) {
		e.Fatalf("Release of what was perhaps attached: %v", err)
	}
	e.eventually("it is detached", func() bool {
		st := e.get(a.b, r)
		return len(st.Holders) == 1 && st.Holders[0].Detached
	})
	got = e.attach(a, g, key, longHold)
	if err := a.Detach(e.ctx, r, got.ID, key, 0); err != nil {
		e.Fatalf("Detach for good: %v", err)
	}
}

// detachedThroughEnd detaches a hold, and checks after the end of the server that it is there, unless
// the next one has forgotten.
func (e *env) detachedThroughEnd(forgets bool) (check func()) {
	e.Helper()
	if e.limits.Detached != "" {
		return func() {}
	}
	a := e.sidecar()
	g := e.detachable(a, e.name("detached"), lock.Exclusive)
	key := e.detach(a, g, longHold)
	if err := a.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
	return func() {
		e.Helper()
		b := e.sidecar()
		if forgets {
			if _, err := e.handlesOf(b).SetHandle(e.ctx, g.Resource, key, 0); err != nil && !errors.Is(err, lock.ErrNoHandle) {
				e.Errorf("SetHandle(0) of what may be forgotten: %v", err)
			}
			return
		}
		g = e.attach(b, g, key, longHold)
		if err := e.answered(func() error { return b.Detach(e.ctx, g.Resource, g.ID, key, 0) }); err != nil {
			e.Errorf("Detach for good: %v", err)
		}
	}
}

// testArbiterDetach: a hold that can be detached is one app's alone, and ends what is parked.
func testArbiterDetach(e *env) {
	a, b := e.arbitrated(arbiter.Options{Park: time.Hour}, longTTL), e.arbitrated(arbiter.Options{}, longTTL)
	r := e.name("r")
	a.parks(r)
	g := e.detachable(a.sidecar, r, lock.Exclusive)
	own, other := e.queue(a.sidecar, r, lock.Exclusive), e.queue(b.sidecar, r, lock.Exclusive)
	key := e.detach(a.sidecar, g, longHold)
	own.blocked()
	other.blocked()
	e.refused(a.sidecar, r, lock.Exclusive)
	g = e.attach(b.sidecar, g, key, longHold)
	own.blocked()
	if err := b.Detach(e.ctx, r, g.ID, key, 0); err != nil {
		e.Fatalf("Detach for good: %v", err)
	}
	e.release(a.sidecar, own.granted())
	e.release(b.sidecar, other.granted())
	e.eventually("nothing is left", func() bool {
		st := e.get(b.b, r)
		return len(st.Holders) == 0 || st.Holders[0].Parked
	})
}
