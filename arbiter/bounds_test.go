package arbiter

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// empty checks that the store has nothing, at this moment and without anybody's help.
func (h *house) empty(when string) {
	h.Helper()
	if holders, waiters := h.inStore(); holders+waiters != 0 {
		h.Errorf("%s: %d holds and %d waiters are in the store", when, holders, waiters)
	}
}

// What is given up goes out of the store though its request had no answer.
func TestGivenUpWithoutAnAnswer(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		q := exclusive()
		s.way.deaf = true
		if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		s.way.deaf = false
		if err := s.Release(h.Context(), "r", q.ID); err != nil {
			t.Error(err)
		}
		h.empty("given up")
		s.forgets()
		s.close()
	})
}

// Who waits beside others and gives up leaves them where they are, and is not granted when it
// is its turn.
func TestGivenUpBesideOthers(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		q := exclusive()
		s.way.deaf = true
		if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		s.way.deaf = false
		g := s.take(exclusive()) // asks for both, and has it
		w := s.ask(exclusive())
		if err := s.Release(h.Context(), "r", q.ID); err != nil {
			t.Error(err)
		}
		if n, _ := h.inStore(); n != 1 {
			t.Errorf("%d holds are in the store", n)
		}
		s.give(g)
		h.granted(w)(w)
		s.give(w.g)
		h.empty("released")
		if err := s.Release(h.Context(), "r", lock.NewHoldID()); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what never was: %v", err)
		}
		s.forgets()
		s.close()
	})
}

// A hold whose release had no answer is nobody's: who asks for it again helps to release it.
func TestReleasedIsNotGranted(t *testing.T) {
	for name, reached := range map[string]bool{"the answer is lost": true, "the request is lost": false} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				s := h.side(Options{Turns: 9})
				b := s.bend()
				q := exclusive()
				g := s.take(q)
				b.releases(silent)
				b.cut = !reached
				if err := s.Release(h.Context(), "r", g.ID); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("got %v", err)
				}
				if g, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("asked again: %+v, %v", g, err)
				}
				b.releases(nil)
				b.cut = false
				if g, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrNotHolder) {
					t.Errorf("asked again: %+v, %v", g, err)
				}
				h.empty("released")
				s.forgets()
				s.close()
			})
		})
	}
}

// What is never parked goes out of the store with its release.
func TestNotParked(t *testing.T) {
	guarded := func(s *side) { s.way.guards = func(lock.Request) bool { return true } }
	for name, c := range map[string]struct {
		o     Options
		first func(s *side)
	}{
		"no time":             {Options{Turns: 9}, func(*side) {}},
		"a guard":             {Options{Turns: 9, Park: time.Second}, guarded},
		"the turns are over":  {Options{Turns: 1, Park: time.Second}, func(*side) {}},
		"its resource is new": {Options{Turns: 9, Park: time.Second}, func(*side) { time.Sleep(2 * comesBack) }},
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				s := h.side(c.o)
				for range 3 {
					c.first(s)
					s.give(s.take(exclusive()))
					h.empty("released")
					if n := s.b.Stats(); n.Parked != 0 || n.Saved != 0 {
						t.Errorf("%+v", n)
					}
				}
				s.forgets()
				s.close()
			})
		})
	}
	t.Run("the lease is closed", func(t *testing.T) {
		inHouse(t, func(h *house) {
			s := h.side(Options{Turns: 9, Park: time.Second})
			s.give(s.take(exclusive()))
			g := s.take(exclusive())
			s.close()
			if err := s.Release(h.Context(), "r", g.ID); !errors.Is(err, lock.ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
		})
	})
	t.Run("the last turn", func(t *testing.T) {
		inHouse(t, func(h *house) {
			s := h.side(Options{Turns: 2, Park: time.Second})
			s.give(s.take(exclusive()))
			s.give(s.take(exclusive()))
			if n := s.b.Stats().Parked; n != 1 {
				t.Errorf("%d are parked after the first of two turns", n)
			}
			s.give(s.take(exclusive()))
			h.empty("after the second")
			s.forgets()
			s.close()
		})
	})
}

// The time of parking counts from the last release, whatever was before.
func TestParkingCountsFromTheRelease(t *testing.T) {
	const park = 200 * time.Millisecond
	for name, use := range map[string]func(s *side){
		"taken and released": func(s *side) {
			time.Sleep(park / 2)
			s.give(s.take(exclusive()))
		},
		"held for longer": func(s *side) {
			time.Sleep(park / 2)
			g := s.take(exclusive())
			time.Sleep(2 * park)
			s.give(g)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				s := h.side(Options{Turns: 9, Park: park})
				s.give(s.take(exclusive()))
				s.give(s.take(exclusive()))
				use(s)
				time.Sleep(park - 1)
				synctest.Wait()
				if n, _ := h.inStore(); n != 1 {
					t.Error("it is not parked for as long as it is said")
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				h.empty("the time is over")
				s.forgets()
				s.close()
			})
		})
	}
}

// Behind a hold that was downgraded readers of other sidecars get in, and a writer of this one
// waits for them as for its own.
func TestWriterBehindADowngrade(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9, Park: time.Second}), h.side(Options{Turns: 9})
		g := a.take(exclusive())
		far := b.ask(shared())
		if err := a.Downgrade(h.Context(), "r", g.ID); err != nil {
			t.Fatal(err)
		}
		h.granted(far)(far)
		asked := len(a.way.asked)
		near := a.ask(shared())
		w := a.ask(exclusive())
		if h.granted(far, near)(far, near, w); len(a.way.asked) != asked+2 {
			t.Errorf("the store was asked %d times", len(a.way.asked)-asked)
		}
		a.give(g)
		a.give(near.g)
		h.granted(far, near)(far, near, w)
		b.give(far.g)
		h.granted(far, near, w)(far, near, w)
		st, err := h.store.Get(h.Context(), "r")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Mode != lock.Exclusive {
			t.Errorf("%+v, %v", st, err)
		}
		a.give(w.g)
		a.forgets()
		a.close()
		b.close()
	})
}

// A writer that waits when its sidecar's own hold is downgraded does not slip in as a reader.
func TestWaiterOfADowngrade(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := a.take(exclusive())
		w := a.ask(exclusive())
		if err := a.Downgrade(h.Context(), "r", g.ID); err != nil {
			t.Fatal(err)
		}
		a.give(g)
		h.granted(w)(w)
		st, err := h.store.Get(h.Context(), "r")
		if err != nil || len(st.Holders) != 1 || st.Holders[0].Mode != lock.Exclusive {
			t.Errorf("%+v, %v", st, err)
		}
		far := b.ask(shared())
		h.granted()(far)
		a.give(w.g)
		h.granted(far)(far)
		b.give(far.g)
		a.close()
		b.close()
	})
}

// Where it costs the store something to tell who stands behind a cohort, a request for what was not
// here just before is that of one app: for the store, too, and nobody joins it.
func TestSingleWhereTellingCosts(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9, Park: time.Second}), h.side(Options{Turns: 9})
		a.costly = true
		asked := func(want int, cohort bool) {
			t.Helper()
			if len(a.way.asked) != want || (a.way.last.Cohort != nil) != cohort {
				t.Errorf("asked %d times, want %d; the last for a cohort: %t", len(a.way.asked), want, a.way.last.Cohort != nil)
			}
		}
		g := a.take(exclusive())
		asked(1, false)
		one := a.ask(exclusive())
		asked(2, true)
		two := a.ask(exclusive())
		asked(2, true)
		far := b.ask(exclusive())
		a.give(g)
		h.granted(one)(one, two, far)
		a.give(one.g)
		h.granted(one, two)(one, two, far)
		a.give(two.g)
		h.granted(one, two, far)(one, two, far)
		b.give(far.g)
		h.empty("released")
		a.parks()
		asked(3, true)
		time.Sleep(4 * comesBack)
		_, err := a.Acquire(h.Context(), try(exclusive()))
		if asked(4, false); err != nil {
			t.Error(err)
		}
		if _, err := b.Acquire(h.Context(), try(exclusive())); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("got %v", err)
		}
		a.close()
		b.close()
	})
}

// Where the store can take no more of the lease, what nobody has goes first.
func TestParkedMakesRoom(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Hour})
		s.parks()
		full := func(g *lock.Grant, err *error) {
			if all, _ := h.store.List(h.Context(), "", lock.Page{Limit: 9}); *err == nil && len(all) > 1 {
				_ = s.way.Lease.Release(h.Context(), g.Resource, g.ID)
				*err = &lock.LimitError{Limit: "holds", Max: 1}
			}
		}
		s.way.after = full
		ask := func() (lock.Grant, error) {
			q := exclusive()
			q.Resource = "other"
			return s.Acquire(h.Context(), q)
		}
		g, err := ask()
		if n := s.b.Stats().Parked; err != nil || n != 0 {
			t.Fatalf("%v; %d are parked", err, n)
		}
		if g, err := s.Acquire(h.Context(), exclusive()); !errors.Is(err, lock.ErrLimit) {
			t.Errorf("beside what an app has: %+v, %v", g, err)
		}
		if err := s.Release(h.Context(), "other", g.ID); err != nil {
			t.Error(err)
		}
		s.forgets()
		s.close()
	})
}
