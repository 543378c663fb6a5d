package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

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
	fewHolds      = 100
	beatLimit     = 1.25 // of the interval of a heartbeat with few holds: one request more or less must not matter
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
	// The first pairs page in code and open connections, which are no cost of a
	// hold. They have few names, for a store may take its time to forget a name.
	warmUp := func(n int) error {
		l, err := app.Acquire(ctx, fmt.Sprintf("bench/warm-up/%d", n%fewHolds))
		if err != nil {
			return err
		}
		return l.Release(ctx)
	}
	if err := together(0, warmUpPairs, warmUp); err != nil {
		return err
	}
	if i.Before, err = s.memory(ctx, side); err != nil {
		return err
	}
	take := func(n int) error {
		_, err := app.Acquire(ctx, fmt.Sprintf("bench/idle/%d", n))
		return err
	}
	if err := together(0, fewHolds, take); err != nil {
		return err
	}
	if err := sleep(ctx, s.settle); err != nil {
		return err
	}
	few, err := s.count(ctx, side, fewHolds, window)
	if err != nil {
		return err
	}
	s.progress("taking %d locks", s.holds)
	if err := together(fewHolds, s.holds, take); err != nil {
		return err
	}
	if i.With, err = s.memory(ctx, side); err != nil {
		return err
	}
	many, err := s.count(ctx, side, s.holds, window)
	if err != nil {
		return err
	}
	i.CommandsAt = []report.Commands{few, many}
	n := float64(s.holds)
	i.PerHold = report.Memory{
		RSS:       (i.With.RSS - i.Before.RSS) / n,
		Anonymous: (i.With.Anonymous - i.Before.Anonymous) / n,
		Heap:      (i.With.Heap - i.Before.Heap) / n,
		Store:     (i.With.Store - i.Before.Store) / n,
	}
	s.report.Idle = i
	if s.plan.oneRequest {
		s.aim(
			report.AtMost(fmt.Sprintf("requests of a heartbeat with %d holds", many.Holds), "", many.Renewing, 1),
			report.NewTarget(fmt.Sprintf("%s in its interval with %d holds, to those with %d", s.plan.words.Steps, many.Holds, few.Holds), "", false, beatLimit,
				[]float64{many.Steps}, []float64{few.Steps}),
		)
	}
	s.aim(
		report.AtMost("idle sidecar (RSS)", "MiB", i.Start.RSS/mib, idleLimitMiB),
		report.AtMost("one hold more (RSS)", "KiB", i.PerHold.RSS/kib, holdLimitKiB),
	)
	return nil
}

var errNoHeartbeat = errors.New("the sidecar sent no heartbeat")

// cleanUpTries is how often a count is restarted because the sidecar cleaned up
// meanwhile. On most stores it does so every 15 to 45 s.
const cleanUpTries = 4

// count lets the sidecar alone for a while and counts what it sends. Cleaning up
// costs the same for many holds and for none, but it may fall into one count and
// not into the other; where it does the count is restarted.
func (s *section) count(ctx context.Context, side *sidecar.Sidecar, holds int, window time.Duration) (c report.Commands, err error) {
	for range cleanUpTries {
		var cleaned bool
		if c, cleaned, err = s.countOnce(ctx, side, holds, window); err != nil || !cleaned {
			return c, err
		}
		s.progress("the sidecar has cleaned up meanwhile: once more")
	}
	return c, nil
}

func (s *section) countOnce(ctx context.Context, side *sidecar.Sidecar, holds int, window time.Duration) (c report.Commands, cleaned bool, _ error) {
	s.progress("counting requests for %s with %d holds", window, holds)
	look := func() (sidecar.Sent, measure.Count, error) {
		sent, err := side.Sent(ctx, s.plan.words.Renewal)
		if err != nil {
			return sent, measure.Count{}, err
		}
		count, err := s.store.Count(ctx)
		return sent, count, err
	}
	sent, count, err := look()
	if err != nil {
		return c, false, err
	}
	if err := sleep(ctx, window); err != nil {
		return c, false, err
	}
	sentLater, countLater, err := look()
	if err != nil {
		return c, false, err
	}
	beats := sentLater.Heartbeats - sent.Heartbeats
	renewals := sentLater.BeatRequests - sent.BeatRequests
	if beats == 0 || renewals == 0 {
		return c, false, fmt.Errorf("%.0f heartbeats, %.0f requests %q: %w", beats, renewals, s.plan.words.Renewal, errNoHeartbeat)
	}
	return report.Commands{
		Holds:    holds,
		Beats:    beats,
		Renewing: renewals / beats,
		Sent:     (sentLater.Requests - sent.Requests) / beats,
		Requests: (countLater.Requests - count.Requests) / beats,
		Steps:    (countLater.Steps - count.Steps) / beats,
	}, sentLater.CleanUps > sent.CleanUps && !s.plan.reaps, nil
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
