package session

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/arbiter"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// TestWaitersHaveNoGoroutines: a request that waits, in the sidecar or in the store, has none,
// whatever it waits for, and each ends as it should.
func TestWaitersHaveNoGoroutines(t *testing.T) {
	for name, c := range map[string]struct {
		turns int
		owner string        // has a lock, so the sidecar looks into its waits
		once  *outcome.Wish // it is done once
	}{
		"in the store":                  {0, "", nil},
		"in the arbiter":                {16, "", nil},
		"of one who holds something":    {16, "worker", nil},
		"in the store, to do it once":   {0, "", &outcome.Wish{Keep: time.Hour}},
		"in the arbiter, to do it once": {16, "", &outcome.Wish{Keep: time.Hour}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(func(o *Options) {
					o.Backend = arbiter.New(e.store, arbiter.Options{Turns: c.turns, Clock: e.base})
				})
				s, holder := sc.session(), sc.session()
				g := must(t, holder, exclusive)
				if c.owner != "" {
					must(t, s, AcquireRequest{Resource: "other", Mode: lock.Exclusive, Owner: c.owner})
				}
				synctest.Wait()
				before := runtime.NumGoroutine()
				const waiters = DefaultWaitersPerSession
				answers := make([]error, waiters)
				grants := make(chan Grant, 1)
				var answered atomic.Int32
				var all []*Request
				for i := range waiters {
					r := exclusive
					r.Owner, r.Once = c.owner, c.once
					if i == 1 {
						r.Wait = 10 * time.Second
					}
					q := s.Begin(context.Background(), r, func(g Grant, err error) {
						if answers[i] = err; err != nil {
							answered.Add(1)
							return
						}
						grants <- g
					})
					go q.Run() // it returns at once
					all = append(all, q)
				}
				synctest.Wait()
				// The pool keeps up to 128 that have nothing to do: how many there are depends on how busy the machine is.
				if more := runtime.NumGoroutine() - before; more > 128+1 || answered.Load() != 0 {
					t.Errorf("%d waiters: %d more goroutines, %d answered", waiters, more, answered.Load())
				}
				if _, waits := e.holders("r"); c.turns == 0 && waits != waiters {
					t.Errorf("%d wait in the store", waits)
				}
				time.Sleep(20 * time.Second) // they have asked again, and a wait is over
				synctest.Wait()
				if more := runtime.NumGoroutine() - before; more > 2*128+1 { // those that the pool keeps, and one that looks for deadlocks
					t.Errorf("later %d more goroutines", more)
				}
				isErr(t, answers[1], context.DeadlineExceeded)
				all[0].GiveUp()
				synctest.Wait()
				isErr(t, answers[0], context.Canceled)
				if n := answered.Load(); n != 2 {
					t.Errorf("%d answered", n)
				}
				for i := range 3 {
					if _, err := holder.Release(context.Background(), g.LockID, ""); err != nil {
						t.Fatal(err)
					}
					last := g.Fence
					g, holder = <-grants, s
					if g.Fence <= last {
						t.Errorf("fence %d after %d", g.Fence, last)
					}
					if c.once != nil && (g.Attempt == nil || g.Attempt.Number != i+1) {
						t.Errorf("attempt %d: %+v", i+1, g.Attempt)
					}
				}
				s.Close()
				synctest.Wait()
				closed := 0
				for _, err := range answers {
					if errors.Is(err, ErrSessionClosed) {
						closed++
					}
				}
				if n := answered.Load(); n != waiters-3 || closed != waiters-5 {
					t.Errorf("%d answered, %d of them that the session is closed", n, closed)
				}
				e.free()
			})
		})
	}
}

// A bell that rings at each moment of a request, too often, and after its end, does no harm.
func TestBellRingsAtAnyTime(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var bells []lock.Bell
		sc := e.sidecar(func(o *Options) {
			o.Backend = bellringer{o.Backend, func(b lock.Bell) { bells = append(bells, b) }}
		})
		s := sc.session()
		g := must(t, s, exclusive)
		p := beginAsync(s, exclusive)
		for range 3 {
			for _, b := range bells {
				b.Ring()
			}
			if p.over() {
				t.Fatal("it does not wait")
			}
		}
		_, err := s.Release(context.Background(), g.LockID, "")
		isErr(t, err, nil)
		_, err = p.wait()
		isErr(t, err, nil)
		for _, b := range bells {
			b.Ring()
		}
		synctest.Wait()
		s.Close()
		e.free()
	})
}

// What comes between the moment from which a request waits and the end of its Acquire is not missed.
func TestGrantedBeforeItRests(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		var between func()
		sc := e.sidecar(func(o *Options) { o.Backend = hasty{o.Backend, &between} })
		s := sc.session()
		g := must(t, s, exclusive)
		between = func() {
			_, err := s.Release(context.Background(), g.LockID, "")
			isErr(t, err, nil)
		}
		p := beginAsync(s, exclusive)
		if !p.over() {
			t.Error("it waits")
		}
		isErr(t, p.err, nil)
		s.Close()
	})
}

// hasty is a store where something happens before who has to wait knows it.
type hasty struct {
	lock.Backend
	then *func()
}

func (b hasty) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &hastyLease{l, b.then}, err
}

type hastyLease struct {
	lock.Lease
	then *func()
}

func (l *hastyLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	g, err := l.Lease.Acquire(ctx, q)
	if errors.Is(err, lock.ErrWaiting) {
		(*l.then)()
	}
	return g, err
}

// bellringer is a store that rings each bell before and after it is asked, and tells of it.
type bellringer struct {
	lock.Backend
	tell func(lock.Bell)
}

func (b bellringer) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Backend.OpenLease(ctx, o)
	return &ringingLease{Lease: l, tell: b.tell}, err
}

type ringingLease struct {
	lock.Lease
	tell func(lock.Bell)
	asks int
}

func (l *ringingLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if l.asks++; l.asks > 10 { // else it would never rest
		return l.Lease.Acquire(ctx, q)
	}
	l.tell(q.Bell)
	q.Bell.Ring()
	g, err := l.Lease.Acquire(ctx, q)
	q.Bell.Ring()
	return g, err
}
