package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
	"github.com/locksidecar/locksidecar/bench/internal/stores"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// bench is what all parts of a run share.
type bench struct {
	size
	dir    string // for sockets and the binary
	binary *sidecar.Binary
}

// size says how much of everything.
type size struct {
	rounds     int
	window     measure.Window // of one subject in one round
	floor      time.Duration  // of the messages beside the hot lock
	kills      int
	holds      int
	settle     time.Duration // until memory is looked at
	heartbeats int           // over which commands are counted

	contend     time.Duration // for how long many workers want one lock
	connections int           // idle ones, each with a session
	starts      int           // of a fresh binary
	leases      int           // of a fleet
}

var (
	full = size{
		rounds: 5, window: measure.Window{WarmUp: 200 * time.Millisecond, Measure: time.Second}, floor: time.Second,
		kills: 200, holds: 10_000, settle: 5 * time.Second, heartbeats: 4,
		contend: 20 * time.Second, connections: manySessions, starts: 20, leases: 1000,
	}
	quick = size{
		rounds: 1, window: measure.Window{WarmUp: 100 * time.Millisecond, Measure: 300 * time.Millisecond}, floor: 200 * time.Millisecond,
		kills: 10, holds: 2_000, settle: time.Second, heartbeats: 2,
		contend: 2 * time.Second, connections: 1000, starts: 3, leases: 100,
	}
)

// run measures everything that the options ask for.
func run(ctx context.Context, o options) (r *report.Report, err error) {
	b := &bench{size: full}
	if o.quick {
		b.size = quick
	}
	if b.dir, err = os.MkdirTemp("", "locksidecar-bench-"); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

	progress("building the sidecar")
	if b.binary, err = sidecar.Build(ctx, b.dir); err != nil {
		return nil, err
	}
	stores.QuietRedis()
	testengine.OnDisk()
	r = &report.Report{Setup: setup(b.binary.Version)}
	r.Setup.Parts, r.Setup.Rounds, r.Setup.Quick = o.only, b.rounds, o.quick
	for _, p := range plans {
		if !slices.Contains(o.stores, p.key) {
			continue
		}
		s, err := b.measure(ctx, p, o.only)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.words.Name, err)
		}
		r.Stores = append(r.Stores, s)
	}
	r.Setup.LoadAfter = load()
	return r, nil
}

// section is the part of a run that is about one store.
type section struct {
	*bench
	plan   plan
	server testengine.Server // nil: the store has none
	store  measure.Store
	report *report.Store
}

// measure starts a store and does the parts of that name on it.
func (b *bench) measure(ctx context.Context, p plan, only []string) (r *report.Store, err error) {
	err = b.onStore(ctx, p, func(s *section) error {
		r = s.report
		for _, part := range parts {
			if !slices.Contains(only, part.name) || len(p.parts) > 0 && !slices.Contains(p.parts, part.name) {
				continue
			}
			if err := part.run(s, ctx); err != nil {
				return fmt.Errorf("measure %s: %w", part.name, err)
			}
		}
		return nil
	})
	return r, err
}

// onStore starts a store for f.
func (b *bench) onStore(ctx context.Context, p plan, f func(*section) error) (err error) {
	progress("starting %s", p.words.Name)
	s := &section{bench: b, plan: p, report: &report.Store{Words: p.words, Server: "no server"}}
	url := ""
	if p.kind != nil {
		if s.server, err = testengine.Start(ctx, p.kind); err != nil {
			return fmt.Errorf("start it: %w", err)
		}
		defer closeAfter(&err, s.server.Close)
		url, s.report.Server = s.server.URL(), s.server.Origin()
	}
	if s.store, err = p.connect(ctx, url); err != nil {
		return err
	}
	defer closeAfter(&err, s.store.Close)
	return f(s)
}

// aim notes targets.
func (s *section) aim(t ...report.Target) { s.report.Targets = append(s.report.Targets, t...) }

// socket is the path of a socket of that name.
func (s *section) socket(name string) string {
	return filepath.Join(s.dir, s.plan.key+"-"+name+".sock")
}

// sidecar starts a sidecar on the store, with more flags. Each of its requests asks the store,
// unless they say otherwise.
func (s *section) sidecar(ctx context.Context, name string, flags ...string) (*sidecar.Sidecar, error) {
	side, err := s.binary.Start(ctx, s.store.URL(), s.socket(name), append([]string{"--local-turns=0"}, flags...)...)
	if err != nil {
		return nil, fmt.Errorf("start sidecar %s: %w", name, err)
	}
	return side, nil
}

// progress tells people what is going on.
func (s *section) progress(format string, args ...any) {
	progress("%s, %s", s.plan.words.Name, fmt.Sprintf(format, args...))
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// closeAfter adds the error of a clean-up to err.
func closeAfter(err *error, closeIt func() error) { *err = errors.Join(*err, closeIt()) }
