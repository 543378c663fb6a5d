// Package waitfor finds out who waits for whom, across sidecars, and whether some wait for
// each other. It is pure: what holds and waits comes in as lock.Status, whoever has read it.
//
// Those who wait are owners: one line of work in an app, by the session and the owner label
// of its requests. A request without a label may be of any of an app's threads: that one of
// them waits does not mean that the app stands still, so it is never part of a circle.
package waitfor

import (
	"slices"

	"github.com/locksidecar/locksidecar/lock"
)

// Who is an owner.
type Who struct{ Ref, Label string }

// WhoOf tells whose hold or request that is.
func WhoOf(h lock.Holding) Who { return Who{h.Owner.Ref, h.Owner.Label} }

// Known tells whether that is one line of work, which stands still while it waits.
func (w Who) Known() bool { return w.Ref != "" && w.Label != "" }

// Edge says that Waiter does not get Resource before Blocker has let go of it, or, where
// Queued, has got it first.
type Edge struct {
	Resource lock.Resource
	Waiter   lock.Holding
	Blocker  lock.Holding
	Queued   bool
	// Beside: the edge is no part of a circle, but shows that one that goes over permits is
	// one: another owner who has such a permit stands still as well.
	Beside bool
}

// Graph is who waits for whom. Its methods only read it.
type Graph struct {
	locks []lock.Status
	waits map[Who][]place
	still map[Who]bool // see standing
}

// place is a waiter: the waiters of a lock are in the order in which they are served.
type place struct{ lock, waiter int }

// New makes the graph of some locks.
func New(locks []lock.Status) *Graph {
	g := &Graph{locks: locks, waits: make(map[Who][]place)}
	for i, st := range locks {
		for j, w := range st.Waiters {
			if who := WhoOf(w); who.Known() {
				g.waits[who] = append(g.waits[who], place{i, j})
			}
		}
	}
	g.still = g.standing()
	return g
}

// excludes tells whether two requests cannot have a resource at the same time.
func excludes(a, b lock.Holding) bool { return a.Mode.Excludes(b.Mode) }

// holds calls f with what keeps a waiter from its resource: holds first. A hold whose
// release is forced, or that is only kept, ends by itself.
func (g *Graph) holds(p place, f func(Edge)) {
	st := &g.locks[p.lock]
	w := st.Waiters[p.waiter]
	for _, h := range st.Holders {
		if !h.Revoked && !h.Parked && h.Kept == 0 && excludes(h, w) {
			f(Edge{Resource: st.Resource, Waiter: w, Blocker: h})
		}
	}
	if g.still != nil && g.stuck(p, g.still) {
		g.permits(p, f)
	}
}

// ahead calls f with those waiters with numbers from on who must be served before p.
func (g *Graph) ahead(p place, from int, f func(Edge)) {
	st := &g.locks[p.lock]
	w := st.Waiters[p.waiter]
	for j := p.waiter - 1; j >= from; j-- {
		if b := st.Waiters[j]; excludes(b, w) {
			f(Edge{Resource: st.Resource, Waiter: w, Blocker: b, Queued: true})
		}
	}
}

// Cycle is a circle of owners, each of which waits for the next, and the last for the
// first. Each edge's Blocker is the owner of the Waiter of the next edge. Edges that stand
// beside the circle come after it.
type Cycle []Edge

// circle are the edges without those beside it.
func (c Cycle) circle() Cycle {
	if i := slices.IndexFunc(c, func(e Edge) bool { return e.Beside }); i >= 0 {
		return c[:i]
	}
	return c
}

// Cycle finds the shortest circle that begins with the wait of that id and comes back to
// what its owner holds; nil: there is none. Any circle of known owners is found
// from each of its members that somebody waits for because of a hold.
func (g *Graph) Cycle(id lock.HoldID) Cycle {
	for who, places := range g.waits {
		for _, p := range places {
			if g.locks[p.lock].Waiters[p.waiter].ID == id {
				return g.circle(who, p)
			}
		}
	}
	return nil
}

// seen bounds a search: what was looked at of one lock. A second waiter of it needs to look
// only at what the first did not.
type seen struct {
	holders map[lock.Mode]bool // by the mode of the waiter
	ahead   map[lock.Mode]int  // that many of the queue
}

// circle searches by breadth from start, which is a wait of who.
func (g *Graph) circle(who Who, start place) Cycle {
	came := map[Who]Edge{}
	looked := map[int]*seen{}
	queue := []place{start}
	var last *Edge
	own := false // of the waits of one owner, one is in the way of another
	visit := func(e Edge) {
		from, to := WhoOf(e.Waiter), WhoOf(e.Blocker)
		switch {
		case last != nil, !to.Known():
			return
		case from == to:
			own = true
			return
		case to == who:
			if !e.Queued {
				last = &e
			}
			return
		}
		if _, ok := came[to]; !ok {
			came[to] = e
			queue = append(queue, g.waits[to]...)
		}
	}
	for len(queue) > 0 && last == nil {
		p := queue[0]
		queue = queue[1:]
		mode := g.locks[p.lock].Waiters[p.waiter].Mode
		if !mode.Valid() {
			continue
		}
		s := looked[p.lock]
		if s == nil {
			s = &seen{holders: make(map[lock.Mode]bool), ahead: make(map[lock.Mode]int)}
			looked[p.lock] = s
		}
		if own = false; !s.holders[mode] {
			g.holds(p, visit)
			s.holders[mode] = !own
		}
		own = false
		g.ahead(p, s.ahead[mode], visit)
		if !own {
			s.ahead[mode] = max(s.ahead[mode], p.waiter)
		}
	}
	if last == nil {
		return nil
	}
	c := Cycle{*last}
	for e := *last; WhoOf(e.Waiter) != who; {
		e = came[WhoOf(e.Waiter)]
		c = append(c, e)
	}
	for i, j := 0, len(c)-1; i < j; i, j = i+1, j-1 {
		c[i], c[j] = c[j], c[i]
	}
	return g.withPermits(c)
}

// Cycles finds for each owner in a circle the shortest one, and gives each circle once.
func (g *Graph) Cycles() []Cycle {
	var all []Cycle
	known := map[Who]bool{}
	for i, st := range g.locks { // in the order of the names
		for j, w := range st.Waiters {
			who := WhoOf(w)
			if !who.Known() || known[who] {
				continue
			}
			c := g.circle(who, place{i, j})
			for _, e := range c {
				known[WhoOf(e.Waiter)] = true
			}
			if c != nil {
				all = append(all, c)
			}
		}
	}
	return all
}
