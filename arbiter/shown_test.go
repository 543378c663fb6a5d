package arbiter

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// holder is the only one that a sidecar sees.
func (s *side) holder() lock.Holding {
	s.h.Helper()
	st, err := s.b.Get(s.h.Context(), "r")
	if err != nil || len(st.Holders) != 1 {
		s.h.Fatalf("%+v, %v", st, err)
	}
	return st.Holders[0]
}

// parks takes and releases until the hold is parked.
func (s *side) parks() {
	s.h.Helper()
	for range 2 {
		s.give(s.take(exclusive()))
	}
	if n := s.b.Stats().Parked; n != 1 {
		s.h.Fatalf("%d are parked", n)
	}
}

// A hold that nobody has is seen as that, at its own sidecar at once, at others when it has
// been for 0.1 s; and who gets it next is seen again.
func TestParkedIsSeen(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9, Park: 10 * time.Second}), h.side(Options{Turns: 9})
		a.parks()
		time.Sleep(shownAfter)
		synctest.Wait()
		for _, s := range []*side{a, b} {
			if x := s.holder(); !x.Parked || x.Owner.PID != 0 || x.Sidecar != "side" || x.Lease != a.ID() || x.Age != shownAfter {
				t.Errorf("%+v", x)
			}
		}
		time.Sleep(time.Second)
		q := exclusive()
		q.Owner = lock.Owner{PID: 7, Label: "next"}.Encode()
		g := a.take(q)
		time.Sleep(2 * shownAfter)
		synctest.Wait()
		for _, s := range []*side{a, b} {
			if x := s.holder(); x.Parked || x.ID != g.ID || x.Fence != g.Fence || x.Owner.PID != 7 || x.Owner.Label != "next" || x.Age != 2*shownAfter {
				t.Errorf("%+v, want %+v", x, g)
			}
		}
		a.give(g)
		if x := a.holder(); !x.Parked {
			t.Errorf("%+v", x)
		}
		a.close()
		b.close()
	})
}

// What a sidecar shows of a parked hold, a forced release of that id ends.
func TestForceOfWhatIsParked(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9, Park: 10 * time.Second}), h.side(Options{Turns: 9})
		for _, s := range []*side{a, b} {
			a.parks()
			g := a.take(exclusive())
			time.Sleep(2 * shownAfter) // and the store knows who has it
			a.give(g)
			time.Sleep(2 * shownAfter)
			synctest.Wait()
			if err := s.b.ForceRelease(h.Context(), "r", s.holder().ID, time.Second); err != nil {
				t.Errorf("got %v", err)
			}
			if n, _ := h.inStore(); n != 0 || len(a.told) != 0 {
				t.Errorf("%d holds in the store; told %+v", n, a.told)
			}
		}
		a.close()
		b.close()
	})
}

// The store is told who has a hold until it has answered.
func TestShownThoughTheStoreWasSilent(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := a.take(exclusive())
		w := a.ask(exclusive())
		a.way.mute = 3
		a.give(g)
		h.granted(w)(w)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if x := b.holder(); x.ID != w.g.ID || x.Fence != w.g.Fence {
			t.Errorf("%+v, want %+v", x, w.g)
		}
		a.give(w.g)
		a.close()
		b.close()
	})
}
