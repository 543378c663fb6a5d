package session

import (
	"errors"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// TestPermits: apps of two sidecars share two permits; a grant has a slot of its own.
func TestPermits(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		one, two := e.sidecar(), e.sidecar()
		s, other := one.session(), two.session()
		permit := with(exclusive, func(r *AcquireRequest) { r.Mode = lock.Permits(2) })
		a, b := must(t, s, permit), must(t, other, permit)
		if a.Fence.Slot() == b.Fence.Slot() || a.Mode != lock.Permits(2) {
			t.Errorf("%+v and %+v", a, b)
		}
		for _, refused := range []AcquireRequest{exclusive, with(exclusive, func(r *AcquireRequest) { r.Mode = lock.Shared }), permit} {
			try := with(refused, func(r *AcquireRequest) { r.Wait = 0 })
			if _, err := s.Acquire(t.Context(), try); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("%s beside two permits: %v", try.Mode, err)
			}
		}
		w := begin(s, permit)
		if _, err := other.Release(t.Context(), b.LockID, ""); err != nil {
			t.Fatal(err)
		}
		if g, err := w.wait(); err != nil || g.Fence.Slot() != b.Fence.Slot() {
			t.Errorf("slot %d, %v; want %d", g.Fence.Slot(), err, b.Fence.Slot())
		}
		if _, err := s.Downgrade(t.Context(), a.LockID); fieldOf(err) != "lock_id" {
			t.Errorf("downgrade of a permit: %v", err)
		}
		if _, err := other.Acquire(t.Context(), with(permit, func(r *AcquireRequest) { r.Mode = lock.Permits(3) })); fieldOf(err) != "limit" {
			t.Errorf("another limit: %v", err)
		}
		for _, wrong := range []AcquireRequest{
			with(permit, func(r *AcquireRequest) { r.Reentrant = true }),
			with(permit, func(r *AcquireRequest) { r.Resource, r.Resources = "", []string{"a", "b"} }),
		} {
			if _, err := s.Acquire(t.Context(), wrong); fieldOf(err) != "limit" {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
	})
}
