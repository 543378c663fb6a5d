package waitfor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// TestStandsWithPermits: a circle does not stand when one of those beside it has let go, or
// does not wait any more.
func TestStandsWithPermits(t *testing.T) {
	locks := func() []lock.Status {
		return []lock.Status{
			lockOf("p", held(party("1.p", permit), party("2.q", permit)), party("3.r", permit, "a")),
			lockOf("a", held(party("3.r", x)), party("1.p", x, "p"), party("2.q", x, "p")),
		}
	}
	all := locks()
	c := New(all).Cycle(all[0].Waiters[0].ID)
	if len(c) != 4 || !c.Stands(all) || len(c.Victims()) != 2 || len(c.Resources()) != 2 {
		t.Fatalf("got %s, victims %v", path(c), c.Victims())
	}
	all[0].Holders = all[0].Holders[:1]
	if c.Stands(all) {
		t.Error("it stands though a permit is free")
	}
	all = locks()
	all[1].Waiters = all[1].Waiters[:1]
	if c.Stands(all) {
		t.Error("it stands though one who has a permit works")
	}
}

// TestManyPermits: all who have one of the most permits there can be wait for who wants one. Each
// of them finds the circle, with the others beside it.
func TestManyPermits(t *testing.T) {
	const most = lock.MaxPermits
	all := []lock.Status{lockOf("p", nil), lockOf("a", held(party("me.o", x)))}
	for i := range most {
		name := fmt.Sprint(i, ".o")
		all[0].Holders = append(all[0].Holders, party(name, lock.Permits(most)))
		all[1].Waiters = append(all[1].Waiters, party(name, x, "p"))
	}
	all[0].Waiters = held(party("me.o", lock.Permits(most), "a"))
	g := New(all)
	for _, w := range []lock.Holding{all[0].Waiters[0], all[1].Waiters[0], all[1].Waiters[most-1]} {
		if c := g.Cycle(w.ID); len(c) != 2*most || len(c.circle()) != 2 || !c.Stands(all) {
			t.Errorf("%s finds %d edges, %d in a circle", Name(w), len(c), len(c.circle()))
		}
	}
	if all[0].Holders = all[0].Holders[1:]; New(all).Cycle(all[0].Waiters[0].ID) != nil {
		t.Error("a circle though a permit is free")
	}
}

// town is some owners and what they hold and wait for, as stores grant it.
type town struct {
	locks []queue.Queue[lock.Holding]
	waits map[Who]bool
}

type request = queue.Entry[lock.Holding]

func newTown(r *rand.Rand, owners int) *town {
	w := &town{locks: make([]queue.Queue[lock.Holding], 4), waits: map[Who]bool{}}
	for range 4 * owners {
		mode := []lock.Mode{x, s, permit, permit, lock.Permits(3)}[r.IntN(5)]
		h := party(fmt.Sprint(r.IntN(owners), ".o"), mode)
		h.ID = lock.NewHoldID()
		q := &w.locks[r.IntN(len(w.locks))]
		if w.waits[WhoOf(h)] {
			continue
		}
		e := &request{ID: h.ID, Value: h}
		if q.Put(e, queue.RoomOf(mode)); e.Waiting() {
			w.waits[WhoOf(h)] = true
		}
	}
	return w
}

func (w *town) statuses() (all []lock.Status) {
	of := func(es []*request) (hs []lock.Holding) {
		for _, e := range es {
			hs = append(hs, e.Value)
		}
		return hs
	}
	for i := range w.locks {
		all = append(all, lock.Status{
			Resource: lock.Resource(fmt.Sprint(i)),
			Holders:  of(slices.Collect(w.locks[i].Holders())), Waiters: of(slices.Collect(w.locks[i].Waiters())),
		})
	}
	return all
}

// run lets all who do not wait release what they have, until nobody is left who could.
func (w *town) run() {
	for again := true; again; {
		again = false
		for i := range w.locks {
			q := &w.locks[i]
			for _, e := range slices.Collect(q.Holders()) {
				if !w.waits[WhoOf(e.Value)] {
					q.Remove(e)
					again = true
				}
			}
			for e := q.Next(); e != nil; e = q.Next() {
				delete(w.waits, WhoOf(e.Value))
				again = true
			}
		}
	}
}

// TestRandomPermits: in random towns a circle is found where some are left who wait for ever,
// and only such are in it.
func TestRandomPermits(t *testing.T) {
	found, beside := 0, 0
	for seed := range uint64(3000) {
		w := newTown(rand.New(rand.NewPCG(seed, 0)), 6)
		locks := w.statuses()
		cycles := New(locks).Cycles()
		w.run()
		own := 0 // who waits for itself alone is in no circle
		for _, c := range cycles {
			found++
			if !c.Stands(locks) {
				t.Fatalf("seed %d: %s does not stand", seed, path(c))
			}
			for _, e := range c {
				if !w.waits[WhoOf(e.Waiter)] {
					t.Fatalf("seed %d: %s is in %s, but gets what it waits for\n%+v", seed, Name(e.Waiter), path(c), locks)
				}
				if e.Beside {
					beside++
				}
			}
		}
		for _, st := range locks {
			for _, wait := range st.Waiters {
				if slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return WhoOf(h) == WhoOf(wait) }) {
					own++
				}
			}
		}
		if len(cycles) == 0 && len(w.waits) > 0 && own == 0 {
			t.Fatalf("seed %d: %v wait for ever, and no circle is found\n%+v", seed, w.waits, locks)
		}
	}
	if found < 100 || beside < 20 {
		t.Errorf("only %d circles, %d edges beside: the towns are too peaceful", found, beside)
	}
}
