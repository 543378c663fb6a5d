package arbiter

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

type state uint8

const (
	asking  state = iota + 1 // cohort: in the store's queue, or on the way there; member: waits
	holding                  // has it
	parked                   // cohort: nobody has it
	leaving                  // is being released in the store
)

// cohort is one request in the store, or one hold, and for whom. Its fields stand under
// the lease's mutex.
type cohort struct {
	l        *Lease
	id       lock.HoldID // in the store
	resource lock.Resource
	mode     lock.Mode
	owner    string      // of the member that came first
	face     lock.HoldID // of the same: whom others see in the store
	state    state
	try      bool        // the store is asked whether it is free, and not to queue
	closed   bool        // takes no more members
	apart    bool        // it is for one member that must be seen to wait
	unsure   bool        // a downgrade had no answer
	returned bool        // its resource was here just before
	single   bool        // for the store it stands for one app, and it does
	early    *lock.Event // asking: it was taken away before the grant was known

	leader  *member   // asking: whose call asks the store, or waits there; nil: nobody's at the moment
	victim  *member   // whom a forced release means that the store carries out
	queue   []*member // as they came
	holders []*member

	fence   lock.Fence
	count   int           // grants so far
	granted time.Duration // by the store
	since   time.Duration // nobody has it
	behind  time.Duration // since when it is known that somebody stands behind it; 0: not
	timer   *time.Timer   // ends the parking
	intro   *time.Timer   // tells the store who has it; not nil while it is being told
	shown   lock.HoldID   // who has it, by what the store was told, or nobody; empty: who came first
	over    chan struct{} // closed when nothing of it is in the store; nil while nobody waits for that

	// Most have one member, and are the only one of their resource: one piece of memory
	// is enough for all.
	one  member
	room struct {
		queue, holders [1]*member
		line           [1]*cohort
	}
}

// member is one request of an app, and then its hold.
type member struct {
	id       lock.HoldID
	resource lock.Resource
	mode     lock.Mode
	owner    string
	cohort   *cohort
	state    state
	present  bool // its Acquire is under way, also while it waits
	nested   bool // others must see it wait, when it waits for long
	fence    lock.Fence
	since    time.Duration
	err      error // its Acquire ends with it
	rest     *rest // nil while nobody waits
	force    *time.Duration
	gone     chan struct{} // closed when it has the hold no more; nil while nobody waits for that
}

// rest is what a member has while it waits.
type rest struct {
	bell lock.Bell   // rings when something has changed; nil: it has rung
	late *time.Timer // rings it when a nested member has waited for long; nil where that is no matter
}

func (m *member) wake() {
	if r := m.rest; r != nil && r.bell != nil {
		r.bell.Ring()
		r.bell = nil
	}
}

func (m *member) grant() lock.Grant {
	return lock.Grant{ID: m.id, Resource: m.resource, Mode: m.mode, Fence: m.fence}
}

// Stay implements lock.Cohort.
func (c *cohort) Stay() bool {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if len(c.queue) > 1 {
		return true
	}
	c.closed = true // it is being given up
	return false
}

// newCohort makes one without members; at is its place among those of the resource.
func (l *Lease) newCohort(id lock.HoldID, first *member, at int) *cohort {
	c := &cohort{l: l, id: id, resource: first.resource, mode: first.mode, owner: first.owner, face: first.id, state: asking}
	c.queue, c.holders = c.room.queue[:0], c.room.holders[:0]
	l.stores[id] = c
	line := l.lines[c.resource]
	if line == nil {
		line = c.room.line[:0]
	}
	l.lines[c.resource] = slices.Insert(line, at, c)
	return c
}

// last is the cohort that a request may join; nil: there is none.
func (l *Lease) last(r lock.Resource) *cohort {
	line := l.lines[r]
	if len(line) == 0 {
		return nil
	}
	return line[len(line)-1]
}

// takes tells whether c can have one more member.
func (l *Lease) takes(c *cohort, mode lock.Mode, now time.Duration) bool {
	limit := l.b.o.Turns
	if c.state == parked && limit == 0 {
		limit = MaxTurns
	}
	return !c.closed && c.mode == mode && c.state != leaving && (c.state != asking || !c.try) &&
		c.count+len(c.queue) < limit && (c.state == asking || now-c.granted < l.age)
}

// give makes a waiting member a holder. The clock was just read.
func (l *Lease) give(c *cohort, m *member) {
	m.state, m.since, m.fence = holding, l.at, c.fence
	if c.mode == lock.Exclusive {
		m.fence += lock.Fence(c.count)
	}
	if c.count++; c.count > 1 {
		l.b.saved.Add(1)
	}
	c.holders = append(c.holders, m)
	l.introduce(c)
	m.wake()
}

// next gives the hold to the first who is there, or, where none is, to the first; to
// all, where they share.
func (l *Lease) next(c *cohort) {
	if c.mode == lock.Shared {
		for _, m := range c.queue {
			l.give(c, m)
		}
		clear(c.queue)
		c.queue = c.queue[:0]
		return
	}
	i := max(0, slices.IndexFunc(c.queue, func(m *member) bool { return m.present }))
	m := c.queue[i]
	c.queue = slices.Delete(c.queue, i, i+1)
	l.give(c, m)
}

// promote lets the first who is there ask the store, where nobody does.
func (c *cohort) promote() {
	if c.state != asking || c.leader != nil {
		return
	}
	for _, m := range c.queue {
		if m.present {
			m.wake()
			return
		}
	}
}

// reroute lets those who wait in c ask the store for themselves.
func (l *Lease) reroute(c *cohort) {
	if len(c.queue) == 0 {
		return
	}
	n := l.newCohort(lock.NewHoldID(), c.queue[0], slices.Index(l.lines[c.resource], c)+1)
	n.queue, c.queue = c.queue, nil
	for _, m := range n.queue {
		m.cohort = n
	}
	n.promote()
}

// apartAfter is for how long a nested request waits among others before it gets a place of its
// own in the store, where other sidecars see who it is. They look for deadlocks among
// requests that have waited for a second.
const apartAfter = 500 * time.Millisecond

// hidden tells whether other sidecars do not see that m waits.
func (c *cohort) hidden(m *member) bool { return c.state != asking || c.face != m.id }

// separate lets a member ask the store for itself.
func (l *Lease) separate(m *member) {
	c := m.cohort
	c.queue = slices.DeleteFunc(c.queue, func(o *member) bool { return o == m })
	line := l.lines[c.resource]
	at := slices.Index(line, c) + 1
	for at < len(line) && line[at].apart { // they came before
		at++
	}
	n := l.newCohort(lock.NewHoldID(), m, at)
	n.closed, n.apart = true, true
	n.queue = append(n.queue, m)
	m.cohort = n
	if c.state == asking && c.leader == nil && len(c.queue) == 0 {
		l.leave(c) // who led it has left just now, and its place in the store is nobody's
	}
	c.promote()
}

// out takes a member out of its cohort.
func (l *Lease) out(m *member) {
	c := m.cohort
	if i := slices.Index(c.queue, m); i >= 0 {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	if i := slices.Index(c.holders, m); i >= 0 {
		c.holders = slices.Delete(c.holders, i, i+1)
	}
	delete(l.members, m.id)
	m.left()
}

// left tells those who wait for the end of m's hold.
func (m *member) left() {
	if m.gone != nil {
		close(m.gone)
		m.gone = nil
	}
}

// over gives a channel that is closed when nothing of c is in the store.
func (l *Lease) over(c *cohort) <-chan struct{} {
	if c.over == nil {
		c.over = make(chan struct{})
	}
	return c.over
}

// gone forgets a cohort of which nothing is in the store.
func (l *Lease) gone(c *cohort) {
	l.unpark(c)
	if l.stores[c.id] != c {
		return
	}
	delete(l.stores, c.id)
	line := l.lines[c.resource]
	if line = slices.DeleteFunc(line, func(o *cohort) bool { return o == c }); len(line) == 0 {
		delete(l.lines, c.resource)
	} else {
		l.lines[c.resource] = line
	}
	c.state = leaving
	if c.over != nil {
		close(c.over)
		c.over = nil
	}
}
