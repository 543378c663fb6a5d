package embedded

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const ttl = 10 * time.Second

// bubble runs a test on a store whose time is the bubble's.
func bubble(t *testing.T, f func(t *testing.T, s *Store)) {
	synctest.Test(t, func(t *testing.T) {
		s := New(WithClock(lock.GoTime()))
		f(t, s)
		s.empty(t)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

func open(t *testing.T, s *Store) lock.Lease {
	t.Helper()
	l, err := s.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func acquire(t *testing.T, l lock.Lease, r lock.Resource, m lock.Mode) lock.Grant {
	t.Helper()
	g, err := l.Acquire(t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: m})
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

func shut(t *testing.T, l lock.Lease) {
	t.Helper()
	if err := l.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func TestLeaseExpiresOnTheMoment(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		acquire(t, a, "r", lock.Exclusive)
		time.Sleep(ttl - time.Nanosecond)
		if err := beat(t.Context(), a); err != nil {
			t.Fatalf("Heartbeat at the last moment: %v", err)
		}
		if err := beat(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		renewed := time.Now()
		go func() {
			time.Sleep(ttl / 2)
			_ = beat(t.Context(), b)
		}()
		acquire(t, b, "r", lock.Exclusive) // nobody does anything meanwhile
		if got := time.Since(renewed); got != ttl {
			t.Errorf("granted after %s, want %s", got, ttl)
		}
		if err := beat(t.Context(), a); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Heartbeat: %v, want ErrLeaseLost", err)
		}
		shut(t, a)
		shut(t, b)
	})
}

// The moment of the end counts even if the timer has not fired.
func TestExpiryIsSeenByEveryRequest(t *testing.T) {
	now := time.Hour // under the store's mutex from here on
	s := New(WithClock(func() time.Duration { return now }))
	defer s.Close()
	a := open(t, s)
	acquire(t, a, "r", lock.Shared)
	s.mu.Lock()
	now += ttl
	s.mu.Unlock()
	if st, err := s.Get(t.Context(), "r"); err != nil || len(st.Holders) > 0 {
		t.Errorf("Get: %+v, %v", st, err)
	}
	if err := a.Release(t.Context(), "r", "x"); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Release: %v, want ErrLeaseLost", err)
	}
	shut(t, a)
	s.empty(t)
}

// A suspend: the clock jumps, while the timers saw only a moment of time.
func TestSuspendIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var suspended time.Duration
		goTime := lock.GoTime()
		s := New(WithClock(func() time.Duration { return goTime() + suspended }))
		defer s.Close()
		a := open(t, s)
		acquire(t, a, "r", lock.Exclusive)
		s.mu.Lock()
		suspended = time.Hour
		s.mu.Unlock()
		// Nobody but the timer looks.
		time.Sleep(time.Second)
		synctest.Wait()
		s.mu.Lock()
		left := len(s.leases) + len(s.resources)
		s.mu.Unlock()
		if left != 0 {
			t.Error("a second after a suspend the lease lives")
		}
		shut(t, a)
	})
}

func TestMistakesOfTheCaller(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a := open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		for field, q := range map[string]lock.Request{
			"id":   {Resource: "s", Mode: lock.Exclusive},
			"mode": {ID: "x", Resource: "s"},
		} {
			var invalid *lock.InvalidError
			if _, err := a.Acquire(t.Context(), q); !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("Acquire(%+v): %v, want an InvalidError of %s", q, err, field)
			}
		}
		for _, q := range []lock.Request{{ID: g.ID, Resource: "s", Mode: g.Mode}, {ID: g.ID, Resource: "r", Mode: lock.Shared}} {
			if _, err := a.Acquire(t.Context(), q); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("Acquire(%+v): %v, want ErrInvalid", q, err)
			}
		}
		for _, ttl := range []time.Duration{-1, 0, lock.MinTTL - 1, lock.MaxTTL + 1} {
			if _, err := s.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl}); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("OpenLease for %s: %v, want ErrInvalid", ttl, err)
			}
		}
		for _, ttl := range []time.Duration{lock.MinTTL, lock.MaxTTL} {
			l, err := s.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl})
			if err != nil {
				t.Fatalf("OpenLease for %s: %v", ttl, err)
			}
			shut(t, l)
		}
		shut(t, a)
	})
}

func TestClosedStore(t *testing.T) {
	s := New()
	a := open(t, s)
	acquire(t, a, "r", lock.Exclusive)
	ended := make(chan error)
	go func() {
		_, err := a.Acquire(context.Background(), lock.Request{ID: "w", Resource: "r", Mode: lock.Shared})
		ended <- err
	}()
	for waiting := 0; waiting == 0; runtime.Gosched() {
		st, err := s.Get(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		waiting = len(st.Waiters)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	if err := <-ended; !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("the waiter: %v, want ErrLeaseLost", err)
	}
	_, errOpen := s.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl})
	_, errGet := s.Get(t.Context(), "r")
	_, errList := s.List(t.Context(), "", lock.Page{Limit: 1})
	for what, err := range map[string]error{
		"OpenLease": errOpen, "Get": errGet, "List": errList, "Ping": s.Ping(t.Context()),
		"ForceRelease": s.ForceRelease(t.Context(), "r", "x", 0),
	} {
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", what, err)
		}
	}
	if err := beat(t.Context(), a); !errors.Is(err, lock.ErrLeaseLost) {
		t.Errorf("Heartbeat: %v, want ErrLeaseLost", err)
	}
	shut(t, a)
	s.empty(t)
}

// TestMemoryPerHold keeps the target: far below 1 KiB a hold.
func TestMemoryPerHold(t *testing.T) {
	s := New()
	defer s.Close()
	a := open(t, s)
	const n = 20_000
	before := heapSize()
	for i := range n {
		acquire(t, a, lock.Resource(fmt.Sprintf("orders/%d", i)), lock.Exclusive)
	}
	each := (heapSize() - before) / n
	t.Logf("%d bytes a hold", each)
	if each > 640 {
		t.Errorf("a hold costs %d bytes", each)
	}
	shut(t, a)
	s.empty(t)
}

func heapSize() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func BenchmarkAcquireRelease(b *testing.B) {
	s := New()
	defer s.Close()
	l, err := s.OpenLease(b.Context(), lock.LeaseOptions{TTL: lock.MaxTTL})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close(b.Context())
	q := lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Exclusive}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Acquire(b.Context(), q); err != nil {
			b.Fatal(err)
		}
		if err := l.Release(b.Context(), "r", q.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// beat sends one heartbeat, for its outcome alone.
func beat(ctx context.Context, l lock.Lease) error {
	_, err := l.Heartbeat(ctx)
	return err
}
