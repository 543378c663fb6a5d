package backendtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is for the tests that a store has of its own.

// Again runs a test as the suite runs its own: once more where it has failed with a lock.ErrUnavailable, with
// what Busy has made, or with one of the errors in also. After maxAttempts the test has failed. Each attempt
// starts from the beginning, with cleanups and a context of its own, so it needs names that no other has used, where what
// it leaves behind matters.
//
// It is not for tests of what happens without an answer.
func Again(t testing.TB, test func(t testing.TB), also ...error) {
	t.Helper()
	runAgain(t, func(a *attempt) {
		a.also = also
		test(a)
	})
}

// Busy makes an error of one that tells no more than that the machine was too busy for a test.
func Busy(err error) error { return fmt.Errorf("%w: %w", busyError("the machine is busy"), err) }

// TimedLease is a lease that knows how it was renewed. Where it has had no good heartbeat for its TTL, a test was too
// slow, or wanted that: an error which says that it is lost is Busy then.
type TimedLease struct {
	lock.Lease
	ttl time.Duration

	mu      sync.Mutex
	proven  time.Duration // when the last good heartbeat was sent, on the boot-time clock
	starved bool          // there was none for the TTL
}

// Timed gives a lease with that TTL, which was asked for at opened.
func Timed(l lock.Lease, ttl, opened time.Duration) *TimedLease {
	return &TimedLease{Lease: l, ttl: ttl, proven: opened}
}

// Heartbeat implements lock.Lease.
func (l *TimedLease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	sent := lock.BootTime()
	news, err := l.Lease.Heartbeat(ctx)
	if err == nil {
		l.mu.Lock()
		l.starved = l.starved || sent-l.proven >= l.ttl
		l.proven = max(l.proven, sent)
		l.mu.Unlock()
	}
	return news, l.blame(err)
}

// Acquire implements lock.Lease.
func (l *TimedLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	g, err := l.Lease.Acquire(ctx, q)
	return g, l.blame(err)
}

// Release implements lock.Lease.
func (l *TimedLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.blame(l.Lease.Release(ctx, r, id))
}

// Downgrade implements lock.Lease.
func (l *TimedLease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.blame(l.Lease.Downgrade(ctx, r, id))
}

// Detach implements lock.Detacher, of a store that has detached holds.
func (l *TimedLease) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	return l.blame(l.Lease.(lock.Detacher).Detach(ctx, r, id, key, ttl))
}

func (l *TimedLease) blame(err error) error {
	if !errors.Is(err, lock.ErrLeaseLost) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.starved || lock.BootTime()-l.proven >= l.ttl {
		return Busy(err)
	}
	return err
}
