// Package queue decides who is granted a resource next. The rule is first come, first
// served. Requests that can hold together are granted together. A request that comes
// behind a waiter waits too, so nobody starves.
//
// It is pure: no I/O, no clock, no mutex. A [Queue] is one resource. The caller
// puts entries in and takes them out. After each change it asks [Queue.Next]
// for what can be granted now, as many at a time as it likes. Before it asks, it takes
// out the entries of the dead. Each call is O(1) or O(log n) in holders and waiters.
// The one exception: after many calls, one call numbers all places again.
package queue

import (
	"iter"
	"math"

	"github.com/locksidecar/locksidecar/lock"
)

// Room is what fits into a resource together: one exclusive hold, any number of shared
// ones, or so many permits. Holds of different rooms never hold together.
type Room lock.Mode

// The rooms without a number.
const (
	One       = Room(lock.Exclusive)
	Unlimited = Room(lock.Shared)
)

// RoomOf is the room of a mode.
func RoomOf(m lock.Mode) Room { return Room(m) }

// Mode is the mode of a room.
func (r Room) Mode() lock.Mode { return lock.Mode(r) }

func (r Room) permits() bool { return r.Mode().Limit() > 0 }

// size is how many hold together.
func (r Room) size() int {
	switch r {
	case One:
		return 1
	case Unlimited:
		return math.MaxInt
	default:
		return r.Mode().Limit()
	}
}

// Entry is a hold or a waiter; V is what the caller keeps with it. The caller
// makes it with ID and Room, and changes neither while it is in a Queue, but by Rename.
type Entry[V any] struct {
	ID    lock.HoldID
	Value V

	prev, next *Entry[V] // of holders
	room       Room
	place      int // of a waiter: in the line; of a hold: its slot
	state      state
}

type state uint8

const (
	out state = iota
	waiting
	held
)

// Held tells whether e has been granted.
func (e *Entry[V]) Held() bool { return e.state == held }

// Waiting tells whether e is in the queue.
func (e *Entry[V]) Waiting() bool { return e.state == waiting }

// Room is what e was put in with, or Unlimited after Downgrade.
func (e *Entry[V]) Room() Room { return e.room }

// Slot is the number of a permit, from 0, which no other hold has at the
// same time; 0 for other holds and for waiters.
func (e *Entry[V]) Slot() int {
	if e.state != held {
		return 0
	}
	return e.place
}

// Queue is one resource. Its zero value is free.
type Queue[V any] struct {
	first, last *Entry[V]                 // the holders, as they were granted
	count       int                       // of holders, all of one room
	waiters     *line[V]                  // nil: nobody waits
	slots       *slots                    // of permits; nil: nobody has had any
	byID        map[lock.HoldID]*Entry[V] // nil while there are few
}

// few is how many entries are looked through for an id without an index.
const few = 8

// Find gives the hold or waiter of an id, or nil.
func (q *Queue[V]) Find(id lock.HoldID) *Entry[V] {
	if q.byID != nil {
		return q.byID[id]
	}
	for e := range q.all {
		if e.ID == id {
			return e
		}
	}
	return nil
}

// Len is how many hold and how many wait.
func (q *Queue[V]) Len() (holders, waiters int) { return q.count, q.waiters.len() }

// Empty tells whether nobody holds or waits.
func (q *Queue[V]) Empty() bool { return q.count == 0 && q.waiters == nil }

// Clashes tells whether a request wants another number of permits than there are holds of.
// Who uses a queue may refuse such a request; in the queue it waits until they have ended.
func (q *Queue[V]) Clashes(r Room) bool {
	return r.permits() && q.count > 0 && q.first.room.permits() && q.first.room != r
}

// Free tells whether a new request would be granted at once.
func (q *Queue[V]) Free(r Room) bool { return q.waiters == nil && q.admits(r) }

// admits tells whether the holders leave room for one more.
func (q *Queue[V]) admits(r Room) bool {
	return q.count == 0 || q.first.room == r && q.count < r.size()
}

// Put puts in a request whose ID is not there: as a hold where it is Free, else at the
// end of the queue.
//
// Model: queue.PUT.
func (q *Queue[V]) Put(e *Entry[V], r Room) {
	if q.Free(r) {
		q.enter(e, r)
		q.hold(e)
		return
	}
	q.Wait(e, r)
}

// Wait puts in a request whose ID is not there at the end of the queue, also where it is Free: Next grants it.
func (q *Queue[V]) Wait(e *Entry[V], r Room) {
	q.enter(e, r)
	e.state = waiting
	if q.waiters == nil {
		q.waiters = &line[V]{}
	}
	q.waiters.add(e)
}

// PutPermit puts in a hold of which is known that it is there, with its slot. Nobody waits yet.
func (q *Queue[V]) PutPermit(e *Entry[V], r Room, slot int) {
	q.enter(e, r)
	q.have(e, slot)
}

func (q *Queue[V]) enter(e *Entry[V], r Room) {
	e.room = r
	switch {
	case q.byID != nil:
		q.byID[e.ID] = e
	case q.count+q.waiters.len() >= few:
		q.byID = map[lock.HoldID]*Entry[V]{e.ID: e}
		for o := range q.all {
			q.byID[o.ID] = o
		}
	}
}

// Rename gives an entry another ID, which is not there.
func (q *Queue[V]) Rename(e *Entry[V], id lock.HoldID) {
	if q.byID != nil {
		delete(q.byID, e.ID)
		q.byID[id] = e
	}
	e.ID = id
}

// Next grants to the front of the queue, and gives whom; nil: the front must wait.
//
// Model: queue.NEXT.
func (q *Queue[V]) Next() *Entry[V] {
	if q.waiters == nil {
		return nil
	}
	e := q.waiters.front()
	if !q.admits(e.room) {
		return nil
	}
	q.step(e)
	q.hold(e)
	return e
}

// hold makes e a holder, with the lowest slot that is free.
func (q *Queue[V]) hold(e *Entry[V]) {
	slot := 0
	if e.room.permits() && q.slots != nil {
		slot = q.slots.free()
	}
	q.have(e, slot)
}

func (q *Queue[V]) have(e *Entry[V], slot int) {
	e.state, e.place = held, slot
	if e.room.permits() {
		if q.slots == nil {
			q.slots = new(slots)
		}
		q.slots.take(slot)
	}
	e.prev, e.next = q.last, nil
	if q.last == nil {
		q.first = e
	} else {
		q.last.next = e
	}
	q.last = e
	q.count++
}

// Remove takes a hold or a waiter out; an entry that is out already stays so.
//
// Model: queue.REMOVE.
func (q *Queue[V]) Remove(e *Entry[V]) {
	switch e.state {
	case out:
		return
	case waiting:
		q.step(e)
	case held:
		q.leave(e)
	}
	e.state = out
	if q.byID != nil {
		delete(q.byID, e.ID)
		if q.Empty() {
			q.byID = nil
		}
	}
}

// step takes a waiter out of the line.
func (q *Queue[V]) step(e *Entry[V]) {
	if q.waiters.remove(e); q.waiters.count == 0 {
		q.waiters = nil
	}
}

// leave takes a hold from the holders.
func (q *Queue[V]) leave(e *Entry[V]) {
	if e.room.permits() {
		q.slots.giveBack(e.place)
	}
	if e.prev == nil {
		q.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		q.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
	q.count--
}

// Downgrade turns an exclusive hold into a shared one; a shared one stays.
//
// Model: queue.DOWNGRADE.
func (q *Queue[V]) Downgrade(e *Entry[V]) {
	if e.state == held && e.room == One {
		e.room = Unlimited
	}
}

// Position is the place of a waiter in the queue: 1 is next. 0: it does not wait.
func (q *Queue[V]) Position(e *Entry[V]) int {
	if e.state != waiting {
		return 0
	}
	return q.waiters.position(e)
}

// Holders gives the holds as they were granted.
func (q *Queue[V]) Holders() iter.Seq[*Entry[V]] {
	return func(yield func(*Entry[V]) bool) { q.eachHolder(yield) }
}

// Waiters gives the queue from its front.
func (q *Queue[V]) Waiters() iter.Seq[*Entry[V]] { return q.waiters.all }

func (q *Queue[V]) all(yield func(*Entry[V]) bool) {
	if q.eachHolder(yield) {
		q.waiters.all(yield)
	}
}

// eachHolder tells whether yield wants more.
func (q *Queue[V]) eachHolder(yield func(*Entry[V]) bool) bool {
	for e := q.first; e != nil; e = e.next {
		if !yield(e) {
			return false
		}
	}
	return true
}
