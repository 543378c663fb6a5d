package main

import (
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/stores"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

var onPostgres = plan{
	key: "postgres", words: stores.PostgresWords, kind: testengine.Postgres, connect: stores.ConnectPostgres,
	fleet: 100, // each connection is a process of the server
	turns: true, pairs: postgresPairs, hot: mysqlHot, killMS: 15, leadMS: 20, oneRequest: true,
}

func postgresPairs(r results) []report.Target {
	return []report.Target{
		report.NewTarget("1 caller: a pair, to 2 autocommit updates (p50)", "µs", false, updatesLimit, r.p50(ourClient), r.p50(stores.TwoUpdates)),
		report.NewTarget("1 caller: a pair without the socket, to 2 autocommit updates (p50)", "µs", false, updatesLimit, r.p50(ourDriver), r.p50(stores.TwoUpdates)),
		report.NewTarget("1 caller: again, without a guard, to 2 autocommit updates", "pairs/s", true, againUpdates, r.rateOfOne(ourAgain), r.rateOfOne(stores.TwoUpdates)),
	}
}
