package main

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
)

// Names of the subjects on all stores, as the table and the targets know them.
const (
	ourClient = "locksidecar, Go client"
	ourDriver = "locksidecar's driver, no socket"
)

const (
	fewCallers  = 1
	someCallers = 16
	manyCallers = 64
)

// pairs measures locks that nobody else wants.
func (s *section) pairs(ctx context.Context) (err error) {
	side, err := s.sidecar(ctx, "pairs")
	if err != nil {
		return err
	}
	defer closeAfter(&err, side.Close)
	subjects := append([]measure.Subject{
		side.Client(ourClient), sidecar.InProcess(ourDriver, s.store.URL(), sidecar.LeaseTTL),
	}, s.store.Subjects()...)
	if s.plan.more != nil {
		more, closeAll, moreErr := s.plan.more(s, side)
		if moreErr != nil {
			return moreErr
		}
		defer closeAfter(&err, closeAll)
		subjects = append(subjects, more...)
	}

	found := results{}
	for _, one := range subjects {
		found[one.Name] = map[int][]measure.Round{}
	}
	callers := []int{fewCallers, someCallers, manyCallers}
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
