package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestAgain: what a busy machine may cause fails a test only where it is so each time, and
// all else at once.
func TestAgain(t *testing.T) {
	unanswered := fmt.Errorf("acquire: %w", lock.ErrUnavailable)
	for what, test := range map[string]struct {
		fail     func(*env)
		attempts int // after which it is over, where only the first fails
	}{
		"no answer":                 {func(e *env) { e.Fatalf("Acquire: %v", unanswered) }, 2},
		"no answer of many":         {func(e *env) { e.several(100, func(int) error { return unanswered }) }, 2},
		"no answer under load":      {func(e *env) { e.load(loadTime, []*sidecar{nil}, 3, func(*sidecar, int) error { return unanswered }) }, 2},
		"no answer, and it goes on": {func(e *env) { e.Errorf("Acquire: %v", unanswered) }, 2},
		"too late":                  {func(e *env) { e.slow("it took long") }, 2},
		"no heartbeat": {func(e *env) {
			s := e.mortal()
			s.beating <- struct{}{} // the machine runs others
			time.Sleep(2 * s.ttl)
			<-s.beating
			e.acquire(s, e.name("r"), lock.Exclusive)
		}, 2},
		"no heartbeat for a hold": {func(e *env) {
			s := e.mortal()
			s.beating <- struct{}{}
			time.Sleep(2 * s.ttl)
			<-s.beating
			e.Fatalf("Release: %v", s.blame(lock.ErrNotHolder))
		}, 2},
		"a hold is lost":           {func(e *env) { e.Fatalf("Release: %v", e.mortal().blame(lock.ErrNotHolder)) }, 1},
		"a lease is lost":          {func(e *env) { e.Fatalf("Acquire: %v", e.mortal().blame(lock.ErrLeaseLost)) }, 1},
		"two holders":              {func(e *env) { e.Errorf("two holders") }, 1},
		"two holders beside":       {func(e *env) { e.Errorf("Acquire: %v", unanswered); e.Error("two holders") }, 1},
		"another error":            {func(e *env) { e.Fatalf("Acquire: %v", lock.ErrNotHolder) }, 1},
		"something is left behind": {func(e *env) { e.acquire(e.sidecar(), e.name("r"), lock.Exclusive) }, 1},
	} {
		t.Run(what, func(t *testing.T) {
			for _, always := range []bool{false, true} {
				attempts, ended := 0, 0
				failures := judgeThat(t, faults{}, conformance{name: "Again", run: func(e *env) {
					attempts++
					e.Cleanup(func() { ended++ })
					if attempts == 1 || always {
						test.fail(e)
					}
				}})
				want := test.attempts
				if always && want > 1 {
					want = maxAttempts
				}
				if fails := always || want == 1; attempts != want || ended != attempts || fails != (len(failures) > 0) {
					t.Errorf("each time: %t; %d attempts, %d ended, with the failures %q; want %d", always, attempts, ended, slices.Compact(failures), want)
				}
			}
		})
	}
}

// TestAgainForOwnTests: the same holds for tests of a store's own, which have tools of their own, and fail on any
// goroutine. What an attempt has started is over before the next one.
func TestAgainForOwnTests(t *testing.T) {
	tool := errors.New("what the test looks with has lost its connection")
	for what, c := range map[string]struct {
		err  error
		busy bool
	}{
		"no answer":              {fmt.Errorf("acquire: %w", lock.ErrUnavailable), true},
		"no answer to the test":  {fmt.Errorf("look: %w", tool), true},
		"a lease that starved":   {Busy(lock.ErrLeaseLost), true},
		"a lease is lost":        {lock.ErrLeaseLost, false},
		"what it says otherwise": {lock.ErrNotHolder, false},
	} {
		t.Run(what, func(t *testing.T) {
			for _, always := range []bool{false, true} {
				attempts, ended := 0, 0
				v := &verdict{TB: t}
				v.run(func() {
					Again(v, func(a testing.TB) {
						attempts++
						a.Cleanup(func() {
							if ended++; a.Context().Err() == nil {
								t.Error("its context goes on when it is over")
							}
						})
						if a.Context().Err() != nil || ended != attempts-1 {
							t.Error("the attempt before is not over")
						}
						if attempts == 1 || always {
							var beside sync.WaitGroup
							beside.Go(func() { a.Fatal(c.err) })
							beside.Wait()
						}
					}, tool)
				})
				v.end()
				want, fails := 1, always || !c.busy
				if c.busy {
					want = 2
					if always {
						want = maxAttempts
					}
				}
				if attempts != want || ended != attempts || fails != (len(v.failures) > 0) {
					t.Errorf("each time: %t; %d attempts, %d ended, with the failures %q; want %d", always, attempts, ended, v.failures, want)
				}
			}
		})
	}
}

// lostLease is a lease that is lost, but for its heartbeats if they are good.
type lostLease struct {
	lock.Lease
	beats bool
}

func (l *lostLease) Heartbeat(context.Context) ([]lock.Event, error) {
	if l.beats {
		return nil, nil
	}
	return nil, lock.ErrLeaseLost
}

func (*lostLease) Acquire(context.Context, lock.Request) (lock.Grant, error) {
	return lock.Grant{}, lock.ErrLeaseLost
}

func (*lostLease) Release(context.Context, lock.Resource, lock.HoldID) error {
	return lock.ErrLeaseLost
}

func (*lostLease) Downgrade(context.Context, lock.Resource, lock.HoldID) error {
	return lock.ErrLeaseLost
}

// TestTimedLease: that a lease is lost is no fault only where it had no good heartbeat for its TTL.
func TestTimedLease(t *testing.T) {
	const ttl = time.Hour
	for what, c := range map[string]struct {
		opened time.Duration // so long ago
		beats  bool          // now
		busy   bool
	}{
		"in its TTL":                    {0, false, false},
		"renewed in its TTL":            {ttl / 2, true, false},
		"never renewed":                 {ttl, false, true},
		"renewed when its TTL was over": {ttl, true, true},
	} {
		inner := &lostLease{beats: c.beats}
		l := Timed(inner, ttl, lock.BootTime()-c.opened)
		if _, err := l.Heartbeat(t.Context()); (err == nil) != c.beats {
			t.Errorf("%s: Heartbeat: %v", what, err)
		}
		inner.beats = false
		_, beaten := l.Heartbeat(t.Context())
		_, acquired := l.Acquire(t.Context(), lock.Request{})
		for call, err := range map[string]error{
			"Heartbeat": beaten, "Acquire": acquired, "Release": l.Release(t.Context(), "r", "id"), "Downgrade": l.Downgrade(t.Context(), "r", "id"),
		} {
			if !errors.Is(err, lock.ErrLeaseLost) || errors.As(err, new(busyError)) != c.busy {
				t.Errorf("%s: %s: %v, busy must be %t", what, call, err, c.busy)
			}
		}
	}
}
