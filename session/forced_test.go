package session

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestForcedRelease(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		s := a.session()
		g := must(t, s, exclusive)
		next := begin(b.session(), exclusive)
		done := make(chan error, 1)
		go func() {
			taken, err := b.ForceRelease(context.Background(), "r", "", 5*time.Second)
			if len(taken) != 1 || taken[0] != g.LockID {
				t.Errorf("taken %v", taken)
			}
			done <- err
		}()
		if l := lostEvent(t, s); l.Reason != Forced || l.LockID != g.LockID || left(e, l.GraceEnd) != 5*time.Second {
			t.Errorf("lost = %+v", l)
		}
		time.Sleep(time.Second)
		if next.over() {
			t.Error("the next one is in before the grace is over")
		}
		_, err := s.Release(t.Context(), g.LockID, "") // the app has stopped its work
		isLost(t, err, Forced)
		if _, err := next.wait(); err != nil || e.now() != time.Second {
			t.Errorf("the next one: %v at %v", err, e.now())
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestForcedReleaseWithoutAnAnswerOfTheApp(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.sidecar(), e.sidecar()
		s := a.session()
		must(t, s, exclusive)
		next := begin(b.session(), exclusive)
		if _, err := b.ForceRelease(t.Context(), "r", "", 5*time.Second); err != nil {
			t.Error(err)
		}
		if _, err := next.wait(); err != nil || e.now() != 5*time.Second {
			t.Errorf("the next one: %v at %v", err, e.now())
		}
		synctest.Wait() // the grace of the first sidecar ends at the same moment
		if a.Info().Holds != 0 {
			t.Errorf("Info = %+v", a.Info())
		}
	})
}

func TestForcedOutOfTheQueue(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		must(t, sc.session(), exclusive)
		s := sc.session()
		leader, follower := begin(s, again(exclusive)), begin(s, again(exclusive))
		st, err := sc.Get(t.Context(), "r")
		if err != nil || len(st.Waiters) != 1 {
			t.Fatalf("Get = %+v, %v", st, err)
		}
		if _, err := sc.ForceRelease(t.Context(), "r", st.Waiters[0].ID, 0); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*pending{leader, follower} {
			_, err := p.wait()
			isLost(t, err, Forced)
		}
	})
}

// A wait that is over in the moment at which its waiter is taken out of the queue ends
// as a wait that is over: there is no hold that the caller could not have.
func TestForcedOutOfTheQueueAsTheWaitEnds(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		sc.way.on(func(ctx context.Context, _ func(context.Context) error) error {
			<-ctx.Done()
			return fmt.Errorf("ask store: %w", lock.ErrNotHolder)
		}, opAcquire)
		_, err := s.Acquire(t.Context(), waiting(exclusive, time.Second))
		isErr(t, err, context.DeadlineExceeded)
		p := begin(s, exclusive)
		p.cancel()
		_, err = p.wait()
		isErr(t, err, context.Canceled)
	})
}

// TestAllAreForcedTogether: the graces of hundreds who share a lock are not one after the other.
func TestAllAreForcedTogether(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		const many = 250
		a, b := e.sidecar(), e.sidecar()
		s := a.session()
		for range many {
			must(t, s, shared)
		}
		began := e.now()
		taken, err := b.ForceRelease(t.Context(), "r", "", 5*time.Second)
		if took := e.now() - began; err != nil || len(taken) != many || took > 6*time.Second {
			t.Errorf("%d of %d were taken, after %s: %v", len(taken), many, took, err)
		}
	})
}
