package session

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestTheStoreDoesNotAnswerTheLastGoodbye: the sidecar waits for it five seconds, and
// not longer.
func TestTheStoreDoesNotAnswerTheLastGoodbye(t *testing.T) {
	for name, c := range map[string]struct {
		close fault
		want  time.Duration
	}{
		"at once":    {nil, 0},
		"late":       {after(4 * time.Second), 4 * time.Second},
		"not at all": {hang, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				sc.way.on(c.close, opClose)
				if err := sc.stop(); err != nil {
					t.Error(err)
				}
				if e.now() != c.want {
					t.Errorf("it took %v, want %v", e.now(), c.want)
				}
			})
		})
	}
}

// after: the store does it so much later, unless ctx ends before.
func after(d time.Duration) fault {
	return func(ctx context.Context, do func(context.Context) error) error {
		select {
		case <-time.After(d):
			return do(ctx)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, ctx.Err())
		}
	}
}

// TestNoNewsOfALeaseWithoutHolds: an app that has let go is not told how long its holds
// are valid.
func TestNoNewsOfALeaseWithoutHolds(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		r := s.Events()
		time.Sleep(4 * time.Second) // a heartbeat
		if _, err := s.Release(t.Context(), g.LockID, ""); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if ev, err := r.Next(ctx); err == nil {
			t.Errorf("told of %+v", ev)
		}
	})
}

// TestLooksAtTheSameTime are four, whatever the number of prefixes.
func TestLooksAtTheSameTime(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		var flying atomic.Int32
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			flying.Add(1)
			defer flying.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}, opList)
		ctx, cancel := context.WithCancelCause(t.Context())
		ends := make(chan error, 10)
		for i := range 10 {
			go func() {
				ends <- sc.Watch(ctx, fmt.Sprint(i), 0, func(WatchEvent) error { return nil })
			}()
		}
		synctest.Wait()
		if n := flying.Load(); n != 4 {
			t.Errorf("%d looks at the same time, want 4", n)
		}
		enough := errors.New("enough")
		cancel(enough)
		for range 10 { // four that look, and six that wait for their turn
			isErr(t, <-ends, enough)
		}
	})
}

// TestAWatchThatWaitsForTheLookOfAnother ends with its own ctx.
func TestAWatchThatWaitsForTheLookOfAnother(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		sc.way.on(after(time.Minute), opList)
		watch := func() (context.CancelCauseFunc, <-chan error) {
			ctx, cancel := context.WithCancelCause(t.Context())
			end := make(chan error, 1)
			go func() { end <- sc.Watch(ctx, "", 0, func(WatchEvent) error { return nil }) }()
			synctest.Wait()
			return cancel, end
		}
		stopLooking, looking := watch()
		stopWaiting, waiting := watch()
		enough, stop := errors.New("enough"), errors.New("stop")
		stopWaiting(enough)
		isErr(t, <-waiting, enough)
		if e.now() != 0 {
			t.Errorf("it ended at %v", e.now())
		}
		time.Sleep(time.Second)
		stopLooking(stop)
		isErr(t, <-looking, stop)
		if e.now() != time.Second {
			t.Errorf("the other one ended at %v", e.now())
		}
	})
}

// TestARestEndsWithTheWatch: a watch that rests after a long look ends with its ctx, too.
func TestARestEndsWithTheWatch(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		sc.way.on(after(10*time.Second), opList)
		ctx, cancel := context.WithCancelCause(t.Context())
		end := make(chan error, 1)
		go func() { end <- sc.Watch(ctx, "", 0, func(WatchEvent) error { return nil }) }()
		time.Sleep(11500 * time.Millisecond) // the look has ended after 10s
		stop := errors.New("stop")
		cancel(stop)
		isErr(t, <-end, stop)
		if e.now() != 11500*time.Millisecond {
			t.Errorf("it ended at %v", e.now())
		}
	})
}

// TestEndAt: an app that cannot be told is relied on until that moment, and no longer than its process lives.
func TestEndAt(t *testing.T) {
	const later = 3 * time.Second
	for name, c := range map[string]struct {
		then func(*Session)
		want time.Duration
	}{
		"in time":              {func(*Session) {}, later},
		"said once more":       {func(s *Session) { EndAt(s, time.Hour) }, later},
		"its process has gone": {func(s *Session) { s.Close() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s, other := sc.session(), sc.session()
				must(t, s, exclusive)
				began := e.now()
				EndAt(s, began+later)
				if _, err := s.Acquire(t.Context(), exclusive); !errors.Is(err, ErrSessionClosed) {
					t.Errorf("it goes on: %v", err)
				}
				c.then(s)
				must(t, other, exclusive)
				if took := e.now() - began; took < c.want || took > c.want+patience {
					t.Errorf("others have it after %v, want %v", took, c.want)
				}
				<-s.Done()
			})
		})
	}
}
