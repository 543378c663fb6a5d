package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// tryLimit bounds a try when the store does not answer.
const tryLimit = 2 * time.Second

// call is one Acquire.
type call struct {
	AcquireRequest
	key   key
	until time.Time // when it has waited long enough; zero: only its ctx says
	claim *claim    // nil when the request has no id
}

// context is the call's own: it ends with parent, or when the wait is over.
func (c *call) context(parent context.Context) (context.Context, context.CancelFunc) {
	if c.until.IsZero() {
		return context.WithCancel(parent)
	}
	return context.WithDeadline(parent, c.until)
}

// Acquire asks for a hold and waits for it as long as the request says. With an
// error the app has nothing, and nothing is left behind in the store: what an
// unanswered request may have left is given back in the background.
//
// A request with the id of one in flight, or of one whose hold lives, gets the
// same answer and counts once. A request of an owner that holds the resource
// already counts it up and does not ask the store; one of an owner that waits
// for it already waits for the same answer.
//
//	*lock.HeldError with lock.ErrHeld: a try found it taken.
//	*lock.HeldError with context.DeadlineExceeded: the wait is over.
//	*lock.HeldError with context.Canceled: ctx or, by Cancel, the request was
//	  cancelled.
//	lock.ErrUnavailable: the wait is over and the store does not answer; a try
//	  waits two seconds for an answer.
//	ErrUpgradeRefused: the owner holds it, or waits for it, SHARED.
//	*LimitError: the session has too many holds or waiters.
//	*LostError: an administrator took the waiter out of the queue, or the hold
//	  was lost before it could be handed out.
//	ErrSessionClosed: the session has ended.
//	*lock.InvalidError: a field is refused.
func (s *Session) Acquire(ctx context.Context, r AcquireRequest) (Grant, error) {
	res, err := s.m.checkAcquire(&r)
	if err != nil {
		return Grant{}, err
	}
	began := time.Now()
	c := &call{AcquireRequest: r, key: key{res, r.Owner}}
	switch {
	case r.Wait == 0:
		c.until = began.Add(tryLimit)
	case r.Wait > 0:
		c.until = began.Add(r.Wait)
	}
	g, err := s.acquire(ctx, c)
	s.m.o.Observer.Acquired(r.Mode, resultOf(g, err), time.Since(began))
	return g, err
}

func resultOf(g Grant, err error) AcquireResult {
	switch {
	case err == nil && g.Count > 1:
		return Reentered
	case err == nil:
		return Granted
	case errors.Is(err, lock.ErrHeld):
		return Held
	case errors.Is(err, lock.ErrUnavailable): // before the time-out that may be behind it
		return Unavailable
	case errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	case errors.Is(err, context.Canceled):
		return Cancelled
	case errors.Is(err, ErrSessionClosed), errors.Is(err, ErrLost):
		return Ended
	default:
		return Refused
	}
}

func (s *Session) acquire(ctx context.Context, c *call) (Grant, error) {
	s.mu.Lock()
	if err := s.usable(); err != nil {
		s.mu.Unlock()
		return Grant{}, err
	}
	if err := ctx.Err(); err != nil {
		s.mu.Unlock()
		return Grant{}, s.heldError(c, nil, err)
	}
	g, h, f, err := s.enter(c)
	if f == nil {
		s.mu.Unlock()
		return g, err
	}
	if c.claim != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		c.claim.cancels = append(c.claim.cancels, cancel)
	}
	s.callers++
	s.m.waiters.Add(1)
	lead := f.claims == 0
	if lead {
		f.claims = 1
	}
	s.mu.Unlock()

	if lead {
		g, err = s.lead(ctx, h, f, c)
	} else {
		g, err = s.follow(ctx, h, f, c)
	}
	s.m.waiters.Add(-1)
	s.mu.Lock()
	s.callers--
	if c.claim != nil && c.claim.callers == 0 {
		c.claim.cancels = nil
	}
	s.mu.Unlock()
	return g, err
}

// enter finds what the session has for the call: a hold that lives (then there
// is a grant and no flight), a flight to join, or a new flight, which has no
// claims yet. s.mu is held.
func (s *Session) enter(c *call) (Grant, *hold, *flight, error) {
	if s.cancelled.has(c.RequestID) {
		return Grant{}, nil, nil, s.heldError(c, nil, context.Canceled)
	}
	if cl := s.requests[c.RequestID]; cl != nil {
		h := cl.hold
		switch {
		case h.key != c.key || cl.mode != c.Mode:
			return Grant{}, nil, nil, invalid("request_id", "is that of another request")
		case h.state == asking:
			f := h.flight
			if err := s.limit(); err != nil {
				return Grant{}, nil, nil, err
			}
			f.share()
			cl.callers++
			c.claim = cl
			return Grant{}, h, f, nil
		}
		if left := s.valid(h); left > 0 {
			return s.grantOf(h, left), nil, nil, nil
		}
		// Lost: the same request begins anew.
	}
	if h := s.keys[c.key]; h != nil {
		if c.Mode == lock.Exclusive && h.mode == lock.Shared {
			return Grant{}, nil, nil, ErrUpgradeRefused
		}
		if h.state == asking {
			if err := s.limit(); err != nil {
				return Grant{}, nil, nil, err
			}
			f := h.flight
			f.share()
			f.claims++
			f.bound(c.MaxHold)
			s.claim(h, c)
			return Grant{}, h, f, nil
		}
		if left := s.valid(h); left > 0 {
			h.count++
			s.claim(h, c)
			if c.claim != nil {
				c.claim.callers, c.claim.handed = 0, true
			}
			if c.MaxHold > 0 {
				s.bound(h, c.MaxHold)
				left = min(left, c.MaxHold)
			}
			return s.grantOf(h, left), nil, nil, nil
		}
	}
	if s.state != open { // what valid found
		return Grant{}, nil, nil, ErrSessionClosed
	}
	if err := s.limit(); err != nil {
		return Grant{}, nil, nil, err
	}
	if limit := s.m.o.Limits.HoldsPerSession; len(s.keys) >= limit {
		return Grant{}, nil, nil, &LimitError{Limit: "holds", Max: limit}
	}
	h := &hold{session: s, key: c.key, mode: c.Mode, state: asking, flight: &flight{maxHold: c.MaxHold}}
	s.keys[c.key] = h
	s.claim(h, c)
	return Grant{}, h, h.flight, nil
}

// limit looks whether one more call may wait. s.mu is held.
func (s *Session) limit() error {
	if limit := s.m.o.Limits.WaitersPerSession; s.callers >= limit {
		return &LimitError{Limit: "waiters", Max: limit}
	}
	return nil
}

// claim notes the request's id, when it has one. s.mu is held.
func (s *Session) claim(h *hold, c *call) {
	if c.RequestID == "" {
		return
	}
	c.claim = &claim{requestID: c.RequestID, hold: h, mode: c.Mode, callers: 1}
	s.requests[c.RequestID] = c.claim
	h.claims = append(h.claims, c.claim)
}

// grantOf is a hold as the app sees it. s.mu is held.
func (s *Session) grantOf(h *hold, left time.Duration) Grant {
	return Grant{
		LockID:   h.id,
		Resource: s.m.toApp(h.key.resource),
		Mode:     h.mode,
		Fence:    h.fence,
		Until:    s.m.o.Clock() + left,
		Count:    h.count,
		Guard:    h.guard,
	}
}

// heldError is what the app gets when it was not granted in time. From the
// store's own error it takes who holds the lock.
func (s *Session) heldError(c *call, from *lock.HeldError, cause error) error {
	e := &lock.HeldError{Cause: cause}
	if from != nil {
		e.Status, e.Position = from.Status, from.Position
	}
	e.Status.Resource = lock.Resource(s.m.toApp(c.key.resource))
	return e
}

// gaveUp is the error of a call whose ctx has ended or whose wait is over: err
// is what the store said last.
func (s *Session) gaveUp(parent context.Context, c *call, err error) error {
	var from *lock.HeldError
	known := errors.As(err, &from)
	switch {
	case errors.Is(parent.Err(), context.Canceled):
		return s.heldError(c, from, context.Canceled)
	case !known && errors.Is(err, lock.ErrLeaseLost):
		return noLease(err)
	case !known && err != nil:
		return fmt.Errorf("acquire lock: %w", err)
	default:
		return s.heldError(c, from, context.DeadlineExceeded)
	}
}
