package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	holdsEach      = 10
	contendedPart  = 100 // one lease of so many wants what another one has
	contendedPause = 100 * time.Millisecond
)

// scale measures what the leases of many sidecars ask of one store: idle, with some
// holds each, and with one of a hundred in a contest. They are leases of the sidecar's
// driver, each with connections of its own, in one process: a sidecar sends the store
// nothing else.
func (s *section) scale(ctx context.Context) (err error) {
	leases := s.leases
	if most := s.plan.fleet; most > 0 {
		leases = min(leases, most)
	}
	r := &report.Scale{Leases: leases, Holds: holdsEach, Contended: max(2, leases/contendedPart), LeaseTTL: sidecar.LeaseTTL.Seconds()}
	fleet, err := s.openFleet(ctx, leases)
	if err != nil {
		return err
	}
	defer closeAfter(&err, fleet.close)
	count := func(what string) error {
		load, err := s.fleetLoad(ctx, what, leases)
		r.Loads = append(r.Loads, load)
		return errors.Join(err, fleet.failed())
	}
	if err := count("idle"); err != nil {
		return err
	}
	if err := together(0, leases*holdsEach, func(n int) error {
		return fleet.take(ctx, n%leases, fmt.Sprintf("bench/scale/%d", n))
	}); err != nil {
		return err
	}
	if err := count(fmt.Sprintf("%d holds each", holdsEach)); err != nil {
		return err
	}
	stop := fleet.contend(ctx, r.Contended)
	err = count(fmt.Sprintf("and %d of them want one lock, ten times a second", r.Contended))
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	s.report.Scale = r
	return nil
}

// fleetLoad counts what reaches the store for a while.
func (s *section) fleetLoad(ctx context.Context, what string, leases int) (report.Load, error) {
	if err := sleep(ctx, s.settle); err != nil {
		return report.Load{}, err
	}
	window := time.Duration(s.heartbeats) * sidecar.LeaseTTL / heartbeatPart
	s.progress("%d leases, %s: counting for %s", leases, what, window)
	look := func() (requests, steps, cpu float64, err error) {
		c, err := s.store.Count(ctx)
		if err != nil {
			return 0, 0, 0, err
		}
		cpu, err = s.store.CPU(ctx)
		return c.Requests, c.Steps, cpu, err
	}
	requests, steps, cpu, err := look()
	if err != nil {
		return report.Load{}, err
	}
	if err := sleep(ctx, window); err != nil {
		return report.Load{}, err
	}
	requestsLater, stepsLater, cpuLater, err := look()
	n := window.Seconds()
	return report.Load{
		What: what, Requests: (requestsLater - requests) / n, Steps: (stepsLater - steps) / n,
		CPU: (cpuLater - cpu) / 1e6 / n,
	}, err
}

// fleet are the leases of many sidecars.
type fleet struct {
	backends []lock.Backend
	leases   []lock.Lease
	stops    []func() error
	mu       sync.Mutex
	err      error // the first heartbeat that failed
}

func (s *section) openFleet(ctx context.Context, leases int) (*fleet, error) {
	s.progress("opening %d leases", leases)
	f := &fleet{backends: make([]lock.Backend, leases), leases: make([]lock.Lease, leases), stops: make([]func() error, leases)}
	err := together(0, leases, func(n int) error {
		b, err := backends.Open(s.store.URL(), nil)
		if err != nil {
			return err
		}
		f.backends[n] = b
		l, err := b.OpenLease(ctx, lock.LeaseOptions{TTL: sidecar.LeaseTTL, Sidecar: fmt.Sprintf("bench-%d", n)})
		if err != nil {
			return fmt.Errorf("open a lease: %w", err)
		}
		f.leases[n], f.stops[n] = l, sidecar.Keep(ctx, l, sidecar.LeaseTTL)
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// take has a lease take a lock.
func (f *fleet) take(ctx context.Context, lease int, resource string) error {
	q := lock.Request{ID: lock.NewHoldID(), Resource: lock.Resource(resource), Mode: lock.Exclusive, Owner: lock.Owner{Session: "bench"}.Encode()}
	_, err := f.leases[lease].Acquire(ctx, q)
	return err
}

// contend has the first leases take and release one lock, each ten times a second as
// far as it gets it.
func (f *fleet) contend(ctx context.Context, n int) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, l := range f.leases[:n] {
		all.Go(func() {
			for ctx.Err() == nil {
				q := lock.Request{ID: lock.NewHoldID(), Resource: "bench/scale/hot", Mode: lock.Exclusive, Owner: lock.Owner{Session: "bench"}.Encode()}
				_, err := l.Acquire(ctx, q)
				if err == nil {
					err = l.Release(context.WithoutCancel(ctx), q.Resource, q.ID)
				}
				if err != nil && ctx.Err() == nil {
					f.fail(err)
					return
				}
				_ = sleep(ctx, contendedPause)
			}
		})
	}
	return func() error {
		cancel()
		all.Wait()
		return f.failed()
	}
}

func (f *fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err == nil {
		f.err = err
	}
}

func (f *fleet) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// close gives all leases back.
func (f *fleet) close() error {
	var mu sync.Mutex
	var errs []error
	_ = together(0, len(f.leases), func(n int) error {
		var err error
		if f.leases[n] != nil {
			err = errors.Join(f.stops[n](), f.leases[n].Close(context.Background()))
		}
		if f.backends[n] != nil {
			err = errors.Join(err, f.backends[n].Close())
		}
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
		return nil
	})
	return errors.Join(errs...)
}
