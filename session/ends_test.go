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
		"said once more":       {func(s *Session) { EndAt(s, time.Hour, time.Hour) }, later},
		"its process has gone": {func(s *Session) { s.Close() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s, other := sc.session(), sc.session()
				must(t, s, exclusive)
				began := e.now()
				EndAt(s, began+later, began+later)
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

// TestEndAtOfWhatEndsBefore: an app knows the end of a hold by max_hold, and that of its session by its ttl. It relies on neither for
// longer, so others are kept out for the grace after it, and not until the moment that goes for all.
func TestEndAtOfWhatEndsBefore(t *testing.T) {
	const grace, later = time.Second, 8 * time.Second
	limited := func(r *AcquireRequest) { r.MaxHold = 2 * time.Second }
	for name, c := range map[string]struct {
		ttl  time.Duration
		ask  AcquireRequest
		then func(*testing.T, *Session, Grant)
		want time.Duration
	}{
		"neither":           {ask: exclusive, want: later},
		"max_hold":          {ask: with(exclusive, limited), want: 2*time.Second + grace},
		"of several":        {ask: with(several("q", "r", "s"), limited), want: 2*time.Second + grace},
		"a longer max_hold": {ask: with(exclusive, func(r *AcquireRequest) { r.MaxHold = time.Minute }), want: later},
		"extended": {ask: with(exclusive, limited), want: 3*time.Second + grace, then: func(t *testing.T, s *Session, g Grant) {
			if _, err := s.Extend(g.LockID, 3*time.Second); err != nil {
				t.Fatal(err)
			}
		}},
		"ttl":          {ttl: 3 * time.Second, ask: exclusive, want: 3*time.Second + grace},
		"a longer ttl": {ttl: time.Minute, ask: exclusive, want: later},
		"both":         {ttl: 3 * time.Second, ask: with(exclusive, limited), want: 2*time.Second + grace},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(func(o *Options) { o.LostGrace = grace })
				s, other := sc.session(func(r *OpenRequest) { r.TTL = c.ttl }), sc.session()
				began := e.now()
				g := must(t, s, c.ask)
				if c.then != nil {
					c.then(t, s, g)
				}
				EndAt(s, began+later, began+later)
				must(t, other, exclusive)
				if took := e.now() - began; took < c.want || took > c.want+patience {
					t.Errorf("others have it after %v, want %v", took, c.want)
				}
			})
		})
	}
}
