package session

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Watches of one prefix cost the store what one costs, whatever their number and
// their intervals, and each sees every change.
func TestWatchesShareLooks(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		must(t, sc.session(), named("a"))
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		saw := make(map[int]int) // changes of "b", by watch
		var watches sync.WaitGroup
		for i := range 50 {
			watches.Go(func() {
				err := sc.Watch(ctx, "", time.Duration(1+i%3)*minWatchInterval, func(ev WatchEvent) error {
					if ev.Kind == Changed && ev.Status.Resource == "b" {
						mu.Lock()
						defer mu.Unlock()
						saw[i]++
					}
					return nil
				})
				isErr(t, err, context.Canceled)
			})
			time.Sleep(7 * time.Millisecond) // they do not begin together
		}
		before := sc.way.count(opList)
		must(t, sc.session(), named("b"))
		time.Sleep(10 * time.Second)
		if n := sc.way.count(opList) - before; n < 90 || n > 101 {
			t.Errorf("%d looks in 10s, want one each %v", n, minWatchInterval)
		}
		cancel()
		watches.Wait()
		for i := range 50 {
			if saw[i] != 1 {
				t.Errorf("watch %d saw %d changes", i, saw[i])
			}
		}
		if len(sc.looks.of) != 0 {
			t.Error("a prefix is left")
		}
	})
}

// A store that takes long to list is not asked all the time.
func TestLongLooksRest(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			time.Sleep(time.Second)
			return do(ctx)
		}, opList)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		isErr(t, sc.Watch(ctx, "", minWatchInterval, func(WatchEvent) error { return nil }), context.DeadlineExceeded)
		if n := sc.way.count(opList); n < 14 || n > 16 {
			t.Errorf("%d looks of 1s in a minute", n)
		}
	})
}

// A watch that gives up during its look does not take that of the others along,
// and an error of the store is everybody's.
func TestLookOutlivesItsWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		must(t, sc.session(), named("a"))
		sc.way.on(once(hang), opList)
		synced := errors.New("synced")
		watch := func(ctx context.Context) error {
			return sc.Watch(ctx, "", 0, func(ev WatchEvent) error {
				if ev.Kind == Synced {
					return synced
				}
				return nil
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- watch(ctx) }()
		synctest.Wait()
		go func() { second <- watch(t.Context()) }()
		synctest.Wait()
		cancel()
		isErr(t, <-first, context.Canceled)
		isErr(t, <-second, synced)
		sc.way.on(down, opList)
		isErr(t, watch(t.Context()), lock.ErrUnavailable)
	})
}

// TestSame: a watch tells of each change of a hold but its age.
func TestSame(t *testing.T) {
	base := func() lock.Status {
		return lock.Status{
			Holders: []lock.Holding{{ID: "a", Mode: lock.Exclusive, Fence: 7, Age: time.Second}},
			Waiters: []lock.Holding{{ID: "b", Mode: lock.Shared}},
		}
	}
	for name, c := range map[string]struct {
		change func(*lock.Status)
		same   bool
	}{
		"nothing":        {func(*lock.Status) {}, true},
		"age":            {func(st *lock.Status) { st.Holders[0].Age++ }, true},
		"holder":         {func(st *lock.Status) { st.Holders[0].ID = "c" }, false},
		"mode":           {func(st *lock.Status) { st.Holders[0].Mode = lock.Shared }, false},
		"fence":          {func(st *lock.Status) { st.Holders[0].Fence++ }, false},
		"revoked":        {func(st *lock.Status) { st.Holders[0].Revoked = true }, false},
		"one holder":     {func(st *lock.Status) { st.Holders = append(st.Holders, lock.Holding{ID: "c"}) }, false},
		"waiter":         {func(st *lock.Status) { st.Waiters[0].ID = "c" }, false},
		"mode of waiter": {func(st *lock.Status) { st.Waiters[0].Mode = lock.Exclusive }, false},
		"no waiter":      {func(st *lock.Status) { st.Waiters = nil }, false},
	} {
		st := base()
		c.change(&st)
		if got := same(base(), st); got != c.same {
			t.Errorf("%s: same %v", name, got)
		}
	}
}
