package localapi

import (
	"container/list"
	"sync"

	"github.com/locksidecar/locksidecar/session"
)

// places bounds the connections: of all users, and of each.
//
// A connection without a call in flight and without a session is idle. Where a
// place is short, the connection that has been idle for longest makes room, so
// neither silent clients nor slow ones need a short time limit. One that is in
// use is never closed for another.
type places struct {
	max, perUID int
	// reserve are places that only a user without any connection gets.
	reserve int

	mu    sync.Mutex
	taken int
	users map[uint32]*user
}

// user is what one uid has.
type user struct {
	taken int
	idle  list.List // of *conn, the longest idle first
}

// place is the part of a conn that belongs to places, and is guarded by its mutex.
type place struct {
	taken bool
	uses  int           // calls in flight, and sessions that were opened here
	idle  *list.Element // in the list of its user; nil: in use
}

func newPlaces(limit, perUID int) *places {
	return &places{max: limit, perUID: perUID, reserve: limit / 16, users: make(map[uint32]*user)}
}

// admit gives c a place. Where there is none left, evicted has lost its own,
// and is to be closed. *session.LimitError: no connection could make room.
func (p *places) admit(c *conn) (evicted *conn, _ error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.users[c.peer.UID]
	if u == nil {
		u = &user{}
	}
	room := p.max
	if u.taken > 0 {
		room -= p.reserve
	}
	switch {
	case u.taken >= p.perUID:
		if evicted = u.longestIdle(); evicted == nil {
			return nil, &session.LimitError{Limit: "connections of one user", Max: p.perUID}
		}
	case p.taken >= room:
		if evicted = p.victim(u); evicted == nil {
			return nil, &session.LimitError{Limit: "connections", Max: p.max}
		}
	}
	if evicted != nil {
		p.remove(evicted)
	}
	p.users[c.peer.UID] = u
	u.taken++
	p.taken++
	c.place = place{taken: true, idle: u.idle.PushBack(c)}
	return evicted, nil
}

// victim is the connection that makes room for one more of u: an idle one of the
// user who has the most, and at least as many as u. mu is held.
func (p *places) victim(u *user) *conn {
	var found *conn
	most := u.taken - 1
	for _, other := range p.users {
		if c := other.longestIdle(); c != nil && other.taken > most {
			found, most = c, other.taken
		}
	}
	return found
}

func (u *user) longestIdle() *conn {
	if e := u.idle.Front(); e != nil {
		return e.Value.(*conn) //nolint:forcetypeassert // only admit and leave add
	}
	return nil
}

// enter says that c is in use, until leave was called as often.
func (p *places) enter(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.place.uses++
	if c.place.idle != nil {
		p.users[c.peer.UID].idle.Remove(c.place.idle)
		c.place.idle = nil
	}
}

func (p *places) leave(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.place.uses--
	if c.place.uses == 0 && c.place.taken {
		c.place.idle = p.users[c.peer.UID].idle.PushBack(c)
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
	u := p.users[c.peer.UID]
	if c.place.idle != nil {
		u.idle.Remove(c.place.idle)
		c.place.idle = nil
	}
	c.place.taken = false
	p.taken--
	if u.taken--; u.taken == 0 {
		delete(p.users, c.peer.UID)
	}
}

// count is how many places are taken.
func (p *places) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken
}
