package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestReleaseOfWhatIsNotThere(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s, other := sc.session(), sc.session()
		g := must(t, s, exclusive)
		_, err := s.Release(t.Context(), "no such id", "")
		isErr(t, err, lock.ErrNotHolder)
		_, err = other.Release(t.Context(), g.LockID, "")
		isErr(t, err, lock.ErrNotHolder)
		if n, _ := e.holders("r"); n != 1 {
			t.Error("a foreign release freed the lock")
		}
		if _, err := s.Release(t.Context(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		must(t, other, exclusive)
		_, err = s.Release(t.Context(), g.LockID, "")
		isErr(t, err, lock.ErrNotHolder)
		if n, _ := e.holders("r"); n != 1 {
			t.Error("a second release freed another's lock")
		}
		s.Close()
		_, err = s.Release(t.Context(), g.LockID, "")
		isErr(t, err, ErrSessionClosed)
	})
}

func TestReleaseWithALostAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.on(once(mute), opRelease)
		if left, err := s.Release(t.Context(), g.LockID, ""); left != 0 || err != nil {
			t.Errorf("Release = %d, %v", left, err)
		}
		e.free()
	})
}

func TestReleaseDoesNotEndWithItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			if ctx.Err() != nil {
				t.Error("the store was asked with a ctx that has ended")
			}
			return do(ctx)
		}, opRelease)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Release(ctx, g.LockID, ""); err != nil {
			t.Error(err)
		}
		e.free()
	})
}

func TestReleaseWhileTheStoreIsAway(t *testing.T) {
	for name, f := range map[string]fault{"down": down, "hanging": hang} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				g := must(t, s, exclusive)
				sc.way.on(f, opRelease)
				began := e.now()
				if left, err := s.Release(t.Context(), g.LockID, ""); left != 0 || err != nil {
					t.Errorf("Release = %d, %v", left, err)
				}
				if took := e.now() - began; took > answerLimit {
					t.Errorf("Release took %v", took)
				}
				p := begin(s, exclusive)
				if p.over() {
					t.Error("granted while the old hold is in the store")
				}
				time.Sleep(3 * time.Second)
				sc.way.on(nil, opRelease)
				if _, err := p.wait(); err != nil {
					t.Error(err)
				}
				if took := e.now() - began; took > 10*time.Second {
					t.Errorf("freed after %v", took)
				}
			})
		})
	}
}

func TestReleaseOfWhatTheStoreLost(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, exclusive)
		sc.way.on(func(context.Context, func(context.Context) error) error { return lock.ErrNotHolder }, opRelease)
		_, err := s.Release(t.Context(), g.LockID, "")
		isLost(t, err, StoreLost)
		_, err = s.Release(t.Context(), g.LockID, "")
		isLost(t, err, StoreLost)
		if n := sc.way.count(opRelease); n != 1 {
			t.Errorf("asked %d times", n)
		}
		sc.way.on(nil, opRelease)
	})
}

func TestDowngrade(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s, other := sc.session(), sc.session()
		g := must(t, s, again(exclusive))
		must(t, s, again(exclusive))
		reader := begin(other, shared)
		d, err := s.Downgrade(t.Context(), g.LockID)
		if err != nil || d.Mode != lock.Shared || d.LockID != g.LockID || d.Fence != g.Fence || d.Count != 2 {
			t.Errorf("Downgrade = %+v, %v", d, err)
		}
		if _, err := reader.wait(); err != nil {
			t.Error(err)
		}
		if d, err = s.Downgrade(t.Context(), g.LockID); err != nil || d.Mode != lock.Shared || sc.way.count(opDowngrade) != 1 {
			t.Errorf("second Downgrade = %+v, %v", d, err)
		}
		_, err = s.Acquire(t.Context(), again(exclusive))
		isErr(t, err, ErrUpgradeRefused)
		_, err = other.Downgrade(t.Context(), g.LockID)
		isErr(t, err, lock.ErrNotHolder)
	})
}

// Extend moves the end of a hold by max_hold, forward and back, and gives one to a hold
// that had none. What is over stays over.
func TestExtend(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s, other := sc.session(), sc.session()
		extend := func(g Grant, d time.Duration) {
			t.Helper()
			got, err := s.Extend(g.LockID, d)
			if err != nil || got.LockID != g.LockID || got.Fence != g.Fence || left(e, got.Until) != d {
				t.Errorf("Extend by %s = %+v, %v", d, got, err)
			}
		}
		lostAt := func(g Grant, at time.Duration) {
			t.Helper()
			if l := lostEvent(t, s); l.LockID != g.LockID || l.Reason != MaxHold || e.now() != at {
				t.Errorf("lost %+v at %s, want %s", l, e.now(), at)
			}
			_, err := s.Extend(g.LockID, time.Hour)
			isLost(t, err, MaxHold)
			_, err = s.Release(t.Context(), g.LockID, "")
			isLost(t, err, MaxHold)
		}
		began := e.now()
		later := must(t, s, with(exclusive, func(r *AcquireRequest) { r.MaxHold = time.Second }))
		extend(later, 3*time.Second)
		extend(later, 2*time.Second)
		lostAt(later, began+2*time.Second)

		began = e.now()
		first := must(t, s, exclusive)
		extend(first, time.Second)
		lostAt(first, began+time.Second)

		lives := must(t, s, exclusive)
		for _, bad := range []time.Duration{-1, 0, 100*time.Millisecond - 1, 24*time.Hour + 1} {
			if _, err := s.Extend(lives.LockID, bad); fieldOf(err) != "max_hold" {
				t.Errorf("Extend by %s: %v", bad, err)
			}
		}
		_, err := other.Extend(lives.LockID, time.Second)
		isErr(t, err, lock.ErrNotHolder)
		_, _ = s.Release(t.Context(), lives.LockID, "")
		_, err = s.Extend(lives.LockID, time.Second)
		isErr(t, err, lock.ErrNotHolder)
		s.Close()
		_, err = s.Extend(lives.LockID, time.Second)
		isErr(t, err, ErrSessionClosed)
	})
}

func TestDowngradeWhileTheStoreIsAway(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, again(exclusive))
		sc.way.on(hang, opDowngrade)
		_, err := s.Downgrade(t.Context(), g.LockID)
		isErr(t, err, lock.ErrUnavailable)
		_, err = s.Acquire(t.Context(), again(exclusive))
		isErr(t, err, ErrUpgradeRefused) // it may be shared
		sc.way.on(once(mute), opDowngrade)
		if d, err := s.Downgrade(t.Context(), g.LockID); err != nil || d.Mode != lock.Shared {
			t.Errorf("Downgrade = %+v, %v", d, err)
		}
		sc.way.on(func(context.Context, func(context.Context) error) error { return lock.ErrNotHolder }, opDowngrade)
		g2 := must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = "r2" }))
		_, err = s.Downgrade(t.Context(), g2.LockID)
		isLost(t, err, StoreLost)
		if l := lostEvent(t, s); l.LockID != g2.LockID || l.Reason != StoreLost {
			t.Errorf("event %+v", l)
		}
	})
}

func TestManyHoldsEndQuickly(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		const n = 2000
		for i := range n {
			must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource = string(rune('a'+i%26)) + time.Duration(i).String() }))
		}
		const rtt = 10 * time.Millisecond
		sc.way.on(func(ctx context.Context, do func(context.Context) error) error {
			time.Sleep(rtt)
			return do(ctx)
		}, opRelease)
		began := e.now()
		s.Close()
		if took := e.now() - began; took > (n/maxReleases+1)*rtt {
			t.Errorf("%d releases took %v", n, took)
		}
		e.free()
	})
}

func TestCloseDoesNotWaitForeverForTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		must(t, s, exclusive)
		sc.way.on(hang, opRelease)
		began := e.now()
		s.Close()
		if took := e.now() - began; took != closeLimit {
			t.Errorf("Close took %v", took)
		}
		sc.way.on(nil, opRelease)
		time.Sleep(choreTimeout)
		synctest.Wait()
		e.free()
		s.Close() // again: nothing
	})
}

// TestNothingIsLeftBehind: each way in which an Acquire fails while the outcome
// in the store is unknown.
func TestNothingIsLeftBehind(t *testing.T) {
	cases := map[string]struct {
		end  func(s *Session, p *pending)
		wait time.Duration
		want error
	}{
		"the wait is over":   {func(*Session, *pending) {}, 3 * time.Second, lock.ErrUnavailable},
		"a try":              {func(*Session, *pending) {}, 0, lock.ErrUnavailable},
		"cancelled":          {func(_ *Session, p *pending) { p.cancel() }, Forever, context.Canceled},
		"the session closes": {func(s *Session, _ *pending) { s.Close() }, Forever, ErrSessionClosed},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar()
				s := sc.session()
				sc.way.on(mute, opAcquire)
				sc.way.on(down, opRelease)
				p := begin(s, waiting(exclusive, c.wait))
				time.Sleep(time.Second)
				if n, _ := e.holders("r"); n != 1 {
					t.Fatal("the request did not reach the store")
				}
				c.end(s, p)
				_, err := p.wait()
				isErr(t, err, c.want)
				var h *lock.HeldError
				if errors.Is(c.want, lock.ErrUnavailable) && errors.As(err, &h) {
					t.Errorf("error = %v: nobody knows that it is held", err)
				}
				sc.way.on(nil, opAcquire, opRelease)
				time.Sleep(maxPause)
				synctest.Wait()
				e.free()
			})
		})
	}
}

func TestAcquireFindsItsGrantAfterALostAnswer(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		sc.way.on(once(mute), opAcquire)
		g := must(t, s, try(exclusive))
		if e.now() > time.Second {
			t.Errorf("granted at %v", e.now())
		}
		if _, err := s.Release(t.Context(), g.LockID, ""); err != nil {
			t.Error(err)
		}
		e.free()
	})
}

// TestReleaseBesideTheEnd: a release is under way when the session ends, and the
// store does not answer. Its caller waits no longer than without that end.
func TestReleaseBesideTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		must(t, s, with(exclusive, func(r *AcquireRequest) { r.Resource, r.MaxHold = "x", time.Second }))
		g := must(t, s, exclusive)
		sc.way.on(hang, opRelease)
		done := make(chan time.Duration, 1)
		go func() {
			_, _ = s.Release(context.Background(), g.LockID, "")
			done <- e.now()
		}()
		synctest.Wait()
		go s.Close()
		if at := <-done; at > answerLimit {
			t.Errorf("Release returned at %v", at)
		}
		sc.way.on(nil, opRelease)
	})
}
