package mysql

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// BenchmarkPair measures an acquire and a release that nobody else wants, and by
// turns, so that both have the same machine, two statements that do the least
// that is durable.
func BenchmarkPair(bench *testing.B) {
	for _, kind := range kinds {
		bench.Run(kind.String(), func(bench *testing.B) {
			b, l := sidecar(bench, testengine.Shared(bench, kind).URL(), time.Minute)
			execute(bench, b, "CREATE TABLE IF NOT EXISTS plain (id INT PRIMARY KEY, n BIGINT NOT NULL) ENGINE=InnoDB; INSERT IGNORE INTO plain VALUES (1, 0)")
			p := b.pool(bench)
			q := exclusive(unique("pair"))
			var pairs, updates []time.Duration
			for bench.Loop() {
				start := time.Now()
				for range 2 {
					if _, err := p.Do(context.Background(), "plain", sqllock.Statement{SQL: "UPDATE plain SET n=n+1 WHERE id=1"}); err != nil {
						bench.Fatal(err)
					}
				}
				middle := time.Now()
				q.ID = lock.NewHoldID()
				if _, err := l.Acquire(context.Background(), q); err != nil {
					bench.Fatal(err)
				}
				if err := l.Release(context.Background(), q.Resource, q.ID); err != nil {
					bench.Fatal(err)
				}
				updates, pairs = append(updates, middle.Sub(start)), append(pairs, time.Since(middle))
			}
			median := func(ds []time.Duration) float64 {
				slices.Sort(ds)
				return float64(ds[len(ds)/2].Microseconds())
			}
			bench.ReportMetric(median(updates), "updates-µs")
			bench.ReportMetric(median(pairs), "pair-µs")
			bench.ReportMetric(median(pairs)/median(updates), "times")
		})
	}
}

// BenchmarkHandOff measures from the call of a release to the grant at another
// sidecar, one at a time.
func BenchmarkHandOff(bench *testing.B) {
	for _, kind := range kinds {
		bench.Run(kind.String(), func(bench *testing.B) {
			s := testengine.Shared(bench, kind)
			_, one := sidecar(bench, s.URL(), time.Minute)
			b, other := sidecar(bench, s.URL(), time.Minute)
			r := unique("handoff")
			var took []time.Duration
			g := hold(bench, one, r)
			for bench.Loop() {
				granted := make(chan lock.Grant, 1)
				at := make(chan time.Time, 1)
				go func() {
					g, err := other.Acquire(context.Background(), exclusive(r))
					if err != nil {
						bench.Error(err)
					}
					at <- time.Now()
					granted <- g
				}()
				eventually(bench, "it waits", func() error {
					st, err := b.Get(context.Background(), r)
					if err == nil && len(st.Waiters) == 0 {
						err = errors.New("it does not")
					}
					return err
				})
				start := time.Now()
				if err := one.Release(context.Background(), r, g.ID); err != nil {
					bench.Fatal(err)
				}
				took = append(took, (<-at).Sub(start))
				g = <-granted
				one, other = other, one
			}
			if err := one.Release(context.Background(), r, g.ID); err != nil {
				bench.Fatal(err)
			}
			slices.Sort(took)
			bench.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			bench.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
