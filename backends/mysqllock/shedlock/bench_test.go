package shedlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// BenchmarkManyHolds measures what a sidecar with many holds costs: how fast it takes them,
// how long a heartbeat takes that moves all of their rows, the pairs of a neighbour during
// heartbeats one after the other, and the close.
func BenchmarkManyHolds(bench *testing.B) {
	const many, takers = 20_000, 32
	for _, kind := range kinds {
		bench.Run(kind.String(), func(bench *testing.B) {
			url := testengine.New(bench, kind).URL()
			open := func() lock.Lease {
				b := openAt(bench, url)
				bench.Cleanup(func() { _ = b.Close() })
				l, err := b.OpenLease(bench.Context(), lock.LeaseOptions{TTL: time.Minute, Sidecar: "bench"})
				if err != nil {
					bench.Fatal(err)
				}
				return l
			}
			l, beside := open(), open()
			name := func(i int) lock.Resource { return lock.Resource(fmt.Sprintf("%059d/%04d", i/10_000, i%10_000)) }
			ctx := bench.Context()
			began := time.Now()
			var next atomic.Int64
			var taking sync.WaitGroup
			for range takers {
				taking.Go(func() {
					for i := next.Add(1); i <= many && !bench.Failed(); i = next.Add(1) {
						if _, err := l.Acquire(ctx, request(name(int(i)))); err != nil {
							bench.Error(err)
						}
					}
				})
			}
			taking.Wait()
			acquires := many / time.Since(began).Seconds()
			pairs := func(during context.Context) (took []time.Duration) {
				for during.Err() == nil {
					q, start := request("pair"), time.Now()
					if _, err := beside.Acquire(ctx, q); err != nil {
						bench.Error(err)
						return took
					}
					if err := beside.Release(ctx, q.Resource, q.ID); err != nil {
						bench.Error(err)
						return took
					}
					took = append(took, time.Since(start))
				}
				slices.Sort(took)
				return took
			}
			report := func(took []time.Duration, when string) {
				bench.ReportMetric(float64(took[len(took)/2].Microseconds()), when+"-p50-µs")
				bench.ReportMetric(float64(took[len(took)*99/100].Microseconds()), when+"-p99-µs")
			}
			quiet, cancel := context.WithTimeout(ctx, 2*time.Second)
			alone := pairs(quiet)
			cancel()
			during, over := context.WithCancel(ctx)
			var neighbour sync.WaitGroup
			var disturbed []time.Duration
			neighbour.Go(func() { disturbed = pairs(during) })
			var beats []time.Duration
			for bench.Loop() {
				start := time.Now()
				if err := beat(ctx, l); err != nil {
					bench.Error(err)
				}
				beats = append(beats, time.Since(start))
			}
			over()
			neighbour.Wait()
			report(alone, "quiet")
			report(disturbed, "beside")
			bench.ReportMetric(acquires, "acquires/s")
			slices.Sort(beats)
			bench.ReportMetric(float64(beats[len(beats)/2].Milliseconds()), "beat-ms")
			bench.ReportMetric(many/beats[len(beats)/2].Seconds(), "rows/s")
			start := time.Now()
			if err := l.Close(ctx); err != nil {
				bench.Error(err)
			}
			bench.ReportMetric(float64(time.Since(start).Milliseconds()), "close-ms")
			if err := beside.Close(ctx); err != nil {
				bench.Error(err)
			}
		})
	}
}
