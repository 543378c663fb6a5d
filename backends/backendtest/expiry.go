package backendtest

import (
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// inTime silences a sidecar and checks that what it leaves behind is granted no
// sooner than the TTL after its last heartbeat, and not much later.
func (e *env) inTime(s *sidecar, w *waiter) lock.Grant {
	e.Helper()
	renewed := s.silence()
	g := w.granted()
	took := w.at.Sub(renewed)
	// Store and test may count time on two clocks that are not quite as fast.
	if took < s.ttl-s.ttl/200 {
		if why := s.starved(); why != nil {
			e.Fatal(why)
		}
		e.Errorf("granted %s after the lease was renewed for %s", took, s.ttl)
	}
	e.notLate(s, w, renewed)
	return g
}

// notLate checks that a waiter was granted soon after the lease of a sidecar was over.
func (e *env) notLate(s *sidecar, w *waiter, renewed time.Time) {
	e.Helper()
	if took := w.at.Sub(renewed); took > s.ttl+e.h.Recheck()+slack {
		e.slow("granted only %s after the lease was renewed for %s", took, s.ttl)
	}
}

func testLeaseExpires(e *env) {
	b := e.sidecar()
	dead := e.mortal()
	r, shared := e.name("r"), e.name("shared")
	e.acquire(dead, r, lock.Exclusive)
	e.acquire(dead, shared, e.shared())
	w := e.queue(b, r, lock.Exclusive)
	wShared := e.queue(b, shared, lock.Exclusive)
	g, gShared := e.inTime(dead, w), e.inTime(dead, wShared)
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	e.release(b, g)
	e.release(b, gShared)

	// Without anybody who waits, it is free for the next who comes.
	dead = e.mortal()
	e.acquire(dead, r, lock.Exclusive)
	renewed := dead.silence()
	e.eventually("the resource is free", func() bool { return len(e.get(b.b, r).Holders) == 0 })
	if took := time.Since(renewed); took < dead.ttl-dead.ttl/200 {
		e.Errorf("free %s after the lease was renewed for %s", took, dead.ttl)
	}
	e.release(b, e.acquire(b, r, lock.Exclusive))
}

// testHeartbeatKeepsLease: a lease lives for longer than its TTL as long as it
// is renewed, and not when it is renewed no more.
func testHeartbeatKeepsLease(e *env) {
	a, b := e.mortal(), e.sidecar()
	r := e.name("r")
	e.acquire(a, r, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	for end := time.Now().Add(a.ttl * 5 / 2); time.Now().Before(end); time.Sleep(a.ttl / 10) {
		err := a.Release(e.ctx, r, w.q.ID) // not its own: this only asks whether the lease lives
		if a.mu.Lock(); errors.Is(err, lock.ErrLeaseLost) && time.Since(a.renewed) < a.ttl {
			e.Errorf("%s after a heartbeat the lease of %s is over", time.Since(a.renewed), a.ttl)
		}
		a.mu.Unlock()
	}
	e.release(b, e.inTime(a, w))
}

func testDeadLeaseIsFinal(e *env) {
	b := e.sidecar()
	dead := e.mortal()
	r := e.name("r")
	g := e.acquire(dead, r, lock.Exclusive)
	taken := e.acquire(b, e.name("taken"), lock.Exclusive)
	waits := e.queue(dead, taken.Resource, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	g2 := e.inTime(dead, w)

	waits.died()
	lost := func(what string, err error) {
		e.Helper()
		if !errors.Is(err, lock.ErrLeaseLost) {
			e.Errorf("%s on a lease that is over: got %v, want ErrLeaseLost", what, err)
		}
	}
	for i := range 2 {
		_, err := dead.Acquire(e.ctx, request(e.name(fmt.Sprint("new", i)), lock.Exclusive))
		lost("Acquire", err)
		_, err = dead.Acquire(e.ctx, lock.Request{ID: g.ID, Resource: r, Mode: g.Mode})
		lost("Acquire of what it held", err)
		lost("Release", dead.Release(e.ctx, r, g.ID))
		lost("Downgrade", dead.Downgrade(e.ctx, r, g.ID))
		lost("Heartbeat", dead.beat(e.ctx))
	}
	e.holds(b.b, r, []lock.HoldID{g2.ID}, nil) // the late release freed nobody else's
	e.holds(b.b, taken.Resource, []lock.HoldID{taken.ID}, nil)
	if err := dead.Close(e.ctx); err != nil && !errors.Is(err, lock.ErrLeaseLost) {
		e.Errorf("Close of a lease that is over: %v", err)
	}
	e.holds(b.b, r, []lock.HoldID{g2.ID}, nil)
	e.release(b, g2)
	e.release(b, taken)
}

// testDeadWaiterSkipped: a lease dies while it waits in front of others.
func testDeadWaiterSkipped(e *env) {
	b := e.sidecar()
	dead := e.mortal()
	r, r2 := e.name("r"), e.name("r2")
	g, g2 := e.acquire(b, r, lock.Exclusive), e.acquire(b, r2, e.shared())
	deadWriter := e.queue(dead, r, lock.Exclusive)
	deadWriter2 := e.queue(dead, r2, lock.Exclusive)
	next := e.queue(b, r, lock.Exclusive)
	var reader *waiter
	if e.sharing() && e.ordered() {
		reader = e.queue(b, r2, lock.Shared)
	}
	dead.ended()
	deadWriter.died()
	deadWriter2.died()
	e.holds(b.b, r, []lock.HoldID{g.ID}, []lock.HoldID{next.q.ID})
	// A dead writer must not keep out the readers behind it, though nobody
	// releases anything.
	if reader != nil {
		e.release(b, reader.granted())
	}
	start := time.Now()
	e.release(b, g)
	gn := next.granted()
	if took := next.at.Sub(start); took > e.h.TTL()/2+e.late()+slack {
		e.slow("past a dead waiter the grant took %s", took)
	}
	e.release(b, gn)
	e.release(b, g2)
}

// testCloseReleasesAll: a sidecar that stops lets all others in at once.
func testCloseReleasesAll(e *env) {
	a, b := e.sidecar(), e.sidecar()
	blocker := e.acquire(b, e.name("blocker"), lock.Exclusive)
	own := e.queue(a, blocker.Resource, lock.Exclusive) // a's own waiter ends, and is not granted
	behind := e.queue(b, blocker.Resource, lock.Exclusive)
	var ws []*waiter
	for i := range 50 {
		r := e.name(fmt.Sprintf("r%02d", i))
		e.acquire(a, r, lock.Exclusive)
		if i%10 == 0 {
			ws = append(ws, e.queue(b, r, lock.Exclusive))
		}
	}
	start := time.Now()
	if err := a.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
	for _, w := range ws {
		e.release(b, w.granted())
		if took := w.at.Sub(start); took > e.late()+slack {
			e.slow("after Close the next grant took %s", took)
		}
	}
	own.failed(lock.ErrLeaseLost)
	e.holds(b.b, blocker.Resource, []lock.HoldID{blocker.ID}, []lock.HoldID{behind.q.ID})
	if _, err := a.Acquire(e.ctx, request(e.name("late"), lock.Exclusive)); !errors.Is(err, lock.ErrLeaseLost) {
		e.Errorf("Acquire after Close: got %v, want ErrLeaseLost", err)
	}
	if err := a.beat(e.ctx); !errors.Is(err, lock.ErrLeaseLost) {
		e.Errorf("Heartbeat after Close: got %v, want ErrLeaseLost", err)
	}
	if _, open := <-a.Events(); open {
		e.Error("Events is open after Close")
	}
	e.release(b, blocker)
	e.release(b, behind.granted())
}
