package sqllock

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// This file decides. It does no I/O: a transaction has locked the row of a resource
// and read what stands here, and writes what has changed.

// place is where the tables have a member.
type place uint8

const (
	nowhere place = iota // it asks just now
	onRow                // on the resource's row
	inHolds
	inQueue
	inLeast // nobody has it any more
)

// member is a hold or a waiter.
type member struct {
	lease   string
	owner   string // of who asks just now
	fence   int64  // of a hold
	at      int64  // what the guard of a hold finds it by: the fence on the row; when it was granted, in hold
	place   place
	several bool  // it has a cohort
	wanted  bool  // the row says that a request of another lease has stood behind it
	least   int64 // microseconds for which it keeps others out at least; of who asks or waits
	ends    int64 // of a hold: when that is over, by the server's clock
}

type entry = queue.Entry[member]

// ending is what has become of a lease, as its row has it.
type ending int64

const (
	notEnded ending = iota
	expired         // it was not renewed for its TTL
	closed          // its sidecar has closed it
)

// what the log calls it.
func (e ending) what() string {
	if e == closed {
		return "close"
	}
	return "end"
}

// of is what the log calls the end of a hold, or of a waiter, whose fence is 0, that hung
// on the lease. Of one without a row nobody knows more than that it is over.
func (e ending) of(fence int64) string {
	switch {
	case e != closed:
		return "expire"
	case fence == 0:
		return "cancel"
	default:
		return "release"
	}
}

// note is what is to be remembered of an id.
type note struct {
	lease  string
	forced bool          // else it was given up
	grace  time.Duration // of a forced release,
	known  time.Duration // and what its sidecar knows of it, or, of what was given up, 0; negative: nothing
}

// state is one resource as a transaction has found it, and what the requests of its
// batch make of it.
type state struct {
	now    int64             // the server's time
	tail   int64             // last seq of the queue
	fence  int64             // of the last exclusive grant
	since  int64             // since when the server may grant, by its clock: one before it may have given fences up to then
	crowd  bool              // as it was found
	kept   bool              // nothing may be granted now: see mark.go
	leasts map[string]least  // of holds that keep others out at least so long
	keys   map[string]string // of detached holds, by id
	permit lock.Mode         // of the holds, as the row had it; 0: they are no permits
	leases map[string]ending // those of who asks or holds, as far as they are there

	x       *entry            // on the row; nil: nobody
	entries map[string]*entry // that are known one by one
	behind  map[string]string // waiters behind the front that requests are about, with their leases
	notes   map[string]note   // of ids that requests are about
	rest    *entry            // stands for the waiters behind those in entries; nil: there are none
	noted   bool              // there are notes of other ids
	ahead   []string          // the ids at the front of the queue, if somebody asks for his position

	q queue.Queue[member]

	changes
}

// changes are what is to be written.
type changes struct {
	xWas      *entry // as it was found
	shared    bool   // it is shared from now on
	raised    bool   // the fence on the row is to be a larger one, though nobody gets it
	permitted bool   // permits were granted
	goneHolds []string
	goneWaits []string
	newNotes  map[string]note
	delNotes  []string
	granted   []*entry // that have waited
	newLeasts []*entry // that were granted with a time of their own,
	delLeasts []string // whose time does not count any more,
	shareds   []string // and that were downgraded
	regranted []*entry // holds with another fence than they were found with
	detached  []detached
	moved     []*entry          // detached holds that end at another time,
	goneKeys  []string          // that are not found any more,
	newKeys   map[string]string // and that are found by another handle
	told      []string          // leases that have to look
	contended []contended
	wantX     string // the id on the row, which is wanted from now on; "": it was, or is not
	crowdOf   string // the lease of a waiter behind several who share; "": there is none
	events    []event
	more      bool // what can be granted was not all seen
}

// event is one row of the log.
type event struct {
	what  string
	name  lock.Resource
	id    string
	lease string
	fence int64
	note  string
	at    time.Duration // on the backend's clock
}

const (
	restID   = "\x00rest"
	othersID = "\x00others"
)

func newState() *state {
	return &state{
		leases: make(map[string]ending), entries: make(map[string]*entry), behind: make(map[string]string),
		notes: make(map[string]note), leasts: make(map[string]least), keys: make(map[string]string),
		changes: changes{newNotes: make(map[string]note), newKeys: make(map[string]string)},
	}
}

// put adds what the tables have: holders before waiters.
func (s *state) put(id string, m member, r queue.Room) *entry {
	e := &entry{ID: lock.HoldID(id), Value: m}
	s.q.Put(e, r)
	s.entries[id] = e
	return e
}

// stand-ins, for what was not read one by one.
func (s *state) addOthers() {
	s.q.Put(&entry{ID: othersID}, queue.Unlimited)
}

func (s *state) addRest() {
	s.rest = &entry{ID: restID}
	s.q.Put(s.rest, queue.One)
}

// keep has nothing granted: it comes after the holders, and all others behind it.
func (s *state) keep() {
	s.kept = true
	s.q.Put(&entry{ID: "\x00kept"}, queue.One)
}

func (s *state) note(what, id, lease string, fence int64, text string) {
	s.events = append(s.events, event{what: what, id: id, lease: lease, fence: fence, note: text})
}

// nextExclusive and nextShared count grants. That of a shared one leaves the row
// alone: it lies between two exclusive ones. But a server that has taken over may lack the last exclusive ones. So the first shared one
// there puts a fence of a time after those on the row.
func (s *state) nextExclusive() int64 {
	s.fence = max(s.fence+2, s.since+2, s.now)
	return s.fence
}

func (s *state) nextShared() int64 {
	switch {
	case s.fence >= s.since:
	case s.x == nil:
		s.fence, s.raised = max(s.now, s.since), true // as of now, see posts.go
	default: // the row has the fence of that hold, until it ends
		s.fence = s.since
	}
	return s.fence + 1
}

// grant gives a hold its fence.
func (s *state) grant(e *entry) {
	switch e.Value.at = s.now; {
	case e.Room() == queue.One:
		e.Value.fence = s.nextExclusive()
		e.Value.at = s.fence
		s.x = e
	case isPermit(e):
		e.Value.fence = int64(lock.PermitFence(s.nextExclusive(), e.Slot()))
		s.permitted = true
	default:
		e.Value.fence = s.nextShared()
	}
	if e.Value.least > 0 {
		e.Value.ends = s.now + e.Value.least
		s.newLeasts = append(s.newLeasts, e)
	}
}

// isOld tells whether a fence is of before the server may grant: one before it may have given larger ones since.
func isOld(fence, since int64) bool {
	if fence >= wholeFence {
		fence /= lock.FenceRange
	}
	return fence < since
}

// regrant gives another fence to a hold that a server before has granted, and whose app asks for it now: that one may have taken it away
// since, and granted others.
func (s *state) regrant(e *entry) {
	if !isOld(e.Value.fence, s.since) {
		return
	}
	switch {
	case e == s.x && e.Room() == queue.One:
		e.Value.fence = s.nextExclusive()
		e.Value.at = s.fence
	case isPermit(e):
		e.Value.fence = int64(lock.PermitFence(s.nextExclusive(), e.Slot()))
		s.permitted = true
	case e.Value.place == inHolds:
		e.Value.fence = s.nextShared()
	default: // it was downgraded, so its app has had it
		return
	}
	s.regranted = append(s.regranted, e)
	s.note("grant", string(e.ID), e.Value.lease, e.Value.fence, "")
}

// promote grants to the front of the queue what it can have.
func (s *state) promote() {
	if s.kept {
		return
	}
	for e := s.q.Next(); e != nil && e != s.rest; e = s.q.Next() {
		s.promoted(e)
	}
	// Of those behind who was read it is not known who they are.
	s.more = s.rest != nil && (s.rest.Held() || s.q.Position(s.rest) == 1)
}

func (s *state) promoted(e *entry) {
	s.grant(e)
	if e.Value.place == inQueue {
		s.granted = append(s.granted, e)
		s.note("grant", string(e.ID), e.Value.lease, e.Value.fence, "")
	} else {
		s.note("acquire", string(e.ID), e.Value.lease, e.Value.fence, "")
	}
}

// settleFront is for what was put: who waited in the tables although nobody holds was
// granted by that.
func (s *state) settleFront() {
	for e := range s.q.Holders() {
		if e.Value.place == inQueue && e.Value.fence == 0 {
			s.promoted(e)
		}
	}
	s.promote()
}

// remove takes a hold or a waiter out, and out of the tables.
func (s *state) remove(e *entry) {
	id, slot := string(e.ID), e.Slot()
	outlasts := e.Held() && e.Value.ends > s.now
	if e.Waiting() && e.Value.least > 0 {
		s.forgetLeast(id)
	}
	s.q.Remove(e)
	delete(s.entries, id)
	s.drop(id, e.Value.place)
	if outlasts {
		s.putLeast(id, least{mode: e.Room().Mode(), fence: e.Value.fence, ends: e.Value.ends}, slot)
	}
	if s.x == e {
		s.x = nil
	}
	if i := slices.Index(s.granted, e); i >= 0 { // granted and taken away in one batch
		s.granted = slices.Delete(s.granted, i, i+1)
	}
	s.promote()
}

func (s *state) drop(id string, p place) {
	switch p {
	case inHolds:
		s.goneHolds = append(s.goneHolds, id)
	case inQueue:
		s.goneWaits = append(s.goneWaits, id)
	}
	if i := slices.Index(s.ahead, id); i >= 0 {
		s.ahead = slices.Delete(s.ahead, i, i+1)
	}
}

// forget removes the note of an id.
func (s *state) forget(id string) {
	if _, there := s.notes[id]; there {
		delete(s.notes, id)
		delete(s.newNotes, id)
		s.delNotes = append(s.delNotes, id)
	}
}

func (s *state) remember(id string, n note) {
	s.notes[id], s.newNotes[id] = n, n
	s.delNotes = slices.DeleteFunc(s.delNotes, func(d string) bool { return d == id })
}

// lives tells whether a lease is there and has not ended.
func (s *state) lives(lease string) bool {
	end, there := s.leases[lease]
	return there && end == notEnded
}

// own gives the entry of a request, if it is of its lease.
func (s *state) own(o *op) *entry {
	if e := s.entries[o.id]; e != nil && e.Value.lease == o.lease {
		return e
	}
	return nil
}

// crowded is what the flag of the row must be.
func (s *state) crowded() bool { return s.x == nil && s.busy() }

// busy tells whether the next request will find others in the way.
func (s *state) busy() bool { return s.others() > 0 || s.noted || len(s.notes) > 0 }

// others are all that hold or wait, but for who is on the row.
func (s *state) others() int {
	holders, waiters := s.q.Len()
	all := holders + waiters
	if s.x != nil {
		all--
	}
	if s.kept {
		all--
	}
	return all
}
