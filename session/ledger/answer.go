package ledger

import (
	"errors"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// answer ends the wait of one call, which must be taken from its hold as well.
func (l *Ledger) answer(c *Call, g Grant, err error) {
	c.Grant, c.Err, c.answered, c.at = g, err, true, l.at.Now
	l.dues.remove(&c.due)
	l.waits--
	if c.claim != nil {
		c.claim.waiting--
		if err == nil {
			c.claim.answered++
		}
	}
	l.answers = append(l.answers, c)
}

// Asked notes that the driver's Acquire is called for the hold of a Request, on
// that lease, and gives what to ask for. stop ends the call. It reports false
// when the hold with that id is not wanted any more. Where the request may wait, holds
// are the names of what its owner has, see Nested.
func (l *Ledger) Asked(h *Hold, id lock.HoldID, lease Lease, stop Stopper) (q lock.Request, holds []string, wanted bool) {
	if h.id != id || h.state != asking {
		return lock.Request{}, nil, false
	}
	h.lease, h.stop, h.asked = lease, stop, true
	if !h.try {
		holds = l.owners.names(h.key.Owner)
	}
	return lock.Request{ID: id, Resource: h.key.Resource, Mode: h.mode, Try: h.try, Direct: h.direct, Guard: h.wish, MinHold: h.minHold, Detachable: h.detachable, Handle: h.handle, Nested: holds != nil}, holds, true
}

// Deadlocked ends the wait for a hold with err. It reports false when the hold with
// that id does not wait any more.
func (l *Ledger) Deadlocked(h *Hold, id lock.HoldID, err error) bool {
	if h.id != id || h.state != asking {
		return false
	}
	l.fail(h, err)
	return true
}

// Waiting notes how to end the wait for a lease to ask on, and reports, as Asked does.
func (l *Ledger) Waiting(h *Hold, id lock.HoldID, stop Stopper) bool {
	if h.id != id || h.state != asking {
		return false
	}
	h.stop = stop
	return true
}

// Started notes the attempt that is made under the hold with that id. It comes just
// before the Answered that says that the hold is granted.
func (l *Ledger) Started(h *Hold, id lock.HoldID, a *outcome.Attempt) {
	if h.id == id && h.state == asking {
		h.attempt = a
	}
}

// Attempt is the one that is made under a hold that lives, or under one of the latest that do
// not; nil: nothing is known.
func (l *Ledger) Attempt(id lock.HoldID) *outcome.Attempt {
	if h := l.asks[id]; h != nil {
		return h.attempt
	}
	a, _ := l.attempts.get(string(id))
	return a
}

// Answered notes what the driver's Acquire for that id on that lease has
// returned, or why no attempt must be made under it. A lease that is over must be told by LeaseOver before.
//
// Model: lease.GRANTED.
func (l *Ledger) Answered(h *Hold, id lock.HoldID, lease Lease, g lock.Grant, err error) {
	var known *lock.HeldError
	none := errors.As(err, &known) || errors.Is(err, lock.ErrNotHolder) || errors.Is(err, lock.ErrLeaseLost) || errors.Is(err, lock.ErrPartLost) ||
		errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrLimit) ||
		errors.Is(err, lock.ErrNoHandle) ||
		errors.Is(err, outcome.ErrAlreadyDone) || errors.Is(err, outcome.ErrAttemptsExhausted) || errors.Is(err, outcome.ErrForeign)
	if h.id != id || h.state != asking { // nobody waits for it any more, or it is asked for on another lease
		if !none {
			l.emit(Effect{Kind: Clean, Lease: lease, Resource: h.key.Resource, ID: id})
		}
		if h.told != nil && h.id == id {
			h.told.Err = err
			close(h.told.Done)
			h.told = nil
		}
		return
	}
	h.asked, h.stop = false, nil
	if !none && (err != nil || h.reason != 0) {
		l.clean(h, false)
	}
	switch {
	case errors.Is(err, lock.ErrNotHolder), err == nil && (h.reason == Forced || h.reason == TakenOver):
		reason := Forced
		if h.handle != "" && h.reason != Forced { // with its handle it was taken from this request, whose answer was lost
			reason = TakenOver
		}
		l.fail(h, &LostError{Lost{LockID: id, Resource: h.name, Fence: g.Fence, Reason: reason}})
	case err == nil && h.reason == 0:
		l.granted(h, g)
	case known != nil && errors.Is(known.Cause, lock.ErrHeld):
		l.refuseTries(h, known)
		if h.state == asking { // others want to wait
			l.askAgain(h)
		}
	case err == nil, known != nil, errors.Is(err, lock.ErrLeaseLost), errors.Is(err, lock.ErrPartLost):
		l.askAgain(h)
	default: // the store refuses the request itself
		l.fail(h, err)
	}
}

// granted answers all who wait.
func (l *Ledger) granted(h *Hold, g lock.Grant) {
	h.state, h.fence, h.guard = held, g.Fence, g.Guard
	if h.minHold > 0 {
		h.kept = l.at.Now + h.minHold
	}
	if h.handle != "" {
		h.end = g.Until
		l.limit(h)
	}
	l.owners.add(h)
	l.live++
	if l.advance(h) {
		return
	}
	h.tag = nil
	h.count = len(h.claims)
	for c := h.calls; c != nil; c = c.next {
		if c.claim == nil {
			h.count++
		}
		l.bound(h, c.maxHold)
	}
	l.entered += h.count - 1
	grant := l.grant(h)
	for c := h.calls; c != nil; c = c.next {
		l.answer(c, grant, nil)
	}
	h.calls = nil
}

// fail answers all who wait with an error, and forgets the hold.
func (l *Ledger) fail(h *Hold, err error) {
	for c := h.calls; c != nil; c = c.next {
		l.answer(c, Grant{}, err)
	}
	h.calls = nil
	l.abandon(h)
}

// refuseTries answers the tries among the calls.
func (l *Ledger) refuseTries(h *Hold, from *lock.HeldError) {
	for c := h.calls; c != nil; {
		next := c.next
		if c.try {
			l.drop(c, &lock.HeldError{Cause: lock.ErrHeld, Status: nameOf(from.Status, h.name)})
		}
		c = next
	}
}

// abandon gives up a hold that is asked for: nobody waits for it any more.
func (l *Ledger) abandon(h *Hold) {
	l.forget(h)
	l.unregister(h)
	h.state = over
	l.stop(h)
	if h.group != nil {
		l.disband(h.group)
	}
}

func (l *Ledger) stop(h *Hold) {
	if h.stop != nil {
		l.emit(Effect{Kind: Stop, Stop: h.stop})
		h.stop = nil
	}
}

// askAgain asks for a hold under a new id.
func (l *Ledger) askAgain(h *Hold) {
	l.stop(h)
	delete(l.asks, h.id)
	l.unregister(h)
	h.id, h.lease, h.asked, h.attempt, h.reason, h.try = l.o.NewID(), nil, false, nil, 0, true
	for c := h.calls; c != nil; c = c.next {
		h.try = h.try && c.try
	}
	l.asks[h.id] = h
	l.emit(Effect{Kind: Request, Hold: h, ID: h.id})
}

// Peeked answers a try that shares the wait of others, when it can be said that
// somebody else holds the resource. Where st shows the session's own request
// among the holders, its grant is on the way, and the try shares it.
func (l *Ledger) Peeked(c *Call, st lock.Status, err error) {
	switch {
	case c.answered:
		return
	case err != nil:
		l.drop(c, err)
		return
	}
	for _, holder := range st.Holders {
		if own := l.asks[holder.ID]; own != nil && (own == c.hold || own.group != nil && own.group == c.hold.group) {
			return
		}
	}
	if len(st.Holders) > 0 {
		l.drop(c, &lock.HeldError{Cause: lock.ErrHeld, Status: nameOf(st, c.hold.name)})
	}
}
