package main

import (
	"errors"

	"github.com/locksidecar/locksidecar/bench/internal/echo"
	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/onredis"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// onRedis, the fastest server, is where the ways to talk to a sidecar are
// compared, with the floors under everything that talks over a Unix socket.
var onRedis = plan{
	key: "redis", words: onredis.Words, kind: testengine.Redis, connect: onredis.Connect,
	more: protocols, pairs: redisPairs, hot: redisHot, killMS: 10,
}

// Names of the protocols and the floors, as the table and the targets know them.
const (
	ourStreams   = "locksidecar, Session streams"
	ourHTTP      = "locksidecar, HTTP/JSON"
	relayed      = "2 × EVALSHA behind a gRPC stream"
	streamEchoes = "2 × gRPC stream echo"
	unaryEchoes  = "2 × gRPC unary echo"
	lineEchoes   = "2 × line echo"
)

const (
	overheadLimit = 1.25 // of the floor, at one caller
	peerLimit     = 1.0  // of the faster peer, at many callers
	handOffLimit  = 2.0  // of a message through Redis
)

// protocols are other ways to talk to a sidecar than the Go client, and to
// servers that do next to nothing.
func protocols(s *section, side *sidecar.Sidecar) ([]measure.Subject, func() error, error) {
	var servers []*echo.Server
	closeAll := func() error {
		var errs []error
		for _, e := range servers {
			errs = append(errs, e.Close())
		}
		return errors.Join(errs...)
	}
	for _, kind := range []string{echo.Line, echo.GRPC, echo.Relay} {
		e, err := echo.Start(kind, s.socket(kind), s.server.URL())
		if err != nil {
			return nil, nil, errors.Join(err, closeAll())
		}
		servers = append(servers, e)
	}
	line, grpc, relay := servers[0], servers[1], servers[2]
	return []measure.Subject{
		side.Streams(ourStreams), side.HTTP(ourHTTP),
		relay.Streams(relayed), grpc.Streams(streamEchoes), grpc.Unaries(unaryEchoes), line.Lines(lineEchoes),
	}, closeAll, nil
}

func redisPairs(r results) []report.Target {
	floor, messages := r.p50(onredis.Scripts), r.p50(streamEchoes)
	fastest, other := r.rate(onredis.Redsync), r.rate(onredis.Redislock)
	for i := range floor {
		floor[i] += messages[i]
		fastest[i] = max(fastest[i], other[i])
	}
	return []report.Target{
		report.NewTarget("1 caller: a pair, to 2 stream echoes + 2 EVALSHA (p50)", "µs", false, overheadLimit, r.p50(ourClient), floor),
		report.NewTarget("64 callers: to the faster of redsync and redislock", "pairs/s", true, peerLimit, r.rate(ourClient), fastest),
	}
}

func redisHot(rounds []report.HotRound) []report.Target {
	return []report.Target{report.NewTarget("hot lock: hand-off, to an EVALSHA that publishes and its delivery (p50)", "µs", false, handOffLimit,
		hotP50(rounds, func(h report.HotRound) measure.Times { return h.HandOff }),
		hotP50(rounds, func(h report.HotRound) measure.Times { return h.Notified }))}
}
