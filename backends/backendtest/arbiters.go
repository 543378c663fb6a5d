package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
)

// arbitrated is a sidecar with an arbiter.
type arbitrated struct {
	*sidecar
	arb *arbiter.Backend
}

// arbitrated opens a lease with an arbiter. Where the store cannot have one, the lease is
// the store's own, and the test ends.
func (e *env) arbitrated(o arbiter.Options, ttl time.Duration) arbitrated {
	e.Helper()
	if o.Turns == 0 {
		o.Turns = arbiter.MaxTurns
	}
	b := arbiter.New(e.open(), o)
	s := e.leaseOn(unguardedStore{b}, ttl)
	_, on := s.Lease.(unguarded).Lease.(*arbiter.Lease)
	if tells := on || lock.TellsContended(s.Lease.(unguarded).Lease); tells != on {
		e.Fatalf("the store tells who stands behind a hold: %t; there is an arbiter: %t", tells, on)
	}
	if !on {
		e.Skip("the store does not tell that somebody stands behind a hold, so there is no arbiter")
	}
	return arbitrated{s, b}
}

// unguardedStore is a store whose apps have no use for guards: with one, a hold is not
// handed on.
type unguardedStore struct{ lock.Backend }

func (b unguardedStore) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return unguarded{l}, err
}

type unguarded struct{ lock.Lease }

func (l unguarded) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	q.Guard = lock.WithoutGuard
	return l.Lease.Acquire(ctx, q)
}

func (l unguarded) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	return l.Lease.(lock.Detacher).Detach(ctx, r, id, key, ttl)
}

// hears waits until the arbiter knows that somebody stands behind something of it.
func (a arbitrated) hears(before arbiter.Stats) {
	a.e.Helper()
	a.e.eventually("the arbiter hears that somebody stands behind it", func() bool { return a.arb.Stats().Contended > before.Contended })
}

// parks takes and releases until the hold is parked.
func (a arbitrated) parks(r lock.Resource) {
	a.e.Helper()
	a.e.eventually("a hold is parked", func() bool {
		g, err := a.Acquire(a.e.ctx, request(r, lock.Exclusive))
		if err != nil {
			a.e.Fatalf("Acquire: %v", err)
		}
		a.e.release(a.sidecar, g)
		return a.arb.Stats().Parked == 1
	})
}

// mindful are those of an arbiter that remembers for ever what was there.
var mindful = arbiter.Options{Clock: func() time.Duration { return time.Hour }}

// knows has a mindful arbiter ask for a resource as for one that comes back: where it costs the store
// something, it does not hear who stands behind others.
func (a arbitrated) knows(r lock.Resource) {
	a.e.Helper()
	a.e.release(a.sidecar, a.e.acquire(a.sidecar, r, lock.Exclusive))
}

func testArbiterHandsOn(e *env) {
	a, b := e.arbitrated(arbiter.Options{}, longTTL), e.sidecar()
	r := e.name("r")
	g := e.acquire(a.sidecar, r, lock.Exclusive)
	waiters := []*waiter{e.queue(a.sidecar, r, lock.Exclusive), e.queue(a.sidecar, r, lock.Exclusive)}
	for _, w := range waiters {
		e.release(a.sidecar, g)
		next := w.granted()
		if next.Fence <= g.Fence {
			e.Errorf("broken law: fence %d after %d", next.Fence, g.Fence)
		}
		if err := a.Release(e.ctx, r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
			e.Errorf("a second release by the one before: got %v, want ErrNotHolder", err)
		}
		e.refused(b, r, lock.Exclusive)
		e.holds(a.b, r, []lock.HoldID{next.ID}, unserved(waiters, w))
		g = next
	}
	e.release(a.sidecar, g)
	last := e.acquire(b, r, lock.Exclusive)
	if last.Fence <= g.Fence {
		e.Errorf("broken law: fence %d at another sidecar after %d", last.Fence, g.Fence)
	}
	e.release(b, last)
}

// unserved are the ids of those behind w.
func unserved(all []*waiter, w *waiter) (left []lock.HoldID) {
	for i := len(all) - 1; all[i] != w; i-- {
		left = append([]lock.HoldID{all[i].q.ID}, left...)
	}
	return left
}

func testArbiterOrder(e *env) {
	a, b, c := e.arbitrated(mindful, longTTL), e.arbitrated(mindful, longTTL), e.arbitrated(mindful, longTTL)
	r := e.name("r")
	a.knows(r)
	b.knows(r)
	c.knows(r)
	g := e.acquire(a.sidecar, r, lock.Exclusive)
	order := []*waiter{e.queue(a.sidecar, r, lock.Exclusive)}
	last := a
	for _, s := range []arbitrated{b, c, a, b, a} {
		before := last.arb.Stats()
		order = append(order, e.queue(s.sidecar, r, lock.Exclusive))
		last.hears(before)
		last = s
	}
	e.release(a.sidecar, g)
	for i, w := range order {
		g := w.granted()
		for _, later := range order[i+1:] {
			later.pending()
		}
		e.release(w.s, g)
	}
}

func testArbiterReaders(e *env) {
	a, b := e.arbitrated(mindful, longTTL), e.sidecar()
	r := e.name("r")
	a.knows(r)
	before := a.arb.Stats()
	g1, g2 := e.acquire(a.sidecar, r, lock.Shared), e.acquire(a.sidecar, r, lock.Shared)
	w := e.queue(b, r, lock.Exclusive)
	a.hears(before)
	late := e.queue(a.sidecar, r, lock.Shared)
	e.release(a.sidecar, g1)
	w.blocked()
	e.release(a.sidecar, g2)
	g := w.granted()
	late.pending()
	if g.Fence <= max(g1.Fence, g2.Fence) {
		e.Errorf("broken law: fence %d of a writer after readers with %d and %d", g.Fence, g1.Fence, g2.Fence)
	}
	e.release(b, g)
	e.release(a.sidecar, late.granted())
}

// testArbiterParked: a hold that nobody has is free for all who ask.
func testArbiterParked(e *env) {
	a, b := e.arbitrated(arbiter.Options{Park: time.Hour}, longTTL), e.arbitrated(arbiter.Options{}, longTTL)
	r := e.name("r")
	a.parks(r)
	if st := e.get(a.b, r); len(st.Holders) != 1 || !st.Holders[0].Parked {
		e.Errorf("its own sidecar says of a parked hold: %+v", st)
	}
	e.eventually("another sidecar says that it is parked", func() bool {
		st := e.get(b.b, r)
		return len(st.Holders) == 1 && st.Holders[0].Parked && st.Holders[0].Sidecar == a.name && st.Holders[0].Owner.PID == 0
	})
	e.release(b.sidecar, e.start(b.sidecar, request(r, lock.Exclusive)).granted())

	for _, other := range []*sidecar{b.sidecar, e.sidecar()} { // one of them has no arbiter
		a.parks(r)
		var tried lock.Grant
		e.eventually("a try finds a parked hold free", func() bool {
			q := request(r, lock.Exclusive)
			q.Try = true
			var err error
			tried, err = other.Acquire(e.ctx, q)
			return err == nil
		})
		e.release(other, tried)
	}

	a.parks(r)
	e.release(a.sidecar, e.acquire(a.sidecar, r, e.shared())) // of another mode, so it must go out and come back

	a.parks(r)
	if err := b.b.ForceRelease(e.ctx, r, e.get(b.b, r).Holders[0].ID, time.Minute); err != nil && !errors.Is(err, lock.ErrNotHolder) {
		e.Errorf("force a parked hold: %v", err)
	}
	e.release(b.sidecar, e.start(b.sidecar, request(r, lock.Exclusive)).granted())

	a.parks(r)
	if err := a.Close(e.ctx); err != nil {
		e.Errorf("Close: %v", err)
	}
	e.release(b.sidecar, e.start(b.sidecar, request(r, lock.Exclusive)).granted())
}

// testArbiterUnheard: where no push comes, a parked hold is free when its time is over.
func testArbiterUnheard(e *env) {
	a, b := e.arbitrated(arbiter.Options{Park: 500 * time.Millisecond}, longTTL), e.sidecar()
	r := e.name("r")
	e.h.(WakeupDropper).DropWakeups(e.TB, a.arb.Backend)
	a.parks(r)
	e.release(b, e.start(b, request(r, lock.Exclusive)).granted())
}

// testArbiterUnheardInUse: where no push comes to anybody, and the apps of one sidecar never stop, a cohort
// ends by its age, and who waits at another sidecar has the lock.
func testArbiterUnheardInUse(e *env) {
	o := arbiter.Options{Park: time.Hour}
	a, b := e.arbitrated(o, longTTL), e.sidecar()
	r := e.name("r")
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for open := true; open; {
				g, err := a.Acquire(e.ctx, request(r, lock.Exclusive))
				if err != nil {
					e.Errorf("Acquire: %v", err)
					return
				}
				select {
				case <-stop:
					open = false
				case <-time.After(10 * time.Millisecond):
				}
				if err := a.Release(e.ctx, r, g.ID); err != nil {
					e.Errorf("Release: %v", err)
				}
			}
		})
	}
	e.eventually("the lock goes from app to app", func() bool { return a.arb.Stats().Saved > 0 })
	one := e.start(b, request(r, lock.Exclusive)).granted()
	close(stop)
	e.release(b, one)
	busy.Wait()
	// Nobody wants it now, so it may be parked for an hour, unless somebody comes.
	e.release(b, e.start(b, request(r, lock.Exclusive)).granted())
}

// testArbiterCutOff: a sidecar that hears no answer keeps a parked hold no longer than it said, as soon
// as it hears again, and tells the app whose hold somebody has forced meanwhile.
func testArbiterCutOff(e *env) {
	a, b, forcer := e.arbitrated(arbiter.Options{Park: 500 * time.Millisecond}, longTTL), e.sidecar(), e.sidecar()
	idle, busy := e.name("idle"), e.name("busy")
	g := e.acquire(a.sidecar, busy, lock.Exclusive)
	w := e.queue(a.sidecar, busy, lock.Exclusive)
	e.release(a.sidecar, g)
	held := w.granted()
	inStore := e.get(forcer.b, busy).Holders[0].ID
	a.parks(idle)
	heal := e.h.(Faulter).LoseReplies(e.TB, a.arb.Backend)
	f := e.force(e.ctx, forcer.b, busy, inStore, time.Minute)
	one, next := e.start(b, request(idle, lock.Exclusive)), e.start(b, request(busy, lock.Exclusive))
	next.queued()
	heal()
	e.release(b, one.granted())
	a.event(lock.Revoked, held.ID)
	next.pending()
	if err := e.answered(func() error { return a.Release(e.ctx, busy, held.ID) }); err != nil && !errors.Is(err, lock.ErrNotHolder) {
		e.Errorf("Release of what is forced: %v", err)
	}
	e.release(b, next.granted())
	f.ok()
}

// testArbiterSilentStore: a store falls silent for longer than a lease lasts, and comes back. What was parked
// is free, and what was handed on is when its app has let it go, or its lease is over.
func testArbiterSilentStore(e *env) {
	a, b := e.arbitrated(arbiter.Options{Park: 500 * time.Millisecond}, max(e.h.TTL(), 5*time.Second)), e.sidecar()
	idle, busy := e.name("idle"), e.name("busy")
	g := e.acquire(a.sidecar, busy, lock.Exclusive)
	w := e.queue(a.sidecar, busy, lock.Exclusive)
	e.release(a.sidecar, g)
	held := w.granted()
	a.parks(idle)
	thaw := e.h.(Freezer).Freeze(e.TB)
	e.eventually("the lease would be over", func() bool { return time.Since(a.lastRenewed()) > a.ttl })
	thaw()
	acquire := func(r lock.Resource) (next lock.Grant) {
		q := request(r, lock.Exclusive)
		if err := e.answered(func() (err error) { next, err = b.Acquire(e.ctx, q); return err }); err != nil {
			e.Fatalf("Acquire: %v", err)
		}
		return next
	}
	e.release(b, acquire(idle))
	err := e.answered(func() error { return a.Release(e.ctx, busy, held.ID) })
	if err != nil && !errors.Is(err, lock.ErrNotHolder) && !errors.Is(err, lock.ErrLeaseLost) {
		e.Errorf("Release of what was handed on: %v", err)
	}
	next := acquire(busy)
	if next.Fence <= held.Fence {
		e.Errorf("broken law: fence %d after %d", next.Fence, held.Fence)
	}
	e.release(b, next)
}

// testArbiterStarvesNobody: one caller beside many at another sidecar, who never stop. Those
// who were there first are served, each once, and then it is.
func testArbiterStarvesNobody(e *env) {
	const crowd = 32
	o := arbiter.Options{Park: 100 * time.Millisecond}
	a, b := e.arbitrated(o, longTTL), e.arbitrated(o, longTTL)
	for i := range 3 {
		r := e.name(fmt.Sprint(i))
		g := e.acquire(a.sidecar, r, lock.Exclusive)
		var grants atomic.Int64
		fences := &growing{e: e, last: g.Fence}
		stop := make(chan struct{})
		var busy sync.WaitGroup
		for range crowd {
			busy.Go(func() {
				for open := true; open; {
					g, err := a.Acquire(e.ctx, request(r, lock.Exclusive))
					if err != nil {
						e.Errorf("Acquire: %v", err)
						return
					}
					grants.Add(1)
					fences.next(g)
					if err := a.Release(e.ctx, r, g.ID); err != nil {
						e.Errorf("Release: %v", err)
					}
					select {
					case <-stop:
						open = false
					default:
					}
				}
			})
		}
		e.eventually("the crowd waits", func() bool { return len(e.get(a.b, r).Waiters) == crowd })
		before := a.arb.Stats()
		one := e.queue(b.sidecar, r, lock.Exclusive)
		a.hears(before)
		e.release(a.sidecar, g)
		fences.next(one.granted())
		if n := grants.Load(); n != crowd {
			e.Errorf("one caller was granted after %d of the %d who were there before", n, crowd)
		}
		close(stop)
		e.release(b.sidecar, one.grant)
		busy.Wait()
	}
}

// growing checks that fences grow.
type growing struct {
	e    *env
	mu   sync.Mutex
	last lock.Fence
}

func (f *growing) next(g lock.Grant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if g.Fence <= f.last {
		f.e.Errorf("broken law: fence %d after %d", g.Fence, f.last)
	}
	f.last = g.Fence
}

// testArbiterServerLacksParked: what is parked is worth nothing on a server that does not know
// of it, also where nobody has it who could be told.
func testArbiterServerLacksParked(e *env) {
	e.apart()
	a := e.arbitrated(arbiter.Options{Park: time.Hour}, longTTL)
	r := e.name("r")
	lead := e.fork()
	a.parks(r)
	lead(true, a.arb.Backend)
	e.eventually("the sidecar knows that the hold is gone", func() bool { return a.arb.Stats().Parked == 0 })
	saved := a.arb.Stats().Saved
	var g lock.Grant
	if err := e.answered(func() (err error) { g, err = a.Acquire(e.ctx, request(r, lock.Exclusive)); return err }); err != nil {
		e.Fatalf("Acquire: %v", err)
	}
	if a.arb.Stats().Saved != saved {
		e.Errorf("granted by a hold that the store does not have: %+v", g)
	}
	if err := e.answered(func() error { return a.Release(e.ctx, r, g.ID) }); err != nil {
		e.Errorf("Release: %v", err)
	}
	lead(false, a.arb.Backend)
}

// testArbiterForced: whoever has the hold now is told.
func testArbiterForced(e *env) {
	a, b := e.arbitrated(arbiter.Options{}, longTTL), e.sidecar()
	r := e.name("r")
	g := e.acquire(a.sidecar, r, lock.Exclusive)
	w := e.queue(a.sidecar, r, lock.Exclusive)
	late := e.queue(a.sidecar, r, lock.Exclusive)
	e.release(a.sidecar, g)
	next := w.granted()
	forced := make(chan error, 1)
	id := e.get(b.b, r).Holders[0].ID
	e.tasks.Go(func() { forced <- b.b.ForceRelease(e.ctx, r, id, time.Minute) })
	a.event(lock.Revoked, next.ID)
	late.pending()
	e.release(a.sidecar, next)
	if err := <-forced; err != nil {
		e.Errorf("ForceRelease: %v", err)
	}
	e.release(a.sidecar, late.granted())

	// Through its own sidecar, by the id that the app knows.
	g = e.acquire(a.sidecar, r, lock.Exclusive)
	w = e.queue(a.sidecar, r, lock.Exclusive)
	out := e.queue(a.sidecar, r, lock.Exclusive)
	e.release(a.sidecar, g)
	next = w.granted()
	if err := a.b.ForceRelease(e.ctx, r, out.q.ID, 0); err != nil {
		e.Errorf("ForceRelease of a waiter: %v", err)
	}
	_ = out.failed(lock.ErrNotHolder)
	e.tasks.Go(func() { forced <- a.b.ForceRelease(e.ctx, r, next.ID, time.Minute) })
	a.event(lock.Revoked, next.ID)
	e.release(a.sidecar, next)
	if err := <-forced; err != nil {
		e.Errorf("ForceRelease: %v", err)
	}
}

// testArbiterShown: other sidecars see, and force, who has what was handed on.
func testArbiterShown(e *env) {
	a, b := e.arbitrated(arbiter.Options{}, longTTL), e.arbitrated(arbiter.Options{}, longTTL)
	r := e.name("r")
	g := e.acquire(a.sidecar, r, lock.Exclusive)
	q := request(r, lock.Exclusive)
	q.Owner = lock.Owner{PID: 4712, Label: "next"}.Encode()
	w := e.start(a.sidecar, q)
	w.queued()
	e.release(a.sidecar, g)
	next := w.granted()
	e.eventually("another sidecar names who has it", func() bool {
		st := e.get(b.b, r)
		return len(st.Holders) == 1 && st.Holders[0].ID == next.ID && st.Holders[0].Fence == next.Fence && st.Holders[0].Owner.PID == 4712 && st.Holders[0].Owner.Label == "next"
	})
	for _, s := range []arbitrated{a, b} {
		if err := s.b.ForceRelease(e.ctx, r, g.ID, 0); !errors.Is(err, lock.ErrNotHolder) {
			e.Errorf("ForceRelease of who had it before: got %v, want ErrNotHolder", err)
		}
	}
	forced := make(chan error, 1)
	e.tasks.Go(func() { forced <- b.b.ForceRelease(e.ctx, r, next.ID, time.Minute) })
	a.event(lock.Revoked, next.ID)
	e.release(a.sidecar, next)
	if err := <-forced; err != nil {
		e.Errorf("ForceRelease: %v", err)
	}
}

// testArbiterDies: the end of the lease ends what is parked and what was handed on.
func testArbiterDies(e *env) {
	a, b := e.arbitrated(arbiter.Options{Park: time.Hour}, max(e.h.TTL(), 5*time.Second)), e.sidecar()
	idle, busy := e.name("idle"), e.name("busy")
	g := e.acquire(a.sidecar, busy, lock.Exclusive)
	w := e.queue(a.sidecar, busy, lock.Exclusive)
	e.release(a.sidecar, g)
	w.granted()
	a.parks(idle)
	a.silence()
	for _, r := range []lock.Resource{idle, busy} {
		next := e.start(b, request(r, lock.Exclusive)).granted()
		if r == busy && next.Fence <= w.grant.Fence {
			e.Errorf("broken law: fence %d after %d", next.Fence, w.grant.Fence)
		}
		e.release(b, next)
	}
}
