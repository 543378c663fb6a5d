package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
	"github.com/locksidecar/locksidecar/client"
)

// Names of the subjects on all stores, as the table and the targets know them.
const (
	ourClient = "locksidecar, Go client"
	ourDriver = "locksidecar's driver, no socket"

	// Where a sidecar answers by itself what it can.
	ourAgain   = "locksidecar with local turns, the same lock again"
	ourOthers  = "locksidecar with local turns, another name each time"
	ourDirect  = "locksidecar with local turns, direct"
	ourReaders = "locksidecar with local turns, readers of one lock"

	// Other wires, and the floor under all of them.
	ourStreams = "locksidecar, gRPC streams"
	ourHTTP    = "locksidecar, HTTP/JSON"
	lineEchoes = "2 × line echo"
)

const (
	fewCallers  = 1
	manyCallers = 64
)

// localTurns are the flags of a sidecar that answers by itself what it can.
var localTurns = []string{"--local-turns=1024", "--park=200ms"}

// pairs measures locks that nobody else wants.
func (s *section) pairs(ctx context.Context) (err error) {
	subjects, closeAll, err := s.subjects(ctx)
	if err != nil {
		return err
	}
	defer closeAfter(&err, closeAll)
	found := results{}
	for _, one := range subjects {
		found[one.Name] = map[int][]measure.Round{}
	}
	callers := []int{fewCallers, manyCallers}
	// All subjects take turns, and each round begins with another one, so that
	// a machine that gets slower or faster does so for everybody.
	for _, n := range callers {
		for round := range s.rounds {
			for i := range subjects {
				subject := subjects[(i+round*len(subjects)/s.rounds)%len(subjects)]
				one, err := subject.Run(ctx, n, s.window, s.processorTime)
				if err != nil {
					return err
				}
				s.progress("pairs, round %d of %d, %d callers, %s: %.0f pairs/s", round+1, s.rounds, n, subject.Name, one.PerSecond)
				found[subject.Name][n] = append(found[subject.Name][n], one)
			}
		}
	}
	for _, subject := range subjects {
		for _, n := range callers {
			s.report.Pairs = append(s.report.Pairs, report.Pairs{Subject: subject.Name, Callers: n, Rounds: found[subject.Name][n]})
		}
	}
	s.aim(s.plan.pairs(found)...)
	return nil
}

// subjects starts what makes the pairs.
func (s *section) subjects(ctx context.Context) (all []measure.Subject, closeAll func() error, err error) {
	var closers []func() error
	closeAll = func() error {
		var errs []error
		for _, c := range closers {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll())
		}
	}()
	side, err := s.sidecar(ctx, "pairs")
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, side.Close)
	all = append(all, side.Client(ourClient, sidecar.Work{}), sidecar.InProcess(ourDriver, s.store.URL(), sidecar.LeaseTTL))
	if s.plan.turns {
		turns, err := s.sidecar(ctx, "turns", localTurns...)
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, turns.Close)
		all = append(all, withTurns(turns)...)
	}
	all = append(all, s.store.Subjects()...)
	if s.plan.wires {
		line, err := startEcho(s.socket("echo"))
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, line.Close)
		all = append(all, side.Streams(ourStreams), side.HTTP(ourHTTP), line.Lines(lineEchoes))
	}
	return all, closeAll, nil
}

// withTurns are the pairs of a sidecar that answers by itself what it can: on an SQL store
// that is what has no guard.
func withTurns(side *sidecar.Sidecar) []measure.Subject {
	return []measure.Subject{
		side.Client(ourAgain, sidecar.Work{Options: client.AcquireOptions{NoGuard: true}}),
		side.Client(ourOthers, sidecar.Work{
			Resource: func(caller, pair int) string { return fmt.Sprintf("bench/others/%d/%d", caller, pair) },
			Options:  client.AcquireOptions{NoGuard: true},
		}),
		side.Client(ourDirect, sidecar.Work{Options: client.AcquireOptions{Direct: true}}),
		side.Client(ourReaders, sidecar.Work{
			Resource: func(int, int) string { return "bench/readers" },
			Options:  client.AcquireOptions{Mode: client.Shared, NoGuard: true},
		}),
	}
}

// processorTime is what this process, a server and the store have used so far.
func (s *section) processorTime(ctx context.Context, server int) (measure.CPU, error) {
	app, err := proc.CPU(0)
	if err != nil {
		return measure.CPU{}, err
	}
	var other time.Duration
	if server != 0 {
		if other, err = proc.CPU(server); err != nil {
			return measure.CPU{}, err
		}
	}
	used, err := s.store.CPU(ctx)
	return measure.CPU{App: float64(app) / 1e3, Server: float64(other) / 1e3, Store: used}, err
}
