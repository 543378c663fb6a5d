package telemetry

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxPrincipals bounds the series of a metric by principal.
	maxPrincipals = 100
	// otherPrincipals stands for the rest.
	otherPrincipals = "other"
)

// principals reads what each principal has when somebody asks.
type principals struct {
	each func(f func(name string, sessions, holds int))
}

var (
	principalSessions = prometheus.NewDesc(namespace+"_principal_sessions",
		"App sessions that are open, by principal (with --principal; the 100 that hold most, then \"other\").", []string{"principal"}, nil)
	principalHolds = prometheus.NewDesc(namespace+"_principal_holds",
		"What counts for the limit of a principal: locks, requests for locks, and losses that are not acknowledged.", []string{"principal"}, nil)
)

// WatchPrincipals adds the metrics of what each principal that has a name has here. It is called once.
func (m *Metrics) WatchPrincipals(each func(f func(name string, sessions, holds int))) {
	m.registry.MustRegister(principals{each})
}

// Describe implements prometheus.Collector.
func (principals) Describe(c chan<- *prometheus.Desc) {
	c <- principalSessions
	c <- principalHolds
}

// Collect implements prometheus.Collector.
func (p principals) Collect(c chan<- prometheus.Metric) {
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
		c <- prometheus.MustNewConstMetric(principalSessions, prometheus.GaugeValue, float64(r.sessions), r.name)
		c <- prometheus.MustNewConstMetric(principalHolds, prometheus.GaugeValue, float64(r.holds), r.name)
	}
}
