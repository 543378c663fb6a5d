package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// counting is a dialect that counts statements, by the request that they are part of.
type counting struct {
	*Dialect
	mu   sync.Mutex
	sent map[string]int
}

func (c *counting) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	p, err := c.Dialect.Open(o)
	return countingPool{p, c}, err
}

func (c *counting) add(command string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent[command] += n
}

// since gives what was sent since the last call.
func (c *counting) since() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	sent := c.sent
	c.sent = make(map[string]int)
	return sent
}

type countingPool struct {
	sqllock.Pool
	c *counting
}

func (p countingPool) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	p.c.add(command, len(batch))
	return p.Pool.Do(ctx, command, batch...)
}

func (p countingPool) Conn(ctx context.Context) (sqllock.Conn, error) {
	c, err := p.Pool.Conn(ctx)
	return countingConn{c, p.c}, err
}

type countingConn struct {
	sqllock.Conn
	c *counting
}

func (k countingConn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	k.c.add(command, len(batch))
	return k.Conn.Do(ctx, command, batch...)
}

// arbitrated opens a lease with an arbiter on a backend of a test's own prefix. nil: there
// is no arbiter.
func arbitrated(t testing.TB, d sqllock.Dialect, o sqllock.Options, a *arbiter.Options) (lock.Lease, *arbiter.Backend) {
	t.Helper()
	o.Migrate, o.FailoverGrace = true, -1
	store, err := sqllock.Open(d, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	var b lock.Backend = store
	arb := (*arbiter.Backend)(nil)
	if a != nil {
		arb = arbiter.New(store, *a)
		b = arb
	}
	var l lock.Lease
	eventually(t, "a lease is opened", func() (err error) {
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute, Sidecar: t.Name()})
		return err
	})
	read := make(chan struct{})
	go func() {
		defer close(read)
		for range l.Events() {
		}
	}()
	t.Cleanup(func() {
		_ = l.Close(context.Background())
		<-read
	})
	return l, arb
}

// always hands on and parks, however long the test takes.
var always = arbiter.Options{Turns: arbiter.MaxTurns, Park: time.Hour, Clock: func() time.Duration { return time.Hour }}

// A lock that nobody else wants, and a heartbeat, cost what they have cost without
// arbiters, where there is none and where each grant has a guard.
func TestCohortsCostOthersNothing(t *testing.T) {
	inEachKind(t, func(t *testing.T, s testengine.Server) {
		for name, a := range map[string]*arbiter.Options{"no arbiter": nil, "guards": &always} {
			t.Run(name, func(t *testing.T) {
				c := &counting{Dialect: New(mustParse(t, own(t, s, "cost_")), nil), sent: make(map[string]int)}
				l, _ := arbitrated(t, c, sqllock.Options{}, a)
				r := unique("cost")
				if err := l.Release(t.Context(), r, hold(t, l, r).ID); err != nil { // the first time a row is made
					t.Fatal(err)
				}
				c.since()
				if err := l.Release(t.Context(), r, hold(t, l, r).ID); err != nil {
					t.Fatal(err)
				}
				if _, err := l.Heartbeat(t.Context()); err != nil {
					t.Fatal(err)
				}
				sent := c.since()
				for command, want := range map[string]int{"acquire": 1, "release": 1, "heartbeat": 3, "ring": 0, "describe": 0} {
					if sent[command] != want {
						t.Errorf("%d statements of %s, want %d", sent[command], command, want)
					}
				}
			})
		}
	})
}

// Where grants have guards the arbiter neither hands on nor parks; without them it
// does, and gives out no guard.
func TestGuardsAreNotHandedOn(t *testing.T) {
	inEachKind(t, func(t *testing.T, s testengine.Server) {
		for _, c := range []struct {
			url    string
			wish   lock.GuardWish
			guards bool
		}{
			{"", lock.UsualGuard, true},
			{"guard=true", lock.UsualGuard, true},
			{"", lock.WithoutGuard, false},
			{"guard=false", lock.UsualGuard, false},
			{"guard=false", lock.WithGuard, true},
		} {
			t.Run(fmt.Sprintf("URL %s, wish %d", c.url, c.wish), func(t *testing.T) {
				cfg := mustParse(t, with(own(t, s, "handed_"), c.url))
				l, arb := arbitrated(t, New(cfg, nil), sqllock.OptionsOf(cfg.SQL), &always)
				r := unique("guard")
				ask := func(ctx context.Context) (lock.Grant, error) {
					q := exclusive(r)
					q.Guard = c.wish
					return l.Acquire(ctx, q)
				}
				var last lock.Fence
				check := func(g lock.Grant, err error) lock.Grant {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
					if (g.Guard != nil) != c.guards || g.Fence <= last {
						t.Errorf("%+v after fence %d; want a guard: %t", g, last, c.guards)
					}
					last = g.Fence
					return g
				}
				type answer struct {
					g   lock.Grant
					err error
				}
				for range 3 { // again, and to one who waits
					g := check(ask(t.Context()))
					next := make(chan answer, 1)
					go func() {
						g, err := ask(context.WithoutCancel(t.Context()))
						next <- answer{g, err}
					}()
					eventually(t, "it waits", func() error {
						st, err := arb.Get(t.Context(), r)
						if err == nil && len(st.Waiters) != 1 {
							err = fmt.Errorf("%+v", st)
						}
						return err
					})
					if err := l.Release(t.Context(), r, g.ID); err != nil {
						t.Fatal(err)
					}
					a := <-next
					if err := l.Release(t.Context(), r, check(a.g, a.err).ID); err != nil {
						t.Fatal(err)
					}
				}
				want := arbiter.Stats{Saved: 4, Parked: 1} // the first time nothing is parked
				if c.guards {
					want = arbiter.Stats{}
				}
				if got := arb.Stats(); got != want {
					t.Errorf("the arbiter: %+v, want %+v", got, want)
				}
			})
		}
	})
}

// several is a cohort that leaves with its request.
type several struct{}

func (several) Stay() bool { return false }

// A bell says that somebody stands behind a hold, or behind a waiter; where it is lost, a
// heartbeat does.
func TestWhoStandsBehindIsTold(t *testing.T) {
	inEachKind(t, func(t *testing.T, s testengine.Server) {
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
			t.Run("bell, "+m.String(), func(t *testing.T) { standsBehind(t, s, m, false) })
			t.Run("heartbeat, "+m.String(), func(t *testing.T) { standsBehind(t, s, m, true) })
		}
	})
}

// unheard is a dialect whose bells nobody hears.
type unheard struct{ sqllock.Dialect }

func (unheard) Listen(ctx context.Context, _ lock.LeaseID, _ string, _ func()) error {
	<-ctx.Done()
	return nil
}

func standsBehind(t testing.TB, s testengine.Server, m lock.Mode, deaf bool) {
	var d sqllock.Dialect = New(mustParse(t, s.URL()), nil)
	if deaf {
		d = unheard{d}
	}
	b, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.Background()) })
	_, other := sidecar(t, s.URL(), time.Minute)
	r := unique("behind")
	first := exclusive(r)
	first.Mode, first.Cohort = m, several{}
	if _, err := l.Acquire(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	waits.Go(func() { _, _ = other.Acquire(ctx, exclusive(r)) })
	told := func(id lock.HoldID) {
		t.Helper()
		eventually(t, "it is told", func() error {
			if deaf {
				if _, err := l.Heartbeat(t.Context()); err != nil {
					return err
				}
			}
			select {
			case e := <-l.Events():
				if e.Kind != lock.Contended || e.ID != id || e.Resource != r {
					t.Fatalf("told %+v, want that somebody stands behind %s", e, id)
				}
				return nil
			case <-time.After(50 * time.Millisecond):
				return context.DeadlineExceeded
			}
		})
	}
	told(first.ID)
	second := exclusive(r)
	second.Cohort = several{}
	waits.Go(func() { _, _ = l.Acquire(ctx, second) })
	eventually(t, "it waits", func() error {
		st, err := b.Get(t.Context(), r)
		if err == nil && len(st.Waiters) != 2 {
			err = fmt.Errorf("%+v", st)
		}
		return err
	})
	waits.Go(func() { _, _ = other.Acquire(ctx, exclusive(r)) })
	told(second.ID)
	cancel()
	waits.Wait()
	if err := l.Release(t.Context(), r, first.ID); err != nil {
		t.Error(err)
	}
}

// Who has left the queue was there: a heartbeat tells it, also when the bell was lost and the hold was
// described since. So a try, which leaves soon, finds what is parked free the next time.
func TestWhoHasStoodBehindIsTold(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, err := sqllock.Open(unheard{New(mustParse(t, patient(s.URL())), nil)}, sqllock.Options{Migrate: true, FailoverGrace: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		_, other := sidecar(t, s.URL(), time.Minute)
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
			q := exclusive(unique("stood"))
			q.Mode, q.Cohort = m, several{}
			if _, err := l.Acquire(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			try := exclusive(q.Resource)
			try.Try = true
			if _, err := other.Acquire(t.Context(), try); !errors.Is(err, lock.ErrHeld) {
				t.Fatalf("a try: %v", err)
			}
			if err := l.(lock.Contender).Describe(t.Context(), q.Resource, q.ID, lock.Owner{PID: 7}.Encode()); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Heartbeat(t.Context()); err != nil {
				t.Fatal(err)
			}
			select {
			case e := <-l.Events():
				if e.Kind != lock.Contended || e.ID != q.ID {
					t.Errorf("told %+v", e)
				}
			case <-time.After(patience):
				t.Errorf("%s: nobody was told", m)
			}
			if st, err := b.Get(t.Context(), q.Resource); err != nil || len(st.Holders) != 1 || len(st.Waiters) != 0 || st.Holders[0].Owner.PID != 7 || !st.Holders[0].Cohort {
				t.Errorf("%+v, %v", st, err)
			}
			if err := l.Release(t.Context(), q.Resource, q.ID); err != nil {
				t.Error(err)
			}
		}
	})
}

// What a list says of a hold that was handed on stands there also where readers share it.
func TestDescribe(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), time.Minute)
		tells := l.(*backendtest.TimedLease).Lease.(lock.Contender)
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
			q := exclusive(unique("describe"))
			q.Mode, q.Cohort = m, several{}
			if _, err := l.Acquire(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := tells.Describe(t.Context(), q.Resource, q.ID, lock.Owner{PID: 7}.Encode()); err != nil {
					t.Error(err)
				}
			}
			if st, err := b.Get(t.Context(), q.Resource); err != nil || len(st.Holders) != 1 || st.Holders[0].Owner.PID != 7 || !st.Holders[0].Cohort {
				t.Errorf("%+v, %v", st, err)
			}
			if err := l.Release(t.Context(), q.Resource, q.ID); err != nil {
				t.Fatal(err)
			}
			if err := tells.Describe(t.Context(), q.Resource, q.ID, ""); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("Describe of what is released: %v", err)
			}
		}
	})
}
