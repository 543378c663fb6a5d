package javatest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Sidecar is the other side: a store's lease that is kept alive, as a sidecar
// does it.
type Sidecar struct {
	lock.Lease
	name string
}

// NewSidecar opens a lease, which is renewed until the test ends. Where it is
// lost, the test has failed.
func NewSidecar(t testing.TB, b lock.Backend, name string, ttl time.Duration) *Sidecar {
	t.Helper()
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: name})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var all sync.WaitGroup
	all.Go(func() {
		for range l.Events() { // nobody is forced to release
		}
	})
	all.Go(func() {
		for pause := ttl / 3; ; {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			switch _, err := l.Heartbeat(ctx); {
			case err == nil || ctx.Err() != nil:
				pause = ttl / 3
			case errors.Is(err, lock.ErrUnavailable): // the machine is busy
				pause = ttl / 30
			default:
				t.Errorf("%s: renew the lease: %v", name, err)
				return
			}
		}
	})
	t.Cleanup(func() {
		stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), answerTimeout)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Errorf("%s: close the lease: %v", name, err)
		}
		all.Wait()
	})
	return &Sidecar{Lease: l, name: name}
}

// Take waits for the lock and takes it.
func (s *Sidecar) Take(ctx context.Context, r lock.Resource, m Mode) (lock.HoldID, error) {
	return s.take(ctx, r, m, false)
}

// Try takes the lock if it is free.
func (s *Sidecar) Try(ctx context.Context, r lock.Resource, m Mode) (lock.HoldID, error) {
	return s.take(ctx, r, m, true)
}

func (s *Sidecar) take(ctx context.Context, r lock.Resource, m Mode, try bool) (lock.HoldID, error) {
	mode := lock.Exclusive
	if m == Read {
		mode = lock.Shared
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	q := lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: mode, Owner: lock.Owner{Session: s.name}.Encode(), Try: try}
	if _, err := s.Acquire(ctx, q); err != nil {
		return "", fmt.Errorf("%s: take the lock: %w", s.name, err)
	}
	return q.ID, nil
}

// Count does what Peer.Count does, from so many goroutines at the same time.
func (s *Sidecar) Count(ctx context.Context, c *Counter, r lock.Resource, goroutines int, m Mode, n int) error {
	var all sync.WaitGroup
	errs := make(chan error, goroutines)
	for range goroutines {
		all.Go(func() {
			for range n {
				if err := s.once(ctx, c, r, m); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

func (s *Sidecar) once(ctx context.Context, c *Counter, r lock.Resource, m Mode) error {
	id, err := s.Take(ctx, r, m)
	if err != nil {
		return err
	}
	who := s.name + "/" + string(id) // one sidecar's goroutines are not told apart otherwise
	if m == Write {
		err = c.Add(who)
	} else {
		err = c.Look(who)
	}
	if err != nil {
		return err
	}
	if err := s.Release(ctx, r, id); err != nil {
		return fmt.Errorf("%s: release the lock: %w", who, err)
	}
	return nil
}
