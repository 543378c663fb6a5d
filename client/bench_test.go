package client_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/locksidecar/locksidecar/client"
)

// BenchmarkPair is an acquire and its release, over the embedded store.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			x := start(b).open(b, client.SessionOptions{})
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					for range b.N / callers {
						l, err := x.Acquire(b.Context(), strconv.Itoa(i), client.AcquireOptions{})
						if err != nil {
							b.Error(err)
							return
						}
						if err := l.Release(b.Context()); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
