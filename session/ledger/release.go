package ledger

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Release is what is to be done for a caller who lets go.
type Release struct {
	Left int   // counts
	Err  error // as Ledger.Release says
	Hold *Hold // when not nil: see Releasing, ask the store, and tell Released; only then Left and Err are true
	// Wait, when not nil, is closed when somebody else's request has done it.
	// Reply gives the answer then.
	Wait  <-chan struct{}
	reply *answer
}

// Reply is the answer after Wait.
func (r *Release) Reply() (int, error) {
	if r.reply == nil {
		return 0, nil
	}
	return r.reply.left, r.reply.err
}

// answer is what a release with a request id was answered.
type answer struct {
	id   lock.HoldID
	left int
	err  error
	done chan struct{}
}

// Release takes one count off a hold; with the last one it is to be released in
// the store. Another call with the same request id, when that is not empty, gets
// the same answer. Of a lost hold the last one acknowledges the loss and ends the grace.
//
//	*LostError: the hold was lost before.
//	lock.ErrNotHolder: there is no such hold (any more).
//	ErrClosed: the session has ended.
//	*lock.InvalidError: the request id is that of a release of another hold.
func (l *Ledger) Release(id lock.HoldID, requestID string) Release {
	if requestID == "" {
		return l.release(id, nil)
	}
	if a, ok := l.released.get(requestID); ok {
		if a.id != id {
			return Release{Err: &lock.InvalidError{Field: "request_id", Problem: "is that of another release"}}
		}
		return Release{Wait: a.done, reply: a}
	}
	a := &answer{id: id, done: make(chan struct{})}
	r := l.release(id, a)
	l.released.put(requestID, a)
	switch {
	case r.Hold != nil:
		r.Hold.reply = a
	case r.Wait == nil:
		a.left, a.err = r.Left, r.Err
		close(a.done)
	}
	return r
}

func (l *Ledger) release(id lock.HoldID, a *answer) Release {
	h := l.lives(id)
	if h == nil {
		return Release{Err: l.acknowledge(id)}
	}
	// Whose count this is, nobody says, so the requests keep their claims: the others
	// are retried, or cancelled, by theirs.
	if left := h.count - 1; left > 0 && len(h.claims) > left+MaxReleasedClaims {
		l.unclaim(h.claims[0])
	}
	return l.takeOff(h, a)
}

// takeOff takes one count off a hold that lives.
func (l *Ledger) takeOff(h *Hold, a *answer) Release {
	if h.count--; h.count > 0 {
		l.entered--
		return Release{Left: h.count}
	}
	if h.handle != "" && h.exit == nil {
		h.exit = &Exit{Key: h.handle}
	}
	for p := range h.Parts {
		l.forget(p)
		l.unregister(p)
		p.state = over
		if h.busy {
			p.after = &after{}
		} else {
			p.state = leaving
			l.leaving++
		}
	}
	if !h.busy {
		l.dues.set(&h.due, l.at.Now+l.o.Answer)
		return Release{Hold: h}
	}
	if a == nil {
		a = &answer{id: h.id, done: make(chan struct{})}
	}
	h.after.done = func() { close(a.done) }
	return Release{Wait: a.done, reply: a}
}

// Releasing notes how to end the driver's Release, which is called now.
func (l *Ledger) Releasing(h *Hold, stop Stopper) { h.stop = stop }

// Unknown in Released: the store has not answered, and the release goes on in the
// background.
const Unknown LostReason = 255

// Released notes what the store has said to the release of a hold, for each of its Parts: 0
// when it is released, Unknown, or why the store did not know it.
func (l *Ledger) Released(h *Hold, said []LostReason) error {
	l.dues.remove(&h.due)
	h.stop = nil
	var err error
	for p := range h.Parts {
		l.leaving--
		p.state = over
		switch said[0] {
		case 0:
		case Unknown:
			l.clean(p, false)
		default: // it is told, whatever is unknown of the others
			if p.exit.Detaches() { // perhaps it is: its lease ended after that
				p.exit.former = "" // by which it can be attached again, as what is lost
				l.clean(p, false)
			}
			if h.reason = said[0]; h.group != nil {
				h.group.lost = p
			}
			l.losses.acked.put(string(h.id), h)
			err = &LostError{lostOf(h)}
		}
		said = said[1:]
	}
	if a := h.reply; a != nil {
		h.reply = nil
		a.err = err
		close(a.done)
	}
	return err
}

// Cancel gives up a request by its id, wherever it is: who waits is answered with
// context.Canceled, a count that it has is taken off, and should it come only
// now, it is refused.
func (l *Ledger) Cancel(requestID string) Release {
	l.cancelled.put(requestID, struct{}{})
	c := l.claims[requestID]
	if c == nil {
		return Release{}
	}
	h := c.hold
	if h.state == held {
		l.unclaim(c)
		r := l.takeOff(h, nil)
		h.exit = nil // what was attached is detached again
		return r
	}
	for call := h.calls; call != nil; {
		next := call.next
		if call.claim == c {
			l.drop(call, heldError(h.name, context.Canceled))
		}
		call = next
	}
	return Release{}
}

// Extend makes a hold end after d, whatever its limit was before. Errors as for Release.
func (l *Ledger) Extend(id lock.HoldID, d time.Duration) (Grant, error) {
	h := l.lives(id)
	if h == nil {
		return Grant{}, l.missing(id)
	}
	h.own = l.at.Now + d
	l.limit(h)
	return l.grant(h), nil
}

// Downgrade is what is to be done for a caller who wants to share its hold.
type Downgrade struct {
	Grant Grant
	Err   error
	Hold  *Hold           // when not nil: ask the store, and tell Downgraded; only then Grant is true
	Wait  <-chan struct{} // when not nil: another downgrade is under way; ask the ledger again after it
}

// Downgrade makes an exclusive hold a shared one for the app at once, and for the
// store as soon as it says so. Errors as for Release, and *lock.InvalidError for a permit.
func (l *Ledger) Downgrade(id lock.HoldID) Downgrade {
	h := l.lives(id)
	switch {
	case h == nil:
		return Downgrade{Err: l.missing(id)}
	case h.mode.Limit() > 0:
		return Downgrade{Err: &lock.InvalidError{Field: "lock_id", Problem: "is that of a permit, which cannot become SHARED"}}
	case h.busy:
		if h.idle == nil {
			h.idle = make(chan struct{})
		}
		return Downgrade{Wait: h.idle}
	case h.handle != "" && h.mode != lock.Shared:
		return Downgrade{Err: &lock.InvalidError{Field: "lock_id", Problem: "is that of an attached hold, which stays as its handle says"}}
	case h.mode == lock.Exclusive:
		for p := range h.Parts {
			p.mode, p.unsure = lock.Shared, true
		}
	}
	if !h.unsure {
		return Downgrade{Grant: l.grant(h)}
	}
	for p := range h.Parts {
		p.busy = true
	}
	return Downgrade{Hold: h}
}

// Downgraded notes what the store has said: sure that it is shared now; or that it does not know one of its
// Parts, which is missing. Neither is unknown.
func (l *Ledger) Downgraded(h *Hold, sure bool, missing *Hold) (Grant, error) {
	for p := range h.Parts {
		p.busy = false
		if sure {
			p.unsure = false
		}
	}
	if h.idle != nil {
		close(h.idle)
		h.idle = nil
	}
	if missing != nil && h.state == held {
		l.lose(missing, StoreLost, 0)
	}
	for p := range h.Parts {
		if a := p.after; a != nil {
			p.after = nil
			l.emit(Effect{Kind: Clean, Lease: p.lease, Resource: p.key.Resource, ID: p.id, Farewell: a.farewell, Done: a.done})
		}
	}
	if h.state != held {
		return Grant{}, l.missing(h.id)
	}
	return l.grant(h), nil
}
