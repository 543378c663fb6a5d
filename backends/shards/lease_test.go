package shards

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// bare is a lease without a session above it, whose heartbeats the test counts.
type bare struct {
	*Lease
	e      *env
	roads  []*road
	events chan lock.Event
}

func (e *env) lease(numbers ...int) *bare {
	e.t.Helper()
	b, roads := e.backend(nil, numbers...)
	l, err := b.OpenLease(e.t.Context(), lock.LeaseOptions{TTL: ttl})
	if err != nil {
		e.t.Fatal(err)
	}
	own := &bare{Lease: l.(*Lease), e: e, roads: roads, events: make(chan lock.Event, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ev := range l.Events() {
			own.events <- ev
		}
	}()
	e.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = l.Close(ctx)
		<-done
	})
	return own
}

// beats sends a heartbeat each second, and checks that the lease is proven for no longer than any shard that
// counts.
func (l *bare) beats(d time.Duration) {
	l.e.t.Helper()
	for end := l.e.clock() + d; l.e.clock() < end; time.Sleep(time.Second / 2) {
		ctx, cancel := context.WithTimeout(l.e.t.Context(), 3*time.Second)
		_, _ = l.Heartbeat(ctx) // the next one says it again
		cancel()
		l.check()
		time.Sleep(time.Second / 2)
		l.check()
	}
}

func (l *bare) check() {
	l.e.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.seats {
		if t.now != nil && t.now.proven < l.proven {
			l.e.t.Errorf("the lease is proven from %s on, the shard %s only from %s on", l.proven, t.name, t.now.proven)
		}
	}
}

func (l *bare) take(number int) lock.Grant {
	l.e.t.Helper()
	name := (&sidecar{backend: l.b}).named(number)
	g, err := l.Acquire(l.e.t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: lock.Resource(name), Mode: lock.Exclusive})
	if err != nil {
		l.e.t.Fatal(err)
	}
	return g
}

// TestUntil: what a lost hold is told is the end of its lease at the shard, and no later moment.
func TestUntil(t *testing.T) {
	bubble(t, func(e *env) {
		l, other := e.lease(0, 1, 2), e.lease(0, 1, 2)
		g := l.take(1)
		l.beats(5 * time.Second)
		l.roads[1].fault.Store(hangs)
		next := make(chan time.Duration, 1)
		go func() {
			other.take(1)
			next <- e.clock()
		}()
		go func() {
			for len(next) == 0 {
				_, _ = other.Heartbeat(context.Background())
				time.Sleep(time.Second)
			}
		}()
		l.beats(3 * ttl)
		if len(l.events) != 1 {
			t.Fatalf("%d events, want one", len(l.events))
		}
		ev, at := <-l.events, <-next
		if ev.Kind != lock.Expired || ev.ID != g.ID || ev.Until <= 0 || ev.Until > at {
			t.Errorf("told %+v; the next one had it at %s", ev, at)
		}
	})
}

// TestLateJoiner: a shard whose lease was opened before the latest heartbeats of the others, and which
// answers after these, counts only when it has answered one itself.
func TestLateJoiner(t *testing.T) {
	bubble(t, func(e *env) {
		e.lease(0, 1, 2)
		e.away = 1
		l := e.lease(0, 1, 2)
		e.away = 0
		l.roads[1].slow = 4 * time.Second
		l.roads[1].fault.Store(fine)
		l.beats(3 * ttl)
		l.take(1)
	})
}

// TestSlowShardBesideAFrozenSidecar: a shard that had not answered when the sidecar was frozen may answer when it
// goes on.
func TestSlowShardBesideAFrozenSidecar(t *testing.T) {
	bubble(t, func(e *env) {
		e.ttl = time.Minute // timers on this clock are late by up to a second
		s := e.sidecar(0, 1, 2)
		a := s.app()
		losses := lost(e, a)
		s.take(a, s.named(1))
		s.passes(e.ttl)
		s.roads[1].fault.Store(hangs)
		s.passes(e.ttl * 3 / 10) // at least one heartbeat has begun, and others have answered it
		s.roads[1].fault.Store(fine)
		e.jump.Add(int64(e.ttl / 5))
		time.Sleep(2 * e.ttl)
		if len(losses) != 0 {
			t.Errorf("lost %+v", <-losses)
		}
	})
}

// count is a bell that counts.
type count struct{ atomic.Int32 }

func (c *count) Ring() { c.Add(1) }

// TestBell: a request that waits hears of the end of its shard, and of its return, without a goroutine.
func TestBell(t *testing.T) {
	bubble(t, func(e *env) {
		l, other := e.lease(0, 1, 2), e.lease(0, 1, 2)
		other.take(1)
		bell := &count{}
		q := lock.Request{ID: lock.NewHoldID(), Resource: lock.Resource((&sidecar{backend: l.b}).named(1)), Mode: lock.Exclusive, Bell: bell}
		ask := func(ctx context.Context, want error) {
			t.Helper()
			bell.Store(0)
			if _, err := l.Acquire(ctx, q); !errors.Is(err, want) {
				t.Fatalf("Acquire = %v, want %v", err, want)
			}
		}
		rings := func() {
			t.Helper()
			l.beats(ttl)
			if bell.Load() == 0 {
				t.Fatal("the bell was not rung")
			}
		}
		over, cancel := context.WithCancel(e.t.Context())
		cancel()
		ask(e.t.Context(), lock.ErrWaiting) // behind the other one
		l.roads[1].fault.Store(hangs)
		rings()
		ask(e.t.Context(), lock.ErrPartLost) // it may be carried out yet
		ask(e.t.Context(), lock.ErrWaiting)  // for the shard
		ask(over, lock.ErrUnavailable)
		if n := len(l.seats[1].bells); n != 0 {
			t.Errorf("%d requests wait for the shard", n)
		}
		ask(e.t.Context(), lock.ErrWaiting)
		l.roads[1].fault.Store(fine)
		rings()
		for {
			g, err := l.Acquire(e.t.Context(), q)
			if err == nil {
				if g.ID != q.ID {
					t.Errorf("granted %+v", g)
				}
				return
			}
			if !errors.Is(err, lock.ErrWaiting) {
				t.Fatal(err)
			}
			l.beats(time.Second)
		}
	})
}
