package etcd

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// idle are sidecars that hold nothing, each with a backend of its own.
type idle struct {
	s     testengine.Server
	beats atomic.Int64 // that were answered
	lost  atomic.Int64 // leases, because the machine was too busy
}

// newIdle opens them. Their heartbeats are spread over the time between two of one sidecar.
func newIdle(t testing.TB, s testengine.Server, sidecars int, ttl, every time.Duration) *idle {
	t.Helper()
	i := &idle{s: s}
	ctx, end := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(end)
	for range sidecars {
		b, err := Open(s.URL(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var l lock.Lease
		eventually(t, "a lease is opened", func() (err error) {
			l, err = b.OpenLease(ctx, lock.LeaseOptions{TTL: ttl})
			return err
		})
		running.Go(func() {
			for next := time.NewTicker(every); ; {
				select {
				case <-ctx.Done():
					next.Stop()
					bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
					_ = l.Close(bounded)
					cancel()
					_ = b.Close()
					return
				case <-next.C:
					switch err := beat(ctx, l); {
					case err == nil:
						i.beats.Add(1)
					case errors.Is(err, lock.ErrLeaseLost):
						i.lost.Add(1)
						end()
					}
				}
			}
		})
		time.Sleep(every / time.Duration(sidecars))
	}
	return i
}

// load is what the server has to do for idle sidecars.
type load struct {
	requests, writes float64 // a heartbeat
	perSecond        float64
	processors       float64
	watches, leases  float64
	memory           float64 // bytes, of the server's process
}

// measure waits until each sidecar has sent so many heartbeats.
func (i *idle) measure(t testing.TB, sidecars, each int) load {
	t.Helper()
	before, start, beats := metrics(t, i.s), time.Now(), i.beats.Load()
	eventually(t, "all have sent heartbeats", func() error {
		if i.lost.Load() > 0 {
			t.Fatalf("a lease was lost: the machine is too busy for %d sidecars", sidecars)
		}
		if i.beats.Load()-beats < int64(sidecars*each) {
			return context.DeadlineExceeded
		}
		return nil
	})
	n, took, after := float64(i.beats.Load()-beats), time.Since(start).Seconds(), metrics(t, i.s)
	grown := func(name string) float64 { return after[name] - before[name] }
	return load{
		requests: grown("grpc_server_started_total") / n, writes: grown("etcd_server_proposals_committed_total") / n,
		perSecond: grown("grpc_server_started_total") / took, processors: grown("process_cpu_seconds_total") / took,
		watches: after["etcd_debugging_mvcc_watcher_total"], leases: after["etcd_debugging_lease_granted_total"],
		memory: after["process_resident_memory_bytes"],
	}
}

// metrics are the server's, each the sum over its labels.
func metrics(t testing.TB, s testengine.Server) map[string]float64 {
	t.Helper()
	q, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+testengine.Nodes(t, s)[0].Addr()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Close = true
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	all := make(map[string]float64)
	for lines := bufio.NewScanner(a.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if open := strings.IndexByte(name, '{'); open >= 0 {
			at := strings.LastIndexByte(lines.Text(), ' ')
			name, value = name[:open], lines.Text()[at+1:]
		}
		if n, err := strconv.ParseFloat(value, 64); err == nil {
			all[name] += n
		}
	}
	return all
}

// An idle sidecar is a request a heartbeat, which is a write, one watch, and none of etcd's
// leases, however many others there are. What the keeper does beside that does not grow with them.
func TestIdleLoad(t *testing.T) {
	t.Parallel()
	for _, sidecars := range []int{8, 32} {
		s := testengine.New(t, testengine.Etcd)
		got := newIdle(t, s, sidecars, time.Minute, time.Second).measure(t, sidecars, 5)
		t.Logf("%d sidecars: %+v", sidecars, got)
		if most := 1 + 24/float64(sidecars); got.requests > most || got.writes > most {
			t.Errorf("%d idle sidecars: %.2f requests and %.2f writes a heartbeat", sidecars, got.requests, got.writes)
		}
		if got.watches > float64(sidecars)+1 || got.leases > 0 {
			t.Errorf("%d idle sidecars have %.0f watches and %.0f leases", sidecars, got.watches, got.leases)
		}
	}
}

// BenchmarkIdle measures what many idle sidecars with the usual TTL need of a server:
// go test -run - -bench Idle -benchtime 1x ./backends/caslock/etcd
func BenchmarkIdle(bench *testing.B) {
	for _, sidecars := range []int{1, 100, 1000} {
		bench.Run(strconv.Itoa(sidecars), func(bench *testing.B) {
			i := newIdle(bench, testengine.New(bench, testengine.Etcd), sidecars, 10*time.Second, 10*time.Second/3)
			for bench.Loop() {
				got := i.measure(bench, sidecars, 5)
				bench.ReportMetric(got.perSecond, "requests/s")
				bench.ReportMetric(got.requests, "requests/beat")
				bench.ReportMetric(got.writes, "writes/beat")
				bench.ReportMetric(got.processors, "processors")
				bench.ReportMetric(got.watches, "watches")
				bench.ReportMetric(got.leases, "leases")
				bench.ReportMetric(got.memory/(1<<20), "MiB")
			}
		})
	}
}
