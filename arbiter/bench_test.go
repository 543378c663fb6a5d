package arbiter

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

// BenchmarkPair is an uncontended acquire and release: without an arbiter, with one that
// knows nothing of the resource, and with one that has it parked. The store is in memory,
// so the first two differ by what the arbiter costs.
func BenchmarkPair(b *testing.B) {
	for _, bb := range []struct {
		name  string
		o     Options
		names int
	}{
		{"without", Options{}, 1 << 30},
		{"other", Options{Turns: MaxTurns, Park: 200 * time.Millisecond}, 1 << 30},
		{"again", Options{Turns: MaxTurns, Park: 200 * time.Millisecond}, 1},
	} {
		b.Run(bb.name, func(b *testing.B) {
			store := embedded.New()
			defer func() { _ = store.Close() }()
			l, err := New(store, bb.o).OpenLease(b.Context(), lock.LeaseOptions{TTL: lock.MaxTTL})
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range l.Events() {
				}
			}()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				q := lock.Request{ID: lock.NewHoldID(), Resource: lock.Resource(strconv.Itoa(i % bb.names)), Mode: lock.Exclusive}
				if _, err := l.Acquire(b.Context(), q); err != nil {
					b.Fatal(err)
				}
				if err := l.Release(b.Context(), q.Resource, q.ID); err != nil {
					b.Fatal(err)
				}
			}
			_ = l.Close(context.Background())
			<-done
		})
	}
}
