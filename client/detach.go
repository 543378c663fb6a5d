package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Detach takes a hold that was acquired with Detachable, or attached, off the session. From now on it lives
// for ttl (1s to 24h) in the store, whatever becomes of this process and of the sidecar. Whoever
// has the handle can attach it, with Session.Attach, and extend and release it, through any
// sidecar of the store. The fence stays. After it the Lock is over, as after Release.
//
//	ErrInvalidRequest: ttl is refused, or the hold was not acquired with Detachable. It stays.
//	ErrLimitExceeded: too many are detached. It stays.
//	ErrStoreUnavailable: the store did not answer. The Lock is lost.
//	the cause of ctx: it ended. The Lock is lost.
//	ErrLockLost, ErrNotHolder, Session.Err: as for Downgrade.
func (l *Lock) Detach(ctx context.Context, ttl time.Duration) (*pb.DetachedHold, error) {
	c := newCall()
	c.changes, c.detaches = l, true
	a, err := l.session.do(ctx, c, &pb.SessionRequest{Request: &pb.SessionRequest_Detach{Detach: &pb.DetachRequest{LockId: l.ID, Ttl: durationpb.New(ttl)}}})
	if lost := l.Err(); errors.Is(err, ErrNotHolder) && errors.Is(lost, ErrLockLost) {
		err = lost
	}
	if err != nil {
		return nil, fmt.Errorf("detach %q: %w", l.name(), err)
	}
	return a.GetDetached(), nil
}

// Attach makes a detached hold one of the session, at once, with the same fence and another ID. If
// it is attached elsewhere, that session loses it, with the reason TAKEN_OVER.
//
// The Lock is lost with MAX_HOLD when the time of the handle is over. Release ends the hold and its
// handle. Where the session, this process or the sidecar ends before, it is detached again.
//
// After any error but ErrNotHolder it can be attached again.
//
//	ErrNotHolder: there is no detached hold of that handle (any more).
//	ErrInvalidRequest, ErrUnsupported, ErrStoreUnavailable, ErrLimitExceeded; the cause of ctx; Session.Err.
func (s *Session) Attach(ctx context.Context, handle string) (*Lock, error) {
	if err := checkString("handle", handle); err != nil {
		return nil, err
	}
	c := newCall()
	c.acquire, c.attaches, c.patience = true, true, NoWait
	q := &pb.AcquireRequest{Handle: handle}
	if handle == "" { // it would be a request for a resource without a name
		return nil, &Error{Reason: "INVALID_REQUEST", Message: "handle is empty", Metadata: map[string]string{"field": "handle"}}
	}
	if _, err := s.do(ctx, c, &pb.SessionRequest{Request: &pb.SessionRequest_Acquire{Acquire: q}}); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return c.lock, nil
}

// ExtendHandle makes a detached hold end ttl from now (1s to 24h), attached or not. A Lock that is attached
// elsewhere keeps the end that it knows.
//
//	ErrNotHolder, ErrInvalidRequest, ErrUnsupported, ErrStoreUnavailable; the cause of ctx.
func (c *Client) ExtendHandle(ctx context.Context, handle string, ttl time.Duration) (*pb.DetachedHold, error) {
	a, err := c.ask(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_ExtendHandle{ExtendHandle: &pb.ExtendHandleRequest{Handle: handle, Ttl: durationpb.New(ttl)}}})
	if err != nil {
		return nil, fmt.Errorf("extend handle: %w", err)
	}
	return a.GetDetached(), nil
}

// ReleaseHandle ends a detached hold. A session that it is attached to loses it, with the reason
// TAKEN_OVER. Errors as for ExtendHandle.
func (c *Client) ReleaseHandle(ctx context.Context, handle string) error {
	_, err := c.ask(ctx, false, &pb.SessionRequest{Request: &pb.SessionRequest_ReleaseHandle{ReleaseHandle: &pb.ReleaseHandleRequest{Handle: handle}}})
	if err != nil {
		return fmt.Errorf("release handle: %w", err)
	}
	return nil
}

// detached notes that a hold has left the session. Where nobody waits for its handle, it is
// released. s.mu is held.
func (s *Session) detached(c *call, d *pb.DetachedHold) {
	l := c.changes
	delete(s.limits, l.ID)
	if l.over == nil {
		s.overFor(l, ErrReleased)
	}
	l.count = 0
	if s.locks[l.ID] == l {
		delete(s.locks, l.ID)
	}
	if c.abandoned {
		s.inBackground(newCall(), &pb.SessionRequest{Request: &pb.SessionRequest_ReleaseHandle{ReleaseHandle: &pb.ReleaseHandleRequest{Handle: d.GetHandle()}}})
	}
}

// notDetached is told why the sidecar has refused to detach a hold. Where the store did not answer,
// the sidecar gives it up. s.mu is held.
func (s *Session) notDetached(l *Lock, err error) {
	var said *Error
	if errors.As(err, &said) && errors.Is(said, ErrStoreUnavailable) {
		delete(s.limits, l.ID)
		s.lose(l, &LostError{Reason: LostUnknown, Message: "the store did not answer when it was to be detached"})
		return
	}
	if l.over == nil {
		s.notHeld(l, err)
	}
}

// endsIn notes when an attached hold ends, at the latest. s.mu is held.
func (s *Session) endsIn(id string, g *pb.Grant) {
	if g.EndsIn == nil {
		return
	}
	if end := endOf(g.GetCountedAt(), g.GetEndsIn()); s.limits[id] == 0 || end < s.limits[id] {
		s.limits[id] = end
	}
}
