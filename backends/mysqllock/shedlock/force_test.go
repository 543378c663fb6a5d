package shedlock

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestForcedBeforeTheAnswer: the answer to a grant is lost, and the release of that
// hold is forced. A retry gets nothing that is freed in the next moment. No event is
// ever read.
func TestForcedBeforeTheAnswer(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		_, l := sidecar(t, road.URL(), 30*time.Second)
		b, o := sidecar(t, s.URL(), 30*time.Second)
		r := unique(t)
		q := request(r)
		lost := road.LoseReply(string(q.ID), testengine.HoldReplies)
		if g, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("Acquire without an answer: %+v, %v", g, err)
		}
		<-lost
		if err := road.Heal(); err != nil {
			t.Fatal(err)
		}
		if err := b.ForceRelease(t.Context(), r, q.ID, 300*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		var g lock.Grant
		eventually(t, "a retry is answered", func() (err error) {
			if g, err = l.Acquire(t.Context(), q); errors.Is(err, lock.ErrUnavailable) {
				return err
			}
			if err != nil && !errors.Is(err, lock.ErrNotHolder) {
				t.Fatalf("Acquire again: %v", err)
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if next, err := o.Acquire(ctx, request(r)); g.ID != "" && err == nil {
			t.Errorf("granted %d while %d is held", next.Fence, g.Fence)
		} else if g.ID == "" && err != nil {
			t.Errorf("nobody has it: %v", err)
		}
	})
}
