package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

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
	most, err := mostConnections()
	if err != nil {
		return err
	}
	r := &report.Sessions{Sessions: min(s.connections, most)}
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
	if limit := manyLimitMiB * float64(r.Sessions) / manySessions; r.Sessions >= manySessions/4 {
		s.aim(report.AtMost(fmt.Sprintf("%d sessions (RSS)", r.Sessions), "MiB", r.With.RSS/mib, limit))
	}
	return nil
}

// mostConnections are as many as the limit of open files lets a sidecar have with ease: each
// is a socket and the pidfd of who is at its other end, while it connects some more.
func mostConnections() (int, error) {
	const others = 1000
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return 0, fmt.Errorf("ask how many files may be open: %w", err)
	}
	return (int(files.Max) - others) / 3, nil //nolint:gosec // a limit of files
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
	most := strconv.Itoa(r.Sessions + r.Sessions/4) // some places stay free for other users
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
	s.progress("opening %d sessions", r.Sessions)
	apps := make([]*sidecar.App, r.Sessions)
	defer func() {
		for _, a := range apps {
			if a != nil {
				err = errors.Join(err, a.Close())
			}
		}
	}()
	if err := together(0, len(apps), func(n int) (err error) {
		if apps[n], err = side.Open(ctx); err != nil {
			return fmt.Errorf("session %d: %w", n, err)
		}
		return nil
	}); err != nil {
		return err
	}
	r.With, err = s.memory(ctx, side)
	return err
}
