package session

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
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
