package charttest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// sick is what Prometheus has of a pod that has everything wrong with it, a minute apart, and well of
// one that works.
const (
	sick = `
load 1m
  up{POD} 1x30 0x30
  locksidecar_ready{POD} 0x60
  locksidecar_draining{POD} 0x60
  locksidecar_lease_jeopardy{POD} 1x60
  locksidecar_shard_up{POD, shard="eu-1"} 1x60
  locksidecar_shard_up{POD, shard="eu-2"} 0x60
  locksidecar_heartbeats_total{POD, result="failed"} 0+1x60
  locksidecar_locks_lost_total{POD, reason="LEASE_EXPIRED"} 0+1x60
  locksidecar_locks_lost_total{POD, reason="MAX_HOLD"} 0+1x60
  locksidecar_locks_lost_total{POD, reason="FORCED"} 0+1x60
  locksidecar_locks_lost_total{POD, reason="STOPPING"} 0+1x60
  locksidecar_heartbeat_lag_seconds_bucket{POD, le="0.5"} 0x60
  locksidecar_heartbeat_lag_seconds_bucket{POD, le="1"} 0+20x60
  locksidecar_heartbeat_lag_seconds_bucket{POD, le="+Inf"} 0+20x60
  locksidecar_store_command_seconds_bucket{POD, command="acquire", result="ok", le="0.1"} 0x60
  locksidecar_store_command_seconds_bucket{POD, command="acquire", result="ok", le="1"} 0+100x60
  locksidecar_store_command_seconds_bucket{POD, command="acquire", result="ok", le="+Inf"} 0+100x60
  locksidecar_acquire_seconds_bucket{POD, mode="EXCLUSIVE", result="granted", le="30"} 0x60
  locksidecar_acquire_seconds_bucket{POD, mode="EXCLUSIVE", result="granted", le="60"} 0+100x60
  locksidecar_acquire_seconds_bucket{POD, mode="EXCLUSIVE", result="granted", le="+Inf"} 0+100x60
  locksidecar_acquire_seconds_count{POD, mode="EXCLUSIVE", result="timed_out"} 0+100x60
  locksidecar_acquire_seconds_count{POD, mode="EXCLUSIVE", result="refused"} 0+1x60
  locksidecar_longest_wait_seconds{POD, pattern="orders/#"} 5000x60
  locksidecar_deadlocks_detected_total{POD} 0+1x60
`
	well = `
load 1m
  up{POD} 1x60
  locksidecar_ready{POD} 1x60
  locksidecar_draining{POD} 0x60
  locksidecar_lease_jeopardy{POD} 0x60
  locksidecar_shard_up{POD, shard="eu-1"} 1x60
  locksidecar_heartbeats_total{POD, result="failed"} 0x60
  locksidecar_locks_lost_total{POD, reason="LEASE_EXPIRED"} 0x60
  locksidecar_heartbeat_lag_seconds_bucket{POD, le="0.5"} 0+20x60
  locksidecar_heartbeat_lag_seconds_bucket{POD, le="+Inf"} 0+20x60
  locksidecar_store_command_seconds_bucket{POD, command="acquire", result="ok", le="0.1"} 0+100x60
  locksidecar_store_command_seconds_bucket{POD, command="acquire", result="ok", le="+Inf"} 0+100x60
  locksidecar_acquire_seconds_bucket{POD, mode="EXCLUSIVE", result="granted", le="30"} 0+100x60
  locksidecar_acquire_seconds_bucket{POD, mode="EXCLUSIVE", result="granted", le="+Inf"} 0+100x60
  locksidecar_acquire_seconds_count{POD, mode="EXCLUSIVE", result="timed_out"} 0x60
  locksidecar_acquire_seconds_count{POD, mode="EXCLUSIVE", result="refused"} 0x60
  locksidecar_longest_wait_seconds{POD, pattern="orders/#"} 5x60
  locksidecar_deadlocks_detected_total{POD} 0x60
`
)

// shown is what Prometheus has besides of a pod with what the dashboard shows.
const shown = `
  locksidecar_build_info{POD, version="v1", go_version="go"} 1x60
  locksidecar_holds{POD} 3x60
  locksidecar_waiters{POD} 2x60
  locksidecar_sessions{POD} 2x60
  locksidecar_lease_valid_seconds{POD} 8x60
  locksidecar_lease_ttl_seconds{POD} 10x60
  locksidecar_acquire_seconds_bucket{POD, mode="SHARED", result="granted", le="+Inf"} 0+100x60
  locksidecar_store_command_seconds_count{POD, command="acquire", result="timeout"} 0+1x60
  process_resident_memory_bytes{POD} 30000000x60
  process_cpu_seconds_total{POD} 0+1x60
`

// evaluate is Prometheus' own engine, at fifty minutes of a test's series.
func evaluate(t *testing.T, series string) func(query string) promql.Vector {
	t.Helper()
	engine := promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{
		MaxSamples: 100_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	storage := promqltest.LoadedStorage(t, strings.ReplaceAll(series, "POD", `job="locksidecar", namespace="shop", pod="app-1"`))
	return func(text string) promql.Vector {
		t.Helper()
		query, err := engine.NewInstantQuery(t.Context(), storage, nil, text, time.Unix(0, 0).Add(50*time.Minute))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		defer query.Close()
		vector, err := query.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return slices.Clone(vector)
	}
}

// TestDashboardShows: Prometheus' own engine has an answer to each query of the dashboard.
func TestDashboardShows(t *testing.T) {
	ask := evaluate(t, sick+strings.TrimPrefix(shown, "\n"))
	for _, p := range theDashboard(t).Panels {
		for _, q := range p.Targets {
			text := asGrafana.Replace(q.Expr)
			if len(ask(text)) == 0 {
				t.Errorf("%s shows nothing: %s", p.Title, text)
			}
			if empty := asGrafana.Replace(strings.ReplaceAll(q.Expr, "$namespace", "another")); len(ask(empty)) > 0 {
				t.Errorf("%s shows what is not asked for: %s", p.Title, empty)
			}
		}
	}
}

// TestNodeAlarm: that a part is missing on some nodes is told, and nothing where all are there, or of others' DaemonSets.
func TestNodeAlarm(t *testing.T) {
	var expr string
	for _, o := range objects(t, theChart(t), parse(t, "prometheusRule: {enabled: true}\n"+nodeValues), "v1.36") {
		if o["kind"] == "PrometheusRule" {
			rules := spec[ruleFile](t, o["spec"]).Groups[0].Rules
			r := rules[len(rules)-1]
			expr = r.Expr
			if r.Alert != "LocksidecarNodePartMissing" || r.Labels["severity"] != "critical" || r.Annotations["summary"] != "Nodes without {{ $labels.daemonset }}" {
				t.Errorf("%+v", r)
			}
		}
	}
	for part, fires := range map[string]bool{
		`namespace="locks", daemonset="locksidecar-driver"} 1x60`:   true,
		`namespace="locks", daemonset="locksidecar-agent"} 2x60`:    true,
		`namespace="locks", daemonset="locksidecar-driver"} 0x60`:   false,
		`namespace="shop", daemonset="locksidecar-driver"} 1x60`:    false,
		`namespace="locks", daemonset="my-locksidecar-agent"} 1x60`: false,
	} {
		if found := evaluate(t, "load 1m\n  kube_daemonset_status_number_unavailable{"+part+"\n")(expr); (len(found) > 0) != fires {
			t.Errorf("%s: %v", part, found)
		}
	}
}

// TestAlarmsFire: Prometheus' own engine finds each alarm's trouble, and none in a pod that works.
func TestAlarmsFire(t *testing.T) {
	firing := func(series string) (names []string) {
		t.Helper()
		ask := evaluate(t, series)
		for _, o := range objects(t, theChart(t), parse(t, monitoring), "v1.36") {
			if o["kind"] != "PrometheusRule" {
				continue
			}
			for _, r := range spec[ruleFile](t, o["spec"]).Groups[0].Rules {
				vector := ask(r.Expr)
				for _, s := range vector {
					if s.Metric.Get("namespace") != "shop" {
						t.Errorf("%s does not say where: %s", r.Alert, s.Metric)
					}
				}
				names = append(names, fmt.Sprintf("%s %t", r.Alert, len(vector) > 0))
			}
		}
		return names
	}
	for _, name := range firing(sick) {
		if strings.HasSuffix(name, " false") {
			t.Errorf("a pod with that trouble: %s", name)
		}
	}
	if names := firing(well); len(names) < 10 || slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, " true") }) {
		t.Errorf("a pod without trouble: %s", names)
	}
}
