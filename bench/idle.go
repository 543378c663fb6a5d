package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
)

const (
	idleLimitMiB  = 25
	holdLimitKiB  = 2
	mib           = 1 << 20
	kib           = 1 << 10
	takers        = 16 // callers that take the holds
	warmUpPairs   = 1000
	heartbeatPart = 3 // a lease is renewed so many times in its TTL
)

// idle measures what a sidecar takes and sends while nobody asks it for
// anything: with and without many holds.
func (s *section) idle(ctx context.Context) (err error) {
	side, err := s.sidecar(ctx, "idle")
	if err != nil {
		return err
	}
	defer closeAfter(&err, side.Close)
	window := time.Duration(s.heartbeats) * sidecar.LeaseTTL / heartbeatPart
	i := &report.Idle{Holds: s.holds, LeaseTTL: sidecar.LeaseTTL.Seconds(), Window: window.Seconds()}
	if i.Start, err = s.memory(ctx, side); err != nil {
		return err
	}

	app, err := side.Open(ctx)
	if err != nil {
		return err
	}
	defer closeAfter(&err, app.Close)
	// The first pairs page in code and open connections, which are no cost of a hold.
	warmUp := func(n int) error {
		l, err := app.Acquire(ctx, fmt.Sprintf("bench/warm-up/%d", n))
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
	if err := together(0, warmUpPairs, warmUp); err != nil {
		return err
	}
	if i.Before, i.CommandsAt[0], err = s.look(ctx, side, 0, window); err != nil {
		return err
	}
	s.progress("taking %d locks", s.holds)
	take := func(n int) error {
		_, err := app.Acquire(ctx, fmt.Sprintf("bench/idle/%d", n))
		return err
	}
	if err := together(0, s.holds, take); err != nil {
		return err
	}
	if i.With, i.CommandsAt[1], err = s.look(ctx, side, s.holds, window); err != nil {
		return err
	}
	n := float64(s.holds)
	i.PerHold = report.Memory{
		RSS:       (i.With.RSS - i.Before.RSS) / n,
		Anonymous: (i.With.Anonymous - i.Before.Anonymous) / n,
		Heap:      (i.With.Heap - i.Before.Heap) / n,
		Store:     (i.With.Store - i.Before.Store) / n,
	}
	s.report.Idle = i
	s.aim(
		report.AtMost("idle sidecar (RSS)", "MiB", i.Start.RSS/mib, idleLimitMiB),
		report.AtMost("one hold more (RSS)", "KiB", i.PerHold.RSS/kib, holdLimitKiB),
	)
	return nil
}

// look lets the sidecar alone for a while and looks at it.
func (s *section) look(ctx context.Context, side *sidecar.Sidecar, holds int, window time.Duration) (report.Memory, report.Commands, error) {
	m, err := s.memory(ctx, side)
	if err != nil {
		return report.Memory{}, report.Commands{}, err
	}
	s.progress("counting requests for %s with %d holds", window, holds)
	before, err := s.store.Count(ctx)
	if err != nil {
		return report.Memory{}, report.Commands{}, err
	}
	began := time.Now()
	if err := sleep(ctx, window); err != nil {
		return report.Memory{}, report.Commands{}, err
	}
	after, err := s.store.Count(ctx)
	if err != nil {
		return report.Memory{}, report.Commands{}, err
	}
	took := time.Since(began).Seconds()
	return m, report.Commands{
		Holds:    holds,
		Requests: (after.Requests - before.Requests) / took,
		Steps:    (after.Steps - before.Steps) / took,
	}, nil
}

// memory waits until the garbage of what was done before is gone, as far as it
// goes by itself.
func (s *section) memory(ctx context.Context, side *sidecar.Sidecar) (report.Memory, error) {
	if err := sleep(ctx, s.settle); err != nil {
		return report.Memory{}, err
	}
	m, err := side.Memory(ctx)
	if err != nil {
		return report.Memory{}, err
	}
	used, err := s.store.Memory(ctx)
	if err != nil {
		return report.Memory{}, err
	}
	return report.Memory{RSS: m.RSS, Anonymous: m.Anonymous, Heap: m.Heap, Store: used}, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// together calls f for from to to-1 from some goroutines, until the first error.
func together(from, to int, f func(int) error) error {
	var all sync.WaitGroup
	var next atomic.Int64
	next.Store(int64(from))
	var failed atomic.Pointer[error]
	for range takers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < to && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := f(i); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
