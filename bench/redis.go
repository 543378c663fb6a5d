package main

import (
	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/stores"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// onRedis, the fastest server, is where the wires of the socket are compared.
var onRedis = plan{
	key: "redis", words: stores.RedisWords, kind: testengine.Redis, connect: stores.ConnectRedis,
	turns: true, wires: true, pairs: redisPairs, hot: redisHot, turnsHot: redisTurnsHot, killMS: 10, leadMS: 10, oneRequest: true,
}

const (
	overheadLimit = 1.25 // of the floor, at one caller
	peerLimit     = 1.0  // of the faster peer, at many callers
	rueidisLimit  = 0.6
	handOffLimit  = 2.5  // of a message through Redis
	againLimit    = 1.5  // of two messages over the socket, at one caller
	againPeers    = 2.0  // of the fastest library in process, at one caller
	againRueidis  = 1.5  // at many callers
	readersLimit  = 5.0  // of as many separate names
	hotBefore     = 0.24 // pairs in the time of one EVALSHA, of the sidecar before it had local turns
	hotLimit      = 6.0
)

func redisPairs(r results) []report.Target {
	libraries := []string{stores.Redsync, stores.Redislock, stores.Rueidislock}
	return []report.Target{
		report.NewTarget("1 caller: another name each time, to 2 line echoes + 2 EVALSHA (p50)", "µs", false, overheadLimit,
			r.p50(ourOthers), each(add, r.p50(stores.Scripts), r.p50(lineEchoes))),
		report.NewTarget("64 callers: direct, to the faster of redsync and redislock", "pairs/s", true, peerLimit,
			r.rate(ourDirect), each(larger, r.rate(stores.Redsync), r.rate(stores.Redislock))),
		report.NewTarget("64 callers: direct, to rueidislock", "pairs/s", true, rueidisLimit, r.rate(ourDirect), r.rate(stores.Rueidislock)),
		report.NewTarget("1 caller: again, to the fastest library", "pairs/s", true, againPeers,
			r.rateOfOne(ourAgain), each(larger, r.rateOfOne(libraries[0]), r.rateOfOne(libraries[1]), r.rateOfOne(libraries[2]))),
		report.NewTarget("1 caller: again, to 2 line echoes (p50)", "µs", false, againLimit, r.p50(ourAgain), r.p50(lineEchoes)),
		report.NewTarget("64 callers: again, to rueidislock", "pairs/s", true, againRueidis, r.rate(ourAgain), r.rate(stores.Rueidislock)),
		report.NewTarget("64 readers of one lock, to 64 locks direct", "pairs/s", true, readersLimit, r.rate(ourReaders), r.rate(ourDirect)),
	}
}

func redisHot(rounds []report.HotRound) []report.Target {
	return []report.Target{report.NewTarget("hot lock: hand-off, to an EVALSHA that publishes and its delivery (p50)", "µs", false, handOffLimit,
		hotP50(rounds, func(h report.HotRound) measure.Times { return h.HandOff }),
		hotP50(rounds, func(h report.HotRound) measure.Times { return h.Notified }))}
}

func redisTurnsHot(_, turns []report.HotRound) []report.Target {
	inOneTrip := measure.Column(turns, func(h report.HotRound) float64 { return h.PerSecond * h.Answered.P50 / 1e6 })
	before := measure.Column(turns, func(report.HotRound) float64 { return hotBefore })
	return []report.Target{
		report.NewTarget("hot lock with local turns: pairs in the time of an EVALSHA, to those before there were any", "", true, hotLimit, inOneTrip, before),
		report.NewTarget("hot lock with local turns: hand-off to the other sidecar, to an EVALSHA that publishes and its delivery (p50)", "µs", false, handOffLimit,
			hotP50(turns, func(h report.HotRound) measure.Times { return h.Across }),
			hotP50(turns, func(h report.HotRound) measure.Times { return h.Notified })),
	}
}
