package main

import (
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/stores"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// onEtcd has one member: with more, each write waits for a disk of another one as well.
var onEtcd = plan{
	key: "etcd", words: stores.EtcdWords, kind: testengine.Etcd, connect: stores.ConnectEtcd,
	turns: true, reaps: true, pairs: etcdPairs, killMS: 15, leadMS: 20,
}

func etcdPairs(r results) []report.Target {
	return []report.Target{
		report.NewTarget("1 caller: a pair, to etcd's Mutex (p50)", "µs", false, recipeLimit, r.p50(ourClient), r.p50(stores.EtcdMutex)),
		report.NewTarget("1 caller: a pair without the socket, to etcd's Mutex (p50)", "µs", false, recipeLimit, r.p50(ourDriver), r.p50(stores.EtcdMutex)),
		report.NewTarget("1 caller: again, to etcd's Mutex", "pairs/s", true, recipeAgain, r.rateOfOne(ourAgain), r.rateOfOne(stores.EtcdMutex)),
	}
}
