package main

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
)

// onEmbedded has no server: what is left is the sidecar itself, and the floor under
// its socket. Two sidecars share nothing, and no request leaves them, so there is
// nothing that local turns could save.
var onEmbedded = plan{
	key: "embedded", words: measure.Words{Name: "embedded"}, parts: []string{"pairs", "sessions"},
	connect: func(context.Context, string) (measure.Store, error) { return noServer{}, nil },
	wires:   true, pairs: embeddedPairs,
}

const embeddedLimit = 1.6 // of two messages over a socket, at one caller

func embeddedPairs(r results) []report.Target {
	return []report.Target{
		report.NewTarget("1 caller: a pair, to 2 line echoes (p50)", "µs", false, embeddedLimit, r.p50(ourClient), r.p50(lineEchoes)),
	}
}

// noServer is the store of a sidecar that has none.
type noServer struct{}

var _ measure.Store = noServer{}

var errNoServer = errors.New("the embedded store has no server")

func (noServer) URL() string                          { return "embedded:" }
func (noServer) Subjects() []measure.Subject          { return nil }
func (noServer) CPU(context.Context) (float64, error) { return 0, nil }
func (noServer) Close() error                         { return nil }

func (noServer) Notify(context.Context, time.Duration) (measure.Notices, error) {
	return measure.Notices{}, errNoServer
}
func (noServer) Memory(context.Context) (float64, error)      { return 0, nil }
func (noServer) Count(context.Context) (measure.Count, error) { return measure.Count{}, errNoServer }
