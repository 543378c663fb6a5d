package tables

import (
	"github.com/locksidecar/locksidecar/lock"
)

// member is a hold or a waiter as the tables have it.
type member struct {
	seq   int64 // of a waiter
	id    string
	lease string
	mode  lock.Mode
	fence int64 // of a hold
	grace int64 // of a hold whose release is forced, in microseconds; 0: it is not
	mark  int64 // the grace that its sidecar knows of; 0: none
	live  bool  // its lease is there
}

// state is what a transaction works on: one resource, whose row it has locked.
// Its methods decide; what they change is collected and written at the end.
type state struct {
	name lock.Resource
	now  int64 // the server's time in microseconds, for fences only

	fence, tail            int64
	readers, waiters, gone int64

	x        member   // the exclusive hold; no id: none
	xWas     member   // as it was found,
	fenceWas int64    // with its fence,
	xSince   string   // since then;
	xQuick   bool     // the log has not got its grant yet
	trail    []byte   // what else the log has not got
	dead     []member // shared holds of dead leases
	own      *member  // the shared hold of the id that was asked for, dead or not
	queue    []member // the front of the queue
	place    *member  // the waiter of the id that was asked for

	leaseLive bool // the asking lease is there
	ownGone   bool // the id that was asked for was given up before

	changes
}

// changes are what a transaction writes.
type changes struct {
	dirty    bool
	newX     newX
	addHolds []holdFrom
	delHolds []string
	delSeqs  []int64
	enqueue  *request
	marks    []member // shared holds to be marked
	addGone  *member  // a request that must not be granted any more
	log      []logged
	news     []news
	more     bool // there is more of the queue than was seen
}

// newX says what becomes of the exclusive hold's columns.
type newX struct {
	kind  xKind
	seq   int64 // fromQueue
	owner string
}

type xKind uint8

const (
	xKeep      xKind = iota
	xClear           // nobody
	xFromQueue       // the waiter seq
	xNew             // who asks
	xMark            // marked as forced
)

// holdFrom is a shared hold to be written.
type holdFrom struct {
	member
	fromQueue int64 // its owner is that waiter's
	fromX     bool  // it is the exclusive hold
	owner     string
}

// request is who asks.
type request struct {
	id, lease, owner string
	mode             lock.Mode
}

// logged is one row of the log.
type logged struct {
	at        string // empty: now
	event     string
	id, lease string
	fence     int64
	note      string
}

// args are the arguments for script.log.
func (l logged) args(r lock.Resource) []any {
	var at any
	if l.at != "" {
		at = l.at
	}
	return []any{at, []byte(l.event), []byte(r), []byte(l.id), []byte(l.lease), l.fence, []byte(l.note)}
}

// news is what a lease is told.
type news struct {
	lease, id string
	kind      newsKind
	name      lock.Resource
	fence     int64
	grace     int64 // microseconds
}

type newsKind byte

const (
	newsGranted newsKind = 'g'
	newsOut     newsKind = 'x' // of the queue
	newsRevoked newsKind = 'r'
)

func (s *state) note(event string, m member, fence int64, note string) {
	s.dirty = true
	s.log = append(s.log, logged{event: event, id: m.id, lease: m.lease, fence: fence, note: note})
}

// held reports whether anybody holds in a way that keeps mode out.
func (s *state) held(mode lock.Mode) bool {
	return s.x.id != "" || mode == lock.Exclusive && s.readers > 0
}

// clean removes what hangs on leases that are over.
func (s *state) clean() {
	if s.x.id != "" && !s.x.live {
		s.note("expire", s.x, s.fence, "")
		s.clearX()
	}
	for _, h := range s.dead {
		s.note("expire", h, h.fence, "")
		s.removeHold(h.id)
	}
	s.dead = nil
	live := s.queue[:0]
	for _, w := range s.queue {
		if w.live {
			live = append(live, w)
			continue
		}
		s.note("expire", w, 0, "")
		s.removeWaiter(w.seq)
	}
	s.queue = live
}

func (s *state) clearX() {
	s.dirty = true
	s.x = member{}
	s.newX = newX{kind: xClear}
}

func (s *state) removeHold(id string) {
	s.dirty = true
	s.readers--
	s.delHolds = append(s.delHolds, id)
}

func (s *state) removeWaiter(seq int64) {
	s.dirty = true
	s.waiters--
	s.delSeqs = append(s.delSeqs, seq)
	for i, w := range s.queue {
		if w.seq == seq && w.live {
			s.queue = append(s.queue[:i:i], s.queue[i+1:]...)
			break
		}
	}
}

// nextFence counts a grant.
func (s *state) nextFence() int64 {
	s.fence = max(s.fence+1, s.now)
	return s.fence
}

// promote grants to the front of the queue what it can have.
func (s *state) promote() {
	for len(s.queue) > 0 && !s.held(s.queue[0].mode) {
		w := s.queue[0]
		fence := s.nextFence()
		s.removeWaiter(w.seq)
		if w.mode == lock.Exclusive {
			s.x = w
			s.newX = newX{kind: xFromQueue, seq: w.seq}
		} else {
			s.readers++
			s.addHolds = append(s.addHolds, holdFrom{member: member{id: w.id, lease: w.lease, fence: fence}, fromQueue: w.seq})
		}
		s.note("grant", w, fence, "")
		s.news = append(s.news, news{lease: w.lease, id: w.id, kind: newsGranted, name: s.name, fence: fence})
	}
	// What was seen is used up, and the rest may be granted too.
	s.more = len(s.queue) == 0 && s.waiters > 0
}

// busy reports whether others want the resource.
func (s *state) busy() bool { return s.waiters > 0 || len(s.news) > 0 }

// take grants to who asks, or queues it. The front of the queue has been served.
func (s *state) take(q request, try bool) (fence int64, queued bool) {
	m := member{id: q.id, lease: q.lease, mode: q.mode, live: true}
	if s.waiters > 0 || s.held(q.mode) {
		if try {
			return 0, false
		}
		s.tail++
		s.waiters++
		s.enqueue = &q
		s.note("queue", m, 0, q.mode.String())
		return 0, true
	}
	fence = s.nextFence()
	m.fence = fence
	if q.mode == lock.Exclusive {
		s.x = m
		s.newX = newX{kind: xNew, owner: q.owner}
	} else {
		s.readers++
		s.addHolds = append(s.addHolds, holdFrom{member: m, owner: q.owner})
	}
	s.note("acquire", m, fence, "")
	return fence, false
}

// find is the fence of the hold of an id and lease, or 0.
func (s *state) find(id, lease string) int64 {
	switch {
	case s.x.id == id && s.x.lease == lease:
		return s.fence
	case s.own != nil && s.own.lease == lease:
		return s.own.fence
	}
	for _, h := range s.addHolds { // granted just now
		if h.id == id && h.lease == lease {
			return h.fence
		}
	}
	return 0
}

// waits reports whether the id that was asked for is in the queue, for a lease.
func (s *state) waits(lease string) bool {
	if s.place == nil || s.place.lease != lease {
		return false
	}
	for _, seq := range s.delSeqs {
		if seq == s.place.seq {
			return false
		}
	}
	return true
}
