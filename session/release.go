package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// answerLimit bounds how long an app waits for the store's answer to a release
// or a downgrade.
const answerLimit = 2 * time.Second

// Release takes one count off a hold, and tells how many are left. With the
// last one it returns when the store has confirmed that the lock is free; when
// the store does not answer for two seconds it returns as well, for the app has
// let go: the release goes on in the background. It does not end with ctx.
//
// A second Release with the same requestID gets the answer of the first and takes
// off nothing; the last 256 ids of a session are remembered. It may be empty.
//
// Release of a hold that was lost is answered with the loss. When all its counts
// are released the loss is acknowledged and not told any more; it is still the
// answer as long as it is one of the last 256 of the session.
//
//	*LostError: the hold was lost before. With the last count its grace is over.
//	lock.ErrNotHolder: the session has no such hold (any more).
//	ErrSessionClosed: the session has ended, and with it the hold.
//	*lock.InvalidError: requestID is refused, or is that of a release of another hold.
func (s *Session) Release(ctx context.Context, id lock.HoldID, requestID string) (int, error) {
	if err := checkLabel("request_id", requestID); err != nil {
		return 0, err
	}
	s.enter()
	r := s.ledger.Release(id, requestID)
	return finish(ctx, s, &r)
}

// KeptUntil is the moment on Options.Clock up to which the store keeps others out at the latest,
// by the MinHold of a hold that lives, or that is one of the last 256 of the session with
// one; 0: there is none. A forced release ends it sooner.
func (s *Session) KeptUntil(id lock.HoldID) time.Duration {
	s.mu.Lock() // it depends on no clock
	defer s.mu.Unlock()
	return s.ledger.KeptUntil(id)
}

// GraceEnd is the moment on Options.Clock up to which others are kept out of what the session has lost under that id, as
// long as it is not acknowledged: of several, of the last of them. 0: of nothing.
func GraceEnd(s *Session, id lock.HoldID) time.Duration {
	s.enter()
	defer s.exit()
	return s.ledger.GraceEnd(id)
}

// Cancel gives up an Acquire by the id of its request, wherever it is: a call
// that waits ends, a grant is given back, and a call that comes only now, because
// this one has overtaken it, is refused. Afterwards nothing of the request is
// held, and its id is used up. Cancel does not end with ctx. An id that nothing
// is known of is no error.
//
//	ErrSessionClosed: the session has ended, and with it the hold.
//	*lock.InvalidError: the id is refused.
func (s *Session) Cancel(ctx context.Context, requestID string) error {
	if requestID == "" {
		return invalid("request_id", "must not be empty")
	}
	if err := checkLabel("request_id", requestID); err != nil {
		return err
	}
	var r ledger.Release
	s.enter()
	err := s.ledger.Check()
	if err == nil {
		r = s.ledger.Cancel(requestID)
	}
	if _, lost := finish(ctx, s, &r); lost != nil && !errors.Is(lost, ErrLost) { // of a loss nobody cares any more
		return lost
	}
	return err
}

// finish does what a release still needs from the store. s.mu is held, and not
// any more when it returns.
func finish(ctx context.Context, s *Session, r *ledger.Release) (int, error) {
	var said [maxParts]LostReason
	switch {
	case r.Hold == nil && r.Wait == nil:
		s.exit()
		return r.Left, r.Err
	case !errand(s):
		if r.Hold != nil {
			for i := range said {
				said[i] = ledger.Unknown // it goes on in the background
			}
			_ = s.ledger.Released(r.Hold, said[:])
		}
		s.exit()
		return 0, nil
	case r.Hold != nil:
		c := &call{values: ctx, from: s}
		s.ledger.Releasing(r.Hold, c)
		s.exit()
		n := 0
		for p := range r.Hold.Parts { //nolint:contextcheck,nolintlint // it has the values of ctx, and ends by the ledger alone
			said[n] = release(c, s, p)
			if x := p.Exit(); said[n] == 0 && x != nil && !x.Detaches() { // it was attached
				s.space.m.loose.drop(x.Key)
			}
			n++
		}
		c.end()
		s.mu.Lock()
		landed(s)
		err := s.ledger.Released(r.Hold, said[:n])
		s.exit()
		if lost := (*LostError)(nil); errors.As(err, &lost) { // there is no event: the answer says it
			s.space.m.o.Observer.HoldLost(lost.Lost.Reason)
		}
		return 0, err
	default:
		s.exit()
		defer s.exit()
		defer landed(s)
		defer s.mu.Lock()
		lock.Blocking(ctx)
		t := time.NewTimer(answerLimit)
		defer t.Stop()
		select {
		case <-r.Wait:
			return r.Reply()
		case <-t.C:
			return 0, nil
		}
	}
}

// release asks the store until ctx ends, which the ledger sees to, and says what
// Released is to be told.
func release(ctx context.Context, s *Session, h *ledger.Hold) LostReason {
	g := h.Lease().(*generation)
	g.trip(ctx)
	for tries := 0; ; tries++ {
		err := g.leave(ctx, h)
		var lost LostReason
		switch {
		case err == nil:
			return 0
		case errors.Is(err, lock.ErrNotHolder) && h.Attached(): // the news of that are on their way
			lost = TakenOver
		case errors.Is(err, lock.ErrNotHolder):
			lost = StoreLost
		case errors.Is(err, lock.ErrLeaseLost):
			g.keeper.Lose()
			lost = g.reason()
		}
		switch {
		case tries > 0 && h.Exit() != nil && !h.Exit().Detaches() && errors.Is(err, lock.ErrLeaseLost): // it may be detached again
			return ledger.Unknown
		case lost != 0 && tries > 0 && !h.Exit().Detaches(): // the request before, whose outcome was unknown, did it
			return 0
		case lost != 0:
			return lost
		}
		if g.lost() || !pause(ctx, backoff(tries, minPause, maxPause)) {
			s.space.m.log.Warn("release lock: the store does not answer, going on in the background",
				keySession, s.id, keyResource, h.Resource(), keyLockID, h.ID(), keyError, err)
			return ledger.Unknown
		}
	}
}

// Extend makes a hold end maxHold from now, whatever its limit was before. It asks
// nobody: the store knows no limit.
//
//	*LostError, lock.ErrNotHolder, ErrSessionClosed: as for Release.
//	*lock.InvalidError: maxHold is refused.
func (s *Session) Extend(id lock.HoldID, maxHold time.Duration) (Grant, error) {
	if err := checkMaxHold(maxHold); err != nil {
		return Grant{}, err
	}
	s.enter()
	defer s.exit()
	return s.ledger.Extend(id, maxHold)
}

// Downgrade turns an exclusive hold into a shared one without letting go; its
// fence stays. A shared hold is left as it is.
//
//	lock.ErrUnavailable: the store did not answer for two seconds. The hold may
//	  be shared or exclusive in the store; for the app it is shared. Another
//	  Downgrade asks again.
//	*LimitError: too much is in flight.
//	*LostError, lock.ErrNotHolder, ErrSessionClosed: as for Release.
func (s *Session) Downgrade(ctx context.Context, id lock.HoldID) (Grant, error) {
	land, err := fly(s)
	if err != nil {
		return Grant{}, err
	}
	defer land()
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, lock.FromKey{}, s), answerLimit)
	defer cancel()
	for {
		s.enter()
		d := s.ledger.Downgrade(id)
		s.exit()
		switch {
		case d.Wait != nil:
			lock.Blocking(ctx)
			select {
			case <-d.Wait:
				continue
			case <-ctx.Done():
				return Grant{}, fmt.Errorf("downgrade lock: %w: %w", lock.ErrUnavailable, ctx.Err())
			}
		case d.Hold == nil:
			return d.Grant, d.Err
		}
		lease := d.Hold.Lease().(*generation)
		var unknown error
		var missing *ledger.Hold
		for p := range d.Hold.Parts {
			err := lease.downgrade(ctx, p.Resource(), p.ID())
			switch {
			case err == nil:
				continue
			case errors.Is(err, lock.ErrNotHolder): // it is told, whatever is unknown of the others
				missing = p
			case errors.Is(err, lock.ErrLeaseLost):
				lease.keeper.Lose()
			}
			unknown = err
		}
		s.enter()
		g, err := s.ledger.Downgraded(d.Hold, unknown == nil, missing)
		s.exit()
		if err == nil && unknown != nil {
			return Grant{}, fmt.Errorf("downgrade lock: %w", unknown)
		}
		return g, err
	}
}

func (g *generation) downgrade(ctx context.Context, res lock.Resource, id lock.HoldID) error {
	g.trip(ctx)
	for tries := 0; ; tries++ {
		err := g.lease.Downgrade(ctx, res, id)
		if err == nil || !errors.Is(err, lock.ErrUnavailable) || !pause(ctx, backoff(tries, minPause, maxPause)) {
			return err
		}
	}
}
