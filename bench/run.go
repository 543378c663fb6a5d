package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/peers"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// bench is what all parts of a run share.
type bench struct {
	size
	dir    string // for sockets and the binary
	store  string // URL of the Redis
	redis  *redis.Client
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
}

var (
	full = size{
		rounds: 5, window: measure.Window{WarmUp: 200 * time.Millisecond, Measure: time.Second}, floor: time.Second,
		kills: 200, holds: 10_000, settle: 5 * time.Second, heartbeats: 6,
	}
	quick = size{
		rounds: 1, window: measure.Window{WarmUp: 100 * time.Millisecond, Measure: 300 * time.Millisecond}, floor: 200 * time.Millisecond,
		kills: 10, holds: 10_000, settle: time.Second, heartbeats: 2,
	}
)

// run measures everything that the options ask for.
func run(ctx context.Context, o options) (r *report.Report, err error) {
	b := &bench{size: full}
	if o.quick {
		b.size = quick
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if b.dir, err = os.MkdirTemp("", "locksidecar-bench-"); err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

	progress("building the sidecar")
	if b.binary, err = sidecar.Build(ctx, b.dir); err != nil {
		return nil, err
	}
	progress("starting Redis")
	logging.Disable() // go-redis would tell of every look at a Redis that is not up yet
	server, err := testengine.Start(ctx, testengine.Redis)
	if err != nil {
		return nil, fmt.Errorf("start Redis: %w", err)
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	b.store = server.URL()
	if b.redis, err = peers.Client(b.store); err != nil {
		return nil, err
	}

	r = &report.Report{Setup: setup(server.Origin(), b.binary.Version)}
	r.Setup.Parts, r.Setup.Rounds, r.Setup.Quick = o.only, b.rounds, o.quick
	for _, p := range parts {
		if !slices.Contains(o.only, p.name) {
			continue
		}
		if err := p.run(b, ctx, r); err != nil {
			return nil, fmt.Errorf("measure %s: %w", p.name, err)
		}
	}
	r.Setup.LoadAfter = load()
	return r, nil
}

func (b *bench) close() error {
	if b.redis == nil {
		return nil
	}
	return b.redis.Close()
}

// socket is the path of a socket of that name.
func (b *bench) socket(name string) string { return filepath.Join(b.dir, name+".sock") }

// sidecar starts a sidecar on the run's Redis.
func (b *bench) sidecar(ctx context.Context, name string) (*sidecar.Sidecar, error) {
	s, err := b.binary.Start(ctx, b.store, b.socket(name))
	if err != nil {
		return nil, fmt.Errorf("start sidecar %s: %w", name, err)
	}
	return s, nil
}

// progress tells people what is going on.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}

// closeAfter adds the error of a clean-up to err.
func closeAfter(err *error, closeIt func() error) { *err = errors.Join(*err, closeIt()) }
