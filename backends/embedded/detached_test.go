package embedded

import (
	"context"
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

// Lists are made beside a hold that is detached and attached all the time: what they tell is as it was at one
// moment. Both steps change the hold, which also gets another id.
func TestListsBesideDetach(t *testing.T) {
	s := New()
	a, err := s.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(a.Close(context.Background()), s.Close()); err != nil {
			t.Error(err)
		}
	}()
	q := lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Exclusive, Detachable: true}
	if _, err := a.Acquire(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		for range 2000 {
			key := lock.NewSecret().Key()
			if err := a.(lock.Detacher).Detach(t.Context(), "r", q.ID, key, time.Hour); err != nil {
				t.Error(err)
				return
			}
			q.ID, q.Handle, q.Detachable = lock.NewHoldID(), key, false
			if _, err := a.Acquire(t.Context(), q); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for {
		st, err := s.Get(t.Context(), "r")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].ID == "" {
			t.Fatalf("%+v, %v", st, err)
		}
		select {
		case <-over:
			return
		default:
		}
	}
}
