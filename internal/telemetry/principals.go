package telemetry

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxPrincipals bounds the series of a metric by principal.
	maxPrincipals = 100
	// otherPrincipals stands for the rest.
	otherPrincipals = "other"
)

// shares reads what each of those that have limits has when somebody asks.
type shares struct {
	each            func(f func(name string, sessions, holds int))
	sessions, holds *prometheus.Desc
}

// watchShares adds the metrics of what each of those has.
func (m *Metrics) watchShares(label, of string, each func(f func(name string, sessions, holds int))) {
	m.registry.MustRegister(shares{
		each: each,
		sessions: prometheus.NewDesc(namespace+"_"+label+"_sessions",
			"App sessions that are open, by "+of+"; the 100 that hold most, then \"other\").", []string{label}, nil),
		holds: prometheus.NewDesc(namespace+"_"+label+"_holds",
			"What counts for the limit of a "+strings.ReplaceAll(label, "_", " ")+": locks, requests for locks, and losses that are not acknowledged.", []string{label}, nil),
	})
}

// WatchPrincipals adds the metrics of what each principal that has a name has here. It is called once.
func (m *Metrics) WatchPrincipals(each func(f func(name string, sessions, holds int))) {
	m.watchShares("principal", "principal (with --principal", each)
}

// WatchAccounts adds the same of each service account of Kubernetes.
func (m *Metrics) WatchAccounts(each func(f func(name string, sessions, holds int))) {
	m.watchShares("service_account", "service account (with --principal pod", each)
}

// Describe implements prometheus.Collector.
func (p shares) Describe(c chan<- *prometheus.Desc) {
	c <- p.sessions
	c <- p.holds
}

// Collect implements prometheus.Collector.
func (p shares) Collect(c chan<- prometheus.Metric) {
	type row struct {
		name            string
		sessions, holds int
	}
	var rows []row
	p.each(func(name string, sessions, holds int) { rows = append(rows, row{name, sessions, holds}) })
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.holds, a.holds), cmp.Compare(b.sessions, a.sessions), cmp.Compare(a.name, b.name))
	})
	if len(rows) > maxPrincipals {
		rest := row{name: otherPrincipals}
		for _, r := range rows[maxPrincipals:] {
			rest.sessions += r.sessions
			rest.holds += r.holds
		}
		rows = append(rows[:maxPrincipals], rest)
	}
	for _, r := range rows {
		c <- prometheus.MustNewConstMetric(p.sessions, prometheus.GaugeValue, float64(r.sessions), r.name)
		c <- prometheus.MustNewConstMetric(p.holds, prometheus.GaugeValue, float64(r.holds), r.name)
	}
}
