package session

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Session is one app's liveness at the sidecar.
type Session struct{}

// ID is the name of the session.
func (s *Session) ID() ID { return "" }

// Acquire asks for a hold.
func (s *Session) Acquire(ctx context.Context, r AcquireRequest) (Grant, error) { return Grant{}, nil }

// Release ends a hold, or one of its counts; it tells how many are left.
func (s *Session) Release(ctx context.Context, id lock.HoldID) (int, error) { return 0, nil }

// Downgrade turns an exclusive hold into a shared one.
func (s *Session) Downgrade(ctx context.Context, id lock.HoldID) (Grant, error) { return Grant{}, nil }

// KeepAlive pushes the end of a session with a TTL forward, and tells how long
// it lives now; 0 for a session without a TTL.
func (s *Session) KeepAlive() (time.Duration, error) { return 0, nil }

// NextEvent waits for news: ErrSessionClosed after the last.
func (s *Session) NextEvent(ctx context.Context) (Event, error) { return Event{}, nil }

// Close ends the session.
func (s *Session) Close() {}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return nil }
