package ledger

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestLossesAreKept until they are acknowledged, whoever has read them, and count.
func TestLossesAreKept(t *testing.T) {
	l := open(func(o *Options) { o.Holds = 3 })
	var ids []lock.HoldID
	for i := range 3 {
		g := get(t, l, with(plain, func(a *Ask) { a.Resource = lock.Resource(fmt.Sprint(i)) }))
		ids = append(ids, g.LockID)
		l.News(lock.Event{Kind: lock.Vanished, ID: g.LockID})
		l.News(lock.Event{Kind: lock.Vanished, ID: g.LockID}) // told twice is told once
	}
	for range 2 { // two readers
		seq := uint64(0)
		for _, id := range ids {
			var lost Lost
			var ok bool
			if lost, seq, ok = l.Loss(seq); !ok || lost.LockID != id || lost.Reason != StoreLost {
				t.Errorf("loss %+v, %v, want of %s", lost, ok, id)
			}
		}
		if lost, _, ok := l.Loss(seq); ok {
			t.Errorf("one more loss: %+v", lost)
		}
	}
	var limit *LimitError
	if _, _, err := l.Acquire(&plain); !errors.As(err, &limit) || limit.Limit != "holds" {
		t.Errorf("Acquire = %v: losses that nobody acknowledges count", err)
	}
	if r := l.Release(ids[1], ""); !errors.Is(r.Err, ErrLost) {
		t.Errorf("release: %+v", r)
	}
	if lost, _, _ := l.Loss(1); lost.LockID != ids[2] {
		t.Errorf("after the acknowledgement: %+v", lost)
	}
	get(t, l, &plain)
}

// TestEachCountAcknowledges: two who share a hold must both have let go before a
// loss is forgotten and its grace ends, also where the release of one finds the loss.
func TestEachCountAcknowledges(t *testing.T) {
	l := open()
	ask := with(plain, func(a *Ask) { a.Reentrant, a.MaxHold = true, time.Second })
	g := get(t, l, ask)
	if again, _, err := l.Acquire(ask); err != nil || again.LockID != g.LockID {
		t.Fatalf("re-entry: %+v, %v", again, err)
	}
	l.Effects()
	l.Look(Moment{Now: time.Second, Until: time.Minute, Kept: time.Minute})
	if r := l.Release(g.LockID, ""); !errors.Is(r.Err, ErrLost) {
		t.Fatalf("the first release: %+v", r)
	}
	if lost, _, ok := l.Loss(0); !ok || lost.LockID != g.LockID || l.Kept() != 1 {
		t.Errorf("after one of two releases: %+v, %v, %d kept in the store", lost, ok, l.Kept())
	}
	if r := l.Release(g.LockID, ""); !errors.Is(r.Err, ErrLost) {
		t.Fatalf("the second release: %+v", r)
	}
	if lost, _, ok := l.Loss(0); ok || l.Kept() != 0 {
		t.Errorf("after both releases: %+v, %d kept in the store", lost, l.Kept())
	}
}

// TestAShorterGraceIsToldAgain, however little shorter: the store hands on at that
// moment. A longer one, or the same, is not.
func TestAShorterGraceIsToldAgain(t *testing.T) {
	l := open()
	g := get(t, l, &plain)
	revoked := func(until time.Duration) { l.News(lock.Event{Kind: lock.Revoked, ID: g.LockID, Until: until}) }
	revoked(5 * time.Second)
	_, seq, _ := l.Loss(0)
	for _, until := range []time.Duration{5 * time.Second, 6 * time.Second} {
		revoked(until)
		if lost, _, ok := l.Loss(seq); ok {
			t.Errorf("told again: %+v", lost)
		}
	}
	for _, until := range []time.Duration{4990 * time.Millisecond, time.Second} {
		revoked(until)
		var lost Lost
		var ok bool
		if lost, seq, ok = l.Loss(seq); !ok || lost.GraceEnd != until {
			t.Errorf("loss %+v, %v, want until %v", lost, ok, until)
		}
	}
}

// TestForcedAtOnceIsWithdrawn: the store has taken the hold away already, and is told
// to remember its id all the same: a copy of the request for it may arrive late.
func TestForcedAtOnceIsWithdrawn(t *testing.T) {
	l := open()
	g := get(t, l, &plain)
	l.Effects()
	l.News(lock.Event{Kind: lock.Revoked, ID: g.LockID})
	l.News(lock.Event{Kind: lock.Revoked, ID: g.LockID}) // told twice is withdrawn once
	cleaned := 0
	for _, e := range l.Effects() {
		if e.Kind == Clean && e.ID == g.LockID {
			cleaned++
		}
	}
	if cleaned != 1 {
		t.Errorf("withdrawn %d times", cleaned)
	}
}
