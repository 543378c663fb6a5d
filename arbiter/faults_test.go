package arbiter

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestDirect(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Second})
		s.give(s.take(exclusive()))
		s.give(s.take(exclusive())) // and parked
		q := try(exclusive())
		q.Direct = true
		g := s.take(q)
		if len(s.way.asked) != 3 || g.Fence%lock.FenceRange != 0 {
			t.Errorf("the store was asked %d times; %+v", len(s.way.asked), g)
		}
		first := s.ask(exclusive())
		q = exclusive()
		q.Direct = true
		second := s.ask(q)
		third := s.ask(exclusive())
		s.give(g)
		h.granted(first)(first, second, third)
		s.give(first.g)
		h.granted(first, second)(first, second, third)
		s.give(second.g)
		h.granted(first, second, third)(first, second, third)
		s.give(third.g)
		s.close()
	})
}

// A direct request without an answer is asked for again in the store, though by then it
// could be answered here: else what the store has for it would stay.
func TestUnknownDirect(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Second})
		q := exclusive()
		q.Direct = true
		s.way.deaf = true
		if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		s.way.deaf, q.Direct = false, false
		g := s.take(q)
		if g.ID != q.ID || g.Fence%lock.FenceRange != 0 {
			t.Errorf("%+v", g)
		}
		s.give(g)
		s.close()
	})
}

// An answer that does not come is nobody's grant but his who asks again.
func TestUnknown(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		q, s2 := exclusive(), exclusive()
		s.way.deaf = true
		if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		s.way.deaf = false
		other := s.ask(s2) // asks for both
		h.granted(other)(other)
		again := s.ask(q)
		s.give(other.g)
		h.granted(other, again)(other, again)
		s.way.deaf = true
		for range 2 {
			if err := s.Release(h.Context(), "r", q.ID); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Release: %v", err)
			}
		}
		s.way.deaf = false
		if err := s.Release(h.Context(), "r", q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release after those without an answer: %v", err)
		}

		s.way.deaf = true
		q = exclusive()
		if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		s.way.deaf = false
		if err := s.Release(h.Context(), "r", q.ID); err != nil {
			t.Errorf("Release of what has no answer: %v", err)
		}
		s.close()
	})
}

func TestReaders(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g1, g2 := s.take(shared()), s.take(try(shared()))
		if n, _ := h.inStore(); n != 1 {
			t.Errorf("%d holds in the store of two readers", n)
		}
		st, err := s.b.Get(h.Context(), "r")
		if err != nil || len(st.Holders) != 2 {
			t.Errorf("%+v, %v", st, err)
		}
		w := s.ask(exclusive())
		late := s.ask(shared())
		h.granted()(w, late)
		s.give(g1)
		h.granted()(w, late)

		// One of several is forced alone.
		s.give(g2)
		h.granted(w)(w, late)
		s.give(w.g)
		h.granted(w, late)(w, late)
		other := s.take(shared())
		go func() { _ = s.b.ForceRelease(h.Context(), "r", late.g.ID, time.Second) }()
		synctest.Wait()
		if len(s.told) != 1 || s.told[0].ID != late.g.ID || s.told[0].Until != h.clock()+time.Second {
			t.Errorf("told %+v", s.told)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if err := s.Release(h.Context(), "r", late.g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release after the grace: %v", err)
		}
		if n, _ := h.inStore(); n != 1 {
			t.Error("the other has lost its hold, too")
		}
		s.give(other)
		s.close()
	})
}

func TestDowngrade(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g := s.take(exclusive())
		w := s.ask(exclusive())
		if err := s.Downgrade(h.Context(), "r", g.ID); err != nil {
			t.Fatal(err)
		}
		h.granted()(w)
		if err := s.Downgrade(h.Context(), "r", w.q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Downgrade by one who waits: %v", err)
		}
		s.give(g)
		h.granted(w)(w)
		s.give(w.g)
		s.close()
	})
}

// The guard of the one before would pass for who has the hold now.
func TestGuard(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Second})
		s.way.guards = func(q lock.Request) bool { return q.Guard != lock.WithoutGuard }
		s.way.after = func(g *lock.Grant, err *error) {
			if *err == nil && s.way.guards(s.way.last) {
				g.Guard = &lock.Guard{SQL: "SELECT 1"}
			}
		}
		for _, q := range []func() lock.Request{exclusive, shared} {
			g := s.take(q())
			w := s.ask(q())
			if s.way.last.ID != w.q.ID || s.way.last.Cohort != nil {
				t.Error("a grant with a guard has a cohort")
			}
			s.give(g)
			h.granted(w)(w)
			s.give(w.g)
			if g.Guard == nil || w.g.Guard == nil {
				t.Error("a guard is lost")
			}
			if n, _ := h.inStore(); n != 0 {
				t.Error("a grant with a guard is parked")
			}
		}

		without := func() lock.Request {
			q := exclusive()
			q.Guard = lock.WithoutGuard
			return q
		}
		s.give(s.take(without()))
		s.give(s.take(without()))
		asked := len(s.way.asked)
		g := s.take(without())
		s.give(g)
		late := s.take(exclusive()) // what is parked goes to the store first
		if g.Guard != nil || late.Guard == nil || late.Fence <= g.Fence || len(s.way.asked) != asked+1 {
			t.Errorf("%+v, then %+v; the store was asked %d times", g, late, len(s.way.asked)-asked)
		}
		s.give(late)
		s.close()
	})
}

// A refusal of the store is his who has asked; the others ask for themselves.
func TestRefused(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		refusals := 1
		a.way.after = func(_ *lock.Grant, err *error) {
			if refusals > 0 && *err == nil {
				refusals--
				*err = &lock.LimitError{Limit: "holds", Max: 1}
			}
		}
		first, second := a.ask(exclusive()), a.ask(exclusive())
		b.give(g)
		synctest.Wait()
		if !errors.Is(first.err, lock.ErrLimit) {
			t.Errorf("got %v", first.err)
		}
		if err := a.way.Lease.Release(h.Context(), "r", first.q.ID); err != nil { // the store had not refused it at all
			t.Error(err)
		}
		h.granted(second)(first, second)
		a.give(second.g)
		a.close()
		b.close()
	})
}

// News of a hold go to who has it now; who waits for it asks the store.
func TestNews(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g := s.take(exclusive())
		w, late := s.ask(exclusive()), s.ask(exclusive())
		s.give(g)
		h.granted(w)(w, late)
		if err := h.store.ForceRelease(h.Context(), "r", g.ID, 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(s.told) != 1 || s.told[0].ID != w.g.ID || s.told[0].Kind != lock.Revoked {
			t.Errorf("told %+v", s.told)
		}
		h.granted(w, late)(w, late)
		if late.g.Fence <= w.g.Fence {
			t.Errorf("broken law: fence %d after %d", late.g.Fence, w.g.Fence)
		}
		if err := s.Release(h.Context(), "r", w.g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what is gone: %v", err)
		}

		// It has vanished: there is nothing to release.
		own := s.news(lock.Event{Kind: lock.Vanished, Resource: "r", ID: s.last("r").id})
		if len(own) != 1 || own[0].ID != late.g.ID {
			t.Errorf("told %+v", own)
		}
		if err := s.Release(h.Context(), "r", late.g.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
			t.Error(err)
		}
		for id := range s.stores {
			t.Errorf("%s is remembered", id)
		}
		_ = s.way.Lease.Release(h.Context(), "r", s.way.asked[len(s.way.asked)-1])
		s.close()
	})
}

// A forced release of a place in the queue means who is seen there. Where that one has
// left, the others ask for a place of their own.
func TestForcedPlace(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		for _, leaves := range []bool{false, true} {
			g := b.take(exclusive())
			first, second := a.ask(exclusive()), a.ask(exclusive())
			if leaves {
				first.cancel()
				synctest.Wait()
			}
			if err := h.store.ForceRelease(h.Context(), "r", first.q.ID, 0); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if leaves == errors.Is(first.err, lock.ErrNotHolder) || second.over {
				t.Errorf("leaves: %t: %v; %v", leaves, first.err, second.err)
			}
			b.give(g)
			h.granted(second)(first, second)
			a.give(second.g)
		}
		a.close()
		b.close()
	})
}

// A try waits a moment for what may be parked elsewhere, and once for each hold.
func TestTryOfWhatIsUsedElsewhere(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := a.take(exclusive())
		for _, want := range []time.Duration{100 * time.Millisecond, 0, 0} {
			before := h.clock()
			_, err := b.Acquire(h.Context(), try(exclusive()))
			var held *lock.HeldError
			if !errors.As(err, &held) || !errors.Is(err, lock.ErrHeld) || held.Position != 0 {
				t.Errorf("got %v", err)
			}
			if took := h.clock() - before; took != want {
				t.Errorf("it took %v, want %v", took, want)
			}
		}
		if _, err := a.Acquire(h.Context(), try(exclusive())); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("at its own sidecar: %v", err)
		}
		a.give(g)
		b.give(b.take(try(exclusive())))
		a.close()
		b.close()
	})
}

// A try has what is parked elsewhere as soon as the news of it are there, also where it comes
// from a sidecar that answers nothing by itself.
func TestTryOfWhatIsParkedElsewhere(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9, Park: time.Hour}), h.side(Options{Turns: 9})
		off, err := New(h.store, Options{Clock: h.clock}).OpenLease(h.Context(), lock.LeaseOptions{TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		for name, l := range map[string]lock.Lease{"with an arbiter": b, "without": off} {
			a.parks()
			before := h.clock()
			g, err := l.Acquire(h.Context(), try(exclusive()))
			if took := h.clock() - before; err != nil || took != 0 {
				t.Fatalf("%s: %v after %v", name, err, took)
			}
			if err := l.Release(h.Context(), "r", g.ID); err != nil {
				t.Error(err)
			}
		}
		a.close()
		b.close()
		if err := off.Close(h.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestClose(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g := s.take(exclusive())
		w := s.ask(exclusive())
		s.close()
		synctest.Wait()
		if !errors.Is(w.err, lock.ErrLeaseLost) {
			t.Errorf("who waits gets %v", w.err)
		}
		if _, err := s.Acquire(h.Context(), exclusive()); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Acquire: %v", err)
		}
		if err := s.Release(h.Context(), "r", g.ID); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Release: %v", err)
		}
	})
}

// Where the store cannot tell who stands behind a hold, there is no arbiter.
func TestOff(t *testing.T) {
	inHouse(t, func(h *house) {
		for _, o := range []Options{{}, {Turns: 9, Park: time.Second}} {
			b := New(through{h.store, &way{closed: o.Turns != 0}}, o)
			l, err := b.OpenLease(h.Context(), lock.LeaseOptions{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			if _, on := l.(*Lease); on {
				t.Errorf("%+v: there is one", o)
			}
			go func() {
				for range l.Events() {
				}
			}()
			if err := l.Close(h.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
