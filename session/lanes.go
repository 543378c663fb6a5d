package session

import (
	"sync/atomic"

	"github.com/locksidecar/locksidecar/lock"
)

// lanes are what a session has on the way to the store, a lane for each resource, in the order in which
// the app has asked for it. On the way each has a goroutine of its own, by which it could overtake
// others. So a request goes on when those before it stand in the store's queue, or were answered. A
// try also waits for the end of what is done to holds before it, and of what is given up: it would find what
// the app has let go of. Nothing waits for what is about another resource.
type lanes struct {
	only *lane // mostly there is no other; nil: there is none
	rest map[lock.Resource]*lane
}

// lane has requests in one row, and what is done to holds in another. Only the first of each row decides who goes
// on, so it costs the same however long they are: an app may give up faster than the store answers.
type lane struct {
	requests, holds row
	latest          uint64 // the last ticket
}

// row is in the order of its tickets.
type row struct{ first, last *place }

// place is one of a lane.
type place struct {
	resource      lock.Resource
	lane          *lane // nil: it is in none
	before, after *place
	bell          lock.Bell   // of a request, rung when it may go on; nil: something is done to a hold, which waits for nobody
	number        uint64      // of a request
	ticket        uint64      // a try waits for what is done to holds with a smaller one
	turn          atomic.Bool // the request may go on
	try           bool
}

// insert puts p behind a place of the row; nil: it is the first.
func (w *row) insert(p, before *place) {
	if p.before = before; before != nil {
		p.after, before.after = before.after, p
	} else {
		p.after, w.first = w.first, p
	}
	if p.after != nil {
		p.after.before = p
	} else {
		w.last = p
	}
}

func (w *row) remove(p *place) {
	if p.before != nil {
		p.before.after = p.after
	} else {
		w.first = p.after
	}
	if p.after != nil {
		p.after.before = p.before
	} else {
		w.last = p.before
	}
	p.before, p.after = nil, nil
}

func (w *lane) empty() bool { return w.requests.first == nil && w.holds.first == nil }

// of is the row for p.
func (w *lane) of(p *place) *row {
	if p.bell != nil {
		return &w.requests
	}
	return &w.holds
}

// goOn lets the first request go on, if it may.
func (w *lane) goOn() (went *place) {
	p := w.requests.first
	if p == nil || p.turn.Load() || p.try && w.holds.first != nil && w.holds.first.ticket < p.ticket {
		return nil
	}
	p.turn.Store(true)
	return p
}

// lane gives that of a resource.
func (l *lanes) lane(r lock.Resource) *lane {
	switch w := l.rest[r]; {
	case w != nil:
		return w
	case l.only == nil:
		l.only = new(lane)
		return l.only
	case l.only.resource() == r:
		return l.only
	default:
		if l.rest == nil {
			l.rest = make(map[lock.Resource]*lane)
		}
		w = new(lane)
		l.rest[r] = w
		return w
	}
}

// resource is that of a lane that is not empty.
func (w *lane) resource() lock.Resource {
	if w.requests.first != nil {
		return w.requests.first.resource
	}
	return w.holds.first.resource
}

// enter gives a place to what is about to go to the store: the last, but what is asked for again stands
// where it came.
func (l *lanes) enter(p *place) {
	w := l.lane(p.resource)
	w.latest++
	p.lane, p.ticket = w, w.latest
	before := w.of(p).last
	for p.bell != nil && before != nil && before.number > p.number && !before.turn.Load() {
		p.ticket, before = before.ticket, before.before
	}
	w.of(p).insert(p, before)
	w.goOn()
}

// precede gives something that is done to a hold the first place: of those that have not gone on, all tries wait.
func (l *lanes) precede(p *place) {
	p.lane = l.lane(p.resource)
	p.lane.holds.insert(p, nil)
}

// leave lets go on who has waited for p, unless it has left before.
func (l *lanes) leave(p *place) {
	w := p.lane
	if w == nil {
		return
	}
	w.of(p).remove(p)
	p.lane = nil
	switch {
	case !w.empty():
		if next := w.goOn(); next != nil {
			next.bell.Ring()
		}
	case w == l.only:
		l.only = nil
	default:
		if delete(l.rest, p.resource); len(l.rest) == 0 {
			l.rest = nil
		}
	}
}

// passed notes that others may go on behind p.
func passed(s *Session, p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes.leave(p)
}

// givesUp has tries wait for what is given up, until one of both is called: that it was tried to release it, or that
// nothing is left of it. They do not block. s.mu is held.
func givesUp(s *Session, r lock.Resource) (tried, gone func()) {
	p := &place{resource: r}
	s.lanes.precede(p)
	// s.mu may be held, or a janitor's.
	tried = func() { s.space.m.wg.Go(func() { passed(s, p) }) }
	gone = func() {
		s.space.m.wg.Go(func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.ledger.Cleaned()
			recount(s)
			s.lanes.leave(p)
		})
	}
	return tried, gone
}

// Announce is called, in the order in which an app writes its requests, where a hold of its session is about to
// be released, downgraded or detached, or its loss acknowledged: a try that is begun after it waits until done is called.
func Announce(s *Session, id lock.HoldID) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var places []*place
	for _, r := range s.ledger.Resources(id) {
		p := &place{resource: r}
		s.lanes.enter(p)
		places = append(places, p)
	}
	return func() {
		for _, p := range places {
			passed(s, p)
		}
	}
}
