package ledger

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// TestReleaseWithAnID takes off one count, however often it comes.
func TestReleaseWithAnID(t *testing.T) {
	l := open()
	g := get(t, l, &reentrant)
	for range 2 {
		_, _, _ = l.Acquire(&reentrant)
	}
	for range 3 {
		r := l.Release(g.LockID, "x")
		left, err := r.Left, r.Err
		if r.Wait != nil {
			<-r.Wait
			left, err = r.Reply()
		}
		if left != 2 || err != nil {
			t.Errorf("release = %d, %v", left, err)
		}
	}
	if r := l.Release("other", "x"); !errors.Is(r.Err, lock.ErrInvalid) {
		t.Errorf("the id of another release: %+v", r)
	}
	l.Release(g.LockID, "y")
	last := l.Release(g.LockID, "z")
	retry := l.Release(g.LockID, "z")
	if last.Hold == nil || retry.Hold != nil || retry.Wait == nil {
		t.Fatalf("last %+v, retry %+v", last, retry)
	}
	if err := l.Released(last.Hold, []LostReason{StoreLost}); !errors.Is(err, ErrLost) {
		t.Errorf("Released = %v", err)
	}
	<-retry.Wait
	if _, err := retry.Reply(); !errors.Is(err, ErrLost) {
		t.Errorf("the retry has %v, want the same answer", err)
	}
	for i := range MaxReleases {
		l.Release("none", fmt.Sprint("more", i))
	}
	if r := l.Release(g.LockID, "x"); r.Wait != nil {
		t.Error("more ids are remembered than are said")
	}
}

// TestEachRequestCountsOnceBesideReleases: two requests of one owner share a hold,
// and one of its counts is released. The ledger cannot know whose that was, so the
// other is still there for its retry, for its Cancel, and for a caller who is gone.
func TestEachRequestCountsOnceBesideReleases(t *testing.T) {
	first := with(reentrant, func(a *Ask) { a.RequestID = "1" })
	second := with(reentrant, func(a *Ask) { a.RequestID = "2" })
	for name, end := range map[string]func(l *Ledger, id lock.HoldID, c *Call){
		"retry": func(l *Ledger, id lock.HoldID, _ *Call) {
			if g, _, err := l.Acquire(second); err != nil || g.LockID != id || g.Count != 1 {
				t.Errorf("the retry got %+v, %v", g, err)
			}
			if r := l.Release(id, ""); r.Hold != nil {
				_ = l.Released(r.Hold, []LostReason{0})
			}
		},
		"cancel": func(l *Ledger, _ lock.HoldID, _ *Call) {
			if r := l.Cancel("2"); r.Hold != nil {
				_ = l.Released(r.Hold, []LostReason{0})
			}
		},
		"gone": func(l *Ledger, _ lock.HoldID, c *Call) { l.Gone(c, context.Canceled) },
	} {
		t.Run(name, func(t *testing.T) {
			l := open()
			_, h := wait(t, l, first)
			c, _ := wait(t, l, second)
			l.Answered(h, h.ID(), lease, lock.Grant{Fence: 7}, nil)
			if r := l.Release(h.ID(), ""); r.Left != 1 {
				t.Fatalf("Release = %+v", r)
			}
			end(l, h.ID(), c)
			if l.Holds() {
				t.Error("the lock is still held")
			}
		})
	}
}

// TestEachCountHasABudget: an app that enters its hold again and again reaches the
// limit of holds, and one that leaves as often leaves no trace.
func TestEachCountHasABudget(t *testing.T) {
	l := open()
	ask := func(n int) *Ask { return with(reentrant, func(a *Ask) { a.RequestID = fmt.Sprint(n) }) }
	id := get(t, l, ask(0)).LockID
	for n := range 1000 {
		if _, _, err := l.Acquire(ask(n + 1)); err != nil {
			t.Fatal(err)
		}
		l.Release(id, "")
	}
	if n := len(l.claims); n > MaxReleasedClaims+1 || l.Size() != 1 {
		t.Errorf("%d ids are remembered, the size is %d", n, l.Size())
	}
	for n := range l.o.Holds - 1 {
		if _, _, err := l.Acquire(ask(2000 + n)); err != nil {
			t.Fatal(err)
		}
	}
	_, _, err := l.Acquire(ask(3000))
	if !errors.Is(err, ErrLimit) {
		t.Errorf("one more than the limit: %v", err)
	}
	if g, _, err := l.Acquire(ask(2000)); err != nil || g.Count != l.o.Holds {
		t.Errorf("a retry at the limit: %+v, %v", g, err)
	}
	for left := l.o.Holds - 1; left >= 0; left-- {
		r := l.Release(id, "")
		if r.Left != left {
			t.Errorf("%d left, want %d", r.Left, left)
		}
		if r.Hold != nil {
			_ = l.Released(r.Hold, []LostReason{0})
		}
	}
	if l.Size() != 0 || len(l.claims) != 0 {
		t.Errorf("size %d, claims %v", l.Size(), l.claims)
	}
}
