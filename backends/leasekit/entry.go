package leasekit

import (
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// entry is what the lease knows of one hold or waiter of its own. Its fields
// stand under the lease's mutex.
type entry struct {
	Ref
	mode    lock.Mode
	stored  bool  // the store has said that it is held or queued
	held    bool  // the store has granted it, and the caller was told
	unsure  bool  // the last request for it had no answer
	copies  bool  // some request for it had none: a copy may still arrive
	busy    bool  // a request for it is under way
	removed bool  // forgotten
	rung    bool  // there is a reason to ask again, since the last request
	lasts   bool  // it may have a time of its own, beyond its lease
	behind  bool  // somebody stands behind it, and Events tells it or has told it
	leaving error // why it is given up: a Withdraw of it had no answer. nil: it is not

	// A forced release of the hold. Until it is acknowledged, the store waits; so it
	// is acknowledged after it was told.
	revoked bool
	lost    bool // nobody has forced it: it is gone
	told    bool // by Events or Heartbeat, with this moment
	acked   bool
	telling bool          // stands in Lease.news
	grace   time.Duration // the shortest that is known
	until   time.Duration // on the clock: when grace is over, counted from when it was known

	fence    lock.Fence // of a hold, as its caller was told
	touched  uint64     // epoch of the last change
	doubted  uint64     // of the lease, when the last request was sent
	compared uint64     // for how many of these reasons it is settled that the store has the hold
	pushed   *Push      // a grant that came by push
	rest     *rest      // not nil while the entry stands in Lease.waits
}

// rest is what a request has while it waits.
type rest struct {
	bell lock.Bell   // rings when there is a reason to ask again; nil: it has rung
	late *time.Timer // rings it when nothing else has
}

// wake makes the waiting Acquire go on, with the lease locked.
func (e *entry) wake() {
	e.rung = true
	e.ring()
}

// ring has the Acquire called again that waits, with the lease locked.
func (e *entry) ring() {
	if r := e.rest; r != nil && r.bell != nil {
		r.bell.Ring()
		r.bell = nil
	}
}

// unanswered notes that a request had no answer. l.mu is held.
//
// Model: retry.UNANSWERED.
func (e *entry) unanswered() { e.unsure, e.copies = true, true }

// errForced: the release of what was asked for is forced. It is given back, and
// not asked for again: that could put it into the queue a second time.
var errForced = errors.New("its release is forced")

// errLeaving: what was asked for is being given up, and nobody knows whether it is yet. It
// is not asked for again: a copy of the Withdraw may still arrive, and end what the store
// has granted then.
var errLeaving = errors.New("it is being given up")

// begin marks that a request that asks for a hold is on its way; see enter.
func (l *Lease) begin(q lock.Request) (*entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, err := l.enter(Ref{q.Resource, q.ID}, q.Mode)
	if err == nil && (q.MinHold != 0 || q.Detachable || q.Handle != "") {
		e.lasts = true
	}
	return e, err
}

// enter marks that a request for a hold is on its way, and makes the entry
// where there is none; mode is 0 for a request that does not ask for it. l.mu is held.
//
//	errForced: only with a mode.
//	errLeaving: only with a mode. The entry is given, too.
//	lock.ErrLeaseLost: the lease is over.
//	lock.ErrNotHolder, *lock.InvalidError: the id is that of another resource.
func (l *Lease) enter(r Ref, mode lock.Mode) (*entry, error) {
	if l.isLost() {
		return nil, lock.ErrLeaseLost
	}
	e := l.entries[r.ID]
	switch {
	case e == nil:
		e = &entry{Ref: r, mode: mode, lasts: mode == 0}
		l.entries[r.ID] = e
	case mode != 0 && (e.Resource != r.Resource || e.mode != mode):
		return nil, &lock.InvalidError{Field: "id", Problem: "is in use for another resource or mode"}
	case e.Resource != r.Resource:
		return nil, lock.ErrNotHolder
	}
	switch {
	case mode != 0 && e.revoked:
		return nil, errForced
	case mode != 0 && e.leaving != nil:
		return e, errLeaving
	}
	l.start(e)
	return e, nil
}

// again marks that a waiter asks once more.
//
//	lock.ErrNotHolder: it was given up meanwhile.
//	errForced
func (l *Lease) again(e *entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	switch {
	case e.removed:
		return lock.ErrNotHolder
	case e.revoked:
		return errForced
	}
	l.start(e)
	return nil
}

// start marks that a request is on its way, whose answer a push may overtake.
// l.mu is held.
func (l *Lease) start(e *entry) {
	e.busy, e.rung, e.pushed, e.doubted = true, false, nil, l.doubted
	l.touch(e)
}

// end marks that a request is on its way no more. l.mu is held.
func (l *Lease) end(e *entry) {
	e.busy = false
	l.touch(e)
}

// touch notes that an entry has changed. l.mu is held.
func (l *Lease) touch(e *entry) {
	l.epoch++
	e.touched = l.epoch
}

// remove forgets an entry. l.mu is held.
func (l *Lease) remove(e *entry) {
	if !e.removed {
		e.removed = true
		delete(l.entries, e.ID)
		delete(l.forced, e.ID)
		l.removed++
		if f, notes := l.d.(Forgetter); notes {
			f.Forget(e.ID)
		}
	}
	e.wake()
}

// pushed takes a push.
func (l *Lease) pushed(p Push) {
	if p.Kind == Over {
		l.Lose()
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch e := l.entries[p.ID]; {
	case p.Kind == Missed:
		for _, e := range l.entries {
			e.wake()
		}
	case e == nil: // it was given up meanwhile
	case p.Kind == Revoked:
		l.revoke(e, p.Grace, p.Vanished)
	case p.Kind == Contended:
		if !e.behind {
			e.behind = true
			l.behind = append(l.behind, e)
			Ring(l.newsBell)
		}
	case p.Kind == Granted:
		if !e.held {
			e.pushed = &p
		}
		e.wake()
	default:
		e.wake()
	}
}

// revoke notes that the release of a hold is forced. A grace can become shorter,
// not longer. Where Acquire has not returned yet nobody is told: Acquire says so.
// lost: nobody forces it, the hold is gone. l.mu is held.
//
// Model: force.PUSHED.
func (l *Lease) revoke(e *entry, grace time.Duration, lost bool) {
	if e.revoked && grace >= e.grace {
		return
	}
	e.lost = lost
	until := l.o.Clock() + grace
	if e.revoked {
		until = min(until, e.until)
	}
	if grace == 0 {
		until = 0
	}
	e.revoked, e.grace, e.until, e.told, e.acked = true, grace, until, false, false
	l.forced[e.ID] = e
	e.wake()
	switch {
	case !e.held:
		Ring(l.ackBell)
	case !e.telling:
		e.telling = true
		l.news = append(l.news, e)
		Ring(l.newsBell)
	}
}

// event is what is told of a revocation. l.mu is held.
func (e *entry) event() lock.Event {
	ev := lock.Event{Kind: lock.Revoked, Resource: e.Resource, ID: e.ID, Until: e.until}
	if e.lost {
		ev.Kind = lock.Vanished
	}
	return ev
}
