package main

import (
	"context"
	"slices"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// plan is what is particular about one kind of store.
type plan struct {
	key     string // as --stores names it
	words   measure.Words
	kind    *testengine.Kind // nil: there is no server
	parts   []string         // that can be measured; empty: all
	connect func(ctx context.Context, url string) (measure.Store, error)

	turns bool // the sidecar can answer by itself there
	wires bool // the other wires of the socket are measured here
	fleet int  // of how many sidecars the server takes the leases; 0: any number
	reaps bool // it looks for what others left with each heartbeat, so that counts with and without compare

	// The targets.
	pairs      func(results) []report.Target
	hot        func([]report.HotRound) []report.Target               // may be nil
	turnsHot   func(without, with []report.HotRound) []report.Target // may be nil
	killMS     float64                                               // kill -9 to the next grant
	leadMS     float64                                               // kill -9 of the leader's process to the next one's
	oneRequest bool                                                  // a heartbeat is one request
}

var plans = []plan{onEmbedded, onRedis, onZooKeeper, onMySQL, onMariaDB, onPostgres, onEtcd}

// usual are the stores of a run that is not told which: MySQL and MariaDB are
// one driver of ours.
var usual = []string{onEmbedded.key, onRedis.key, onZooKeeper.key, onMySQL.key, onPostgres.key, onEtcd.key}

func storeKeys() []string {
	var keys []string
	for _, p := range plans {
		keys = append(keys, p.key)
	}
	return keys
}

// results are the rounds of each subject by the number of callers.
type results map[string]map[int][]measure.Round

// p50 is the median time of a pair with few callers, round by round.
func (r results) p50(subject string) []float64 {
	return measure.Column(r[subject][fewCallers], func(r measure.Round) float64 { return r.P50 })
}

// rate are the pairs in a second with many callers, round by round.
func (r results) rate(subject string) []float64 {
	return measure.Column(r[subject][manyCallers], func(r measure.Round) float64 { return r.PerSecond })
}

// rateOfOne are the pairs in a second with few callers, round by round.
func (r results) rateOfOne(subject string) []float64 {
	return measure.Column(r[subject][fewCallers], func(r measure.Round) float64 { return r.PerSecond })
}

// each combines numbers round by round.
func each(f func(a, b float64) float64, first []float64, others ...[]float64) []float64 {
	all := slices.Clone(first)
	for _, o := range others {
		for i := range all {
			all[i] = f(all[i], o[i])
		}
	}
	return all
}

func add(a, b float64) float64    { return a + b }
func larger(a, b float64) float64 { return max(a, b) }

// hotP50 is the median of one of the times of a hot lock, round by round.
func hotP50(rounds []report.HotRound, times func(report.HotRound) measure.Times) []float64 {
	return measure.Column(rounds, func(h report.HotRound) float64 { return times(h).P50 })
}
