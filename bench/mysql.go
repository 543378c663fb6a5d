package main

import (
	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/stores"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

var (
	onMySQL   = mysqlPlan("mysql", "MySQL", testengine.MySQL)
	onMariaDB = mysqlPlan("mariadb", "MariaDB", testengine.MariaDB)
)

const (
	updatesLimit   = 1.35 // of two autocommit updates, at one caller
	mysqlHandOffMS = 5
	againUpdates   = 15.0 // of two autocommit updates, at one caller
)

func mysqlPlan(key, name string, kind *testengine.Kind) plan {
	return plan{
		key: key, words: stores.MySQLWords(name), kind: kind, connect: stores.ConnectMySQL,
		pairs: mysqlPairs, hot: mysqlHot, turns: true, killMS: 15, leadMS: 20, oneRequest: true,
	}
}

func mysqlPairs(r results) []report.Target {
	return []report.Target{
		report.NewTarget("1 caller: a pair, to 2 autocommit updates (p50)", "µs", false, updatesLimit, r.p50(ourClient), r.p50(stores.TwoUpdates)),
		report.NewTarget("1 caller: a pair without the socket, to 2 autocommit updates (p50)", "µs", false, updatesLimit, r.p50(ourDriver), r.p50(stores.TwoUpdates)),
		report.NewTarget("1 caller: again, without a guard, to 2 autocommit updates", "pairs/s", true, againUpdates, r.rateOfOne(ourAgain), r.rateOfOne(stores.TwoUpdates)),
	}
}

func mysqlHot(rounds []report.HotRound) []report.Target {
	across := measure.SpreadOf(hotP50(rounds, func(h report.HotRound) measure.Times { return h.Across }))
	return []report.Target{report.AtMost("hot lock: hand-off to the other sidecar (p50)", "ms", across.Median/1000, mysqlHandOffMS)}
}
