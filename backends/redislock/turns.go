package redislock

import (
	"cmp"
	"slices"
)

// turns are the requests that wait for a trip. Up to as many as a trip takes go in the order in which they came. Where
// more wait, those for whom they are (lock.From) have turns: each has one request in its turn, and comes behind all others
// then. So who asks for one thing waits for at most one request of each other, whatever those ask for. What is for one
// keeps its order. To add, to remove and to take a request costs the same however many wait.
type turns struct {
	n      int // requests that wait
	came   uint64
	few    []*ticket    // in the order in which they came; empty where there are rows
	rows   map[any]*row // by whom they are for. Each has a request
	next   *row         // whose turn it is; nil: there are no rows
	bygone []*row       // to be used again
}

// row are the requests for one, in the order in which they came. Rows are in a ring.
type row struct {
	from          any
	first, last   *ticket
	before, after *row
}

// maxBygone bounds the rows that are kept to be used again.
const maxBygone = maxBatch

// add takes a request on.
func (w *turns) add(t *ticket) {
	w.n++
	w.came++
	t.number = w.came
	if w.next == nil && len(w.few) < maxBatch {
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

// queue puts a request at the end of its row.
func (w *turns) queue(t *ticket) {
	r := w.rows[t.from]
	if r == nil {
		r = w.begin(t.from)
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
func (w *turns) begin(from any) *row {
	r := new(row)
	if last := len(w.bygone) - 1; last >= 0 {
		r, w.bygone = w.bygone[last], w.bygone[:last]
	}
	r.from = from
	if w.rows == nil {
		w.rows = make(map[any]*row)
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

// remove takes out a request that waits.
func (w *turns) remove(t *ticket) {
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
func (w *turns) end(r *row) {
	delete(w.rows, r.from)
	switch {
	case r.after == r:
		w.next = nil
	case r == w.next:
		w.next = r.after
	}
	r.before.after, r.after.before = r.after, r.before
	*r = row{}
	if len(w.bygone) < maxBygone {
		w.bygone = append(w.bygone, r)
	}
}

// take appends to a trip what goes with it, in the order in which it came.
func (w *turns) take(trip []*ticket) []*ticket {
	if w.next == nil {
		trip = append(trip, w.few...)
		w.n -= len(w.few)
		clear(w.few)
		w.few = w.few[:0]
		return trip
	}
	for w.next != nil && len(trip) < maxBatch {
		r := w.next
		w.next = r.after
		trip = append(trip, r.first)
		w.remove(r.first)
	}
	slices.SortFunc(trip, func(a, b *ticket) int { return cmp.Compare(a.number, b.number) })
	return trip
}
