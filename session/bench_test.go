package session

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

// running gives a Manager on an embedded store in real time, with a lease.
func running(tb testing.TB) (*Manager, *embedded.Store) {
	tb.Helper()
	store := embedded.New()
	m, err := New(Options{Backend: store, Limits: Limits{HoldsPerSession: 100_000, HoldsPerUID: 100_000, SessionsPerUID: DefaultSessions}})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- m.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-end; err != nil {
			tb.Error(err)
		}
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	for m.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	return m, store
}

func openIn(tb testing.TB, m *Manager) *Session {
	tb.Helper()
	s, err := m.Everybody().Open(context.Background(), OpenRequest{Liveness: Stream, Name: "bench"})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// BenchmarkPair is an uncontended acquire and release: of the store alone, and
// through a session.
func BenchmarkPair(b *testing.B) {
	ctx := b.Context()
	b.Run("store", func(b *testing.B) {
		_, store := running(b)
		l, err := store.OpenLease(ctx, lock.LeaseOptions{TTL: lock.MaxTTL})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			id := lock.NewHoldID()
			if _, err := l.Acquire(ctx, lock.Request{ID: id, Resource: "r", Mode: lock.Exclusive}); err != nil {
				b.Fatal(err)
			}
			if err := l.Release(ctx, "r", id); err != nil {
				b.Fatal(err)
			}
		}
		if err := l.Close(ctx); err != nil {
			b.Error(err)
		}
	})
	for name, q := range map[string]AcquireRequest{
		"try":      try(exclusive),
		"wait":     waiting(exclusive, time.Minute),
		"with id":  with(exclusive, func(r *AcquireRequest) { r.RequestID = "1" }),
		"max hold": with(exclusive, func(r *AcquireRequest) { r.MaxHold = time.Minute }),
	} {
		b.Run(name, func(b *testing.B) {
			m, _ := running(b)
			s := openIn(b, m)
			ctx, cancel := context.WithCancel(ctx) // as of a request
			defer cancel()
			b.ReportAllocs()
			for b.Loop() {
				g, err := s.Acquire(ctx, q)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := s.Release(ctx, g.LockID, ""); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("64 sessions", func(b *testing.B) {
		m, _ := running(b)
		b.SetParallelism(64 / runtime.GOMAXPROCS(0))
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			s := openIn(b, m)
			q := with(exclusive, func(r *AcquireRequest) { r.Resource = string(s.ID()) })
			for pb.Next() {
				g, err := s.Acquire(ctx, q)
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := s.Release(ctx, g.LockID, ""); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkReentry is a count up and down.
func BenchmarkReentry(b *testing.B) {
	m, _ := running(b)
	s := openIn(b, m)
	ctx := b.Context()
	q := again(exclusive)
	if _, err := s.Acquire(ctx, q); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		g, err := s.Acquire(ctx, q)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Release(ctx, g.LockID, ""); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMemoryPerHold is the whole cost in the sidecar, the embedded store
// included: at most 2 KiB.
func TestMemoryPerHold(t *testing.T) {
	const n = 10_000
	m, _ := running(t)
	ctx := t.Context()
	heap := func() uint64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc + s.StackInuse
	}
	// Always in the same order: tables that grow in one case serve the next one, too.
	for _, x := range []struct {
		name string
		open func(i int) (*Session, AcquireRequest)
	}{
		{"one session", func() func(int) (*Session, AcquireRequest) {
			s := openIn(t, m)
			return func(i int) (*Session, AcquireRequest) {
				return s, AcquireRequest{Resource: fmt.Sprintf("orders/one/%d", i), Mode: lock.Exclusive, RequestID: strconv.Itoa(i)}
			}
		}()},
		{"with max_hold", func() func(int) (*Session, AcquireRequest) {
			s := openIn(t, m)
			return func(i int) (*Session, AcquireRequest) {
				return s, AcquireRequest{Resource: fmt.Sprintf("orders/max/%d", i), Mode: lock.Exclusive, MaxHold: time.Hour}
			}
		}()},
		{"a session each", func(i int) (*Session, AcquireRequest) {
			return openIn(t, m), AcquireRequest{Resource: fmt.Sprintf("orders/each/%d", i), Mode: lock.Exclusive}
		}},
	} {
		before := heap()
		routines := runtime.NumGoroutine()
		for i := range n - 10 { // the limit of sessions counts the others, too
			s, q := x.open(i)
			if _, err := s.Acquire(ctx, q); err != nil {
				t.Fatal(err)
			}
		}
		limit := int64(2048)
		if x.name == "a session each" {
			limit += 820 // the session is in it, and what a busy machine adds
		}
		// On a busy machine goroutines that are about to end have not done so yet, and keep
		// what nobody needs.
		var per int64
		var more int
		for end := time.Now().Add(time.Minute); ; time.Sleep(500 * time.Millisecond) {
			per = (int64(heap()) - int64(before)) / n
			more = runtime.NumGoroutine() - routines
			if per <= limit && more <= 10 || time.Now().After(end) {
				break
			}
		}
		t.Logf("%s: %d bytes a hold", x.name, per)
		if per > limit {
			t.Errorf("%s: %d bytes a hold, at most %d are allowed", x.name, per, limit)
		}
		if more > 10 {
			t.Errorf("%s: %d goroutines more", x.name, more)
		}
	}
}
