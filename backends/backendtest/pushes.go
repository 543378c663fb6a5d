package backendtest

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about the law that the heartbeat is the truth and a push a hint.
// The rest of its tests are those that the table runs once more without pushes.

// withoutPushes are tests that must pass too when no push reaches any sidecar,
// from the start: only later.
var withoutPushes = []string{
	"LeaseExpires", "DeadLeaseIsFinal", "DeadWaiterSkipped", "ForceDead",
	"Downgrade", "CloseReleasesAll",
	"FIFO", "ReadersTogether", "WriterBlocksLaterReaders", "Cancel", "Timeout",
	"ForceAtOnce", "ForceGraceUsed", "ForceGraceOver", "ForceWaiter", "ForceAgain",
	"MinHold", "MinHoldOver", "MinHoldOfTheDead", "Detach", "DetachTakenOver", "DetachOver",
}

// deaf makes a second test of each of those.
func deaf(all []conformance) []conformance {
	var more []conformance
	for _, name := range withoutPushes {
		i := slices.IndexFunc(all, func(c conformance) bool { return c.name == name })
		c := all[i]
		c.name, c.deaf, c.needs = name+"WithoutPushes", true, needs[WakeupDropper]("WakeupDropper")
		more = append(more, c)
	}
	return more
}

// testHeartbeatTells: a sidecar that hears no push learns from its heartbeats
// that a third one has forced its hold, and until when others are kept out; again
// and again until it has released the hold, in case an answer was lost. Of what
// is gone it learns too.
func testHeartbeatTells(e *env) {
	a, b, forcer := e.sidecar(), e.sidecar(), e.sidecar()
	r, other := e.name("r"), e.name("other")
	g, gOther := e.acquire(a, r, lock.Exclusive), e.acquire(a, other, e.shared())
	w := e.queue(b, r, lock.Exclusive)
	const grace = 2 * patience
	f := e.force(e.ctx, forcer.b, r, g.ID, grace)
	for i := range 2 {
		n := a.beatTells(lock.Revoked, g.ID)
		if left := time.Until(e.moment(n.Until)); n.Resource != r || n.Until == 0 || left > grace || left < grace-patience {
			e.Errorf("heartbeat %d brings %+v, which ends in %s; want a grace of %s", i, n.Event, left, grace)
		}
		w.blocked()
		f.pending()
		a.forget()
	}
	e.release(a, g)
	e.release(b, w.granted())
	f.ok()
	for range 2 { // the first waits for the end of one that was under way
		a.forget()
		if err := e.answered(func() error { return a.beat(e.ctx) }); err != nil {
			e.Fatalf("Heartbeat: %v", err)
		}
	}
	if n := a.told(); len(n) > 0 {
		e.Errorf("the heartbeat still brings news when all is released: %+v", n)
	}

	// What was taken at once is told of as well.
	e.force(e.ctx, forcer.b, other, gOther.ID, 0).ok()
	a.notice("the answer of a heartbeat tells that the hold is gone", func(n notice) bool {
		return n.beat && n.ID == gOther.ID && (n.Kind == lock.Vanished || n.Until == 0)
	})
	e.notHolder("Release of what was forced", a.Release(e.ctx, other, gOther.ID))
}

// testForcedWaiterIsTold: a waiter that was taken out of the queue finds out by
// itself.
func testForcedWaiterIsTold(e *env) {
	a, b, forcer := e.sidecar(), e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	w, next := e.queue(b, r, lock.Exclusive), e.queue(b, r, lock.Exclusive)
	e.force(e.ctx, forcer.b, r, w.q.ID, 0).ok()
	w.failed(lock.ErrNotHolder)
	next.cancel()
	next.failed(context.Canceled)
	e.holds(b.b, r, []lock.HoldID{g.ID}, nil)
	e.release(a, g)
}
