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

// TestAlarmsFire: Prometheus' own engine finds each alarm's trouble, and none in a pod that works.
func TestAlarmsFire(t *testing.T) {
	engine := promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{
		MaxSamples: 100_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	firing := func(series string) (names []string) {
		t.Helper()
		storage := promqltest.LoadedStorage(t, strings.ReplaceAll(series, "POD", `job="locksidecar", namespace="shop", pod="app-1"`))
		for _, o := range objects(t, theChart(t), parse(t, monitoring), "v1.36") {
			if o["kind"] != "PrometheusRule" {
				continue
			}
			for _, r := range spec[ruleFile](t, o["spec"]).Groups[0].Rules {
				query, err := engine.NewInstantQuery(t.Context(), storage, nil, r.Expr, time.Unix(0, 0).Add(50*time.Minute))
				if err != nil {
					t.Fatalf("%s: %v", r.Alert, err)
				}
				result := query.Exec(t.Context())
				vector, err := result.Vector()
				if err != nil {
					t.Fatalf("%s: %v", r.Alert, err)
				}
				for _, s := range vector {
					if s.Metric.Get("namespace") != "shop" {
						t.Errorf("%s does not say where: %s", r.Alert, s.Metric)
					}
				}
				names = append(names, fmt.Sprintf("%s %t", r.Alert, len(vector) > 0))
				query.Close()
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
