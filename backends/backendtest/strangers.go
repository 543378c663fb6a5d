package backendtest

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about the law that a new server is a stranger: it may know less than
// the last one, whether or not it was seen before.

type slowSwitcher interface {
	Switcher
	Slower
}

type silentSwitcher interface {
	Switcher
	Faulter
}

// fork makes another server, to which backends can be led.
func (e *env) fork() (lead func(toFork bool, bs ...lock.Backend)) {
	e.Helper()
	e.severed = true
	return e.h.(Switcher).Fork(e.TB)
}

// apart goes to a server of the test's own, where that is needed.
func (e *env) apart() {
	e.Helper()
	if h, ok := e.h.(Apart); ok {
		e.h = h.OwnServer(e.TB)
	}
}

// neighbour is the backend of a sidecar that has been at work for a while: the
// heartbeats of its lease see which server answers.
func (e *env) neighbour() (b lock.Backend, beat func() error) {
	e.Helper()
	s := e.mortal()
	return s.b, func() error { return s.beat(e.ctx) }
}

// comesFree takes a resource through a backend as soon as it is free, on leases of the
// shortest kind, and gives it back. It tells when it was granted.
func (e *env) comesFree(b lock.Backend, r lock.Resource) (at time.Time) {
	e.Helper()
	e.eventually("the resource is free", func() bool {
		l, err := b.OpenLease(e.ctx, lock.LeaseOptions{TTL: e.h.TTL(), Sidecar: "next"})
		if errors.Is(err, lock.ErrUnavailable) {
			return false
		}
		if err != nil {
			e.Fatalf("OpenLease: %v", err)
		}
		e.tasks.Go(func() {
			for range l.Events() { // nobody forces it out
			}
		})
		defer func() { _ = l.Close(e.ctx) }()
		q := request(r, lock.Exclusive)
		q.Try = true
		_, err = l.Acquire(e.ctx, q)
		if err == nil {
			at = time.Now()
		} else if !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrLeaseLost) {
			e.Fatalf("Acquire: %v", err)
		}
		return err == nil
	})
	return at
}

// oneHolder checks that a did not rely on its hold any more when another was
// granted the resource, and that it knows.
func (e *env) oneHolder(a *sidecar, g lock.Grant, granted time.Time) {
	e.Helper()
	e.eventually("the holder knows of its loss", func() bool { return a.knowsOfLoss(g.ID) || a.relies(g.ID).Before(time.Now()) })
	if relies := a.relies(g.ID); granted.Before(relies) {
		e.Errorf("broken law: two holders: the second was granted %s before the first relies on it no more", relies.Sub(granted))
	}
}

// testServerLacksGrant: all are led to a server that does not know of the last
// grant. What it does know stays held.
func testServerLacksGrant(e *env) { e.lacksGrant(func(...lock.Backend) {}) }

// testSlowServerLacksGrant: and that server is slow.
func testSlowServerLacksGrant(e *env) {
	e.lacksGrant(func(bs ...lock.Backend) {
		for _, b := range bs {
			e.h.(Slower).Slow(e.TB, b, e.h.TTL()/20)
		}
	})
}

func (e *env) lacksGrant(meanwhile func(...lock.Backend)) {
	e.Helper()
	e.apart()
	a := e.mortal()
	b, _ := e.neighbour()
	known := e.acquire(a, e.name("known"), lock.Exclusive)
	lead := e.fork()
	g := e.acquire(a, e.name("unknown"), lock.Exclusive)
	meanwhile(a.b, b)
	lead(true, a.b, b)
	e.oneHolder(a, g, e.comesFree(b, g.Resource))
	unknown := false // what had no answer may have been carried out
	err := e.answered(func() error {
		err := a.Release(e.ctx, known.Resource, known.ID)
		unknown = unknown || errors.Is(err, lock.ErrUnavailable)
		return err
	})
	if err != nil && !errors.Is(err, lock.ErrLeaseLost) && (!unknown || !errors.Is(err, lock.ErrNotHolder)) {
		e.Errorf("Release of a hold that the server knows of: %v", err)
	}
	e.comesFree(b, known.Resource)
	lead(false, a.b, b)
}

// testServerLacksGrantInSilence: the holder cannot reach the new server, and hears
// nothing of the old one.
func testServerLacksGrantInSilence(e *env) {
	e.apart()
	a := e.mortal()
	b, _ := e.neighbour()
	lead := e.fork()
	g := e.acquire(a, e.name("unknown"), lock.Exclusive)
	heal := e.h.(Faulter).LoseReplies(e.TB, a.b)
	lead(true, b)
	e.oneHolder(a, g, e.comesFree(b, g.Resource))
	lead(false, b)
	heal()
	err := e.answered(func() error { return a.Release(e.ctx, g.Resource, g.ID) })
	if err != nil && !errors.Is(err, lock.ErrLeaseLost) && !errors.Is(err, lock.ErrNotHolder) {
		e.Errorf("Release of a hold that may be over: %v", err)
	}
}

// testServerLacksRelease: all are led to a server that does not know of the last
// release. What nobody holds becomes free, though the lease that held it lives.
func testServerLacksRelease(e *env) {
	e.apart()
	a := e.sidecar()
	b, _ := e.neighbour()
	g, kept := e.acquire(a, e.name("released"), lock.Exclusive), e.acquire(a, e.name("kept"), lock.Exclusive)
	lead := e.fork()
	e.release(a, g)
	lead(true, a.b, b)
	e.comesFree(b, g.Resource)
	if a.knowsOfLoss(kept.ID) {
		e.Errorf("what both servers know was lost: %+v", a.told())
	}
	err := e.answered(func() error { return a.Release(e.ctx, kept.Resource, kept.ID) })
	if err != nil {
		e.Errorf("Release of a hold that both servers know of: %v", err)
	}
	e.comesFree(b, kept.Resource)
	lead(false, a.b, b)
	e.comesFree(b, kept.Resource)
}

// testOldServerLacksGrant: the server to which all are led back was seen before,
// and what was granted meanwhile it does not know.
func testOldServerLacksGrant(e *env) {
	e.apart()
	a := e.mortal()
	b, beat := e.neighbour()
	lead := e.fork()
	lead(true, a.b, b)
	e.answered(beat)
	q := request(e.name("unknown"), lock.Exclusive)
	var g lock.Grant
	err := e.answered(func() (err error) { g, err = a.Acquire(e.ctx, q); return err })
	if errors.Is(err, lock.ErrLeaseLost) { // the change took the lease with it
		lead(false, a.b, b)
		return
	}
	if err != nil {
		e.Fatalf("Acquire from another server: %v", err)
	}
	lead(false, a.b, b)
	e.oneHolder(a, g, e.comesFree(b, g.Resource))
}

// testOldServerLacksRelease: and what was released meanwhile becomes free there.
func testOldServerLacksRelease(e *env) {
	e.apart()
	a := e.sidecar()
	b, _ := e.neighbour()
	g := e.acquire(a, e.name("released"), lock.Exclusive)
	lead := e.fork()
	lead(true, a.b, b)
	e.answered(func() error { return b.Ping(e.ctx) })
	if err := e.tryRelease(a, g); err != nil {
		e.Errorf("Release at another server: %v", err)
	}
	lead(false, a.b, b)
	e.comesFree(b, g.Resource)
}
