package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// TestRandom lets one session do everything in any order on a store that answers
// in any order, and looks at each step whether the promises hold.
func TestRandom(t *testing.T) {
	n := uint64(3000)
	if testing.Short() {
		n = 300
	}
	for seed := range n {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 1)))
		for range 150 {
			w.step()
		}
		w.finish()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// FuzzLedger is the same with steps that the fuzzer chooses.
func FuzzLedger(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) {
		w := newWorld(t, rand.New(rand.NewPCG(a, b)))
		for range 150 {
			w.step()
		}
		w.finish()
	})
}

// entry is a hold in the model of the store.
type entry struct {
	res   lock.Resource
	mode  lock.Mode
	lease int
	until time.Duration // of one whose release is forced; 0: it is not
}

// caller is one caller of Acquire and what it asked for.
type caller struct {
	*Call
	ask Ask
}

// work is one request to the store that has not returned.
type work struct {
	id      lock.HoldID
	hold    *Hold
	rest    []*Hold      // to be asked about before the ledger is told
	said    []LostReason // of a release, about those that were
	missing *Hold        // of those that were, one that the store lacks
	lease   Lease
	request *lock.Request
	kind    string
	grant   *lock.Grant // of the store, on its way
	stopped bool
	given   bool // of a clean: Cleaned follows
	done    func()
}

type world struct {
	t     *testing.T
	r     *rand.Rand
	l     *Ledger
	now   time.Duration
	lease int
	ids   int

	store   map[lock.Resource]map[lock.HoldID]*entry
	works   []*work
	callers []*caller
	given   map[lock.HoldID]map[string]bool // by lock id: who was answered with it
	locks   []lock.HoldID
	peeks   []*Call
	ended   int

	farewells int // that the end has promised, and that have not come
}

func newWorld(t *testing.T, r *rand.Rand) *world {
	w := &world{
		t: t, r: r, lease: 1,
		store: map[lock.Resource]map[lock.HoldID]*entry{"a": {}, "b": {}, "c": {}},
		given: map[lock.HoldID]map[string]bool{},
	}
	o := Options{Holds: 12, Waits: 8, LostGrace: 2 * time.Second, NewID: func() lock.HoldID {
		w.ids++
		return lock.HoldID(fmt.Sprint("id", w.ids))
	}}
	if r.IntN(3) == 0 {
		o.TTL = 30 * time.Second
	}
	w.l = New(o, 0)
	return w
}

func (w *world) begin(x *work) {
	for _, other := range w.works {
		if other.id == x.id {
			w.t.Errorf("%s of %s while a %s is under way", x.kind, x.id, other.kind)
		}
	}
	w.works = append(w.works, x)
}

func (w *world) look() {
	for _, holders := range w.store {
		for id, e := range holders {
			if e.until != 0 && e.until <= w.now { // the store hands it on
				delete(holders, id)
			}
		}
	}
	w.l.Look(Moment{Now: w.now, Until: w.now + 9*time.Second, Kept: w.now + 10*time.Second})
}

// carry does what the ledger wants.
func (w *world) carry() {
	for _, e := range append([]Effect(nil), w.l.Effects()...) {
		switch e.Kind {
		case Request:
			if e.Hold.Tag() == nil {
				w.t.Errorf("%s is asked for without what it came with", e.ID)
			}
			x := &work{hold: e.Hold, id: e.Hold.ID(), lease: w.lease, kind: "acquire"}
			q, _, ok := w.l.Asked(e.Hold, x.id, w.lease, stopper(func() { x.stopped = true }))
			if !ok {
				continue // wanted under another id by now
			}
			x.request = &q
			w.begin(x)
		case Stop:
			e.Stop.Stop()
		case Clean:
			if e.Farewell {
				w.farewells--
			}
			w.begin(&work{id: e.ID, lease: e.Lease, kind: "clean", done: e.Done, given: !e.Farewell, request: &lock.Request{Resource: e.Resource}})
		case Peek:
			w.peeks = append(w.peeks, e.Call)
		case End:
			w.ended++
			w.farewells += e.Farewells
		}
	}
	if n := w.l.Size(); n < 0 || n > 12+8 { // the limit of holds, and calls that share the wait of others
		w.t.Errorf("size %d", n)
	}
	if w.l.Kept() < 0 || w.l.Waits() < 0 || w.l.leaving < 0 || w.l.graces < 0 {
		w.t.Errorf("negative counts: %d %d %d %d", w.l.Kept(), w.l.Waits(), w.l.leaving, w.l.graces)
	}
	live, untaken := 0, 0
	for id, h := range w.l.asks {
		if h.id != id || h.state != asking && h.state != held {
			w.t.Errorf("%s is among those that live in state %d as %s", id, h.state, h.id)
		}
		for p := range h.Parts {
			if h.follows() && w.l.asks[h.group.head.id] != h.group.head || !h.follows() && w.l.asks[p.id] != p {
				w.t.Errorf("%s lives, and not all that it is held with", id)
			}
		}
		if h.state == asking && h.group != nil {
			untaken += h.group.untaken()
		}
		if h.state == held {
			live++
			if h.count <= 0 != h.follows() || w.store[h.key.Resource][id] == nil {
				w.t.Errorf("%s lives with count %d, in the store %v", id, h.count, w.store[h.key.Resource][id])
			}
		}
	}
	if live != w.l.live || untaken != w.l.untaken {
		w.t.Errorf("%d live and %d are to be taken, counted %d and %d", live, untaken, w.l.live, w.l.untaken)
	}
	for i, d := range w.l.dues {
		if d.place != i+1 || i > 0 && w.l.dues[(i-1)/2].at > d.at {
			w.t.Errorf("dues are out of order at %d", i)
		}
	}
	w.answers()
}

// answers takes the callers that were answered.
func (w *world) answers() {
	w.l.Answers()
	var left []*caller
	for _, c := range w.callers {
		switch {
		case !c.answered:
			left = append(left, c)
		case c.Err != nil:
		case w.r.IntN(6) == 0: // nobody is there to take it
			w.l.Gone(c.Call, context.Canceled)
		default:
			w.granted(&c.ask, c.Grant)
		}
	}
	w.callers = left
	if len(w.l.effects) > 0 {
		w.carry()
	}
}

// granted checks that a grant that nobody shares has one owner.
func (w *world) granted(a *Ask, g Grant) {
	if w.given[g.LockID] == nil {
		w.given[g.LockID] = map[string]bool{}
		w.locks = append(w.locks, g.LockID)
	}
	who := a.RequestID
	if who == "" {
		w.ids++
		who = fmt.Sprint("anonymous", w.ids)
	}
	if a.Reentrant {
		who = "reentrant " + a.Owner
	}
	w.given[g.LockID][who] = true
	if len(g.Parts) != len(a.Parts) {
		w.t.Errorf("%d parts of %d are granted", len(g.Parts), len(a.Parts))
	}
	if _, lost := w.l.losses.known[g.LockID]; !lost && w.l.asks[g.LockID] != nil {
		for _, p := range g.Parts {
			if w.store[lock.Resource(p.Resource)][p.LockID] == nil {
				w.t.Errorf("%s is granted without %s", g.LockID, p.Resource)
			}
		}
	}
	if len(w.given[g.LockID]) > 1 {
		w.t.Errorf("%s was given to %v", g.LockID, w.given[g.LockID])
	}
}

func (w *world) free(res lock.Resource, mode lock.Mode) bool {
	for _, e := range w.store[res] {
		if e.mode == lock.Exclusive || mode == lock.Exclusive {
			return false
		}
	}
	return true
}

func (w *world) pick() lock.HoldID {
	if len(w.locks) == 0 {
		return "none"
	}
	return w.locks[w.r.IntN(len(w.locks))]
}

func (w *world) step() {
	w.now += time.Duration(w.r.IntN(300)) * time.Millisecond
	w.look()
	switch w.r.IntN(16) {
	case 0, 1, 2, 3:
		w.acquire()
	case 4, 5, 6, 7, 8:
		if len(w.works) > 0 {
			w.complete(w.r.IntN(len(w.works)))
		}
	case 9:
		if len(w.callers) > 0 {
			c := w.callers[w.r.IntN(len(w.callers))]
			w.leave(c)
		}
	case 10, 11:
		w.release(w.pick())
	case 12:
		w.downgrade(w.pick())
	case 13:
		r := w.l.Cancel(fmt.Sprint("r", w.r.IntN(12)))
		if r.Hold != nil {
			w.ask("release", r.Hold)
		}
	case 14:
		w.news()
	case 15:
		if w.r.IntN(4) == 0 {
			w.over()
		} else if len(w.peeks) > 0 {
			c := w.peeks[0]
			w.peeks = w.peeks[1:]
			st := lock.Status{}
			for id := range w.store[c.hold.key.Resource] {
				st.Holders = append(st.Holders, lock.Holding{ID: id})
			}
			w.l.Peeked(c, st, nil)
		}
	}
	w.carry()
}

func (w *world) acquire() {
	a := Ask{Resource: "a", Name: "a", Mode: lock.Exclusive, Try: w.r.IntN(3) == 0, Reentrant: w.r.IntN(2) == 0, Tag: w}
	if w.r.IntN(2) == 0 {
		a.RequestID = fmt.Sprint("r", w.r.IntN(12))
	}
	if w.r.IntN(3) == 0 {
		a.Resource, a.Name = "b", "b"
	}
	if w.r.IntN(4) == 0 {
		a.Resource, a.Name, a.Reentrant = "a", "a", false
		a.Parts = []Part{{"a", "a"}, {"b", "b"}, {"c", "c"}}[:2+w.r.IntN(2)]
	}
	if w.r.IntN(3) == 0 {
		a.Mode = lock.Shared
	}
	if w.r.IntN(3) == 0 {
		a.MaxHold = time.Duration(w.r.IntN(3000)) * time.Millisecond
	}
	if w.r.IntN(3) == 0 {
		a.Wait = time.Duration(1+w.r.IntN(3000)) * time.Millisecond
	}
	g, c, err := w.l.Acquire(&a)
	switch {
	case c != nil:
		w.callers = append(w.callers, &caller{c, a})
	case err == nil:
		w.granted(&a, g)
	}
}

func (w *world) leave(c *caller) {
	w.l.Gone(c.Call, context.Canceled)
	for i := range w.callers {
		if w.callers[i] == c {
			w.callers = append(w.callers[:i], w.callers[i+1:]...)
			return
		}
	}
}

func (w *world) release(id lock.HoldID) {
	request := ""
	if w.r.IntN(3) == 0 {
		request = fmt.Sprint("release", w.r.IntN(6))
	}
	r := w.l.Release(id, request)
	if r.Left < 0 {
		w.t.Errorf("%d counts are left", r.Left)
	}
	if r.Hold != nil {
		w.ask("release", r.Hold)
	}
}

// ask asks the store about all that is held together, one after the other.
func (w *world) ask(kind string, h *Hold) {
	var all []*Hold
	for p := range h.Parts {
		all = append(all, p)
	}
	w.begin(&work{id: all[0].id, hold: h, rest: all[1:], lease: all[0].lease, kind: kind})
}

func (w *world) downgrade(id lock.HoldID) {
	if d := w.l.Downgrade(id); d.Hold != nil {
		w.ask("downgrade", d.Hold)
	}
}

// news are forced releases and holds that the store loses.
func (w *world) news() {
	id := lock.HoldID(fmt.Sprint("id", w.r.IntN(w.ids+1))) // held, or with its grant on the way
	if w.r.IntN(2) == 0 && len(w.works) > 0 {
		id = w.works[w.r.IntN(len(w.works))].id
	}
	for res, holders := range w.store {
		if holders[id] == nil || holders[id].lease != w.lease {
			continue
		}
		e := lock.Event{Kind: lock.Revoked, Resource: res, ID: id, Until: w.now + time.Duration(w.r.IntN(4000))*time.Millisecond}
		if w.r.IntN(2) == 0 {
			e.Kind, e.Until = lock.Vanished, 0
			delete(holders, id)
		} else {
			holders[id].until = max(e.Until, 1)
		}
		w.l.News(e)
		w.l.News(e) // told twice is told once
	}
}

// over ends the lease.
func (w *world) over() {
	old := w.lease
	w.lease++
	w.l.LeaseOver(old, LeaseLost, Moment{Now: w.now})
	for _, holders := range w.store {
		for id, e := range holders {
			if e.lease == old {
				delete(holders, id)
			}
		}
	}
	w.look()
}
