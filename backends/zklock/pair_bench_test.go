package zklock

import (
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// BenchmarkPair is an uncontended acquire and release of another name each time: for one app,
// and for a cohort.
func BenchmarkPair(b *testing.B) {
	s := testengine.Shared(b, testengine.ZooKeeper)
	back, err := Open(s.URL(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = back.Close() }()
	l, err := back.OpenLease(b.Context(), lock.LeaseOptions{TTL: 20 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range l.Events() {
		}
	}()
	for name, cohort := range map[string]lock.Cohort{"one": nil, "cohort": several{}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				q := request(unique(), lock.Exclusive)
				q.Cohort = cohort
				if _, err := l.Acquire(b.Context(), q); err != nil {
					b.Fatal(err)
				}
				if err := l.Release(b.Context(), q.Resource, q.ID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	_ = l.Close(b.Context())
	<-done
}
