package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("scrape: status %d, error %v", w.Code, err)
	}
	return string(body)
}

func TestMetrics(t *testing.T) {
	m := NewMetrics("v1.2.3")
	m.WatchLevels(func() session.Info {
		return session.Info{Ready: true, Sessions: 2, Holds: 3, Waiters: 4, InFlight: 6, LeaseTTL: 10 * time.Second, LeaseValidFor: 6500 * time.Millisecond}
	})
	m.Acquired("r", lock.Exclusive, session.Granted, 3*time.Millisecond)
	m.Acquired("r", lock.Shared, session.TimedOut, time.Second)
	m.Acquired("r", lock.Permits(1), session.Granted, time.Millisecond)
	m.Acquired("r", lock.Permits(lock.MaxPermits), session.Granted, time.Millisecond)
	m.Acquired("r", lock.Mode(9), session.AcquireResult(99), time.Second) // must not panic
	m.HoldLost(session.Forced)
	m.Heartbeat(heartbeat.Beat{Result: heartbeat.Failed, Took: time.Second, Lag: 20 * time.Millisecond})
	m.LeaseOpened(nil)
	m.LeaseOpened(errors.New("no"))
	m.Command("acquire", 200*time.Microsecond, nil)
	m.Command("acquire", 200*time.Microsecond, nil)
	m.Command("release", time.Millisecond, fmt.Errorf("release: %w", os.ErrDeadlineExceeded))
	m.Command("release", time.Millisecond, context.Canceled)
	m.Command("release", time.Millisecond, errors.New("broken"))

	m.Yielded(2 * time.Millisecond)
	m.WatchArbiter(func() (saved, contended uint64, parked int) { return 7, 5, 3 })

	m.Acquired("orders/42/7", lock.Shared, session.Held, time.Millisecond)
	m.Acquired("orders/43/8", lock.Shared, session.Held, time.Millisecond)
	m.Acquired("job-0e8b6f0c-5C2f-4a56-9d5e-1f0a7c1d2e3f", lock.Exclusive, session.Deadlocked, time.Second)
	m.Deadlock(true)
	m.Deadlock(false)
	m.WatchWaits(func(f func(string, time.Duration)) {
		f("orders/1/2", time.Second)
		f("orders/3/4", 5*time.Second)
		f("orders/1/2", 2*time.Second)
		f("job-1", 3*time.Second)
	})

	m.WatchAccounts(func(f func(string, int, int)) { f("shop/orders", 2, 7) })
	m.WatchPrincipals(func(f func(string, int, int)) {
		f("unit:web.service", 3, 40)
		for i := range maxPrincipals {
			f(fmt.Sprintf("unit:%d.service", i), 1, 2)
		}
		f("unit:idle.service", 5, 0)
	})

	text := scrape(t, m)
	for _, want := range []string{
		`locksidecar_principal_sessions{principal="unit:web.service"} 3`,
		`locksidecar_principal_holds{principal="unit:web.service"} 40`,
		`locksidecar_principal_holds{principal="unit:98.service"} 2`,
		`locksidecar_principal_sessions{principal="other"} 6`,
		`locksidecar_principal_holds{principal="other"} 2`,
		`locksidecar_service_account_sessions{service_account="shop/orders"} 2`,
		`locksidecar_service_account_holds{service_account="shop/orders"} 7`,
		`locksidecar_acquire_seconds_count{mode="EXCLUSIVE",result="granted"} 1`,
		`locksidecar_acquire_seconds_count{mode="PERMIT",result="granted"} 2`,
		`locksidecar_acquire_seconds_bucket{mode="EXCLUSIVE",result="granted",le="0.005"} 1`,
		`locksidecar_acquire_seconds_count{mode="EXCLUSIVE",result="refused"} 0`, // there before the first
		`locksidecar_acquire_seconds_sum{mode="SHARED",result="timed_out"} 1`,
		`locksidecar_locks_lost_total{reason="FORCED"} 1`,
		`locksidecar_locks_lost_total{reason="LEASE_EXPIRED"} 0`,
		`locksidecar_heartbeats_total{result="failed"} 1`,
		`locksidecar_heartbeats_total{result="ok"} 0`,
		`locksidecar_heartbeat_seconds_sum 1`,
		`locksidecar_heartbeat_lag_seconds_sum 0.02`,
		`locksidecar_lease_opens_total{result="ok"} 1`,
		`locksidecar_lease_opens_total{result="failed"} 1`,
		`locksidecar_store_command_seconds_count{command="acquire",result="ok"} 2`,
		`locksidecar_store_command_seconds_count{command="release",result="timeout"} 1`,
		`locksidecar_store_command_seconds_count{command="release",result="cancelled"} 1`,
		`locksidecar_store_command_seconds_count{command="release",result="error"} 1`,
		`locksidecar_yield_seconds_sum 0.002`,
		`locksidecar_local_grants_total 7`,
		`locksidecar_contended_total 5`,
		`locksidecar_parked_holds 3`,
		`locksidecar_failed_acquires_total{pattern="orders/#/#",result="held"} 2`,
		`locksidecar_failed_acquires_total{pattern="job-#",result="deadlock"} 1`,
		`locksidecar_failed_acquires_total{pattern="r",result="timed_out"} 1`,
		`locksidecar_deadlocks_detected_total 2`,
		`locksidecar_deadlocks_broken_total 1`,
		`locksidecar_longest_wait_seconds{pattern="orders/#/#"} 5`,
		`locksidecar_longest_wait_seconds{pattern="job-#"} 3`,
		`locksidecar_sessions 2`,
		`locksidecar_holds 3`,
		`locksidecar_waiters 4`,
		`locksidecar_requests_in_flight 6`,
		`locksidecar_lease_ttl_seconds 10`,
		`locksidecar_lease_valid_seconds 6.5`,
		`locksidecar_lease_jeopardy 0`,
		`locksidecar_ready 1`,
		`locksidecar_draining 0`,
		`version="v1.2.3"} 1`,
		"go_goroutines ",
		"process_open_fds ",
	} {
		if !strings.HasSuffix(want, " ") { // else the value is unknown
			want += "\n"
		}
		if !strings.Contains(text, want) {
			t.Errorf("the scrape lacks %q", want)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, namespace) {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestFewSeriesFromTheStart: a sidecar stands beside every pod, so what has not happened takes no room
// unless it is alarmed on.
func TestFewSeriesFromTheStart(t *testing.T) {
	m := NewMetrics("test")
	series := func() (n int) {
		for line := range strings.Lines(scrape(t, m)) {
			if strings.HasPrefix(line, namespace) {
				n++
			}
		}
		return n
	}
	before := series()
	if before > 250 {
		t.Errorf("%d series before anything has happened", before)
	}
	m.Acquired("r", lock.Exclusive, session.Granted, time.Millisecond)
	if more := series() - before; more != len(acquireBuckets)+3 {
		t.Errorf("the first grant brings %d series", more)
	}
}

// TestPatternsAreBounded: the first hundred kinds of resources have series of their own.
func TestPatternsAreBounded(t *testing.T) {
	var p patterns
	for i := range 2 * maxPatterns {
		name := strings.Repeat("a", i+1)
		want := name + "/#"
		if i >= maxPatterns {
			want = otherPattern
		}
		if got := p.of(name + "/17"); got != want {
			t.Fatalf("number %d is %s, want %s", i, got, want)
		}
	}
	if got := p.of("a/18"); got != "a/#" {
		t.Errorf("the first is %s now", got)
	}
}

// TestNamesAreHidden: where names are not for whoever sees the metrics, patterns say the space and no more.
func TestNamesAreHidden(t *testing.T) {
	m := NewMetrics("test")
	m.HideNames()
	for name, want := range map[string]string{"shop/orders/42": "shop/*", "team-1/secret-plan": "team-1/*", "shop": "*"} {
		if got := m.patterns.of(name); got != want {
			t.Errorf("%s is of %s, want %s", name, got, want)
		}
	}
}

// A hot path must stay one when it is counted.
func TestMetricsDoNotAllocate(t *testing.T) {
	m := NewMetrics("test")
	m.Command("acquire", time.Millisecond, nil)
	for name, f := range map[string]func(){
		"Acquired": func() { m.Acquired("r", lock.Exclusive, session.Granted, time.Millisecond) },
	} {
		if n := testing.AllocsPerRun(100, f); n > 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkCommand(b *testing.B) {
	m := NewMetrics("test")
	b.ReportAllocs()
	for b.Loop() {
		m.Command("acquire", time.Millisecond, nil)
	}
}
