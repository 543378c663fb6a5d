package shards

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

const ttl = 10 * time.Second

// env is some stores in fake time, and sidecars that have them as shards.
type env struct {
	t      *testing.T
	clock  lock.Clock
	jump   atomic.Int64 // of the sidecars' clocks
	stores []*embedded.Store
	ttl    time.Duration
	away   int // the store that hangs for sidecars that start now; 0: none
}

func bubble(t *testing.T, f func(e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &env{t: t, clock: lock.GoTime(), ttl: ttl}
		for range 3 {
			e.stores = append(e.stores, e.store())
		}
		f(e)
	})
}

func (e *env) store() *embedded.Store {
	s := embedded.New(embedded.WithClock(e.clock))
	e.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			e.t.Error(err)
		}
	})
	return s
}

// road is a sidecar's way to one shard.
type road struct {
	*visitor
	fault atomic.Int32
	slow  time.Duration // is the answer to the opening of a lease
	older time.Duration // than it is, is what a record seems
	mute  atomic.Bool   // records cannot be read

	mu   sync.Mutex
	late []func() // what is carried out when the store goes on
}

// goOn ends a fault. What was sent meanwhile is carried out.
func (r *road) goOn() {
	r.fault.Store(fine)
	r.mu.Lock()
	late := r.late
	r.late = nil
	r.mu.Unlock()
	for _, do := range late {
		do()
	}
}

// The faults of a road.
const (
	fine int32 = iota
	hangs
	refuses
	forgets // the leases that are open are over
	freezes // requests are carried out when it goes on
)

// ask is called before each request.
func (r *road) ask(ctx context.Context) error {
	switch r.fault.Load() {
	case hangs, freezes:
		<-ctx.Done()
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, context.Cause(ctx))
	case refuses:
		return fmt.Errorf("%w: connection refused", lock.ErrUnavailable)
	}
	return nil
}

func (r *road) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	l, err := r.visitor.OpenLease(ctx, o)
	if err != nil {
		return nil, err
	}
	time.Sleep(r.slow)
	return &roadLease{l, r}, nil
}

func (r *road) Get(ctx context.Context, n lock.Resource) (lock.Status, error) {
	if err := r.ask(ctx); err != nil {
		return lock.Status{}, err
	}
	return r.visitor.Get(ctx, n)
}

func (r *road) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	return r.visitor.List(ctx, prefix, p)
}

func (r *road) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	if err := r.ask(ctx); err != nil {
		return nil, err
	}
	return r.visitor.ListRecords(ctx, prefix, p)
}

func (r *road) ReadRecord(ctx context.Context, n lock.Resource) (lock.Record, error) {
	if err := r.ask(ctx); err != nil {
		return lock.Record{}, err
	}
	if r.mute.Load() {
		return lock.Record{}, lock.ErrUnavailable
	}
	rec, err := r.visitor.ReadRecord(ctx, n)
	rec.Age += r.older
	return rec, err
}

type roadLease struct {
	lock.Lease
	r *road
}

func (l *roadLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if l.r.fault.Load() == freezes {
		l.r.mu.Lock()
		l.r.late = append(l.r.late, func() { _, _ = l.Lease.Acquire(context.WithoutCancel(ctx), q) })
		l.r.mu.Unlock()
	}
	if err := l.r.ask(ctx); err != nil {
		return lock.Grant{}, err
	}
	return l.Lease.Acquire(ctx, q)
}

func (l *roadLease) Release(ctx context.Context, n lock.Resource, id lock.HoldID) error {
	if err := l.r.ask(ctx); err != nil {
		return err
	}
	return l.Lease.Release(ctx, n, id)
}

func (l *roadLease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	if l.r.fault.Load() == forgets {
		return nil, lock.ErrLeaseLost
	}
	if err := l.r.ask(ctx); err != nil {
		return nil, err
	}
	return l.Lease.Heartbeat(ctx)
}

func (l *roadLease) Close(ctx context.Context) error {
	away := l.r.ask(ctx)
	if away != nil { // the store hears nothing; the driver ends its own
		gone, cancel := context.WithCancel(context.WithoutCancel(ctx))
		cancel()
		ctx = gone
	}
	if err := l.Lease.Close(ctx); err != nil {
		return err
	}
	return away
}

// sidecar is one sidecar with its roads.
type sidecar struct {
	*session.Space
	e       *env
	backend *Backend
	roads   []*road
	mu      sync.Mutex
	news    []News
}

// backend makes one store of those with these numbers, and gives the way to each.
func (e *env) backend(tell func(News), numbers ...int) (*Backend, []*road) {
	e.t.Helper()
	var list []Shard
	var roads []*road
	for _, i := range numbers {
		r := &road{visitor: &visitor{e.stores[i]}}
		if i > 0 && i == e.away {
			r.fault.Store(hangs)
		}
		roads = append(roads, r)
		b := arbiter.New(r, arbiter.Options{Turns: arbiter.MaxTurns, Park: time.Second, Clock: e.now})
		list = append(list, Shard{Name: string(rune('a' + i)), Backend: b})
	}
	b, err := New(list, Options{Clock: e.now, Tell: tell})
	if err != nil {
		e.t.Fatal(err)
	}
	return b, roads
}

// alone makes a store that is no shard.
func (e *env) alone(b lock.Backend, name string) lock.Backend {
	a := Alone(b, name)
	e.t.Cleanup(func() {
		if err := a.Close(); err != nil {
			e.t.Error(err)
		}
	})
	return a
}

func (e *env) now() time.Duration { return e.clock() + time.Duration(e.jump.Load()) }

// sidecar starts one with these stores as shards.
func (e *env) sidecar(numbers ...int) *sidecar {
	e.t.Helper()
	s := &sidecar{e: e}
	s.backend, s.roads = e.backend(func(n News) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.news = append(s.news, n)
	}, numbers...)
	m, err := session.New(session.Options{Backend: s.backend, TTL: e.ttl, Clock: e.now, Sidecar: "test"})
	if err != nil {
		e.t.Fatal(err)
	}
	s.Space = m.Everybody()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	e.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Errorf("Run = %v", err)
		}
	})
	synctest.Wait()
	return s
}

// app opens a session.
func (s *sidecar) app() *session.Session {
	s.e.t.Helper()
	a, err := s.Open(context.Background(), session.OpenRequest{Liveness: session.Stream, Name: "app", Peer: session.Peer{PID: 7, UID: 1000}})
	if err != nil {
		s.e.t.Fatal(err)
	}
	return a
}

// several are names that live at the shard with that number.
func (s *sidecar) several(number, n int) (names []string) {
	for i := 0; len(names) < n; i++ {
		if name := fmt.Sprintf("r%d", i); s.backend.pick(lock.Resource(name)) == number {
			names = append(names, name)
		}
	}
	return names
}

// named is a name that lives at the shard with that number.
func (s *sidecar) named(number int) string {
	return s.several(number, 1)[0]
}

func (s *sidecar) take(a *session.Session, name string) session.Grant {
	s.e.t.Helper()
	g, err := a.Acquire(context.Background(), session.AcquireRequest{Resource: name, Mode: lock.Exclusive, Wait: time.Minute})
	if err != nil {
		s.e.t.Fatalf("Acquire(%s) = %v", name, err)
	}
	return g
}

// lost gives the losses that a session is told of, as they come.
func lost(e *env, a *session.Session) <-chan session.Lost {
	all := make(chan session.Lost, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	r := a.Events()
	go func() {
		defer close(done)
		for {
			ev, err := r.Next(ctx)
			if err != nil {
				return
			}
			if ev.Lost != nil {
				all <- *ev.Lost
			}
		}
	}()
	e.t.Cleanup(func() { cancel(); <-done })
	return all
}
