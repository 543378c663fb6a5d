package embedded

import (
	"errors"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// The permits of a lease that is over do not say how many there are, also while so many of them
// are left that they go in steps. Those of a living one behind them do.
func TestPermitsOfTheDeadFixNoNumber(t *testing.T) {
	const most = lock.MaxPermits
	for _, lives := range []bool{false, true} {
		bubble(t, func(t *testing.T, s *Store) {
			a, b := open(t, s), open(t, s)
			defer shut(t, b)
			defer shut(t, a)
			var kept lock.Grant
			for i := range most {
				of := a
				if lives && i == most-1 {
					of = b
				}
				kept = acquire(t, of, "r", lock.Permits(most))
			}
			s.mu.Lock()
			for l := range s.leases {
				if l.id == a.ID() {
					s.drop(l, s.clock())
				}
			}
			s.mu.Unlock()
			few := lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Permits(3)}
			if lives {
				if _, err := b.Acquire(t.Context(), few); !errors.Is(err, lock.ErrInvalid) {
					t.Errorf("one of 3 permits beside one of %d: %v", most, err)
				}
				if err := b.Release(t.Context(), "r", kept.ID); err != nil {
					t.Error(err)
				}
			}
			if _, err := b.Acquire(t.Context(), few); err != nil {
				t.Errorf("one of 3 permits when nobody has one of %d: %v", most, err)
			}
		})
	}
}
