package main

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
)

const (
	contenders  = 64
	meanLimit   = 0.2 // of the library that polls
	p95Limit    = 0.1
	waitHeading = "64 contenders of one lock: "
)

// contenders measures how long each of many workers waits for one lock that each holds
// for a millisecond: the setting of a background job that every worker wants. Beside
// it, a library that asks again and again.
func (s *section) contenders(ctx context.Context) error {
	polling, ok := s.store.(measure.Polling)
	if !ok {
		return nil
	}
	c := &report.Contenders{Workers: contenders, Hold: longHold.Seconds() * 1e3, Seconds: s.contend.Seconds()}
	ours, err := s.contendHere(ctx, nil)
	if err != nil {
		return err
	}
	turns, err := s.contendHere(ctx, localTurns)
	if err != nil {
		return err
	}
	name, take := polling.Poller("bench:contenders")
	var takers []taker
	for range contenders {
		takers = append(takers, polled(take))
	}
	theirs, err := s.contendWith(ctx, takers)
	if err != nil {
		return err
	}
	c.Rows = []report.Contender{{Subject: ourClient, Waits: ours}, {Subject: "locksidecar with local turns", Waits: turns}, {Subject: name, Waits: theirs}}
	s.report.Contenders = c
	s.aim(
		report.NewTarget(waitHeading+"mean wait, to that of "+name, "ms", false, meanLimit, []float64{turns.Mean / 1e3}, []float64{theirs.Mean / 1e3}),
		report.NewTarget(waitHeading+"wait of 95 of 100, to that of "+name, "ms", false, p95Limit, []float64{turns.P95 / 1e3}, []float64{theirs.P95 / 1e3}),
	)
	return nil
}

// contendHere has all workers in one app, at a sidecar with these flags.
func (s *section) contendHere(ctx context.Context, flags []string) (_ report.Waits, err error) {
	side, err := s.sidecar(ctx, "contenders", flags...)
	if err != nil {
		return report.Waits{}, err
	}
	defer closeAfter(&err, side.Close)
	app, err := side.Open(ctx)
	if err != nil {
		return report.Waits{}, err
	}
	defer closeAfter(&err, app.Close)
	var takers []taker
	for range contenders {
		takers = append(takers, ofApp(app, "bench/contenders"))
	}
	return s.contendWith(ctx, takers)
}

// polled makes a taker of a library, which has no fence.
func polled(take measure.Take) taker {
	return func(ctx context.Context) (int64, func(context.Context) error, error) {
		release, err := take(ctx)
		return 0, release, err
	}
}

func (s *section) contendWith(ctx context.Context, takers []taker) (report.Waits, error) {
	turns, err := takeTurns(ctx, takers, longHold, time.Now().Add(s.contend))
	if err != nil {
		return report.Waits{}, fmt.Errorf("contend: %w", err)
	}
	var waits []time.Duration
	for _, t := range turns {
		waits = append(waits, t.granted.Sub(t.asked))
	}
	w := report.WaitsOf(waits, s.contend)
	s.progress("%d contenders: %.0f holds/s, mean wait %.1f ms, 95 of 100 within %.1f ms", len(takers), w.PerSecond, w.Mean/1e3, w.P95/1e3)
	return w, nil
}
