package telemetry

import (
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxPatterns bounds the series of a metric by resource. The first come have one.
	maxPatterns = 100
	// otherPattern stands for the rest.
	otherPattern = "other"
)

// varying is what differs from one resource of a kind to the next: a UUID, or a number.
var varying = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|[0-9]+`)
})

// patterns are the kinds of resources that have a series.
type patterns struct {
	spaces bool // a space is a kind

	mu    sync.Mutex
	known map[string]bool
}

// of gives the pattern of a resource: orders/42 is one of orders/#, or of orders/* where a space is a kind.
func (p *patterns) of(resource string) string {
	s := p.pattern(resource)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.known[s]:
		return s
	case len(p.known) >= maxPatterns:
		return otherPattern
	case p.known == nil:
		p.known = make(map[string]bool)
	}
	p.known[s] = true
	return s
}

func (p *patterns) pattern(resource string) string {
	if !p.spaces {
		return varying().ReplaceAllLiteralString(resource, "#")
	}
	if space, _, has := strings.Cut(resource, "/"); has {
		return space + "/*"
	}
	return "*" // it is in none
}

// HideNames keeps names of resources out of the metrics but for those of their spaces: who may see the
// metrics may not see what is in each space. It is called before anything is counted.
func (m *Metrics) HideNames() { m.patterns.spaces = true }

// waits reads how long requests have been waiting when somebody asks.
type waits struct {
	m    *Metrics
	each func(f func(resource string, age time.Duration))
}

var longestWait = prometheus.NewDesc(namespace+"_longest_wait_seconds",
	"For how long the oldest request that still waits for a lock has been waiting, by pattern of the resource (numbers and UUIDs replaced; at most 100, then \"other\").",
	[]string{"pattern"}, nil)

// Describe implements prometheus.Collector.
func (waits) Describe(c chan<- *prometheus.Desc) { c <- longestWait }

// Collect implements prometheus.Collector.
func (w waits) Collect(c chan<- prometheus.Metric) {
	longest := make(map[string]time.Duration) // by resource: of one there may be a thousand waits
	w.each(func(resource string, age time.Duration) { longest[resource] = max(longest[resource], age) })
	kinds := map[string]time.Duration{otherPattern: 0} // the series is there before the first wait
	for resource, age := range longest {
		p := w.m.patterns.of(resource)
		kinds[p] = max(kinds[p], age)
	}
	for p, age := range kinds {
		c <- prometheus.MustNewConstMetric(longestWait, prometheus.GaugeValue, age.Seconds(), p)
	}
}
