package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/locksidecar/locksidecar/session"
)

// levels is a collector that reads the session manager once a scrape.
type levels struct{ info func() session.Info }

// level is one metric and how it is read.
type level struct {
	desc *prometheus.Desc
	read func(session.Info) float64
}

var allLevels = []level{
	newLevel("sessions", "App sessions that are open.", func(i session.Info) float64 { return float64(i.Sessions) }),
	newLevel("holds", "Locks that apps hold through this sidecar.", func(i session.Info) float64 { return float64(i.Holds) }),
	newLevel("waiters", "Requests for a lock that have not been answered yet.", func(i session.Info) float64 { return float64(i.Waiters) }),
	newLevel("requests_in_flight", "What counts for --max-in-flight: requests for locks that have not been answered, or were given up and the store has not answered, and what else the store is asked for apps.",
		func(i session.Info) float64 { return float64(i.InFlight) }),
	newLevel("lease_valid_seconds", "How long the lease in the store, and with it every lock, may be relied on without further news; 0 without a lease.",
		func(i session.Info) float64 { return i.LeaseValidFor.Seconds() }),
	newLevel("lease_ttl_seconds", "Time to live of the lease in the store.", func(i session.Info) float64 { return i.LeaseTTL.Seconds() }),
	newLevel("lease_jeopardy", "1 while the store does not answer to heartbeats and the lease is not over yet.", func(i session.Info) float64 { return oneIf(i.Jeopardy) }),
	newLevel("ready", "1 while locks can be granted.", func(i session.Info) float64 { return oneIf(i.Ready) }),
	newLevel("draining", "1 while the sidecar stops and takes no new sessions.", func(i session.Info) float64 { return oneIf(i.Draining) }),
}

func newLevel(name, help string, read func(session.Info) float64) level {
	return level{prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, nil, nil), read}
}

// shardLevels is a collector of which shards are there.
type shardLevels struct{ read func() map[string]bool }

var shardUp = prometheus.NewDesc(prometheus.BuildFQName(namespace, "", "shard_up"),
	"1 while the sidecar has a lease at the shard, and locks there can be granted; only where the store is made of shards.", []string{"shard"}, nil)

// Describe implements prometheus.Collector.
func (shardLevels) Describe(out chan<- *prometheus.Desc) { out <- shardUp }

// Collect implements prometheus.Collector.
func (s shardLevels) Collect(out chan<- prometheus.Metric) {
	for name, up := range s.read() {
		out <- prometheus.MustNewConstMetric(shardUp, prometheus.GaugeValue, oneIf(up), name)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (levels) Describe(out chan<- *prometheus.Desc) {
	for _, l := range allLevels {
		out <- l.desc
	}
}

// Collect implements prometheus.Collector.
func (c levels) Collect(out chan<- prometheus.Metric) {
	info := c.info()
	for _, l := range allLevels {
		out <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, l.read(info))
	}
}
