package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
	"github.com/locksidecar/locksidecar/bench/internal/stores"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

const (
	idleEach  = 3    // sidecars of an edition that are idle side by side
	noWorse   = 1.05 // what costs more than so many times as much is marked
	longIdle  = 12   // heartbeats in one round
	settled   = 20 * time.Second
	calmed    = 5 * time.Second // longer than a sidecar keeps a lock for its next app
	ourStream = "gRPC streams"
	ourJSON   = "HTTP/JSON"
)

// edition is one of the two sidecars that are compared, on a server of its own.
type edition struct {
	*section
	name string
	side *sidecar.Sidecar
	idle []*sidecar.Sidecar
}

// compare measures the sidecar of this tree beside that of another commit, in turns in one
// run, and prints the ratios.
func compare(ctx context.Context, args []string) (err error) {
	f := flag.NewFlagSet("bench compare", flag.ContinueOnError)
	base := f.String("base", "", "the `commit` to compare with")
	store := f.String("store", onRedis.key, "the `store`")
	rounds := f.Int("rounds", 5, "how many `rounds`")
	direct := f.Bool("direct", false, "the sidecar of this tree asks the store for each request, as with --local-turns=0")
	if err := f.Parse(args); err != nil {
		return err
	}
	plan := slices.IndexFunc(plans, func(p plan) bool { return p.key == *store })
	if *base == "" || plan < 0 || plans[plan].kind == nil || *rounds < 1 {
		return errors.New("give -base COMMIT, and -store with a server")
	}
	dir, err := os.MkdirTemp("", "locksidecar-bench-")
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	stores.QuietRedis()
	testengine.OnDisk()
	before := load()
	old, err := sidecar.BuildCommit(ctx, dir, *base)
	if err != nil {
		return err
	}
	now, err := sidecar.Build(ctx, dir)
	if err != nil {
		return err
	}
	found := &report.Comparison{Base: *base, Limit: noWorse}
	b := bench{size: full, dir: dir}
	var flags []string
	if *direct {
		flags = []string{"--local-turns=0"}
	}
	err = b.withEdition(ctx, "base", old, nil, plans[plan], func(old *edition) error {
		return b.withEdition(ctx, "now", now, flags, plans[plan], func(now *edition) error {
			if err := sleep(ctx, settled); err != nil { // what a sidecar does soon after its start is no part of it
				return err
			}
			for round := range *rounds {
				if err := compareRound(ctx, found, round, old, now); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return err
	}
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s, %d rounds; load before %s, after %s\n", plans[plan].words.Name, *rounds, before, load())
	found.Text(&text)
	_, err = io.Copy(os.Stdout, &text)
	return err
}

// withEdition starts a server and the sidecars of an edition, with these flags and else as they
// are by default, and ends them after f.
func (b bench) withEdition(ctx context.Context, name string, binary *sidecar.Binary, flags []string, p plan, f func(*edition) error) error {
	b.dir, b.binary = filepath.Join(b.dir, name+"-run"), binary
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	return b.onStore(ctx, p, func(s *section) (err error) {
		e := &edition{section: s, name: name}
		for i := range idleEach + 1 {
			side, err := s.binary.Start(ctx, s.store.URL(), s.socket(fmt.Sprint(i)), flags...)
			if err != nil {
				return fmt.Errorf("start sidecar %d: %w", i, err)
			}
			defer closeAfter(&err, side.Close)
			if i == 0 {
				e.side = side
			} else {
				e.idle = append(e.idle, side)
			}
		}
		return f(e)
	})
}

// compareRound measures both editions once. Each round begins with the other one.
func compareRound(ctx context.Context, found *report.Comparison, round int, both ...*edition) error {
	if round%2 == 1 {
		slices.Reverse(both)
	}
	note := func(e *edition, what string, figure float64) { found.Note(what, e.name == "base", figure) }
	if round > 0 { // the locks of the last pairs are given back after them
		if err := sleep(ctx, calmed); err != nil {
			return err
		}
	}
	if err := compareIdle(ctx, note, both); err != nil {
		return err
	}
	for _, callers := range []int{fewCallers, manyCallers} {
		for _, wire := range []string{ourStream, ourJSON} {
			for _, e := range both {
				subject := e.side.Streams(wire)
				if wire == ourJSON {
					subject = e.side.HTTP(wire)
				}
				r, err := subject.Run(ctx, callers, e.window, e.processorTime)
				if err != nil {
					return fmt.Errorf("%s: %w", e.name, err)
				}
				what := fmt.Sprintf("%s, callers: %d, a pair, ", wire, callers)
				note(e, what+"µs of the clock", float64(callers)*1e6/r.PerSecond)
				note(e, what+"µs of the sidecar's processor time", r.CPU.Server)
				note(e, what+"µs of the store's processor time", r.CPU.Store)
			}
		}
	}
	progress("round %d is done", round+1)
	return nil
}

// compareIdle leaves the idle sidecars of both editions alone for a while, side by side.
func compareIdle(ctx context.Context, note func(*edition, string, float64), both []*edition) error {
	window := longIdle * sidecar.LeaseTTL / heartbeatPart
	type seen struct {
		cpu   time.Duration
		store float64
		count measure.Count
	}
	look := func(e *edition) (s seen, err error) {
		for _, side := range e.idle {
			used, err := proc.CPU(side.PID())
			if err != nil {
				return s, err
			}
			s.cpu += used
		}
		if s.count, err = e.store.Count(ctx); err == nil {
			s.store, err = e.store.CPU(ctx)
		}
		return s, err
	}
	began := make([]seen, len(both))
	for i, e := range both {
		var err error
		if began[i], err = look(e); err != nil {
			return err
		}
	}
	if err := sleep(ctx, window); err != nil {
		return err
	}
	for i, e := range both {
		ended, err := look(e)
		if err != nil {
			return err
		}
		perMinute := float64(time.Minute) / float64(window) / float64(len(e.idle))
		all := float64(time.Minute) / float64(window) / float64(len(e.idle)+1) // the one that makes the pairs is idle, too
		note(e, "idle sidecar, ms of processor time a minute", (ended.cpu-began[i].cpu).Seconds()*1e3*perMinute)
		note(e, "idle sidecar, requests a minute", (ended.count.Requests-began[i].count.Requests)*all)
		note(e, "idle sidecar, "+e.plan.words.Steps+" a minute", (ended.count.Steps-began[i].count.Steps)*all)
		note(e, "idle sidecar, ms of the store's processor time a minute", (ended.store-began[i].store)/1e3*all)
		for _, side := range e.idle[:1] {
			m, err := side.Memory(ctx)
			if err != nil {
				return err
			}
			note(e, "idle sidecar, MiB resident", m.RSS/mib)
			note(e, "idle sidecar, MiB resident of its own", m.Anonymous/mib)
		}
	}
	return nil
}
