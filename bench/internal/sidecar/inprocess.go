package sidecar

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/lock"
)

// heartbeatPart: the lease is renewed so many times in its TTL, as by a sidecar.
const heartbeatPart = 3

// InProcess are pairs on one lease at a store, made by the sidecar's driver as a library,
// with no sidecar and no socket: what they lack is what the second process costs.
func InProcess(name, url string, ttl time.Duration) measure.Subject {
	return measure.Subject{Name: name, Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		b, err := backends.Open(url, nil)
		if err != nil {
			return nil, nil, err
		}
		l, err := b.OpenLease(ctx, lock.LeaseOptions{TTL: ttl, Sidecar: "bench"})
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("open a lease: %w", err), b.Close())
		}
		stop := Keep(ctx, l, ttl)
		owner := lock.Owner{Session: "bench"}.Encode()
		var pairs []measure.Pair
		for i := range callers {
			resource := lock.Resource("bench/" + name + "/" + strconv.Itoa(i))
			pairs = append(pairs, func(ctx context.Context) error {
				id := lock.NewHoldID()
				if _, err := l.Acquire(ctx, lock.Request{ID: id, Resource: resource, Mode: lock.Exclusive, Owner: owner}); err != nil {
					return fmt.Errorf("acquire: %w", err)
				}
				return l.Release(ctx, resource, id)
			})
		}
		closeAll := func() error {
			return errors.Join(stop(), l.Close(context.WithoutCancel(ctx)), b.Close())
		}
		return pairs, closeAll, nil
	}}
}

// Keep renews a lease until stop is called, which returns the first error.
func Keep(ctx context.Context, l lock.Lease, ttl time.Duration) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var failed error
	all.Go(func() {
		for {
			select {
			case <-time.After(ttl / heartbeatPart):
			case <-l.Events():
				continue
			case <-ctx.Done():
				return
			}
			if _, err := l.Heartbeat(ctx); err != nil && ctx.Err() == nil {
				failed = fmt.Errorf("renew the lease: %w", err)
				return
			}
		}
	})
	return func() error {
		cancel()
		all.Wait()
		return failed
	}
}
