package caslock

import (
	"errors"
	"strconv"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// This file decides. It does no I/O: a transaction has read what stands here, and writes
// what has changed, if the head is still the one that was read.

// member is a hold or a waiter.
type member struct {
	place
	seq   int64
	out   bool // it is in no line any more, because somebody has taken it out
	lasts bool // something is or was kept beside it
}

type item = queue.Entry[*member]

// errOtherLimit: the holders have another number of permits than is asked for.
var errOtherLimit = errors.New("there are permits of another number")

// state is one resource as it was read, and what the requests of a batch make of it.
type state struct {
	name   lock.Resource
	head   head
	base   int64 // where fences begin
	number int64 // of the next fence among those of this write
	most   int64 // at which it ends what it grants to who waits
	used   bool  // it was given to somebody
	now    int64 // for people
	clock  int64 // of the store, as it was read

	leases  map[string]bool    // of who asks: whether it lives,
	infos   map[string][]byte  // and what its key has
	late    map[string]bool    // and whether earlier requests of it may be carried out yet
	members map[string]*member // that the requests are about, or stand in front
	forced  map[string]forced  // of those that the requests are about
	kept    map[string]*kept   // what is kept of these, by id
	q       queue.Queue[*member]
	slots   []byte // of permits that are taken, as they were read
	rest    *item  // stands for the waiters behind those that were read; nil: there are none

	writes map[string]Write
	bumped map[string]bool // leases whose earlier requests are void
	more   bool            // what can be granted was not all read
}

func newState(name lock.Resource, h head, base, now int64, ops []*op) *state {
	most := int64(fenceStep - 1) // each of those who ask may have to be granted besides
	for _, o := range ops {
		if o.kind == opAsk {
			most--
		}
	}
	return &state{
		name: name, head: h, base: base, number: 1, most: most, now: now, slots: h.Slots,
		leases: make(map[string]bool), infos: make(map[string][]byte), late: make(map[string]bool), members: make(map[string]*member), forced: make(map[string]forced), kept: make(map[string]*kept),
		writes: make(map[string]Write), bumped: make(map[string]bool),
	}
}

// fill puts what was read into the queue. front are the first waiters, in order; whole: these
// are all.
func (s *state) fill(front []*member, whole bool) {
	others := s.head.Holders
	room := queue.RoomOf(s.head.Mode)
	for key, m := range s.members {
		if m.held() {
			s.q.PutPermit(&item{ID: lock.HoldID(key), Value: m}, room, m.Slot)
			setSlot(s.slots, m.Slot, false)
			others--
		}
	}
	for id, k := range s.kept {
		others--
		if s.hadBy(k) == nil {
			s.q.PutPermit(&item{ID: keptItem(id)}, room, k.Slot)
			setSlot(s.slots, k.Slot, false)
		}
	}
	if s.head.Mode.Limit() > 0 {
		for slot := range s.head.Mode.Limit() {
			if hasSlot(s.slots, slot) {
				s.q.PutPermit(&item{ID: lock.HoldID(strconv.Itoa(slot))}, room, slot)
			}
		}
	} else if others > 0 {
		s.q.PutPermit(&item{ID: "others"}, room, 0)
	}
	if whole { // what somebody has deleted is not counted
		s.head.Waiters = len(front)
	}
	for _, m := range front {
		key := memberKey(m.Lease, m.ID)
		s.members[key] = m
		s.q.Wait(&item{ID: lock.HoldID(key), Value: m}, queue.RoomOf(m.Mode))
	}
	if s.head.Waiters > len(front) {
		s.rest = &item{ID: "rest"}
		s.q.Put(s.rest, queue.One)
	}
	s.promote() // nobody may be in the way
}

func (s *state) put(key string, v any) { s.writes[key] = Write{Key: key, Value: encode(v)} }
func (s *state) del(key string)        { s.writes[key] = Write{Key: key, Delete: true} }

// write writes a hold or waiter whose whole place was read.
func (s *state) write(m *member) {
	s.put(lineKey(s.name, m.seq), m.written())
	s.put(entryKey(m.Lease, s.name, m.ID), entry{Seq: m.seq, granted: m.granted, Lasts: m.lasts, Several: m.Several})
}

// grant makes a waiter, or who has just come, a holder.
func (s *state) grant(e *item) {
	m := e.Value
	if m.Mode != lock.Shared && s.used {
		s.number++
	}
	s.used = true
	m.granted, m.Since = granted{From: s.base + s.number, Slot: e.Slot()}, s.now
	s.head.Mode, s.head.Front = m.Mode, m.seq+1
	s.head.Holders++
	s.head.Waiters--
	s.write(m)
}

// promote grants to the front of the queue what it can have. Where one write has not so many fences, the next one goes on.
func (s *state) promote() {
	for s.number < s.most {
		e := s.q.Next()
		if e == nil || e == s.rest {
			break
		}
		s.grant(e)
	}
	// Who is first of the rest was not read: it may be a reader that can hold with the others.
	first := s.rest != nil && (s.rest.Held() || s.q.Position(s.rest) == 1)
	s.more = s.more || s.number >= s.most && s.head.Waiters > 0 || first && s.roomy()
}

// roomy tells whether one more can hold, of some mode.
func (s *state) roomy() bool {
	holders, _ := s.q.Len()
	return s.head.Holders == 0 || s.head.Mode == lock.Shared || holders < s.head.Mode.Limit()
}

// takenSlots are the slots of permits that are held.
func (s *state) takenSlots() []byte {
	limit := s.head.Mode.Limit()
	if limit == 0 || s.head.Holders == 0 {
		return nil
	}
	slots := make([]byte, (limit+7)/8)
	for e := range s.q.Holders() {
		if e != s.rest {
			setSlot(slots, e.Slot(), true)
		}
	}
	return slots
}

func hasSlot(slots []byte, n int) bool { return n/8 < len(slots) && slots[n/8]&(1<<(n%8)) != 0 }

func setSlot(slots []byte, n int, taken bool) {
	switch {
	case n < 0 || n/8 >= len(slots):
	case taken:
		slots[n/8] |= 1 << (n % 8)
	default:
		slots[n/8] &^= 1 << (n % 8)
	}
}

// written is the form of the head in the store.
func (s *state) written() head {
	h := s.head
	if h.Mode.Limit() > 0 && h.Holders > 0 || h.Mode == lock.Exclusive && h.Holders > 1 {
		h.Mode = ofTheFirst
	}
	h.Slots = s.takenSlots()
	return h
}

// apply carries out one request.
func (s *state) apply(o *op) {
	if o.own() && !s.leases[o.lease] {
		o.err = lock.ErrLeaseLost
		return
	}
	m := s.members[o.names()]
	switch o.kind {
	case opAsk:
		s.ask(o, m)
	case opRemove:
		s.withdraw(o, m)
	case opDowngrade:
		s.downgrade(o, m)
	case opDescribe:
		s.describe(o, m)
	case opForce:
		s.force(o, m)
	case opEnd:
		if f, there := s.forced[o.names()]; there && f.Known > 0 && m != nil {
			s.remove(o, m)
		}
	case opSweep:
		o.found = m != nil
		s.remove(o, m)
	case opDetach:
		s.detach(o, m)
	case opAttach:
		s.attach(o, m)
	case opHandle:
		s.handle(o, m)
	case opLapse:
		s.lapse(o)
	case opSettle:
		s.promote()
	}
}

func (s *state) ask(o *op, m *member) {
	room := queue.RoomOf(o.place.Mode)
	_, forcing := s.forced[o.names()]
	switch {
	case m != nil && m.out, m == nil && s.kept[o.id] != nil: // or it was given up, and is kept
		o.err = lock.ErrNotHolder
		return
	case m == nil && forcing: // it was granted, and taken away at once
		s.del(forcedKey(o.lease, s.name, o.id))
		o.err = lock.ErrNotHolder
		return
	case m != nil:
		s.promote()
	case s.q.Clashes(room):
		o.err = errOtherLimit
		return
	case o.try && !s.q.Free(room):
		s.tell(o)
		o.err = lock.ErrHeld
		return
	default:
		o.came = true
		m = &member{place: o.place, seq: s.head.Next + 1} // what is kept of it has the place before
		m.Since = s.now
		s.members[o.names()] = m
		s.head.Next += 2
		s.head.Waiters++
		e := &item{ID: lock.HoldID(o.names()), Value: m}
		s.q.Put(e, room)
		if e.Held() {
			s.grant(e)
		} else {
			s.tell(o)
			s.write(m)
		}
		s.comes(m.place)
	}
	o.granted, o.queued = m.granted, !m.held()
	if o.span > 0 && m.held() && !m.lasts && !forcing && s.kept[o.id] == nil {
		m.place = o.place
		m.granted, m.Since, m.lasts = o.granted, s.now, true
		s.write(m)
		s.keep(m, o.span, "")
	}
}

func (s *state) withdraw(o *op, m *member) {
	if o.found = m != nil && !m.out; m == nil { // or others were faster
		o.found = o.marked
	}
	s.remove(o, m)
	s.void(o)
}

// void has no copy of an earlier request of the lease be carried out any more. One write does for all that had no answer before: where
// each of hundreds that are given up wrote the lease's key, each would overtake all the others.
func (s *state) void(o *op) {
	if o.unsure && s.late[o.lease] {
		s.bumped[o.lease] = true
	}
}

// remove takes a hold or a waiter out, with all that is kept of it.
func (s *state) remove(o *op, m *member) {
	if _, there := s.forced[o.names()]; there {
		delete(s.forced, o.names())
		s.del(forcedKey(o.lease, s.name, o.id))
	}
	if m == nil {
		return
	}
	s.del(entryKey(o.lease, s.name, o.id))
	s.leave(m)
	delete(s.members, o.names())
}

// leave takes a hold or a waiter out of the line.
func (s *state) leave(m *member) {
	if m.out {
		return
	}
	s.del(lineKey(s.name, m.seq))
	s.goes(m)
	if m.held() {
		s.head.Holders--
	} else {
		s.head.Waiters--
	}
	if e := s.q.Find(lock.HoldID(memberKey(m.Lease, m.ID))); e != nil && m.held() && s.keptOf(m) != nil {
		s.q.Rename(e, keptItem(m.ID))
		e.Value = nil
		return
	} else if e != nil {
		s.q.Remove(e)
	} else if s.rest != nil && s.head.Waiters == s.read() { // it was the last of the rest
		s.q.Remove(s.rest)
		s.rest = nil
	}
	s.promote()
}

// read is how many waiters are in the queue one by one.
func (s *state) read() int {
	_, n := s.q.Len()
	if s.rest != nil && s.rest.Waiting() {
		n--
	}
	return n
}

func (s *state) downgrade(o *op, m *member) {
	if m == nil || !m.held() {
		o.err = lock.ErrNotHolder
		return
	}
	if o.granted = m.granted; s.head.Mode == lock.Exclusive {
		e := s.q.Find(lock.HoldID(o.names()))
		s.q.Downgrade(e)
		m.Mode, s.head.Mode = lock.Shared, lock.Shared
		s.write(m)
		if k := s.keptOf(m); k != nil {
			k.Mode, k.Of = lock.Shared, k.generation()
			s.writeKept(k)
		}
		s.promote()
	}
}

// force begins the end of a hold, or takes a waiter out.
func (s *state) force(o *op, m *member) {
	k := s.kept[o.id]
	if _, there := s.forced[o.names()]; there && o.lease == keptLease { // by an older sidecar
		s.del(forcedKey(o.lease, s.name, o.id))
	}
	switch {
	case m == nil && k != nil: // nobody has it
		o.found = true
		s.forgetKept(k)
	case m == nil || m.out:
		o.err = lock.ErrNotHolder
	case !s.leases[o.lease]: // nobody has taken it out yet
		if o.found = k != nil; o.found {
			s.forgetKept(k)
		} else {
			o.err = lock.ErrNotHolder
		}
		s.remove(o, m)
	case !m.held(): // when it asks again, it learns of it
		o.found = true
		s.put(entryKey(o.lease, s.name, o.id), entry{Out: true})
		s.leave(m)
		m.out = true
	default:
		o.found = true
		if k != nil {
			s.forgetKept(k)
		}
		f, there := s.forced[o.names()]
		if grace := o.grace.Microseconds(); !there || grace < f.Grace { // a longer one changes nothing
			f.Grace = grace
			s.forced[o.names()] = f
			s.put(forcedKey(o.lease, s.name, o.id), f)
		}
		if o.queued = o.grace > 0; !o.queued {
			s.del(entryKey(o.lease, s.name, o.id))
			s.leave(m)
			delete(s.members, o.names())
		}
	}
}
