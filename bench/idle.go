package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/peers"
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
func (b *bench) idle(ctx context.Context, r *report.Report) (err error) {
	side, err := b.sidecar(ctx, "idle")
	if err != nil {
		return err
	}
	defer closeAfter(&err, side.Close)
	window := time.Duration(b.heartbeats) * sidecar.LeaseTTL / heartbeatPart
	i := &report.Idle{Holds: b.holds, LeaseTTL: sidecar.LeaseTTL.Seconds(), Window: window.Seconds()}
	if i.Start, err = b.memory(ctx, side); err != nil {
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
	if err := together(warmUpPairs, warmUp); err != nil {
		return err
	}
	if i.Before, i.CommandsAt[0], err = b.look(ctx, side, 0, window); err != nil {
		return err
	}
	progress("taking %d locks", b.holds)
	take := func(n int) error {
		_, err := app.Acquire(ctx, fmt.Sprintf("bench/idle/%d", n))
		return err
	}
	if err := together(b.holds, take); err != nil {
		return err
	}
	if i.With, i.CommandsAt[1], err = b.look(ctx, side, b.holds, window); err != nil {
		return err
	}
	n := float64(b.holds)
	i.PerHold = report.Memory{
		RSS:       (i.With.RSS - i.Before.RSS) / n,
		Anonymous: (i.With.Anonymous - i.Before.Anonymous) / n,
		Heap:      (i.With.Heap - i.Before.Heap) / n,
		Store:     (i.With.Store - i.Before.Store) / n,
	}
	r.Idle = i
	r.Targets = append(r.Targets,
		report.AtMost("idle sidecar (RSS)", "MiB", i.Start.RSS/mib, idleLimitMiB),
		report.AtMost("one hold more (RSS)", "KiB", i.PerHold.RSS/kib, holdLimitKiB),
	)
	return nil
}

// look lets the sidecar alone for a while and looks at it.
func (b *bench) look(ctx context.Context, side *sidecar.Sidecar, holds int, window time.Duration) (report.Memory, report.Commands, error) {
	m, err := b.memory(ctx, side)
	if err != nil {
		return report.Memory{}, report.Commands{}, err
	}
	progress("counting commands for %s with %d holds", window, holds)
	sent, total, err := peers.Commands(ctx, b.redis, window)
	if err != nil {
		return report.Memory{}, report.Commands{}, err
	}
	return m, report.Commands{Holds: holds, Requests: sent, Total: total}, nil
}

// memory waits until the garbage of what was done before is gone, as far as it
// goes by itself.
func (b *bench) memory(ctx context.Context, side *sidecar.Sidecar) (report.Memory, error) {
	select {
	case <-time.After(b.settle):
	case <-ctx.Done():
		return report.Memory{}, ctx.Err()
	}
	m, err := side.Memory(ctx)
	if err != nil {
		return report.Memory{}, err
	}
	store, err := peers.MemoryUsed(ctx, b.redis)
	if err != nil {
		return report.Memory{}, err
	}
	return report.Memory{RSS: m.RSS, Anonymous: m.Anonymous, Heap: m.Heap, Store: store}, nil
}

// together calls f for 0 to n-1 from some goroutines, until the first error.
func together(n int, f func(int) error) error {
	var all sync.WaitGroup
	var next atomic.Int64
	var failed atomic.Pointer[error]
	for range takers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
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
