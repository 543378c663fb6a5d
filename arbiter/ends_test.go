package arbiter

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

// An arbiter needs no options, and passes on what the store cannot answer.
func TestStoreThatIsClosed(t *testing.T) {
	store := embedded.New()
	b := New(store, Options{Turns: 1})
	if b.o.Clock() <= 0 {
		t.Error("it has no clock")
	}
	b.o.Yielded(time.Second) // nobody listens
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl}); err == nil {
		t.Errorf("OpenLease: %v", l)
	}
	if st, err := b.Get(t.Context(), "r"); err == nil {
		t.Errorf("Get: %+v", st)
	}
	if list, err := b.List(t.Context(), "", lock.Page{}); err == nil {
		t.Errorf("List: %+v", list)
	}
	if err := b.ForceRelease(t.Context(), "r", lock.NewHoldID(), 0); err == nil || !strings.HasPrefix(err.Error(), "force release: ") {
		t.Errorf("ForceRelease: %v", err)
	}
}

// A lease that is closed is forgotten, with all that was parked on it.
func TestClosedIsForgotten(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Minute})
		s.give(s.take(exclusive()))
		s.give(s.take(exclusive()))
		if n := s.b.Stats().Parked; n != 1 {
			t.Fatalf("%d are parked", n)
		}
		s.close()
		if n, leases := s.b.Stats().Parked, len(s.b.all()); n != 0 || leases != 0 {
			t.Errorf("%d are parked on %d leases", n, leases)
		}
		h.empty("closed")
	})
}

// A parked hold that is forced in the store is not given to who asks next.
func TestParkedIsForced(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Minute})
		s.give(s.take(exclusive()))
		g := s.take(exclusive())
		s.give(g)
		if err := h.store.ForceRelease(h.Context(), "r", g.ID, 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := s.b.Stats().Parked; n != 0 || len(s.told) != 0 {
			t.Errorf("%d are parked; told %+v", n, s.told)
		}
		asked := len(s.way.asked)
		next := s.take(exclusive())
		if len(s.way.asked) != asked+1 || next.Fence <= g.Fence {
			t.Errorf("%+v after %+v; the store was asked %d times", next, g, len(s.way.asked)-asked)
		}
		s.give(next)
		s.close()
	})
}

// What is being forced is not handed on: who comes then asks the store.
func TestForcedIsNotHandedOn(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Minute})
		s.give(s.take(exclusive()))
		g := s.take(exclusive())
		go func() { _ = h.store.ForceRelease(h.Context(), "r", g.ID, time.Minute) }()
		synctest.Wait()
		asked := len(s.way.asked)
		late := s.ask(exclusive())
		if len(s.way.asked) != asked+1 {
			t.Error("who comes then stands behind what is being forced")
		}
		s.give(g)
		if h.granted(late)(late); late.g.Fence%lock.FenceRange != 0 {
			t.Errorf("%+v after %+v", late.g, g)
		}
		s.give(late.g)
		s.close()
	})
}

// A place in the queue that is being given up takes nobody more; one with others in it stays.
func TestPlaceThatIsGivenUp(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		first := a.ask(exclusive())
		second := a.ask(exclusive())
		if !a.last("r").Stay() {
			t.Error("a place with two in it is given up")
		}
		second.cancel()
		synctest.Wait()
		if a.last("r").Stay() {
			t.Error("a place of one stays")
		}
		asked := len(a.way.asked)
		third := a.ask(exclusive())
		if len(a.way.asked) != asked+1 {
			t.Error("who comes then stands in a place that is being given up")
		}
		b.give(g)
		h.granted(first)(first, third)
		a.give(first.g)
		h.granted(first, third)(first, third)
		a.give(third.g)
		a.forgets()
		a.close()
		b.close()
	})
}

// Close waits for no answer to what the lease's end does anyway, and tells what the store says.
func TestCloseIsQuick(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: 100 * time.Millisecond})
		b := s.bend()
		s.give(s.take(exclusive()))
		s.give(s.take(exclusive()))
		b.releases(func(ctx context.Context, _ error) error { <-ctx.Done(); return lock.ErrUnavailable })
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		b.closed = lock.ErrUnavailable
		began := h.clock()
		if err := s.Close(h.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if took := h.clock() - began; took != 0 {
			t.Errorf("it took %s", took)
		}
		<-s.done
	})
}

// Of a place in the store's queue its own sidecar knows who stands in it; others see who came
// first. Each of them is forced out alone.
func TestViewOfAPlace(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		first, second, third := a.ask(exclusive()), a.ask(exclusive()), a.ask(exclusive())
		time.Sleep(time.Second)
		waiters := func(what string, s *side, want ...lock.HoldID) {
			t.Helper()
			st, err := s.b.Get(h.Context(), "r")
			if err != nil {
				t.Fatal(err)
			}
			h.same(what+": holders", ids(st.Holders), []lock.HoldID{g.ID})
			h.same(what+": waiters", ids(st.Waiters), want)
			for _, w := range st.Waiters {
				if w.Cohort || w.Fence != 0 || w.Owner.PID != 1 || w.Sidecar != "side" || w.Lease != a.ID() || w.Age < time.Second {
					t.Errorf("%s: %+v", what, w)
				}
			}
		}
		waiters("here", a, first.q.ID, second.q.ID, third.q.ID)
		waiters("elsewhere", b, first.q.ID)
		if err := a.b.ForceRelease(h.Context(), "r", second.q.ID, time.Minute); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !errors.Is(second.err, lock.ErrNotHolder) || first.over || third.over {
			t.Errorf("%v, %v, %v", first.err, second.err, third.err)
		}
		waiters("one is out", a, first.q.ID, third.q.ID)
		if err := a.b.ForceRelease(h.Context(), "r", first.q.ID, time.Minute); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !errors.Is(first.err, lock.ErrNotHolder) || third.over {
			t.Errorf("%v, %v", first.err, third.err)
		}
		b.give(g)
		h.granted(third)(first, second, third)
		a.give(third.g)
		a.forgets()
		a.close()
		b.close()
	})
}
