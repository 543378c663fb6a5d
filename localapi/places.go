package localapi

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/session"
)

// places bounds the connections: of all principals, of each, and of those that have a limit together.
//
// A connection without a call in flight and without a session is idle. Where a
// place is short, the connection that has been idle for longest makes room, so
// neither silent clients nor slow ones need a short time limit. One that is in
// use is never closed for another, nor is a new one whose first request may be on
// its way.
type places struct {
	max       int
	firstWord time.Duration // for how long a new connection is not idle
	// reserve are places that only a principal without any connection gets.
	reserve int

	mu     sync.Mutex
	taken  int
	idled  uint64 // how often a connection has become idle
	users  map[session.Principal]*user
	shares tally
}

// user is what one principal has. Both lists are of *conn, the longest idle first.
type user struct {
	shares []session.Share // that its connections count for
	taken  int
	silent list.List // that have not been in use yet
	idle   list.List
}

// place is the part of a conn that belongs to places, and is guarded by its mutex.
type place struct {
	taken bool
	uses  int           // calls in flight, and sessions that were opened here
	idle  *list.Element // in a list of its user; nil: in use
	in    *list.List    // that list
	since uint64        // the value of places.idled then
	came  time.Time
}

// firstWord is how long a client may take to say something before its place is given
// to another. It is not closed then, but when a place is short.
const firstWord = 200 * time.Millisecond

func newPlaces(limit int, each [session.Levels]int) *places {
	return &places{
		max: limit, firstWord: firstWord, reserve: limit / 16,
		users: make(map[session.Principal]*user), shares: newTally("connections", each),
	}
}

// admit gives c a place. Where there is none left, evicted has lost its own,
// and is to be closed. *session.LimitError: no connection could make room.
func (p *places) admit(c *conn) (evicted *conn, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	who := c.who()
	u := p.users[who]
	if u == nil {
		u = &user{shares: c.shares()}
	}
	room := p.max
	if u.taken > 0 {
		room -= p.reserve
	}
	share, full := p.shares.full(u.shares, 1)
	switch {
	case full != nil:
		if evicted = p.victim(u, func(other *user) bool { return slices.Contains(other.shares, share) }); evicted == nil {
			return nil, full
		}
	case p.taken >= room:
		if evicted = p.victim(u, func(*user) bool { return true }); evicted == nil {
			return nil, &session.LimitError{Limit: "connections", Max: p.max}
		}
	}
	if evicted != nil {
		p.remove(evicted)
	}
	p.users[who] = u
	u.taken++
	p.taken++
	p.shares.add(u.shares, 1)
	c.place = place{taken: true, came: time.Now()}
	p.rest(c, &u.silent)
	return evicted, nil
}

// rest puts a connection that is idle into a list. mu is held.
func (p *places) rest(c *conn, in *list.List) {
	p.idled++
	c.place.idle, c.place.in, c.place.since = in.PushBack(c), in, p.idled
}

// victim is the connection that makes room for one more of u: an idle one of the
// user who has the most, and at least as many as u, of those whom may says. mu is held.
func (p *places) victim(u *user, may func(*user) bool) *conn {
	var found *conn
	most := u.taken - 1
	for _, other := range p.users {
		if other.taken <= most || !may(other) {
			continue
		}
		if c := p.longestIdle(other); c != nil {
			found, most = c, other.taken
		}
	}
	return found
}

// longestIdle is the connection of a user that would make room; nil: there is none.
// mu is held.
func (p *places) longestIdle(u *user) *conn {
	idle, silent := first(&u.idle), first(&u.silent)
	if silent != nil && time.Since(silent.place.came) < p.firstWord {
		silent = nil
	}
	if silent == nil || idle != nil && idle.place.since < silent.place.since {
		return idle
	}
	return silent
}

func first(l *list.List) *conn {
	if e := l.Front(); e != nil {
		return e.Value.(*conn) //nolint:forcetypeassert // only rest adds
	}
	return nil
}

// enter says that c is in use, until leave was called as often.
func (p *places) enter(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.place.uses++
	c.place.wake()
}

// wake takes a connection out of the list of those that are idle.
func (p *place) wake() {
	if p.idle != nil {
		p.in.Remove(p.idle)
		p.idle = nil
	}
}

func (p *places) leave(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.place.uses--
	if c.place.uses == 0 && c.place.taken {
		p.rest(c, &p.users[c.who()].idle)
	}
}

// free takes the place of c back. That of an evicted one is taken already.
func (p *places) free(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.place.taken {
		p.remove(c)
	}
}

// remove takes c out. mu is held.
func (p *places) remove(c *conn) {
	who := c.who()
	u := p.users[who]
	c.place.wake()
	c.place.taken = false
	p.taken--
	if u.taken--; u.taken == 0 {
		delete(p.users, who)
	}
	p.shares.add(u.shares, -1)
}

// count is how many places are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
