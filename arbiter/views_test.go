package arbiter

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func ids(hs []lock.Holding) (all []lock.HoldID) {
	for _, h := range hs {
		all = append(all, h.ID)
	}
	return all
}

func (h *house) same(what string, got, want []lock.HoldID) {
	h.Helper()
	if len(got) != len(want) {
		h.Errorf("%s: %v, want %v", what, got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			h.Errorf("%s: %v, want %v", what, got, want)
		}
	}
}

// Its own sidecar knows at once who has a lock and who waits, another one when that has
// lasted for 0.1 s. Both force whom they see, and nobody else.
func TestViews(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := a.take(exclusive())
		w, last := a.ask(exclusive()), a.ask(exclusive())
		other := b.ask(exclusive())
		time.Sleep(time.Second)
		a.give(g)
		h.granted(w)(w, last, other)
		look := func(s *side) lock.Status {
			list, err := s.b.List(h.Context(), "", lock.Page{})
			st, err2 := s.b.Get(h.Context(), "r")
			if err != nil || err2 != nil || len(list) != 1 || len(list[0].Holders) != len(st.Holders) || list[0].Holders[0].ID != st.Holders[0].ID {
				t.Fatalf("List: %+v, %v; Get: %+v, %v", list, err, st, err2)
			}
			return st
		}
		own := look(a)
		h.same("holders here", ids(own.Holders), []lock.HoldID{w.q.ID})
		h.same("waiters here", ids(own.Waiters), []lock.HoldID{last.q.ID, other.q.ID})
		if x := own.Holders[0]; x.Owner.PID != 1 || x.Sidecar != "side" || x.Lease != a.ID() || x.Fence != w.g.Fence || x.Age != 0 || x.Cohort || own.Waiters[0].Fence != 0 || own.Waiters[0].Age != time.Second {
			t.Errorf("%+v", own)
		}
		h.same("holders elsewhere", ids(look(b).Holders), []lock.HoldID{g.ID})
		time.Sleep(shownAfter)
		synctest.Wait()
		h.same("holders elsewhere, later", ids(look(b).Holders), []lock.HoldID{w.q.ID})

		for _, s := range []*side{a, b} {
			if err := s.b.ForceRelease(h.Context(), "r", g.ID, 0); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("who had it before is forced: %v", err)
			}
			if err := s.b.ForceRelease(h.Context(), "r", lock.NewHoldID(), 0); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("nobody is forced: %v", err)
			}
			if err := s.b.ForceRelease(h.Context(), "other", w.q.ID, 0); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("another resource is forced: %v", err)
			}
		}
		if len(a.told) != 0 {
			t.Errorf("told %+v", a.told)
		}
		go func() { _ = b.b.ForceRelease(h.Context(), "r", w.q.ID, time.Minute) }()
		synctest.Wait()
		if len(a.told) != 1 || a.told[0].ID != w.q.ID || !look(a).Holders[0].Revoked {
			t.Errorf("told %+v; %+v", a.told, look(a))
		}
		// Who waits here stands behind the other now, which is as far as a forced release goes.
		a.give(w.g)
		h.granted(w, other)(w, last, other)
		b.give(other.g)
		h.granted(w, other, last)(w, last, other)
		a.give(last.g)
		a.close()
		b.close()
	})
}

// An id that is asked for again is the same request; an id that is used up, or another's, is none.
func TestSameID(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		q := exclusive()
		g := s.take(q)
		if again := s.take(q); again != g {
			t.Errorf("again: %+v, want %+v", again, g)
		}
		for _, change := range []func(*lock.Request){func(q *lock.Request) { q.Mode = lock.Shared }, func(q *lock.Request) { q.Resource = "other" }} {
			wrong := q
			change(&wrong)
			if _, err := s.Acquire(h.Context(), wrong); !errors.Is(err, lock.ErrInvalid) {
				t.Errorf("%+v: %v", wrong, err)
			}
		}
		if err := s.Release(h.Context(), "other", q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of another resource: %v", err)
		}
		if err := s.Downgrade(h.Context(), "other", q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Downgrade of another resource: %v", err)
		}
		w := s.ask(exclusive())
		s.give(g)
		h.granted(w)(w)
		if _, err := s.Acquire(h.Context(), q); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Acquire with an id that is given up: %v", err)
		}
		if err := s.Downgrade(h.Context(), "r", q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Downgrade with an id that is given up: %v", err)
		}
		s.give(w.g)
		if s.ID() != s.way.ID() || s.TellsBlocking() {
			t.Errorf("lease %s of %s; tells when it blocks: %t", s.ID(), s.way.ID(), s.TellsBlocking())
		}
		s.close()
	})
}

// A hold is parked only for so long, only so many are, and only for what comes back.
func TestParkingHasBounds(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Park: 10 * time.Second}) // and no turns
		pair := func(r lock.Resource) {
			q := exclusive()
			q.Resource = r
			if err := s.Release(h.Context(), r, s.take(q).ID); err != nil {
				t.Fatal(err)
			}
		}
		pair("r")
		time.Sleep(3 * comesBack)
		pair("r")
		if s.b.Stats().Parked != 0 {
			t.Error("a resource that comes back late is parked")
		}
		for range 2 {
			for i := range maxParked + 10 {
				pair(lock.Resource(strconv.Itoa(i)))
			}
		}
		if n := s.b.Stats().Parked; n != maxParked {
			t.Errorf("%d are parked, want %d", n, maxParked)
		}
		time.Sleep(3 * time.Second) // the age of a cohort
		saved := s.b.Stats().Saved
		pair("0")
		if st := s.b.Stats(); st.Saved != saved {
			t.Error("what was parked for long is given to who asks")
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := s.b.Stats().Parked; n != 0 || len(s.stores) != 0 || len(s.lines) != 0 || len(s.members) != 0 {
			t.Errorf("%d are parked after their time, %d are known", n, len(s.stores))
		}
		s.close()
	})
}

// Without turns each request stands for itself, and readers do, too.
func TestNoTurns(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Park: time.Second})
		g1, g2 := s.take(shared()), s.take(shared())
		if n, _ := h.inStore(); n != 2 {
			t.Errorf("%d holds in the store", n)
		}
		w1, w2 := s.ask(exclusive()), s.ask(exclusive())
		if _, waiters := h.inStore(); waiters != 2 {
			t.Errorf("%d waiters in the store", waiters)
		}
		s.give(g1)
		s.give(g2)
		h.granted(w1)(w1, w2)
		s.give(w1.g)
		h.granted(w1, w2)(w1, w2)
		s.give(w2.g)
		s.close()
	})
}

// The news that somebody else waits ends the parking, and how long it took until the
// store was asked is told.
func TestYield(t *testing.T) {
	inHouse(t, func(h *house) {
		var took []time.Duration
		a := h.side(Options{Turns: 9, Park: time.Minute, Yielded: func(d time.Duration) { took = append(took, d) }})
		b := h.side(Options{Turns: 9})
		time.Sleep(time.Second) // the clock begins at 0, which is no moment
		a.give(a.take(exclusive()))
		g := a.take(exclusive())
		w := b.ask(exclusive())
		time.Sleep(time.Second)
		late := a.ask(exclusive())
		a.give(g)
		h.granted(w)(w, late)
		b.give(w.g)
		h.granted(w, late)(w, late)
		a.give(late.g)
		if len(took) != 1 || took[0] != time.Second || a.b.Stats().Contended != 1 {
			t.Errorf("it took %v; %+v", took, a.b.Stats())
		}
		a.give(a.take(exclusive()))
		if a.b.Stats().Parked != 1 {
			t.Errorf("%+v", a.b.Stats())
		}
		w = b.ask(exclusive())
		h.granted(w)(w)
		if len(took) != 2 || took[1] != 0 {
			t.Errorf("it took %v for what is parked", took)
		}
		b.give(w.g)
		a.close()
		b.close()
	})
}

// A wait that ends says who was in the way, here or elsewhere.
func TestWhoIsInTheWay(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		for _, s := range []*side{b, a} {
			first, second := s.ask(exclusive()), s.ask(exclusive())
			second.cancel()
			synctest.Wait()
			var held *lock.HeldError
			if !errors.As(second.err, &held) || !errors.Is(second.err, context.Canceled) || held.Position != 2 ||
				len(held.Status.Holders) != 1 || held.Status.Holders[0].ID != g.ID || held.Status.Resource != "r" {
				t.Errorf("got %+v", second.err)
			}
			first.cancel()
			synctest.Wait()
		}
		b.give(g)
		a.close()
		b.close()
	})
}
