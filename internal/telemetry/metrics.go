package telemetry

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

const namespace = "locksidecar"

var (
	// acquireBuckets reach from a free lock on the embedded store to a long wait.
	acquireBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
	// commandBuckets reach from a store beside us to the time-out of a request.
	commandBuckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	// lagBuckets are about timers: a machine that is busy, starved, or frozen.
	lagBuckets = []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
)

// Metrics count what the sidecar does. It is a session.Observer, and Command is
// a lock.Observe. What is a level is read from the session manager when
// somebody asks, so an idle sidecar spends nothing on it.
type Metrics struct {
	registry *prometheus.Registry

	// Children are looked up once and not on the hot path.
	acquire    [kinds][int(session.Unavailable) + 1]func() prometheus.Observer // each made when it is used first
	lost       *prometheus.CounterVec
	heartbeats *prometheus.CounterVec
	beatTime   prometheus.Histogram
	lag        prometheus.Histogram
	opened     *prometheus.CounterVec
	yield      prometheus.Histogram
	detected   prometheus.Counter
	broken     prometheus.Counter
	failed     *prometheus.CounterVec
	patterns   patterns
	command    *prometheus.HistogramVec
	commands   sync.Map // commandKey -> prometheus.Observer
}

type commandKey struct{ command, result string }

var _ session.Observer = (*Metrics)(nil)

// NewMetrics makes the metrics of one sidecar. Levels appear after WatchLevels.
func NewMetrics(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	acquire := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "acquire_seconds", Buckets: acquireBuckets,
		Help: "Time from an app's request for a lock to its answer, by mode and result (granted, reentered, held, timed_out, cancelled, ended, refused, deadlock, done, exhausted, unavailable).",
	}, []string{"mode", "result"})
	m.lost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "locks_lost_total",
		Help: "Locks that ended though their holder had not released them, by reason.",
	}, []string{"reason"})
	m.heartbeats = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "heartbeats_total",
		Help: "Heartbeats of the lease in the store, by result (ok, failed: no answer, lost: the store said that the lease is over).",
	}, []string{"result"})
	m.beatTime = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "heartbeat_seconds", Buckets: commandBuckets,
		Help: "Time from sending a heartbeat to its answer, or to its failure.",
	})
	m.lag = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "heartbeat_lag_seconds", Buckets: lagBuckets,
		Help: "How much later than planned heartbeats were sent. High values mean that this process gets too little CPU.",
	})
	m.opened = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "lease_opens_total",
		Help: "Attempts to open a lease in the store, by result (ok, failed). More than one ok means that a lease was lost.",
	}, []string{"result"})
	m.command = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: "store_command_seconds", Buckets: commandBuckets,
		Help: "Time of requests to the store, by command and result (ok, cancelled, timeout, error). A request that waits for a lock is several short commands, so waiting is not in it.",
	}, []string{"command", "result"})
	m.yield = prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "yield_seconds", Buckets: acquireBuckets,
		Help: "Time from the news that another sidecar waits for a lock that this one has until the store is asked to hand it on.",
	})
	m.detected = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "deadlocks_detected_total",
		Help: "Deadlocks that this sidecar was the one to break, or to report.",
	})
	m.broken = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: namespace, Name: "deadlocks_broken_total",
		Help: "Deadlocks that this sidecar has broken: a request got the error DEADLOCK.",
	})
	m.failed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "failed_acquires_total",
		Help: "Requests that got no lock because others had it, by pattern of the resource (numbers and UUIDs replaced; at most 100, then \"other\") and result (held, timed_out, deadlock).",
	}, []string{"pattern", "result"})
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info",
		Help: "Always 1; the labels tell which build this is.",
	}, []string{"version", "go_version"})

	m.registry.MustRegister(acquire, m.lost, m.heartbeats, m.beatTime, m.lag, m.opened, m.yield, m.detected, m.broken, m.failed, m.command, build,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	// What is there from the start can be alarmed on before it happens first.
	build.WithLabelValues(version, runtime.Version()).Set(1)
	for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(1)} {
		for r := session.Granted; r <= session.Unavailable; r++ {
			m.acquire[kindOf(mode)][r] = sync.OnceValue(func() prometheus.Observer {
				return acquire.WithLabelValues(mode.String(), r.String())
			})
		}
		// Each is 23 series, and there are many sidecars: only what is alarmed on is there from the start.
		m.acquire[kindOf(mode)][session.Refused]()
		m.acquire[kindOf(mode)][session.TimedOut]()
	}
	for r := session.LeaseExpired; r <= session.Stopping; r++ {
		m.lost.WithLabelValues(r.String())
	}
	for r := heartbeat.Answered; r <= heartbeat.Refused; r++ {
		m.heartbeats.WithLabelValues(r.String())
	}
	for _, r := range []session.AcquireResult{session.Held, session.TimedOut, session.Deadlocked} {
		m.failed.WithLabelValues(otherPattern, r.String())
	}
	for _, r := range []string{"ok", "failed"} {
		m.opened.WithLabelValues(r)
	}
	return m
}

// WatchLevels adds the metrics that are read from the session manager. It is
// called once.
func (m *Metrics) WatchLevels(info func() session.Info) { m.registry.MustRegister(levels{info}) }

// WatchWaits adds the metric of how long requests have been waiting. each tells the
// resource and the age of every request that waits. It is called once.
func (m *Metrics) WatchWaits(each func(f func(resource string, age time.Duration))) {
	m.registry.MustRegister(waits{m: m, each: each})
}

// WatchArbiter adds the metrics of what the sidecar has answered without the store. It is
// called once.
func (m *Metrics) WatchArbiter(read func() (saved, contended uint64, parked int)) {
	counter := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, value)
	}
	m.registry.MustRegister(
		counter("local_grants_total", "Locks that were granted without asking the store.", func() float64 { saved, _, _ := read(); return float64(saved) }),
		counter("contended_total", "Locks, and requests for them, of which another sidecar was known to wait behind.", func() float64 { _, contended, _ := read(); return float64(contended) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: "parked_holds",
			Help: "Locks that this sidecar has in the store though no app has them: it gives them to who asks.",
		}, func() float64 { _, _, parked := read(); return float64(parked) }))
}

// WatchShards adds the metric of the shards. read tells of each whether it is there; none: there are
// no shards. It is called once.
func (m *Metrics) WatchShards(read func() map[string]bool) {
	m.registry.MustRegister(shardLevels{read})
}

// Yielded is told of locks that were handed on to another sidecar.
func (m *Metrics) Yielded(took time.Duration) { m.yield.Observe(took.Seconds()) }

// Handler answers GET /metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.InstrumentMetricHandler(m.registry, promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
}

// kinds are the modes, where permits are one whatever their number is.
const kinds = int(lock.Shared) + 2

func kindOf(mode lock.Mode) int { return min(int(mode), kinds-1) }

// Acquired implements session.Observer.
func (m *Metrics) Acquired(resource string, mode lock.Mode, result session.AcquireResult, took time.Duration) {
	if of := &m.acquire[kindOf(mode)]; int(result) < len(of) && of[result] != nil {
		of[result]().Observe(took.Seconds())
	}
	switch result {
	case session.Held, session.TimedOut, session.Deadlocked:
		m.failed.WithLabelValues(m.patterns.of(resource), result.String()).Inc()
	}
}

// Deadlock implements session.Observer.
func (m *Metrics) Deadlock(broken bool) {
	m.detected.Inc()
	if broken {
		m.broken.Inc()
	}
}

// HoldLost implements session.Observer.
func (m *Metrics) HoldLost(reason session.LostReason) { m.lost.WithLabelValues(reason.String()).Inc() }

// Heartbeat implements session.Observer.
func (m *Metrics) Heartbeat(b heartbeat.Beat) {
	m.heartbeats.WithLabelValues(b.Result.String()).Inc()
	m.beatTime.Observe(b.Took.Seconds())
	m.lag.Observe(b.Lag.Seconds())
}

// LeaseOpened implements session.Observer.
func (m *Metrics) LeaseOpened(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	m.opened.WithLabelValues(result).Inc()
}

// Command is told of requests to the store; it is a lock.Observe.
func (m *Metrics) Command(command string, took time.Duration, err error) {
	key := commandKey{command, commandResult(err)}
	o, ok := m.commands.Load(key)
	if !ok {
		o, _ = m.commands.LoadOrStore(key, m.command.WithLabelValues(key.command, key.result))
	}
	o.(prometheus.Observer).Observe(took.Seconds()) //nolint:forcetypeassert // nothing else is stored there
}

func commandResult(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	default:
		var timeout interface{ Timeout() bool } // of package net
		if errors.As(err, &timeout) && timeout.Timeout() {
			return "timeout"
		}
		return "error"
	}
}
