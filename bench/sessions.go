package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
)

const (
	usedLimitMiB    = 22
	sessionLimitKiB = 24
	manyLimitMiB    = 260 // of many sessions
	manySessions    = 10_000
	readyLimitMS    = 50
)

// sessions measures what many idle app sessions take in a sidecar, each a connection of
// its own, and how soon a fresh binary grants.
func (s *section) sessions(ctx context.Context) error {
	r := &report.Sessions{Sessions: s.connections}
	var started []time.Duration
	for range s.starts {
		took, err := s.firstGrant(ctx)
		if err != nil {
			return err
		}
		started = append(started, took)
	}
	r.FirstGrant = measure.TimesOf(started)
	s.progress("exec to the first grant: %.1f ms", r.FirstGrant.P50/1e3)
	if err := s.manySessions(ctx, r); err != nil {
		return err
	}
	s.report.Sessions = r
	s.aim(
		report.AtMost("a fresh binary, exec to the first grant (p50)", "ms", r.FirstGrant.P50/1e3, readyLimitMS),
		report.AtMost("idle sidecar after first use (RSS)", "MiB", r.Used.RSS/mib, usedLimitMiB),
		report.AtMost("one idle session more (RSS)", "KiB", (r.With.RSS-r.Used.RSS)/float64(r.Sessions)/kib, sessionLimitKiB),
	)
	if r.Sessions == manySessions {
		s.aim(report.AtMost("10,000 sessions (RSS)", "MiB", r.With.RSS/mib, manyLimitMiB))
	}
	return nil
}

// firstGrant starts a sidecar and takes a lock as soon as it answers.
func (s *section) firstGrant(ctx context.Context) (took time.Duration, err error) {
	began := time.Now()
	side, err := s.binary.Launch(s.store.URL(), s.socket("fresh"))
	if err != nil {
		return 0, err
	}
	defer closeAfter(&err, side.Close)
	app, err := side.OpenSoon(ctx)
	if err != nil {
		return 0, err
	}
	defer closeAfter(&err, app.Close)
	l, err := app.Acquire(ctx, "bench/first")
	if err != nil {
		return 0, err
	}
	took = time.Since(began)
	return took, l.Release(ctx)
}

func (s *section) manySessions(ctx context.Context, r *report.Sessions) (err error) {
	const spare = 100
	most := strconv.Itoa(s.connections + spare)
	side, err := s.sidecar(ctx, "sessions", "--max-connections", most, "--max-connections-per-uid", most, "--max-sessions", most, "--max-sessions-per-uid", most)
	if err != nil {
		return err
	}
	defer closeAfter(&err, side.Close)
	one, err := side.Open(ctx)
	if err != nil {
		return err
	}
	defer closeAfter(&err, one.Close)
	for n := range warmUpPairs {
		l, err := one.Acquire(ctx, fmt.Sprintf("bench/warm-up/%d", n%fewHolds))
		if err != nil {
			return err
		}
		if err := l.Release(ctx); err != nil {
			return err
		}
	}
	if r.Used, err = s.memory(ctx, side); err != nil {
		return err
	}
	s.progress("opening %d sessions", s.connections)
	apps := make([]*sidecar.App, s.connections)
	defer func() {
		for _, a := range apps {
			if a != nil {
				err = errors.Join(err, a.Close())
			}
		}
	}()
	if err := together(0, len(apps), func(n int) (err error) {
		apps[n], err = side.Open(ctx)
		return err
	}); err != nil {
		return err
	}
	r.With, err = s.memory(ctx, side)
	return err
}
