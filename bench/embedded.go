package main

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/echo"
	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
)

// onEmbedded has no server: what is left is the sidecar itself, and the floors under
// its socket. Two sidecars share nothing, and no request leaves them, so only pairs are
// measured.
var onEmbedded = plan{
	key: "embedded", words: measure.Words{Name: "embedded"}, parts: []string{"pairs"},
	connect: func(context.Context, string) (measure.Store, error) { return noServer{}, nil },
	more:    floors, pairs: embeddedPairs,
}

const embeddedLimit = 2.0 // of two messages over a socket, at one caller

// floors are other ways to talk to a sidecar, and servers that do nothing.
func floors(s *section, side *sidecar.Sidecar) ([]measure.Subject, func() error, error) {
	line, err := echo.Start(echo.Line, s.socket(echo.Line), "")
	if err != nil {
		return nil, nil, err
	}
	grpc, err := echo.Start(echo.GRPC, s.socket(echo.GRPC), "")
	if err != nil {
		return nil, nil, errors.Join(err, line.Close())
	}
	closeAll := func() error { return errors.Join(line.Close(), grpc.Close()) }
	return []measure.Subject{
		side.Streams(ourStreams), side.HTTP(ourHTTP), grpc.Streams(streamEchoes), line.Lines(lineEchoes),
	}, closeAll, nil
}

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
func (noServer) Memory(context.Context) (float64, error)      { return 0, errNoServer }
func (noServer) Count(context.Context) (measure.Count, error) { return measure.Count{}, errNoServer }
