package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
)

// otherLimit asks for one of another number of permits than there are holds of.
func (e *env) otherLimit(s *sidecar, r lock.Resource, m lock.Mode, try bool) {
	e.Helper()
	q := request(r, m)
	q.Try = try
	if g, err := e.try(s, q); !errors.Is(err, lock.ErrInvalid) {
		e.Fatalf("Acquire of one of %d permits beside others: got %+v, %v; want ErrInvalid", m.Limit(), g, err)
	}
}

func testPermits(e *env) {
	ss := e.sidecars(2)
	a, b := ss[0], ss[1]
	r, three := e.name("r"), lock.Permits(3)
	var gs []lock.Grant
	slots := map[int]bool{}
	for i := range 3 {
		g := e.acquire(ss[i%2], r, three)
		slots[g.Fence.Slot()] = true
		gs = append(gs, g)
	}
	if len(slots) != 3 || !slots[0] || !slots[1] || !slots[2] {
		e.Fatalf("three permits have the slots %v", slots)
	}
	if held := e.refused(b, r, three); len(held.Status.Holders) != 3 || held.Status.Holders[0].Mode != three {
		e.Errorf("a refused request is told of %+v", held.Status.Holders)
	}
	e.refused(b, r, lock.Exclusive)
	e.refused(a, r, lock.Shared)
	for _, try := range []bool{true, false} {
		e.otherLimit(a, r, lock.Permits(2), try)
		e.otherLimit(b, r, lock.Permits(4), try)
		e.otherLimit(b, r, lock.Permits(1), try)
	}
	if err := a.Downgrade(e.ctx, r, gs[0].ID); !errors.Is(err, lock.ErrInvalid) {
		e.Errorf("Downgrade of a permit: got %v, want ErrInvalid", err)
	}

	first, second := e.queue(a, r, three), e.queue(b, r, three)
	st := e.holds(b.b, r, []lock.HoldID{gs[0].ID, gs[1].ID, gs[2].ID}, []lock.HoldID{first.q.ID, second.q.ID})
	for _, h := range slices.Concat(st.Holders, st.Waiters) {
		if h.Mode != three {
			e.Errorf("%s is shown as %d", h.ID, h.Mode)
		}
	}
	for _, h := range st.Holders {
		if i := slices.IndexFunc(gs, func(g lock.Grant) bool { return g.ID == h.ID }); h.Fence != gs[i].Fence {
			e.Errorf("slot %d is shown, want %d", h.Fence.Slot(), gs[i].Fence.Slot())
		}
	}
	e.release(b, gs[1])
	g := first.granted()
	if g.Fence.Slot() != gs[1].Fence.Slot() || g.Fence <= gs[2].Fence {
		e.Errorf("the first waiter has the fence %d, slot %d; want slot %d, which is free, and more than %d", g.Fence, g.Fence.Slot(), gs[1].Fence.Slot(), gs[2].Fence)
	}
	second.blocked()
	second.cancel()
	if err, held := second.failed(context.Canceled), new(lock.HeldError); !errors.As(err, &held) || held.Position != 1 {
		e.Errorf("the second waiter gives up with %v", err)
	}
	e.release(a, g)
	e.release(a, gs[0])
	e.release(a, gs[2])
	g = e.acquire(b, r, lock.Permits(2)) // nobody holds: the number is free
	if g.Fence.Slot() != 0 {
		e.Errorf("the only one has slot %d", g.Fence.Slot())
	}
	e.release(b, g)
}

// testPermitsInOrder lets permits and locks wait for each other: first come, first served.
func testPermitsInOrder(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, two := e.name("r"), lock.Permits(2)
	x := e.acquire(a, r, lock.Exclusive)
	e.refused(b, r, two)
	w1, w2, w3 := e.queue(a, r, two), e.queue(b, r, two), e.queue(b, r, two)
	reader, other, last := e.queue(a, r, lock.Shared), e.queue(b, r, lock.Permits(3)), e.queue(a, r, lock.Exclusive)
	e.release(a, x)
	g1, g2 := w1.granted(), w2.granted()
	if g1.Fence.Slot() == g2.Fence.Slot() {
		e.Errorf("broken law: both have slot %d", g1.Fence.Slot())
	}
	e.holds(a.b, r, []lock.HoldID{g1.ID, g2.ID}, []lock.HoldID{w3.q.ID, reader.q.ID, other.q.ID, last.q.ID})
	e.release(b, g2)
	g3 := w3.granted()
	reader.blocked()
	e.release(a, g1)
	reader.blocked() // a permit is free, and a lock is not
	e.refused(a, r, two)
	e.release(b, g3)
	gr := reader.granted()
	other.blocked()
	e.release(a, gr)
	g := other.granted()
	last.blocked()
	e.release(b, g)
	e.release(a, last.granted())
}

// testPermitsForced: of one permit the release is forced, or its waiter is taken out.
func testPermitsForced(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, two := e.name("r"), lock.Permits(2)
	g1, g2 := e.acquire(a, r, two), e.acquire(b, r, two)
	w1, w2, w3 := e.queue(b, r, two), e.queue(b, r, two), e.queue(a, r, two)
	if err := a.b.ForceRelease(e.ctx, r, w1.q.ID, 0); err != nil {
		e.Fatalf("ForceRelease of a waiter: %v", err)
	}
	w1.failed(lock.ErrNotHolder)
	e.force(e.ctx, b.b, r, g1.ID, 0).ok()
	a.taken(g1.ID)
	g := w2.granted()
	if g.Fence.Slot() != g1.Fence.Slot() {
		e.Errorf("slot %d, want %d of who was forced out", g.Fence.Slot(), g1.Fence.Slot())
	}
	e.notHolder("Release of what was forced", a.Release(e.ctx, r, g1.ID))
	w3.blocked()

	const grace = 300 * time.Millisecond
	f := e.force(e.ctx, a.b, r, g2.ID, grace)
	b.event(lock.Revoked, g2.ID)
	g3 := f.over(w3, grace)
	f.ok()
	if g3.Fence.Slot() != g2.Fence.Slot() {
		e.Errorf("slot %d, want %d whose grace is over", g3.Fence.Slot(), g2.Fence.Slot())
	}
	_ = b.Release(e.ctx, r, g2.ID) // what a sidecar does after a loss
	e.release(b, g)
	e.release(a, g3)
}

// testPermitsOfTheDead: what a lease had that is over is free for the next, and no more than
// that. They are more than one step of a store looks at.
func testPermitsOfTheDead(e *env) {
	const limit, workers, each = 82, 8, 10
	b := e.sidecar()
	dead := e.mortal()
	r, m := e.name("r"), lock.Permits(limit)
	gs := make(chan lock.Grant, limit)
	var gone []int
	for range 2 {
		gone = append(gone, e.acquire(dead, r, m).Fence.Slot())
	}
	for range workers { // several at a time: it is quicker
		e.tasks.Go(func() {
			for range each {
				q := request(r, m)
				var g lock.Grant
				if err := persist(e.ctx, func() (err error) { g, err = b.Acquire(e.ctx, q); return err }); err != nil {
					e.Errorf("Acquire of one of %d permits: %v", limit, err)
				}
				gs <- g
			}
		})
	}
	var all []lock.Grant
	for range workers * each {
		all = append(all, <-gs)
	}
	e.goOn()
	first := e.queue(b, r, m)
	waits := e.queue(dead, r, m)
	second, third := e.queue(b, r, m), e.queue(b, r, m)
	e.inTime(dead, first)
	waits.died()
	got := []int{first.grant.Fence.Slot(), second.granted().Fence.Slot()}
	slices.Sort(gone)
	slices.Sort(got)
	if !slices.Equal(got, gone) {
		e.Errorf("slots %v, want %v of the lease that is over", got, gone)
	}
	third.blocked()
	all = append(all, first.grant, second.grant)
	seen := map[int]bool{}
	for _, g := range all {
		if slot := g.Fence.Slot(); seen[slot] || slot >= limit {
			e.Errorf("slot %d of %d is not its own", slot, limit)
		}
		seen[g.Fence.Slot()] = true
	}
	e.release(b, all[0])
	all = append(all[1:], third.granted())
	for _, g := range all {
		e.release(b, g)
	}
}

// testPermitReplyLost: asking again finds the permit, with its slot.
func testPermitReplyLost(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r, m := e.name("r"), lock.Permits(2)
	other := e.acquire(b, r, m)
	q := request(r, m)
	e.lost(a.b, acquiring(a, q))
	var g lock.Grant
	if err := e.answered(func() (err error) { g, err = a.Acquire(e.ctx, q); return err }); err != nil {
		e.Fatalf("Acquire again: %v", err)
	}
	st := e.holds(b.b, r, []lock.HoldID{other.ID, q.ID}, nil)
	for _, h := range st.Holders {
		if h.ID == q.ID && h.Fence != g.Fence {
			e.Errorf("the store has fence %d, and asking again gave %d", h.Fence, g.Fence)
		}
	}
	if g.Fence.Slot() == other.Fence.Slot() {
		e.Errorf("broken law: both have slot %d", g.Fence.Slot())
	}
	e.refused(b, r, m)
	e.release(a, g)
	e.release(b, other)
}

// testPermitsUnderLoad lets many sidecars take permits for a while, and some give up.
func testPermitsUnderLoad(e *env) {
	const limit = 3
	ss := e.sidecars(3)
	r, m := e.name("r"), lock.Permits(limit)
	var slots [limit]atomic.Int64
	var together, grants atomic.Int64
	e.load(loadTime, ss, 9, func(s *sidecar, i int) error {
		wait := patience
		if i%4 == 0 {
			wait = 3 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(e.ctx, wait)
		defer cancel()
		q := request(r, m)
		g, err := s.Acquire(ctx, q)
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			if err = e.leave(s, r, q.ID); errors.Is(err, lock.ErrNotHolder) {
				err = nil
			}
			return err
		case i%4 == 0 && errors.Is(err, context.DeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("acquire: %w", err)
		}
		slot := g.Fence.Slot()
		if slot >= limit || !slots[slot].CompareAndSwap(0, 1) {
			return fmt.Errorf("slot %d is another's", slot)
		}
		grants.Add(1)
		n := together.Add(1)
		if n > limit {
			return fmt.Errorf("%d hold together", n)
		}
		time.Sleep(time.Millisecond)
		together.Add(-1)
		slots[slot].Store(0)
		return e.leave(s, r, g.ID)
	})
	e.Logf("%d grants in %s", grants.Load(), loadTime)
}

// testArbiterPermits: a permit is never handed on, shared or parked by a sidecar, and ends what
// is parked.
func testArbiterPermits(e *env) {
	a, b := e.arbitrated(arbiter.Options{Park: time.Hour}, longTTL), e.arbitrated(arbiter.Options{}, longTTL)
	r, two := e.name("r"), lock.Permits(2)
	a.parks(r)
	g1 := e.start(b.sidecar, request(r, two)).granted()
	e.release(b.sidecar, g1)
	a.parks(r)
	g1 = e.acquire(a.sidecar, r, two) // what it has parked itself
	g2 := e.acquire(b.sidecar, r, two)
	if g1.Fence.Slot() == g2.Fence.Slot() {
		e.Errorf("broken law: both have slot %d", g1.Fence.Slot())
	}
	e.refused(a.sidecar, r, two)
	e.refused(b.sidecar, r, lock.Exclusive)
	writer := e.queue(a.sidecar, r, lock.Exclusive)
	later := e.queue(a.sidecar, r, two)
	e.release(a.sidecar, g1)
	writer.blocked()
	e.release(b.sidecar, g2)
	gw := writer.granted()
	later.blocked()
	e.release(a.sidecar, gw)
	g := later.granted()
	e.release(a.sidecar, g)
	e.eventually("a permit is not parked", func() bool { return len(e.get(b.b, r).Holders) == 0 })
}
