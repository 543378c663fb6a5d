package backendtest

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about the law that grace counts from when the holder's sidecar
// knew: a forced hold is handed on when it was released, when grace is over after
// the sidecar knew, or when the lease is over.

// shortGrace is shorter than the silences of this file.
const shortGrace = 300 * time.Millisecond

// forcedInSilence is a hold whose release was forced while its sidecar hears
// nothing, and one that waits for it.
type forcedInSilence struct {
	e    *env
	a    *sidecar
	g    lock.Grant
	w    *waiter
	f    *forcing
	heal func()
}

// inSilence brings that about: a holds, another waits.
func (e *env) inSilence(a *sidecar) *forcedInSilence {
	e.Helper()
	r := e.name("r")
	s := &forcedInSilence{e: e, a: a, g: e.acquire(a, r, lock.Exclusive)}
	s.w = e.queue(e.sidecar(), r, lock.Exclusive)
	e.severed = true
	s.heal = e.h.(Faulter).LoseReplies(e.TB, a.b)
	return s
}

// force forces the release by a third sidecar's backend.
func (s *forcedInSilence) force(ctx context.Context, by lock.Backend) {
	s.f = s.e.force(ctx, by, s.g.Resource, s.g.ID, shortGrace)
}

// afterHealing lets the sidecar hear again. It must be told, and the waiter be
// granted when grace is over from then on.
func (s *forcedInSilence) afterHealing() {
	e := s.e
	e.Helper()
	s.w.blocked() // the silence is longer than the grace
	healed := time.Now()
	s.heal()
	s.a.event(lock.Revoked, s.g.ID)
	g := s.w.granted()
	if relies := s.a.relies(s.g.ID); s.w.at.Before(relies) {
		e.Errorf("broken law: two holders: the waiter was granted %s before the first relies on it no more", relies.Sub(s.w.at))
	}
	if took := s.w.at.Sub(healed); took < shortGrace-shortGrace/200 {
		e.Errorf("granted %s after the holder could know, with a grace of %s", took, shortGrace)
	}
	e.notHolder("Release after the grace", s.a.Release(e.ctx, s.g.Resource, s.g.ID))
	e.release(s.w.s, g)
}

// testForceInSilence: the grace is shorter than the silence of the holder's link.
func testForceInSilence(e *env) {
	s := e.inSilence(e.sidecar())
	s.force(e.ctx, e.open())
	time.Sleep(5 * shortGrace)
	s.f.pending()
	s.afterHealing()
	s.f.ok()
}

// testForcerGone: so it is when whoever forced it is gone by then.
func testForcerGone(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	forcer := e.h.Open(e.TB)
	s := e.inSilence(e.sidecar())
	s.force(ctx, forcer)
	e.eventually("the forced release is in the store", func() bool {
		st := e.get(s.w.s.b, s.g.Resource)
		return len(st.Holders) == 1 && st.Holders[0].Revoked
	})
	cancel()
	<-s.f.done
	if err := forcer.Close(); err != nil {
		e.Errorf("close the forcer's backend: %v", err)
	}
	time.Sleep(5 * shortGrace)
	s.afterHealing()
}

// testForceInLastSilence: the holder's sidecar never hears of it, and the waiter
// is granted when the lease is over, no sooner. With a foreign lock beside, the silence may
// begin in the middle of a heartbeat: then the sidecar itself gives up the hold earlier.
func testForceInLastSilence(e *env) {
	a := e.mortal()
	s := e.inSilence(a)
	s.force(e.ctx, e.open())
	renewed := a.silence()
	g := s.w.granted()
	if relies := a.relies(s.g.ID); relies.Sub(s.w.at) > a.ttl/200 {
		e.Errorf("broken law: two holders: the waiter was granted %s before the first relies on it no more", relies.Sub(s.w.at))
	}
	e.notLate(a, s.w, renewed)
	e.release(s.w.s, g)
	s.f.ok()
}

// testForceAgain: a second call with a shorter grace counts and is told. A longer
// one changes nothing.
func testForceAgain(e *env) {
	a, b, forcer := e.sidecar(), e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	w := e.queue(b, r, lock.Exclusive)
	const short, long = 2 * time.Second, 2 * patience
	all := []*forcing{e.force(e.ctx, b.b, r, g.ID, long)}
	a.event(lock.Revoked, g.ID)
	all = append(all, e.force(e.ctx, forcer.b, r, g.ID, short))
	began := time.Now()
	shorter := a.notice("the lease is told of the shorter grace", func(n notice) bool {
		return n.ID == g.ID && n.Until != 0 && time.Until(e.moment(n.Until)) <= short
	})
	all = append(all, e.force(e.ctx, forcer.b, r, g.ID, long))
	e.release(b, w.granted())
	took := w.at.Sub(began)
	if took < short-short/200 {
		e.Errorf("granted %s after a forced release with a second, shorter grace of %s", took, short)
	}
	if took > short+e.h.Recheck()+slack {
		e.slow("granted only %s after a forced release with a second, shorter grace of %s", took, short)
	}
	if relies := a.relies(g.ID); w.at.Before(relies) {
		e.Errorf("broken law: two holders: the waiter was granted %s before the first relies on it no more", relies.Sub(w.at))
	}
	end := e.moment(shorter.Until)
	for _, n := range a.told() {
		if n.at.After(shorter.at) && n.Until != 0 && e.moment(n.Until).Sub(end) > slack {
			e.slow("a longer grace was told of, perhaps noted too late: %+v after %+v", n.Event, shorter.Event)
		}
	}
	for _, f := range all {
		f.ok()
	}
	e.notHolder("Release after the grace", a.Release(e.ctx, r, g.ID))
}
