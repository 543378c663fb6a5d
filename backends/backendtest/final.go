package backendtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about the law that what a store has decided about a dead lease is
// final.

// firstRequest is one by which a sidecar may learn that its lease is over.
type firstRequest struct {
	name string
	ask  func(e *env, dead *sidecar, g lock.Grant) error
}

var firstRequests = []firstRequest{
	{"Heartbeat", func(e *env, dead *sidecar, _ lock.Grant) error { return dead.beat(e.ctx) }},
	{"Acquire", func(e *env, dead *sidecar, g lock.Grant) error {
		other := e.name("new")
		for i := 0; dead.idAt(other) != dead.idAt(g.Resource); i++ { // each shard has a lease that ends by itself
			other = e.name(fmt.Sprint("new", i))
		}
		_, err := dead.Acquire(e.ctx, request(other, lock.Exclusive))
		return err
	}},
	{"Acquire of what it held", func(e *env, dead *sidecar, g lock.Grant) error {
		_, err := dead.Acquire(e.ctx, lock.Request{ID: g.ID, Resource: g.Resource, Mode: g.Mode})
		return err
	}},
	{"Release", func(e *env, dead *sidecar, g lock.Grant) error { return dead.Release(e.ctx, g.Resource, g.ID) }},
	{"Downgrade", func(e *env, dead *sidecar, g lock.Grant) error { return dead.Downgrade(e.ctx, g.Resource, g.ID) }},
}

// firstRequests are those that the store can be asked.
func (e *env) firstRequests() []firstRequest {
	if e.limits.Downgrade == "" {
		return firstRequests
	}
	return firstRequests[:len(firstRequests)-1]
}

// testFirstRequestOfDead: whichever request comes first when a hold was handed on
// because its lease was over, it does nothing, and every heartbeat after it says that
// the lease is over.
func testFirstRequestOfDead(e *env) {
	b := e.sidecar()
	var dead []*sidecar
	var held []lock.Grant
	var ws []*waiter
	for _, first := range e.firstRequests() {
		s := e.mortal()
		g := e.acquire(s, e.name(first.name), lock.Exclusive)
		dead, held, ws = append(dead, s), append(held, g), append(ws, e.queue(b, g.Resource, lock.Exclusive))
	}
	for _, s := range dead {
		s.silence()
	}
	for i, first := range e.firstRequests() {
		g := ws[i].granted()
		e.isDead(first.name, dead[i], held[i], first.ask)
		e.holds(b.b, g.Resource, []lock.HoldID{g.ID}, nil)
		e.release(b, g)
	}
}

// isDead makes the first request on a lease whose hold was handed on. The store may
// not know what to say before a heartbeat has asked it.
func (e *env) isDead(name string, s *sidecar, g lock.Grant, ask func(*env, *sidecar, lock.Grant) error) {
	e.Helper()
	err := ask(e, s, g)
	if !errors.Is(err, lock.ErrLeaseLost) && !errors.Is(err, lock.ErrUnavailable) {
		e.Errorf("%s first, when the lease was over and its hold handed on: got %v, want ErrLeaseLost", name, err)
	}
	e.staysDead(s)
	if err := ask(e, s, g); !errors.Is(err, lock.ErrLeaseLost) {
		e.Errorf("%s again, when the lease was over: got %v, want ErrLeaseLost", name, err)
	}
}

// staysDead checks that no heartbeat brings a lease back.
func (e *env) staysDead(s *sidecar) {
	e.Helper()
	for range 2 {
		if err := e.answered(func() error { return s.beat(e.ctx) }); !errors.Is(err, lock.ErrLeaseLost) {
			e.Errorf("Heartbeat of a lease that was over: got %v, want ErrLeaseLost", err)
		}
	}
}

// testUnnoticedEnd: a lease that ended with nobody there to see it is over when
// it is told so, or lives with all that it has.
func testUnnoticedEnd(e *env) {
	b := e.sidecar()
	var dead []*sidecar
	var held []lock.Grant
	var last time.Time
	for _, first := range e.firstRequests() {
		s := e.mortal()
		dead, held = append(dead, s), append(held, e.acquire(s, e.name(first.name), lock.Exclusive))
	}
	for _, s := range dead {
		last = s.silence().Add(s.ttl)
	}
	time.Sleep(time.Until(last.Add(e.h.TTL() / 5)))
	for i, first := range e.firstRequests() {
		err := first.ask(e, dead[i], held[i])
		if errors.Is(err, lock.ErrLeaseLost) {
			e.staysDead(dead[i])
			w := e.start(b, request(held[i].Resource, lock.Exclusive))
			e.release(b, w.granted())
			continue
		}
		if err != nil && !errors.Is(err, lock.ErrUnavailable) {
			e.Errorf("%s first, when the lease may be over: got %v", first.name, dead[i].blame(err))
		}
		if err := e.answered(func() error { return dead[i].beat(e.ctx) }); errors.Is(err, lock.ErrLeaseLost) {
			e.staysDead(dead[i])
		} else if first.name != "Release" {
			if err != nil {
				e.Errorf("Heartbeat of a lease that lives: %v", err)
			}
			if st := e.get(b.b, held[i].Resource); len(st.Holders) == 0 && time.Since(dead[i].lastRenewed()) < dead[i].ttl {
				if why := dead[i].starved(); why != nil {
					e.Fatal(why)
				}
				e.Errorf("%s first: the lease lives, and its hold is gone", first.name)
			}
		}
	}
}

// testDeadWhateverClocksDo: a clock of the store that went ahead ends a lease too
// soon, and nothing can help that. When the clock goes back, the lease that looked
// over is not renewed if what it held was handed on.
func testDeadWhateverClocksDo(e *env) {
	h, shift := e.h.(ClockShifter).OwnClock(e.TB)
	e.h = h
	for _, first := range e.firstRequests() {
		a := e.sidecar()
		a.silence() // the clock goes there and back between two heartbeats
		g := e.acquire(a, e.name(first.name), lock.Exclusive)
		shift(2 * longTTL)
		b := e.sidecar()
		ctx, cancel := context.WithTimeout(e.ctx, e.h.Recheck()+time.Second)
		g2, err := b.Acquire(ctx, request(g.Resource, lock.Exclusive))
		cancel()
		shift(0)
		if err != nil { // leases do not hang on the server's clock
			switch beat := e.answered(func() error { return a.beat(e.ctx) }); {
			case errors.Is(beat, lock.ErrLeaseLost) && errors.Is(err, context.DeadlineExceeded):
				e.slow("a lease has ended because of a clock, and what it held was not handed on in time")
			case beat != nil:
				e.Errorf("Heartbeat after a jump of a clock that handed nothing on: %v", beat)
			}
			e.goOn()
			e.release(a, g)
			continue
		}
		e.isDead(first.name, a, g, first.ask)
		e.holds(b.b, g.Resource, []lock.HoldID{g2.ID}, nil)
		e.release(b, g2)
		_ = b.Close(e.ctx) // its lease is dated ahead
	}
}

type settable interface {
	ClockShifter
	Restarter
}

// testClockIsSet: the store's clock is set by an hour between two heartbeats, also while the server is
// restarted. Fences grow. A lock that is held is granted to another only where leases hang on that clock and it
// went ahead; then its lease is over for good. All can work again soon, and not in an hour.
func testClockIsSet(e *env) {
	h, shift := e.h.(ClockShifter).OwnClock(e.TB)
	e.h = h
	f := fences{e: e}
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		e.setClock(&f, func() { shift(by) }, by > 0)
		shift(0)
		e.setClock(&f, func() { shift(by); h.(Restarter).Restart(e.TB) }, by > 0)
		shift(0)
	}
}

// setClock has a clock set while one holds the lock. What it held may be handed on if the clock goes ahead.
func (e *env) setClock(f *fences, set func(), ahead bool) {
	e.Helper()
	r := e.name("r")
	a := e.sidecar()
	a.silence()
	g := e.acquire(a, r, lock.Exclusive)
	f.check(g)
	set()
	b := e.mortal()
	ctx, cancel := context.WithTimeout(e.ctx, e.h.Recheck()+time.Second)
	defer cancel()
	q := request(r, lock.Exclusive)
	g2, err := b.Acquire(ctx, q)
	switch {
	case err == nil && ahead: // leases hang on that clock, and nothing can help
		e.isDead("Heartbeat", a, g, firstRequests[0].ask)
	case err == nil:
		e.Fatalf("broken law: two holders, after a clock was set back")
	default:
		if beat := e.answered(func() error { return a.beat(e.ctx) }); beat != nil && (!ahead || !errors.Is(beat, lock.ErrLeaseLost)) {
			e.Errorf("Heartbeat after a clock was set and nothing handed on: %v", beat)
		} else if beat == nil {
			e.release(a, g)
		}
		if !errors.Is(err, lock.ErrUnavailable) { // else it may have been carried out
			q.ID = lock.NewHoldID()
		}
		if g2, err = e.try(b, q); err != nil {
			e.Fatalf("Acquire after the clock was set: %v", b.blame(err))
		}
	}
	f.check(g2)
	e.release(b, g2)
	_ = a.Close(e.ctx) // what is dated ahead must not stay
	_ = b.Close(e.ctx)
}
