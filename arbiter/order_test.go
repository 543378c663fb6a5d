package arbiter

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Who asks the store for all and has no answer leaves that to the next: the place, or the
// grant that has come meanwhile, is not lost. The one without an answer is granted when it is
// there again, and not before.
func TestNextAsksWhereOneHasNoAnswer(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		first, second, third := a.ask(exclusive()), a.ask(exclusive()), a.ask(exclusive())
		silences := 1
		a.way.after = func(_ *lock.Grant, err *error) {
			if silences > 0 {
				silences--
				*err = lock.ErrUnavailable
			}
		}
		b.give(g)
		synctest.Wait()
		if !first.over || !errors.Is(first.err, lock.ErrUnavailable) {
			t.Errorf("the first: %+v, %v", first.g, first.err)
		}
		h.granted(second)(second, third)
		a.give(second.g)
		h.granted(second, third)(second, third)
		a.give(third.g) // nobody is there: it is the first one's turn
		again := a.ask(first.q)
		h.granted(again)(again)
		a.give(again.g)
		a.forgets()
		a.close()
		b.close()
	})
}

// Where the grant has a guard, each asks for itself: the guard of one does not pass for the
// next.
func TestGuardIsForOne(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		a.way.guards = func(lock.Request) bool { return true }
		g := b.take(exclusive())
		first, second := a.ask(exclusive()), a.ask(exclusive())
		a.way.after = func(g *lock.Grant, err *error) {
			if *err == nil {
				g.Guard = &lock.Guard{SQL: string(g.ID)}
			}
		}
		b.give(g)
		h.granted(first)(first, second)
		a.give(first.g)
		h.granted(first, second)(first, second)
		if second.g.Guard == nil || first.g.Guard == nil || second.g.Guard.SQL == first.g.Guard.SQL || second.g.Fence%lock.FenceRange != 0 {
			t.Errorf("%+v after %+v", second.g, first.g)
		}
		a.give(second.g)
		a.forgets()
		a.close()
		b.close()
	})
}

// A waiter behind others of its sidecar is forced out at once, and nobody else is.
func TestForceOfOneWhoWaits(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g := s.take(exclusive())
		one, two := s.ask(exclusive()), s.ask(exclusive())
		if err := s.b.ForceRelease(h.Context(), "r", one.q.ID, time.Minute); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !one.over || !errors.Is(one.err, lock.ErrNotHolder) || two.over || len(s.told) != 0 {
			t.Errorf("%v, %v; told %+v", one.err, two.err, s.told)
		}
		if err := s.b.ForceRelease(h.Context(), "r", one.q.ID, time.Minute); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("forced again: %v", err)
		}
		s.give(g)
		h.granted(two)(one, two)
		s.give(two.g)
		s.forgets()
		s.close()
	})
}

// A try never waits for what is in use here, and takes what is parked or shared here without
// the store.
func TestTryHere(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9, Park: time.Minute}), h.side(Options{Turns: 9})
		refused := func(what string, s *side, holder lock.HoldID) {
			t.Helper()
			began := h.clock()
			_, err := s.Acquire(h.Context(), try(exclusive()))
			var held *lock.HeldError
			if !errors.As(err, &held) || !errors.Is(err, lock.ErrHeld) || len(held.Status.Holders) != 1 || held.Status.Holders[0].ID != holder {
				t.Errorf("%s: %+v", what, err)
			}
			if took := h.clock() - began; took != 0 {
				t.Errorf("%s: it took %s", what, took)
			}
		}
		g := a.take(exclusive())
		refused("held here", a, g.ID)
		w := a.ask(exclusive())
		a.give(g)
		h.granted(w)(w)
		refused("handed on here", a, w.q.ID)
		a.give(w.g)

		q := exclusive()
		q.Direct = true
		g = b.take(q)
		w = a.ask(exclusive())
		refused("held elsewhere, and waited for here", a, g.ID)
		refused("held elsewhere by a direct request", b, g.ID)
		b.give(g)
		h.granted(w)(w)
		a.give(w.g)

		a.give(a.take(exclusive()))
		a.give(a.take(exclusive())) // and parked
		asked := len(a.way.asked)
		g = a.take(try(exclusive()))
		if len(a.way.asked) != asked {
			t.Errorf("the store was asked %d times for what is parked", len(a.way.asked)-asked)
		}
		a.give(g)
		a.close()
		b.close()
	})
}

// A direct request without an answer may have the lock: asked again, it does not wait behind
// those who came since.
func TestDirectAskedAgain(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		q := exclusive()
		q.Direct = true
		s.way.deaf = true
		if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		s.way.deaf = false
		w := s.ask(exclusive())
		h.granted()(w)
		q.Direct = false
		again := s.ask(q)
		h.granted(again)(again, w)
		s.give(again.g)
		h.granted(again, w)(again, w)
		s.give(w.g)
		s.forgets()
		s.close()
	})
}

// A refusal leaves nothing.
func TestRefusalIsForgotten(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		s.way.after = func(g *lock.Grant, err *error) {
			_ = s.way.Lease.Release(h.Context(), g.Resource, g.ID) // the store had not granted it at all
			*err = &lock.LimitError{Limit: "holds", Max: 1}
		}
		for _, q := range []lock.Request{exclusive(), shared(), try(exclusive())} {
			if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrLimit) {
				t.Errorf("got %v", err)
			}
		}
		s.forgets()
		s.close()
	})
}
