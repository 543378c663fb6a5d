package redislock

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// BenchmarkPair is an acquire and release of a name that nobody else wants, by one caller
// and by many, whose requests share trips.
func BenchmarkPair(b *testing.B) {
	redis := testengine.Shared(b, testengine.Redis)
	for _, callers := range []int{1, 64} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			back, err := Open(redis.URL()+noGrace, nil)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = back.Close() }()
			l, err := back.OpenLease(b.Context(), lock.LeaseOptions{TTL: 20 * time.Second})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range callers {
				q := exclusive(lock.Resource("bench/" + strconv.Itoa(i)))
				wg.Go(func() {
					for range b.N / callers {
						q.ID = lock.NewHoldID()
						if _, err := l.Acquire(b.Context(), q); err != nil {
							b.Error(err)
							return
						}
						if err := l.Release(b.Context(), q.Resource, q.ID); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			_ = l.Close(b.Context())
		})
	}
}
