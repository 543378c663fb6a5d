package session

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestDetachTakenOver: who has it attached is told when it is attached elsewhere, or released.
func TestDetachTakenOver(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(), e.sidecar()
		s, other := one.session(), two.session()
		_, d := take(t, s, time.Minute)
		first := must(t, s, attach(d))
		second := must(t, other, attach(d))
		if l := lostEvent(t, s); l.Reason != TakenOver || l.LockID != first.LockID {
			t.Errorf("lost: %+v", l)
		}
		_, err := s.Release(t.Context(), first.LockID, "")
		isLost(t, err, TakenOver)
		third := must(t, two.session(), attach(d)) // at the same sidecar
		if l := lostEvent(t, other); l.Reason != TakenOver || l.LockID != second.LockID {
			t.Errorf("lost: %+v", l)
		}
		isErr(t, one.ReleaseHandle(t.Context(), d.Handle), nil)
		e.free()
		if third.Fence != first.Fence {
			t.Errorf("fences %d and %d", first.Fence, third.Fence)
		}
		if err := one.ReleaseHandle(t.Context(), d.Handle); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("ReleaseHandle again: %v", err)
		}
		if _, err := one.ExtendHandle(t.Context(), d.Handle, time.Minute); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("ExtendHandle of what is over: %v", err)
		}
	})
}

// TestDetachTakenOverUnheard: the answer to an attach is lost, and another app attaches the lock. Who asks again is told
// that, and not that the release is forced.
func TestDetachTakenOverUnheard(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(), e.sidecar()
		s, other := one.session(), two.session()
		_, d := take(t, s, time.Minute)
		one.way.on(inTurn(down, func(context.Context, func(context.Context) error) error {
			must(t, other, attach(d))
			return fmt.Errorf("ask store: %w", lock.ErrNotHolder)
		}), opAcquire)
		_, err := s.Acquire(t.Context(), attach(d))
		isLost(t, err, TakenOver)
	})
}

// TestDetachTakenOverAsItIsReleased: the release of a lock that is taken over at the same moment, or whose handle is released, says so, also
// before the news of it has come. The store has lost nothing.
func TestDetachTakenOverAsItIsReleased(t *testing.T) {
	for what, f := range map[string]func(t *testing.T, other *sidecar, d Detached){
		"attached elsewhere": func(t *testing.T, other *sidecar, d Detached) { must(t, other.session(), attach(d)) },
		"handle released": func(t *testing.T, other *sidecar, d Detached) {
			isErr(t, other.ReleaseHandle(t.Context(), d.Handle), nil)
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				one, two := e.sidecar(), e.sidecar()
				s := one.session()
				_, d := take(t, s, time.Minute)
				g := must(t, s, attach(d))
				one.way.on(func(ctx context.Context, do func(context.Context) error) error {
					f(t, two, d)
					return do(ctx)
				}, opDetach)
				_, err := s.Release(t.Context(), g.LockID, "")
				isLost(t, err, TakenOver)
			})
		})
	}
}

// TestDetachTakenOverCopy: a copy of the request that attached a lock, which comes when another app has taken it over,
// does not take it back. When the app knows of its loss, it may attach again.
func TestDetachTakenOverCopy(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(), e.sidecar()
		s, other := one.session(), two.session()
		_, d := take(t, s, time.Minute)
		q := with(attach(d), func(r *AcquireRequest) { r.RequestID = "1" })
		first := must(t, s, q)
		second := must(t, other, attach(d))
		if l := lostEvent(t, s); l.Reason != TakenOver || l.LockID != first.LockID {
			t.Errorf("lost: %+v", l)
		}
		for range 2 {
			_, err := s.Acquire(t.Context(), q)
			isLost(t, err, TakenOver)
		}
		_, err := other.Release(t.Context(), second.LockID, "")
		isErr(t, err, nil)
		e.free()
		_, d = take(t, other, time.Minute)
		_, err = s.Release(t.Context(), first.LockID, "")
		isLost(t, err, TakenOver)
		again := must(t, s, with(attach(d), func(r *AcquireRequest) { r.RequestID = "1" })) // its id is free again
		_, err = s.Release(t.Context(), again.LockID, "")
		isErr(t, err, nil)
	})
}
