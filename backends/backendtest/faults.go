package backendtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// lost makes calls at the same time while b gets no answers. Each must say that
// it does not know.
func (e *env) lost(b lock.Backend, calls ...func(context.Context) error) {
	e.Helper()
	heal := e.h.(Faulter).LoseReplies(e.TB, b)
	defer heal()
	ctx, cancel := context.WithTimeout(e.ctx, time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i, call := range calls {
		wg.Go(func() {
			switch err := call(ctx); {
			case errors.Is(err, lock.ErrUnavailable):
			case errors.Is(err, context.DeadlineExceeded):
				e.slow("call %d without an answer was perhaps not sent in time: got %v, want ErrUnavailable", i, err)
			default:
				e.Errorf("call %d without an answer: got %v, want ErrUnavailable", i, err)
			}
		})
	}
	wg.Wait()
	e.goOn()
}

// acquiring is an Acquire for lost.
func acquiring(s *sidecar, q lock.Request) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.Acquire(ctx, q)
		return err
	}
}

// testAcquireReplyLost: the store may have granted what the sidecar did not
// hear of. Asking again finds it.
func testAcquireReplyLost(e *env) {
	a, b := e.sidecar(), e.sidecar()
	for _, m := range e.modes() {
		q := request(e.name(m.String()), m)
		e.lost(a.b, acquiring(a, q))
		seen := e.get(b.b, q.Resource)
		var g lock.Grant
		err := e.answered(func() (err error) { g, err = a.Acquire(e.ctx, q); return err })
		if err != nil {
			e.Fatalf("Acquire again: %v", err)
		}
		e.is(g, q)
		// A driver that gave up the grant by itself may have got a new one. One that has reason to wait, because another test
		// led somebody to another server and back, may have got a larger fence for it.
		now := e.get(b.b, q.Resource)
		for _, st := range []lock.Status{seen, now} {
			if len(st.Holders) > 0 && (st.Holders[0].ID != q.ID || st.Holders[0].Fence > g.Fence) {
				e.Errorf("the store granted %+v, and asking again gave %+v", st.Holders, g)
			}
		}
		if len(now.Holders) > 0 && now.Holders[0].Fence != g.Fence {
			e.Errorf("the store has %+v, and asking again gave %+v", now.Holders, g)
		}
		e.holds(b.b, q.Resource, []lock.HoldID{q.ID}, nil)
		e.release(a, g)
	}
}

// testAcquireReplyLostGivenUp: releasing by the request's id cleans up,
// whatever has become of the request.
func testAcquireReplyLostGivenUp(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	q := request(r, lock.Exclusive)
	e.lost(a.b, acquiring(a, q))
	giveUp := func() {
		e.Helper()
		err := e.answered(func() error { return a.Release(e.ctx, r, q.ID) })
		if err != nil && !errors.Is(err, lock.ErrNotHolder) {
			e.Fatalf("Release of what may have been granted: %v", err)
		}
	}
	giveUp()
	g := e.acquire(b, r, e.shared())

	q = request(r, lock.Exclusive)
	e.lost(a.b, acquiring(a, q))
	giveUp()
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	e.noGhost(b, g)
}

// testPlaceReplyLost: a place in the queue is found again too.
func testPlaceReplyLost(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(b, r, lock.Exclusive)
	q := request(r, lock.Exclusive)
	e.lost(a.b, acquiring(a, q))
	had := slices.Contains(ids(e.get(b.b, r).Waiters), q.ID) // or the driver gave it up by itself
	next := e.queue(b, r, lock.Exclusive)
	e.answered(func() error { return a.b.Ping(e.ctx) })
	again := e.start(a, q)
	again.queued()
	order := []lock.HoldID{q.ID, next.q.ID}
	if !had {
		slices.Reverse(order)
	}
	e.holds(b.b, r, []lock.HoldID{g.ID}, order)
	e.release(b, g)
	if had {
		e.release(a, again.granted())
		e.release(b, next.granted())
	} else {
		e.release(b, next.granted())
		e.release(a, again.granted())
	}
}

// testReleaseOfWaiter: a place in the queue of which the sidecar has not heard is
// given up by a release, and the reader behind it goes on.
func testReleaseOfWaiter(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, e.shared())
	q := request(r, lock.Exclusive)
	e.lost(b.b, acquiring(b, q))
	var reader *waiter
	if e.sharing() && e.ordered() {
		reader = e.start(a, request(r, lock.Shared))
	}
	err := e.answered(func() error { return b.Release(e.ctx, r, q.ID) })
	if err != nil && !errors.Is(err, lock.ErrNotHolder) { // the driver gave it up by itself
		e.Fatalf("Release of a waiter: %v", err)
	}
	e.notHolder("Release of a waiter again", b.Release(e.ctx, r, q.ID))
	holders := []lock.HoldID{g.ID}
	if reader != nil {
		holders = append(holders, reader.granted().ID)
	}
	e.holds(b.b, r, holders, nil)
	for _, id := range holders {
		e.release(a, lock.Grant{Resource: r, ID: id})
	}
}

// testReleaseReplyLost: a release that was carried out unheard says so when it
// is asked again, and frees nobody else's.
func testReleaseReplyLost(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	e.lost(a.b, func(ctx context.Context) error { return a.Release(ctx, r, g.ID) })
	g2 := w.granted() // the request reached the store
	if err := e.answered(func() error { return a.Release(e.ctx, r, g.ID) }); !errors.Is(err, lock.ErrNotHolder) {
		e.Errorf("Release again: got %v, want ErrNotHolder", err)
	}
	e.holds(b.b, r, []lock.HoldID{g2.ID}, nil)
	e.release(b, g2)
}

// testSilenceIsNotLoss: no answer is never ErrLeaseLost, and afterwards
// everything is as it was.
func testSilenceIsNotLoss(e *env) {
	a, b := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	taken := e.acquire(b, e.name("taken"), lock.Exclusive)
	w := e.start(a, request(taken.Resource, lock.Exclusive))
	w.queued()
	calls := []func(context.Context) error{
		a.beat, a.b.Ping,
		func(ctx context.Context) error { _, err := a.b.Get(ctx, r); return err },
		func(ctx context.Context) error {
			_, err := a.b.List(ctx, e.prefix, lock.Page{Limit: 10})
			return err
		},
	}
	if e.limits.Downgrade == "" {
		calls = append(calls, func(ctx context.Context) error { return a.Downgrade(ctx, r, g.ID) })
	}
	e.lost(a.b, calls...)
	if err := e.answered(func() error { return a.beat(e.ctx) }); err != nil {
		e.Fatalf("Heartbeat: %v", err)
	}
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	// The wait went on, or ended with an unknown outcome and can be resumed.
	e.release(b, taken)
	w.wait()
	err := w.err
	if errors.Is(err, lock.ErrUnavailable) {
		err = e.answered(func() error { _, err := a.Acquire(e.ctx, w.q); return err })
	}
	if err != nil {
		e.Fatalf("Acquire through a silence: %v", err)
	}
	e.holds(b.b, taken.Resource, []lock.HoldID{w.q.ID}, nil)
	for _, g := range []lock.Grant{{Resource: taken.Resource, ID: w.q.ID}, g} {
		// A connection that the healing cut may only be found out now. Whoever asks again
		// does not learn which request did it.
		if err := e.answered(func() error { return a.Release(e.ctx, g.Resource, g.ID) }); err != nil && !errors.Is(err, lock.ErrNotHolder) {
			e.Fatalf("Release: %v", err)
		}
	}
}

// testRestart: a server that comes back keeps the promises.
func testRestart(e *env) {
	f, ok := e.h.(forgetful)
	e.throughEnd(e.mortal(), e.mortal(), ok && f.Forgets(), func() { e.h.(Restarter).Restart(e.TB) })
}

// testFailOver: so does a replica that takes over. Leases go on there.
func testFailOver(e *env) {
	a := e.sidecar()
	e.throughEnd(a, e.sidecar(), false, func() {
		e.h.(Failoverer).FailOver(e.TB, true)
		if err := e.answered(func() error { return a.beat(e.ctx) }); err != nil {
			e.Errorf("Heartbeat at a replica that has all: %v", err)
		}
	})
}

// testFailOverToEmpty: also one that lags behind as far as can be.
func testFailOverToEmpty(e *env) {
	e.throughEnd(e.mortal(), e.mortal(), true, func() { e.h.(Failoverer).FailOver(e.TB, false) })
}

// throughEnd ends the server, after which the same or another one comes. It knows everything,
// or says that the leases are over and grants nothing before they would have ended. It never
// grants a lock twice, and fences grow on. a holds the lock then, and b waits for it.
func (e *env) throughEnd(a, b *sidecar, forgets bool, end func()) {
	e.Helper()
	r := e.name("r")
	f := fences{e: e}
	g := e.acquire(a, r, lock.Exclusive)
	f.check(g)
	w := e.queue(b, r, lock.Exclusive)
	checkRecords, checkDetached := e.keptThroughEnd(forgets), e.detachedThroughEnd(forgets)
	end()

	err := e.answered(func() error { return a.beat(e.ctx) })
	over := errors.Is(err, lock.ErrLeaseLost)
	if err != nil && !over {
		e.Fatalf("Heartbeat after a restart: %v", err)
	}
	var renewed time.Time
	if over {
		renewed = a.silence()
	} else { // the holder still holds
		e.refused(e.sidecar(), r, lock.Exclusive)
		e.release(a, g)
	}
	w.wait()
	switch {
	case w.err == nil:
		if took := w.at.Sub(renewed); over && took < a.ttl {
			e.Errorf("the lock was granted %s after its holder's lease was renewed for %s", took, a.ttl)
		}
		f.check(w.grant)
		e.release(b, w.grant)
	case !errors.Is(w.err, lock.ErrLeaseLost) && !errors.Is(w.err, lock.ErrUnavailable):
		e.Errorf("Acquire through a restart: %v", w.err)
	}
	_ = a.Close(e.ctx)
	_ = b.Close(e.ctx)

	c := e.lease(e.h.TTL()) // waits as long as the store must not grant
	g = e.acquire(c, r, lock.Exclusive)
	if took := time.Since(renewed); over && took < a.ttl {
		e.Errorf("the lock was granted %s after its holder's lease was renewed for %s", took, a.ttl)
	}
	f.check(g)
	e.release(c, g)
	checkRecords()
	checkDetached()
}
