package backendtest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// AtWork has a lease at work as in a sidecar: it is renewed, many apps try to take what nobody has, and when it is not renewed for its
// TTL the next one is opened, again and again. It ends with the test, or when stop is called.
func AtWork(t testing.TB, b lock.Backend, l lock.Lease, ttl time.Duration, apps int) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	relies, over := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	for range apps {
		tasks.Go(func() {
			for relies.Err() == nil {
				q := lock.Request{ID: lock.NewHoldID(), Resource: lock.Resource(lock.NewHoldID()), Mode: lock.Exclusive, Try: true}
				if _, err := l.Acquire(relies, q); errors.Is(err, lock.ErrLeaseLost) {
					return
				}
			}
		})
	}
	tasks.Go(func() {
		defer over()
		for proven := time.Now(); time.Since(proven) < ttl; sleep(ctx, ttl/10) {
			if ctx.Err() != nil {
				return
			}
			sent := time.Now()
			if _, err := l.Heartbeat(ctx); err == nil {
				proven = sent
			}
		}
		over()
		tasks.Go(func() { _ = l.Close(ctx) })
		for ctx.Err() == nil {
			if next, err := b.OpenLease(ctx, lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()}); err == nil {
				_ = next.Close(context.WithoutCancel(ctx))
			}
			sleep(ctx, ttl/10)
		}
	})
	stop = func() {
		cancel()
		tasks.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
