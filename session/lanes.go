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
	only *place // the first of a lane; mostly there is no other
	rest map[lock.Resource]*place
}

// place is one of a lane.
type place struct {
	resource      lock.Resource
	before, after *place
	bell          lock.Bell   // of a request, rung when it may go on; nil: something is done to a hold, which waits for nobody
	number        uint64      // of a request
	turn          atomic.Bool // the request may go on
	try, in       bool
}

// first gives the first of a resource; nil: there is none.
func (l *lanes) first(r lock.Resource) *place {
	if l.only != nil && l.only.resource == r {
		return l.only
	}
	return l.rest[r]
}

// begin notes which is the first of a resource now, in place of another one; nil: none.
func (l *lanes) begin(r lock.Resource, was, now *place) {
	switch {
	case l.only == was:
		l.only = now
	case now != nil:
		if l.rest == nil {
			l.rest = make(map[lock.Resource]*place)
		}
		l.rest[r] = now
	default:
		if delete(l.rest, r); len(l.rest) == 0 {
			l.rest = nil
		}
	}
}

// enter gives a place to what is about to go to the store: the last, but what is asked for again stands
// where it came.
func (l *lanes) enter(p *place) {
	first := l.first(p.resource)
	p.in, p.before = true, first
	for p.before != nil && p.before.after != nil {
		p.before = p.before.after
	}
	for o := p.before; p.bell != nil && o != nil && (o.bell == nil || o.number > p.number && !o.turn.Load()); o = o.before {
		if o.bell != nil {
			p.before = o.before
		}
	}
	if p.before != nil {
		p.after, p.before.after = p.before.after, p
	} else {
		p.after = first
		l.begin(p.resource, first, p)
	}
	if p.after != nil {
		p.after.before = p
	}
	if p.bell != nil && p.free() {
		p.turn.Store(true)
	}
}

// precede gives something that is done to a hold the first place: of those that have not gone on, all tries wait.
func (l *lanes) precede(p *place) {
	p.in, p.after = true, l.first(p.resource)
	if l.begin(p.resource, p.after, p); p.after != nil {
		p.after.before = p
	}
}

// free tells whether a request may go on.
func (p *place) free() bool {
	for o := p.before; o != nil; o = o.before {
		if o.bell != nil || p.try {
			return false
		}
	}
	return true
}

// leave lets go on who has waited for p, unless it has left before.
func (l *lanes) leave(p *place) {
	if !p.in {
		return
	}
	if p.before != nil {
		p.before.after = p.after
	} else {
		l.begin(p.resource, p, p.after)
	}
	if p.after != nil {
		p.after.before = p.before
	}
	p.before, p.after, p.in = nil, nil, false
	first := l.first(p.resource)
	for first != nil && first.bell == nil {
		first = first.after
	}
	if first != nil && !first.turn.Load() && first.free() {
		first.turn.Store(true)
		first.bell.Ring()
	}
}

// passed notes that others may go on behind p.
func passed(s *Session, p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes.leave(p)
}

// givesUp has tries wait for what is given up until end is called, which does not block. s.mu is held.
func givesUp(s *Session, r lock.Resource) (end func()) {
	p := &place{resource: r}
	s.lanes.precede(p)
	return func() { s.space.m.wg.Go(func() { passed(s, p) }) } // s.mu may be held, or a janitor's
}

// Announce is called, in the order in which an app writes its requests, where a hold of its session is about to
// be released, downgraded or detached: a try that is begun after it waits until done is called.
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
