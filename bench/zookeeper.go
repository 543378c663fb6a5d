package main

import (
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/stores"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

var onZooKeeper = plan{
	key: "zookeeper", words: stores.ZooKeeperWords, kind: testengine.ZooKeeper, connect: stores.ConnectZooKeeper,
	turns: true, pairs: zooKeeperPairs, killMS: 10, leadMS: 15, oneRequest: true,
}

const (
	recipeLimit = 1.1  // of the library's own lock, at one caller
	recipeAgain = 15.0 // of its pairs
)

func zooKeeperPairs(r results) []report.Target {
	return []report.Target{
		report.NewTarget("1 caller: a pair, to go-zookeeper's Lock (p50)", "µs", false, recipeLimit, r.p50(ourClient), r.p50(stores.ZooKeeperRecipe)),
		report.NewTarget("1 caller: a pair without the socket, to go-zookeeper's Lock (p50)", "µs", false, recipeLimit, r.p50(ourDriver), r.p50(stores.ZooKeeperRecipe)),
		report.NewTarget("1 caller: again, to go-zookeeper's Lock", "pairs/s", true, recipeAgain, r.rateOfOne(ourAgain), r.rateOfOne(stores.ZooKeeperRecipe)),
	}
}
