package session

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
)

// flight is the asking for one hold. The call that began it leads: it asks the
// store on its own goroutine, with its own ctx. Calls for the same hold follow:
// they wait for what the leader gets. A leader that gives up passes the baton to
// one of them, which asks anew (and so stands at the end of the queue: the wait
// belonged to the one who gave up).
//
// Its fields stand under the session's mutex.
type flight struct {
	claims  int           // how many counts are asked for
	maxHold time.Duration // the shortest that is asked for
	cancel  context.CancelFunc
	done    chan struct{} // closed at the end; nil while there is only a leader
	baton   chan struct{} // has a value when there is no leader
	err     error         // at the end: why it failed for all; nil: granted
}

// share makes room for followers.
func (f *flight) share() {
	if f.done == nil {
		f.done = make(chan struct{})
		f.baton = make(chan struct{}, 1)
	}
}

// bound makes the hold end after d, when that is not 0, at the latest.
func (f *flight) bound(d time.Duration) {
	if d > 0 && (f.maxHold == 0 || d < f.maxHold) {
		f.maxHold = d
	}
}

func (f *flight) end(err error) {
	f.err = err
	if f.done != nil {
		close(f.done)
	}
	if f.cancel != nil {
		f.cancel()
	}
}

// lead asks the store until there is an answer. When a lease ends meanwhile it
// asks again on the next one.
func (s *Session) lead(ctx context.Context, h *hold, f *flight, c *call) (Grant, error) {
	for {
		g, again, err := s.attempt(ctx, h, f, c)
		if !again {
			return g, err
		}
	}
}

// attempt asks on one lease.
func (s *Session) attempt(parent context.Context, h *hold, f *flight, c *call) (g Grant, again bool, err error) {
	ctx, cancel := c.context(parent)
	defer cancel()
	s.mu.Lock()
	f.cancel = cancel
	ended := f.err
	s.mu.Unlock()
	if ended != nil {
		return Grant{}, false, ended
	}

	q := lock.Request{Resource: c.key.resource, Mode: h.mode, Owner: s.ownerOf(c.Owner), Try: c.Wait == 0}
	var grant lock.Grant
	lease, err := s.m.awaitLease(ctx)
	if err == nil {
		q.ID = lock.NewHoldID()
		s.mu.Lock()
		if f.err != nil || lease.lost() {
			s.mu.Unlock()
			return Grant{}, true, nil // to see which, and what next
		}
		h.lease, h.id, h.reason = lease, q.ID, 0
		lease.add(h) // before the store could send an event about it
		s.mu.Unlock()
		grant, err = lease.ask(ctx, q)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	f.cancel = nil
	if err == nil {
		return s.granted(parent, h, f, c, grant)
	}
	again, err = s.refused(parent, h, f, c, lease, q.ID, err)
	return Grant{}, again, err
}

// ask asks the store until it answers, ctx ends, or the lease is over.
func (g *generation) ask(ctx context.Context, q lock.Request) (lock.Grant, error) {
	for tries := 0; ; tries++ {
		grant, err := g.lease.Acquire(ctx, q)
		if err == nil || !errors.Is(err, lock.ErrUnavailable) || g.lost() || !pause(ctx, backoff(tries, minPause, maxPause)) {
			return grant, err
		}
	}
}

// refused draws the conclusions when the store has not granted. s.mu is held.
// lease is nil when there was none to ask.
func (s *Session) refused(parent context.Context, h *hold, f *flight, c *call, lease *generation, id lock.HoldID, err error) (again bool, _ error) {
	var known *lock.HeldError
	switch {
	case lease == nil:
	case errors.As(err, &known), errors.Is(err, lock.ErrNotHolder), errors.Is(err, lock.ErrInvalid):
		// nothing is left behind
	case errors.Is(err, lock.ErrLeaseLost):
		lease.keeper.Lose()
	default:
		lease.clean(c.key.resource, id)
	}
	if lease != nil {
		lease.drop(id)
		h.lease = nil
	}
	switch {
	case f.err != nil:
		return false, f.err
	case lease != nil && errors.Is(err, lock.ErrNotHolder):
		lost := &LostError{Lost{LockID: id, Resource: s.m.toApp(c.key.resource), Reason: Forced}}
		s.fail(h, f, lost)
		return false, lost
	case known != nil && errors.Is(known.Cause, lock.ErrHeld):
		s.leave(h, f, c, true)
		return false, s.heldError(c, known, lock.ErrHeld)
	case parent.Err() != nil, !c.until.IsZero() && !time.Now().Before(c.until):
		s.leave(h, f, c, true)
		return false, s.gaveUp(parent, c, err)
	case lease == nil, lease.lost():
		return true, nil
	default: // the store refuses the request itself
		s.leave(h, f, c, true)
		return false, err
	}
}

// granted hands the grant out, if it is still worth something. s.mu is held.
func (s *Session) granted(parent context.Context, h *hold, f *flight, c *call, grant lock.Grant) (Grant, bool, error) {
	lease := h.lease
	giveBack := func() {
		lease.drop(grant.ID)
		lease.clean(c.key.resource, grant.ID)
		h.lease = nil
	}
	_ = s.usable() // what ended while the request was on its way
	left := lease.keeper.ValidFor()
	switch {
	case f.err != nil:
		giveBack()
		return Grant{}, false, f.err
	case h.reason == Forced:
		lost := &LostError{Lost{LockID: grant.ID, Resource: s.m.toApp(c.key.resource), Fence: grant.Fence, Reason: Forced}}
		giveBack()
		s.fail(h, f, lost)
		return Grant{}, false, lost
	case left == 0, h.reason == StoreLost:
		giveBack()
		return Grant{}, true, nil
	case parent.Err() != nil && f.claims == 1 && (c.claim == nil || c.claim.callers == 1):
		giveBack()
		s.leave(h, f, c, true)
		return Grant{}, false, s.heldError(c, nil, parent.Err())
	}

	h.state, h.fence, h.guard, h.count, h.flight = held, grant.Fence, grant.Guard, f.claims, nil
	s.holds[h.id] = h
	s.m.holds.Add(1)
	if f.maxHold > 0 {
		s.bound(h, f.maxHold)
	}
	f.end(nil)
	g, err := s.handOut(parent, h, c)
	return g, false, err
}

// bound makes a hold end after d at the latest. s.mu is held.
func (s *Session) bound(h *hold, d time.Duration) {
	if h.limit != nil {
		h.limit.Shorten(d)
		return
	}
	h.limit = heartbeat.NewDeadline(s.m.o.Clock, d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.valid(h)
	})
}

// handOut gives one caller its share of a hold. s.mu is held.
func (s *Session) handOut(parent context.Context, h *hold, c *call) (Grant, error) {
	left := s.valid(h)
	switch {
	case left > 0 && parent.Err() == nil:
		if c.claim != nil {
			c.claim.callers--
			c.claim.handed = true
		}
		return s.grantOf(h, left), nil
	case left > 0:
		s.giveBack(h, c)
		return Grant{}, s.heldError(c, nil, parent.Err())
	case s.state != open:
		return Grant{}, ErrSessionClosed
	case h.reason == 0: // released more often than it was handed out
		return Grant{}, lock.ErrNotHolder
	default:
		return Grant{}, &LostError{s.lostOf(h)}
	}
}

// giveBack takes the share of a caller off a hold, because the caller has
// given up in the moment of the grant. s.mu is held.
func (s *Session) giveBack(h *hold, c *call) {
	if c.claim != nil {
		c.claim.callers--
		if c.claim.callers > 0 || c.claim.handed {
			return // another caller has it, or will
		}
		s.unclaim(c.claim)
	}
	h.count--
	if h.count == 0 {
		s.forget(h)
		h.state = over
		s.m.uncountHold()
		h.lease.clean(h.key.resource, h.id)
	}
}

// follow waits for what the leader gets.
func (s *Session) follow(parent context.Context, h *hold, f *flight, c *call) (Grant, error) {
	ctx, cancel := c.context(parent)
	defer cancel()
	if c.Wait == 0 {
		// The leader may stand in the queue for long, and a try does not.
		st, err := s.m.o.Backend.Get(ctx, c.key.resource)
		if err == nil && len(st.Holders) > 0 {
			s.mu.Lock()
			if h.flight == f && f.err == nil {
				s.leave(h, f, c, false)
				s.mu.Unlock()
				return Grant{}, s.heldError(c, &lock.HeldError{Status: st}, lock.ErrHeld)
			}
			s.mu.Unlock()
		}
	}
	select {
	case <-f.done:
	case <-f.baton:
		return s.lead(parent, h, f, c)
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case f.err != nil:
		return Grant{}, f.err
	case h.flight == f: // still in flight
		s.leave(h, f, c, false)
		return Grant{}, s.gaveUp(parent, c, nil)
	default:
		return s.handOut(parent, h, c)
	}
}

// leave takes a caller out of a flight. s.mu is held.
func (s *Session) leave(h *hold, f *flight, c *call, leader bool) {
	alone := true // in its claim
	if c.claim != nil {
		c.claim.callers--
		if alone = c.claim.callers == 0; alone {
			s.unclaim(c.claim)
		}
	}
	if alone {
		f.claims--
	}
	switch {
	case f.claims == 0:
		s.forget(h)
		h.state = over
	case leader:
		f.baton <- struct{}{} // there is a follower, so there is the channel
	}
}

// fail ends a flight for all its callers. s.mu is held.
func (s *Session) fail(h *hold, f *flight, err error) {
	s.forget(h)
	h.state = over
	f.end(err)
}

// cancelFlights ends all flights of a session that ends. s.mu is held.
func (s *Session) cancelFlights() {
	for _, h := range s.keys {
		if h.state == asking {
			s.fail(h, h.flight, ErrSessionClosed)
		}
	}
}

// leaseOver ends what hangs on that lease: holds are lost, and flights ask the
// next one.
func (s *Session) leaseOver(g *generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.keys {
		switch {
		case h.lease != g:
		case h.state == held:
			s.lose(h, g.reason(), maxGrace)
		case h.flight.cancel != nil:
			h.flight.cancel()
		}
	}
}

// storeEvent is news from the store about one hold, or about one for which it
// is asked.
func (s *Session) storeEvent(h *hold, e lock.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reason, left := StoreLost, time.Duration(0)
	if e.Kind == lock.Revoked {
		reason, left = Forced, max(0, e.Until-s.m.o.Clock())
	}
	switch {
	case h.id != e.ID:
	case h.state == held:
		s.lose(h, reason, left)
	case h.state == asking: // the grant is on its way
		h.reason = reason
	}
}
