package main

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/echo"
	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/peers"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/stats"
)

// Names of the subjects, as the table and the targets know them.
const (
	ourClient     = "locksidecar, Go client"
	ourStreams    = "locksidecar, Session streams"
	ourHTTP       = "locksidecar, HTTP/JSON"
	redsync       = "go-redsync/redsync"
	redislock     = "bsm/redislock"
	scripts       = "2 × EVALSHA"
	relayed       = "2 × EVALSHA behind a gRPC stream"
	streamEchoes  = "2 × gRPC stream echo"
	unaryEchoes   = "2 × gRPC unary echo"
	lineEchoes    = "2 × line echo"
	fewCallers    = 1
	someCallers   = 16
	manyCallers   = 64
	overheadLimit = 1.25 // of the floor, at one caller
	peerLimit     = 1.0  // of the faster peer, at many callers
)

// pairs measures locks that nobody else wants.
func (b *bench) pairs(ctx context.Context, r *report.Report) (err error) {
	side, err := b.sidecar(ctx, "pairs")
	if err != nil {
		return err
	}
	defer closeAfter(&err, side.Close)
	echoes := map[string]*echo.Server{}
	for _, kind := range []string{echo.Line, echo.GRPC, echo.Relay} {
		e, startErr := echo.Start(kind, b.socket(kind), b.store)
		if startErr != nil {
			return startErr
		}
		defer closeAfter(&err, e.Close)
		echoes[kind] = e
	}

	subjects := []measure.Subject{
		side.Client(ourClient),
		side.Streams(ourStreams),
		side.HTTP(ourHTTP),
		peers.Redsync(redsync, b.redis),
		peers.Redislock(redislock, b.redis),
		peers.Scripts(scripts, b.redis),
		echoes[echo.Relay].Streams(relayed),
		echoes[echo.GRPC].Streams(streamEchoes),
		echoes[echo.GRPC].Unaries(unaryEchoes),
		echoes[echo.Line].Lines(lineEchoes),
	}
	results := map[string]map[int][]measure.Round{}
	for _, s := range subjects {
		results[s.Name] = map[int][]measure.Round{}
	}
	callers := []int{fewCallers, someCallers, manyCallers}
	// All subjects take turns, and each round begins with another one, so that
	// a machine that gets slower or faster does so for everybody.
	for _, n := range callers {
		for round := range b.rounds {
			for i := range subjects {
				s := subjects[(i+round*len(subjects)/b.rounds)%len(subjects)]
				one, err := s.Run(ctx, n, b.window, b.processorTime)
				if err != nil {
					return err
				}
				progress("pairs, round %d of %d, %d callers, %s: %.0f pairs/s", round+1, b.rounds, n, s.Name, one.PerSecond)
				results[s.Name][n] = append(results[s.Name][n], one)
			}
		}
	}
	for _, s := range subjects {
		for _, n := range callers {
			r.Pairs = append(r.Pairs, report.Pairs{Subject: s.Name, Callers: n, Rounds: results[s.Name][n]})
		}
	}

	p50 := func(subject string) []float64 {
		return stats.Column(results[subject][fewCallers], func(r measure.Round) float64 { return r.P50 })
	}
	rate := func(subject string) []float64 {
		return stats.Column(results[subject][manyCallers], func(r measure.Round) float64 { return r.PerSecond })
	}
	floor, messages := p50(scripts), p50(streamEchoes)
	fastest, other := rate(redsync), rate(redislock)
	for i := range floor {
		floor[i] += messages[i]
		fastest[i] = max(fastest[i], other[i])
	}
	r.Targets = append(r.Targets,
		report.NewTarget("1 caller: a pair, to 2 stream echoes + 2 EVALSHA (p50)", "µs", false, overheadLimit, p50(ourClient), floor),
		report.NewTarget("64 callers: to the faster of redsync and redislock", "pairs/s", true, peerLimit, rate(ourClient), fastest),
	)
	return nil
}

// processorTime is what this process, a server and Redis have used so far.
func (b *bench) processorTime(ctx context.Context, server int) (measure.CPU, error) {
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
	store, err := peers.CPUUsed(ctx, b.redis)
	return measure.CPU{App: float64(app) / 1e3, Server: float64(other) / 1e3, Redis: store}, err
}
