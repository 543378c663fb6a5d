package waitfor

import (
	"slices"

	"github.com/locksidecar/locksidecar/lock"
)

// Who waits for a permit gets it as soon as any of those who have one lets go. So such a
// wait keeps an owner only where all of them stand still, and a circle that goes over one of
// them is one only together with the others: see Edge.Beside.

// permits calls f with those who have the permits of which a waiter wants one, where none is
// free.
func (g *Graph) permits(p place, f func(Edge)) {
	st := &g.locks[p.lock]
	w := st.Waiters[p.waiter]
	if w.Mode.Limit() == 0 {
		return
	}
	var all []lock.Holding
	for _, h := range st.Holders {
		if h.Mode == w.Mode {
			all = append(all, h)
		}
	}
	if len(all) < w.Mode.Limit() {
		return
	}
	for _, h := range all {
		f(Edge{Resource: st.Resource, Waiter: w, Blocker: h})
	}
}

// stuck tells whether all who have the permits stand still.
func (g *Graph) stuck(p place, still map[Who]bool) bool {
	full, all := false, true
	g.permits(p, func(e Edge) {
		full = true
		all = all && still[WhoOf(e.Blocker)] && !e.Blocker.Revoked && e.Blocker.Kept == 0
	})
	return full && all
}

// maxRounds bounds the search for owners who stand still. Where it takes more, none is found.
const maxRounds = 100

// standing gives the largest set of owners of which each waits for what only others of the
// set can give: it takes away who need not stand still, until there are no more. nil where
// nobody waits for a permit: then nobody needs to know.
func (g *Graph) standing() map[Who]bool {
	if !slices.ContainsFunc(g.locks, func(st lock.Status) bool {
		return slices.ContainsFunc(st.Waiters, func(w lock.Holding) bool { return w.Mode.Limit() > 0 })
	}) {
		return nil
	}
	set := make(map[Who]bool, len(g.waits))
	for who := range g.waits {
		set[who] = true
	}
	for range maxRounds {
		left := make(map[Who]bool, len(set))
		for i := range g.locks {
			g.leave(i, set, left)
		}
		if len(left) == len(set) {
			return set
		}
		set = left
	}
	return nil
}

// leave notes in left who of a set waits at a lock for others of it. It takes each holder and
// each waiter once for every mode.
func (g *Graph) leave(i int, set, left map[Who]bool) {
	st := &g.locks[i]
	holders, ahead := map[lock.Mode]*two{}, map[lock.Mode]*two{}
	stuck := map[lock.Mode]bool{}
	for j, w := range st.Waiters {
		if holders[w.Mode] == nil {
			t := &two{}
			for _, h := range st.Holders {
				if !h.Revoked && !h.Parked && h.Kept == 0 && excludes(h, w) && set[WhoOf(h)] {
					t.add(WhoOf(h))
				}
			}
			holders[w.Mode], stuck[w.Mode] = t, g.stuck(place{i, j}, set)
		}
		who := WhoOf(w)
		if !set[who] {
			continue
		}
		waits := stuck[w.Mode] || holders[w.Mode].other(who)
		for mode, t := range ahead {
			waits = waits || mode.Excludes(w.Mode) && t.other(who)
		}
		if waits {
			left[who] = true
		}
		if ahead[w.Mode] == nil {
			ahead[w.Mode] = &two{}
		}
		ahead[w.Mode].add(who)
	}
}

// two are the first two owners of several: enough to tell whether there is another than one.
type two struct {
	first Who
	n     int
}

func (t *two) add(who Who) {
	if t.n == 0 {
		t.first, t.n = who, 1
	} else if who != t.first {
		t.n = 2
	}
}

func (t *two) other(than Who) bool { return t.n == 2 || t.n == 1 && t.first != than }

// withPermits adds to a circle that goes over permits why the others who have them stand still.
func (g *Graph) withPermits(c Cycle) Cycle {
	known := map[Who]bool{}
	for _, e := range c {
		known[WhoOf(e.Waiter)] = true
	}
	var todo []Who
	add := func(e Edge) {
		e.Beside = true
		c = append(c, e)
		if who := WhoOf(e.Blocker); !known[who] {
			known[who] = true
			todo = append(todo, who)
		}
	}
	others := func(p place, than lock.HoldID) {
		g.permits(p, func(e Edge) {
			if e.Blocker.ID != than {
				add(e)
			}
		})
	}
	for _, e := range slices.Clone(c) {
		if !e.Queued && !excludes(e.Waiter, e.Blocker) {
			for _, p := range g.waits[WhoOf(e.Waiter)] {
				if g.locks[p.lock].Waiters[p.waiter].ID == e.Waiter.ID {
					others(p, e.Blocker.ID)
				}
			}
		}
	}
	for len(todo) > 0 {
		who := todo[0]
		todo = todo[1:]
		g.because(who, add, others)
	}
	return c
}

// because adds the first reason why an owner stands still.
func (g *Graph) because(who Who, add func(Edge), others func(place, lock.HoldID)) {
	for _, p := range g.waits[who] {
		var first *Edge
		note := func(e Edge) {
			if b := WhoOf(e.Blocker); first == nil && g.still[b] && (b != who || !excludes(e.Waiter, e.Blocker)) {
				first = &e
			}
		}
		if g.holds(p, note); first == nil { // a queue is long
			g.ahead(p, 0, note)
		}
		if first == nil {
			continue
		}
		add(*first)
		if !first.Queued && !excludes(first.Waiter, first.Blocker) {
			others(p, first.Blocker.ID)
		}
		return
	}
}
