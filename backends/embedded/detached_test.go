package embedded

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// A copy of a request that arrives when the time is over takes nothing from the lease that
// has attached it.
func TestAttachOnceMore(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, l := driver(t, s)
		q := lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Exclusive, Detachable: true}
		if _, err := a.Acquire(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		key := lock.NewSecret().Key()
		if err := a.(lock.Detacher).Detach(t.Context(), q.Resource, q.ID, key, time.Second); err != nil {
			t.Fatal(err)
		}
		q.ID, q.Handle, q.Detachable = lock.NewHoldID(), key, false
		if _, err := a.Acquire(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got, err := l.Ask(t.Context(), q); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("asked once more: %+v, %v", got, err)
		}
		if l.own(leasekit.Ref{Resource: q.Resource, ID: q.ID}) == nil {
			t.Error("the lease has it no more")
		}
		shut(t, a)
	})
}
