package session

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// atLeast is a request with a MinHold.
func atLeast(d time.Duration) AcquireRequest {
	return with(exclusive, func(r *AcquireRequest) { r.MinHold = d })
}

// TestMinHold: whatever ends a hold, the store keeps others out until its MinHold is over, and
// not longer.
func TestMinHold(t *testing.T) {
	const least = time.Minute
	for name, end := range map[string]func(t *testing.T, one *sidecar, s *Session, g Grant){
		"release": func(t *testing.T, _ *sidecar, s *Session, g Grant) {
			for range 2 { // the answer is the same for a retry
				n, err := s.Release(t.Context(), g.LockID, "again")
				isErr(t, err, nil)
				if left := s.KeptUntil(g.LockID) - s.space.m.o.Clock(); n != 0 || left <= 0 || left > least {
					t.Errorf("count %d, kept for %s", n, left)
				}
			}
		},
		"end of the session": func(_ *testing.T, _ *sidecar, s *Session, _ Grant) { s.Close() },
		"max_hold": func(t *testing.T, _ *sidecar, s *Session, g Grant) {
			_, err := s.Extend(g.LockID, time.Second)
			isErr(t, err, nil)
			if l := lostEvent(t, s); l.Reason != MaxHold {
				t.Errorf("lost: %+v", l)
			}
		},
		"end of the sidecar": func(_ *testing.T, one *sidecar, _ *Session, _ Grant) { _ = one.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				one, two := e.sidecar(), e.sidecar()
				s, other := one.session(), two.session()
				began := time.Now()
				g := must(t, s, atLeast(least))
				if kept := s.KeptUntil(g.LockID); kept != s.space.m.o.Clock()+least {
					t.Errorf("it is kept until %s", kept)
				}
				end(t, one, s, g)
				w := begin(other, exclusive)
				_, err := other.Acquire(t.Context(), try(exclusive))
				held := (*lock.HeldError)(nil)
				if !errors.Is(err, lock.ErrHeld) || !errors.As(err, &held) {
					t.Errorf("try of what is kept: %v", err)
				}
				time.Sleep(10 * time.Second) // a grace is over
				if st, err := two.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 || st.Holders[0].Kept != least-time.Since(began) {
					t.Errorf("shown as %+v, %v", st.Holders, err)
				}
				next, err := w.wait()
				isErr(t, err, nil)
				if took := time.Since(began); took != least || next.Fence <= g.Fence {
					t.Errorf("granted after %s with fence %d after %d", took, next.Fence, g.Fence)
				}
			})
		})
	}
}

// TestMinHoldForced: a forced release ends it.
func TestMinHoldForced(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		sc := e.sidecar()
		s := sc.session()
		g := must(t, s, atLeast(time.Hour))
		_, err := s.Release(t.Context(), g.LockID, "")
		isErr(t, err, nil)
		if ids, err := sc.ForceRelease(t.Context(), "r", "", time.Minute); err != nil || len(ids) != 1 {
			t.Errorf("ForceRelease: %v, %v", ids, err)
		}
		must(t, s, try(exclusive))
	})
}

// TestMinHoldRefused: what cannot be, and what a request cannot share.
func TestMinHoldRefused(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		s := e.sidecar().session()
		for _, wrong := range []AcquireRequest{
			atLeast(-time.Second), atLeast(99 * time.Millisecond), atLeast(24*time.Hour + 1),
			with(atLeast(time.Minute), func(r *AcquireRequest) { r.MaxHold = time.Minute - 1 }),
			with(atLeast(time.Minute), func(r *AcquireRequest) { r.Resource, r.Resources = "", []string{"a", "b"} }),
		} {
			if _, err := s.Acquire(t.Context(), wrong); fieldOf(err) != "min_hold" {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
		again := func(d time.Duration) AcquireRequest {
			return with(atLeast(d), func(r *AcquireRequest) { r.Reentrant = true })
		}
		first := must(t, s, again(time.Minute))
		if g := must(t, s, again(time.Second)); g.LockID != first.LockID || g.Count != 2 {
			t.Errorf("a shorter one gets %+v", g)
		}
		if _, err := s.Acquire(t.Context(), again(time.Minute+1)); fieldOf(err) != "min_hold" {
			t.Errorf("a longer one than the hold's: %v", err)
		}
		id := func(d time.Duration) AcquireRequest {
			return with(atLeast(d), func(r *AcquireRequest) { r.Resource, r.RequestID = "q", "1" })
		}
		must(t, s, id(time.Second))
		if _, err := s.Acquire(t.Context(), id(2*time.Second)); fieldOf(err) != "min_hold" {
			t.Errorf("a retry with a longer one: %v", err)
		}
		time.Sleep(2 * time.Minute) // what is released then is free
	})
}
