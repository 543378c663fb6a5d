package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// answerLimit bounds how long an app waits for the store's answer to a release
// or a downgrade.
const answerLimit = 2 * time.Second

// Release takes one count off a hold, and tells how many are left. With the
// last one it returns when the store has confirmed that the lock is free; when
// the store does not answer for two seconds it returns as well, for the app has
// let go: the release goes on in the background. It does not end with ctx.
//
//	*LostError: the hold was lost before. When its grace was not over, it is now.
//	lock.ErrNotHolder: the session has no such hold (any more).
//	ErrSessionClosed: the session has ended, and with it the hold.
func (s *Session) Release(ctx context.Context, id lock.HoldID) (int, error) {
	s.mu.Lock()
	h, err := s.find(id)
	if err != nil {
		if lost := s.lost[id]; lost != nil {
			s.settle(lost) // the app knows, and has stopped its work
		}
		s.mu.Unlock()
		return 0, err
	}
	left := h.count - 1
	if n := len(h.claims); n > left && left > 0 {
		s.unclaim(h.claims[n-1])
	}
	return left, s.takeOff(ctx, h)
}

// takeOff takes one count off a hold that lives, and releases it with the last.
// s.mu is held, and not any more when it returns.
func (s *Session) takeOff(ctx context.Context, h *hold) error {
	if h.count > 1 {
		h.count--
		s.mu.Unlock()
		return nil
	}
	s.forget(h)
	h.state = over
	s.mu.Unlock()
	defer s.m.uncountHold()
	return s.release(ctx, h)
}

// find returns a hold that lives, or says what became of it. s.mu is held.
func (s *Session) find(id lock.HoldID) (*hold, error) {
	h := s.holds[id]
	if h != nil && s.valid(h) > 0 {
		return h, nil
	}
	if lost := s.lost[id]; lost != nil {
		return nil, &LostError{s.lostOf(lost)}
	}
	if s.state == closed {
		return nil, ErrSessionClosed
	}
	return nil, lock.ErrNotHolder
}

// release asks the store, and leaves it to the janitor when it does not answer.
// The hold is no longer in the session.
func (s *Session) release(ctx context.Context, h *hold) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	for tries := 0; ; tries++ {
		err := h.lease.lease.Release(ctx, h.key.resource, h.id)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, lock.ErrNotHolder):
			if tries > 0 { // the request before, whose outcome was unknown, did it
				return nil
			}
			return s.lostAtRelease(h, StoreLost)
		case errors.Is(err, lock.ErrLeaseLost):
			h.lease.keeper.Lose()
			if tries > 0 {
				return nil
			}
			return s.lostAtRelease(h, h.lease.reason())
		}
		if h.lease.lost() || !pause(ctx, backoff(tries, minPause, maxPause)) {
			h.lease.clean(h.key.resource, h.id)
			s.m.o.Logger.Warn("release lock: the store does not answer, going on in the background",
				keySession, s.id, keyResource, h.key.resource, keyLockID, h.id, keyError, err)
			return nil
		}
	}
}

// lostAtRelease is for a hold that the store did not know when the app released
// it. There is no event: the answer says it.
func (s *Session) lostAtRelease(h *hold, reason LostReason) error {
	s.m.o.Observer.HoldLost(reason)
	s.mu.Lock()
	defer s.mu.Unlock()
	h.reason = reason
	s.remember(h)
	return &LostError{s.lostOf(h)}
}

// Downgrade turns an exclusive hold into a shared one without letting go; its
// fence stays. A shared hold is left as it is.
//
//	lock.ErrUnavailable: the store did not answer for two seconds. The hold may
//	  be shared or exclusive in the store; for the app it is shared. Another
//	  Downgrade asks again.
//	*LostError, lock.ErrNotHolder, ErrSessionClosed: as for Release.
func (s *Session) Downgrade(ctx context.Context, id lock.HoldID) (Grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := s.find(id)
	if err != nil {
		return Grant{}, err
	}
	if h.mode == lock.Exclusive {
		h.mode, h.unsure = lock.Shared, true
	}
	if h.unsure {
		lease, res := h.lease, h.key.resource
		s.mu.Unlock()
		err = lease.downgrade(ctx, res, id)
		s.mu.Lock()
		switch {
		case errors.Is(err, lock.ErrNotHolder):
			if h.state == held {
				s.lose(h, StoreLost, 0)
			}
		case errors.Is(err, lock.ErrLeaseLost):
			lease.keeper.Lose()
		case err != nil:
			return Grant{}, fmt.Errorf("downgrade lock: %w", err)
		default:
			h.unsure = false
		}
	}
	// Released or lost meanwhile?
	if h, err = s.find(id); err != nil {
		return Grant{}, err
	}
	return s.grantOf(h, s.valid(h)), nil
}

func (g *generation) downgrade(ctx context.Context, res lock.Resource, id lock.HoldID) error {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	for tries := 0; ; tries++ {
		err := g.lease.Downgrade(ctx, res, id)
		if err == nil || !errors.Is(err, lock.ErrUnavailable) || !pause(ctx, backoff(tries, minPause, maxPause)) {
			return err
		}
	}
}
