package session

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The requests of a session for one lock reach the store in the order in which they came, however long
// each is on the way; also those that are asked for again on the next lease.
func TestRequestsReachTheStoreInOrder(t *testing.T) {
	for name, fails := range map[string]bool{"OneLease": false, "NextLease": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				other := e.sidecar().session()
				sc := e.sidecar()
				s := sc.session()
				has := must(t, other, exclusive)
				sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
					time.Sleep(rand.N(10 * time.Millisecond))
					return do(ctx)
				}, opAcquire)
				const many = 20
				var mu sync.Mutex
				var order []int
				var all sync.WaitGroup
				for i := range many {
					all.Add(1)
					go s.Begin(context.Background(), exclusive, func(g Grant, err error) {
						defer all.Done()
						isErr(t, err, nil)
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
						_, err = s.Release(context.Background(), g.LockID, "")
						isErr(t, err, nil)
					}).Run()
				}
				time.Sleep(time.Second)
				if fails {
					sc.way.on(down, opHeartbeat)
					time.Sleep(20 * time.Second)
					sc.way.on(nil, opHeartbeat)
					time.Sleep(20 * time.Second)
				}
				_, err := other.Release(context.Background(), has.LockID, "")
				isErr(t, err, nil)
				all.Wait()
				if !slices.IsSorted(order) || len(order) != many {
					t.Errorf("they were served as %v", order)
				}
			})
		})
	}
}

// A request that is stuck on its way to the store holds up those behind it for the same lock, and no
// others. When its wait is over, they go on.
func TestStuckRequestHoldsUpItsLockOnly(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		sc.way.on(once(func(context.Context, func(context.Context) error) error {
			time.Sleep(stuckFor)
			return lock.ErrUnavailable
		}), opAcquire)
		first := exclusive
		first.Wait = 5 * time.Second
		stuck, behind := beginAsync(s, first), beginAsync(s, exclusive)
		elsewhere := exclusive
		elsewhere.Resource = "elsewhere"
		if free := beginAsync(s, elsewhere); !free.over() || free.err != nil {
			t.Errorf("a request for another lock: %v", free.err)
		}
		if stuck.over() || behind.over() {
			t.Error("one was answered before the store was asked")
		}
		time.Sleep(6 * time.Second)
		if !stuck.over() || stuck.err == nil {
			t.Error("the one that is stuck waits on")
		}
		if !behind.over() {
			t.Error("the one behind it waits on")
		}
		isErr(t, behind.err, nil)
		s.Close()
		time.Sleep(stuckFor)
	})
}

// A try comes after the release that was announced before it, and finds the lock free.
func TestTryFollowsTheRelease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			time.Sleep(time.Second)
			return do(ctx)
		}, opRelease)
		done := Announce(s, g.LockID)
		go func() {
			defer done()
			_, err := s.Release(context.Background(), g.LockID, "")
			isErr(t, err, nil)
		}()
		try := exclusive
		try.Wait = 0
		p := beginAsync(s, try)
		if p.over() {
			t.Errorf("the try has overtaken the release: %v", p.err)
		}
		_, err := p.wait()
		isErr(t, err, nil)
		s.Close()
	})
}

// A try comes after what was given up before it, wherever that was: it finds nothing that the app does not have,
// and has not asked for, any more.
func TestTryFollowsWhatIsGivenUp(t *testing.T) {
	slow := func(ctx context.Context, do func(context.Context) error) error {
		time.Sleep(500 * time.Millisecond)
		return do(ctx)
	}
	for name, giveUp := range map[string]func(t *testing.T, e *env, sc *sidecar, s *Session){
		"Waiter": func(t *testing.T, _ *env, sc *sidecar, s *Session) {
			g := must(t, s, exclusive)
			w := beginAsync(s, exclusive)
			sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
				if ctx.Err() != nil {
					time.Sleep(500 * time.Millisecond) // the store has the request still
				}
				return do(ctx)
			}, opAcquire)
			w.cancel()
			_, err := s.Release(context.Background(), g.LockID, "")
			isErr(t, err, nil)
		},
		"Granted": func(t *testing.T, _ *env, sc *sidecar, s *Session) {
			sc.way.on(once(func(ctx context.Context, do func(context.Context) error) error {
				err := do(context.WithoutCancel(ctx))
				time.Sleep(500 * time.Millisecond) // the answer is on its way
				return err
			}), opAcquire)
			sc.way.on(slow, opRelease)
			w := beginAsync(s, exclusive)
			w.cancel()
		},
		"Several": func(t *testing.T, e *env, sc *sidecar, s *Session) {
			must(t, e.sidecar().session(), named("s"))
			w := beginAsync(s, AcquireRequest{Resources: []string{"r", "s"}, Mode: lock.Exclusive, Wait: Forever})
			sc.way.on(slow, opRelease)
			w.cancel()
		},
		"Cancelled": func(t *testing.T, _ *env, sc *sidecar, s *Session) {
			sc.way.on(slow, opAcquire)
			first := exclusive
			first.RequestID = "1"
			beginAsync(s, first)
			isErr(t, s.Cancel(context.Background(), "1"), nil)
			sc.way.on(nil, opAcquire)
		},
		"Lost": func(t *testing.T, _ *env, sc *sidecar, s *Session) {
			short := exclusive
			short.MaxHold = time.Second
			g := must(t, s, short)
			time.Sleep(1500 * time.Millisecond)
			sc.way.on(slow, opRelease)
			_, err := s.Release(context.Background(), g.LockID, "")
			isLost(t, err, MaxHold)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				giveUp(t, e, sc, s)
				try := exclusive
				try.Wait = 0
				p := beginAsync(s, try)
				_, err := p.wait()
				isErr(t, err, nil)
				s.mu.Lock()
				if s.lanes.only != nil || s.lanes.rest != nil {
					t.Errorf("in the lanes: %v, %v", s.lanes.only, s.lanes.rest)
				}
				s.mu.Unlock()
				s.Close()
			})
		})
	}
}

// A try that is written behind the release of a lost lock finds it free, also where it comes to the session first:
// over gRPC each request has a goroutine of its own.
func TestTryFollowsTheReleaseOfALoss(t *testing.T) {
	for name, r := range map[string]AcquireRequest{"One": exclusive, "Several": several("r", "s")} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				r.MaxHold = time.Second
				g := must(t, s, r)
				time.Sleep(1500 * time.Millisecond)
				done := Announce(s, g.LockID)
				p := beginAsync(s, try(exclusive))
				synctest.Wait()
				if p.over() {
					t.Errorf("answered before the release: %v", p.err)
				}
				_, err := s.Release(context.Background(), g.LockID, "")
				isLost(t, err, MaxHold)
				done()
				_, err = p.wait()
				isErr(t, err, nil)
				s.Close()
			})
		})
	}
}

// What is given up and not answered holds up a try for a second, as long as it is tried for the first time, and no
// longer.
func TestTryBehindWhatIsNotAnswered(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		short := exclusive
		short.MaxHold = time.Second
		g := must(t, s, short)
		time.Sleep(1500 * time.Millisecond)
		sc.way.on(func(ctx context.Context, _ func(context.Context) error) error {
			<-ctx.Done()
			return lock.ErrUnavailable
		}, opRelease)
		_, err := s.Release(context.Background(), g.LockID, "")
		isLost(t, err, MaxHold)
		try := exclusive
		try.Wait = 0
		began := e.now()
		_, err = s.Acquire(context.Background(), try)
		isErr(t, err, lock.ErrHeld)
		if took := e.now() - began; took > firstTimeout {
			t.Errorf("the try took %s", took)
		}
		sc.way.on(nil, opRelease)
		s.Close()
	})
}

// A try whose time is over before the store was asked, as what was given up before it is not answered, does not
// say that a wait is over: it has none.
func TestTryThatIsAskedTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		sc.way.on(once(func(ctx context.Context, do func(context.Context) error) error {
			err := do(ctx)
			time.Sleep(tryLimit + time.Second) // a proxy has the answer
			return err
		}), opAcquire)
		beginAsync(s, exclusive).cancel()
		try := exclusive
		try.Wait = 0
		q := newRequest(context.Background(), s, try, nil)
		go q.ask.run()
		time.Sleep(tryLimit + 2*time.Second) // the caller runs late, and finds what became of its request
		q.wait(context.Background())
		_, err := q.answer()
		if !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrHeld) {
			t.Errorf("error = %v", err)
		}
		s.Close()
	})
}
