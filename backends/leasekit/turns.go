package leasekit

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/lock"
)

// Turns are those that wait for a place on the way to the store. Up to Few of them go in the order in which they came. Where
// more wait, those for whom they are (lock.From) have turns: each has one in its turn, and comes behind all others
// then. So who asks for one thing waits for at most one request of each other, whatever those ask for. What is for one
// keeps its order. To add, to remove and to take one costs the same however many wait. A Turns has no mutex.
type Turns[T any] struct {
	Few int

	n      int // that wait
	came   uint64
	few    []*Turn[T]      // in the order in which they came; empty where there are rows
	rows   map[any]*row[T] // by whom they are for. Each has one
	next   *row[T]         // whose turn it is; nil: there are no rows
	bygone []*row[T]       // to be used again
	taken  []*Turn[T]      // of Take
}

// Turn is one that waits.
type Turn[T any] struct {
	Of   T
	From any // for whom it is; nil: nobody says

	number        uint64
	row           *row[T] // nil: it is in none
	before, after *Turn[T]
}

// row are those for one, in the order in which they came. Rows are in a ring.
type row[T any] struct {
	from          any
	first, last   *Turn[T]
	before, after *row[T]
}

// maxBygone bounds the rows that are kept to be used again.
const maxBygone = 64

// Len is how many wait.
func (w *Turns[T]) Len() int { return w.n }

// Add has one wait.
func (w *Turns[T]) Add(t *Turn[T]) {
	w.n++
	w.came++
	t.number = w.came
	if w.next == nil && len(w.few) < w.Few {
		w.few = append(w.few, t)
		return
	}
	for _, o := range w.few { // from now on there are rows, until nobody waits
		w.queue(o)
	}
	clear(w.few)
	w.few = w.few[:0]
	w.queue(t)
}

// queue puts one at the end of its row.
func (w *Turns[T]) queue(t *Turn[T]) {
	r := w.rows[t.From]
	if r == nil {
		r = w.begin(t.From)
	}
	t.row, t.before = r, r.last
	if r.last != nil {
		r.last.after = t
	} else {
		r.first = t
	}
	r.last = t
}

// begin makes a row, whose turn comes after all others.
func (w *Turns[T]) begin(from any) *row[T] {
	r := new(row[T])
	if last := len(w.bygone) - 1; last >= 0 {
		r, w.bygone = w.bygone[last], w.bygone[:last]
	}
	r.from = from
	if w.rows == nil {
		w.rows = make(map[any]*row[T])
	}
	w.rows[from] = r
	if w.next == nil {
		r.before, r.after, w.next = r, r, r
		return r
	}
	r.before, r.after = w.next.before, w.next
	r.before.after, r.after.before = r, r
	return r
}

// Remove takes out one that waits.
func (w *Turns[T]) Remove(t *Turn[T]) {
	w.n--
	r := t.row
	if r == nil {
		i := slices.Index(w.few, t)
		w.few = slices.Delete(w.few, i, i+1)
		return
	}
	if t.before != nil {
		t.before.after = t.after
	} else {
		r.first = t.after
	}
	if t.after != nil {
		t.after.before = t.before
	} else {
		r.last = t.before
	}
	t.row, t.before, t.after = nil, nil, nil
	if r.first == nil {
		w.end(r)
	}
}

// end removes a row that is empty.
func (w *Turns[T]) end(r *row[T]) {
	delete(w.rows, r.from)
	switch {
	case r.after == r:
		w.next = nil
	case r == w.next:
		w.next = r.after
	}
	r.before.after, r.after.before = r.after, r.before
	*r = row[T]{}
	if len(w.bygone) < maxBygone {
		w.bygone = append(w.bygone, r)
	}
}

// Take appends to a trip up to so many whose turn it is, in the order in which they came.
func (w *Turns[T]) Take(trip []T, most int) []T {
	if w.next == nil {
		n := min(len(w.few), most)
		for _, t := range w.few[:n] {
			trip = append(trip, t.Of)
		}
		w.few = slices.Delete(w.few, 0, n)
		w.n -= n
		return trip
	}
	for w.next != nil && len(w.taken) < most {
		t := w.next.first
		w.next = w.next.after
		w.taken = append(w.taken, t)
		w.Remove(t)
	}
	slices.SortFunc(w.taken, func(a, b *Turn[T]) int { return cmp.Compare(a.number, b.number) })
	for _, t := range w.taken {
		trip = append(trip, t.Of)
	}
	clear(w.taken)
	w.taken = w.taken[:0]
	return trip
}

// Gate lets so many in at a time. Where more want to, those for whom they are have turns.
type Gate struct {
	mu      sync.Mutex
	free    int
	waiting Turns[chan struct{}]
}

// NewGate makes a gate with so many places.
func NewGate(places int) *Gate { return &Gate{free: places} }

// Enter waits for a place, which Leave gives back. It reports false where ctx has ended before.
func (g *Gate) Enter(ctx context.Context) bool {
	g.mu.Lock()
	if g.free > 0 {
		g.free--
		g.mu.Unlock()
		return true
	}
	t := &Turn[chan struct{}]{Of: make(chan struct{}), From: lock.From(ctx)}
	g.waiting.Add(t)
	g.mu.Unlock()
	select {
	case <-t.Of:
		return true
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-t.Of: // just then
		g.leave()
	default:
		g.waiting.Remove(t)
	}
	return false
}

// Leave gives a place to whose turn it is.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leave()
}

func (g *Gate) leave() {
	if g.waiting.n == 0 {
		g.free++
		return
	}
	var next [1]chan struct{}
	close(g.waiting.Take(next[:0], 1)[0])
}
