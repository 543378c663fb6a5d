package session

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestCallEndsByStopAlone: the ctx of a request to the store has the values of the app's call
// and not its end. What was made of it ends with it, without a goroutine that waits for that.
func TestCallEndsByStopAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		app, gone := context.WithTimeout(context.WithValue(t.Context(), key{}, "kept"), time.Minute)
		c := &call{values: app}
		if _, bounded := c.Deadline(); bounded || c.Value(key{}) != "kept" {
			t.Errorf("it has a deadline: %v, and the value %v", bounded, c.Value(key{}))
		}
		gone()
		early, stop := context.WithTimeout(c, time.Hour)
		defer stop()
		if c.Err() != nil || early.Err() != nil {
			t.Fatalf("it has ended with the app's call: %v, %v", c.Err(), early.Err())
		}
		c.Stop()
		late, stop := context.WithCancel(c)
		defer stop()
		for name, ctx := range map[string]context.Context{"the call": c, "one made before": early, "one made after": late} {
			select {
			case <-ctx.Done():
			default:
				t.Errorf("%s has not ended", name)
			}
			if err := context.Cause(ctx); err != context.Canceled { //nolint:errorlint // not wrapped
				t.Errorf("%s has ended by %v", name, err)
			}
		}
		if c.Value(key{}) != "kept" {
			t.Error("its value is lost with its end")
		}
	})
}

// TestCallsSayForWhom: whatever an app asks of the store, its session is told with it, so that a driver can let sessions take turns.
func TestCallsSayForWhom(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		calls := 0
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			if from := lock.From(ctx); from != any(s) {
				t.Errorf("a call is made for %v", from)
			}
			calls++
			return do(ctx)
		}, opAcquire, opDowngrade, opRelease, opDetach)
		g := must(t, s, exclusive)
		_, err := s.Downgrade(t.Context(), g.LockID)
		isErr(t, err, nil)
		_, err = s.Release(t.Context(), g.LockID, "")
		isErr(t, err, nil)
		take(t, s, time.Minute)
		if calls != 5 {
			t.Errorf("%d calls", calls)
		}
	})
}

// TestReleasesInTheBackgroundSayForWhom: so does what a session that has ended has left.
func TestReleasesInTheBackgroundSayForWhom(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		var mu sync.Mutex
		whose := map[any]int{}
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			mu.Lock()
			whose[lock.From(ctx)]++
			mu.Unlock()
			return do(ctx)
		}, opRelease)
		for i := range 2 {
			s := sc.session()
			for n := range 3 {
				r := exclusive
				r.Resource = strconv.Itoa(i) + strconv.Itoa(n)
				must(t, s, r)
			}
			s.Close()
		}
		synctest.Wait()
		if whose[nil] != 0 || len(whose) != 2 {
			t.Errorf("they are made for %v", whose)
		}
	})
}
