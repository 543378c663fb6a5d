package embedded

import (
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// resource is in the store's map only as long as somebody holds or waits.
type resource struct {
	name    lock.Resource
	holders list // all shared, or one exclusive
	waiters list // first come, first served
}

// entry is one hold or one waiter.
type entry struct {
	id         lock.HoldID
	resource   *resource
	lease      *lease
	prev, next *entry
	changed    chan struct{} // closed when a waiter stops waiting, or a hold that is forced is gone; nil when nobody listens
	owner      string
	since      time.Duration // on the store's clock, granted or queued
	fence      lock.Fence
	callers    int32 // of Acquire, while it waits
	mode       lock.Mode
	state      state
}

type state uint8

const (
	waiting state = iota
	held
	revoked // forced, and still blocking until it is released or grace is over
	gone
)

func (e *entry) grant() lock.Grant {
	return lock.Grant{ID: e.id, Resource: e.resource.name, Mode: e.mode, Fence: e.fence}
}

// signal wakes those who listen for a change of e.
func (e *entry) signal() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// list is a chain of entries; an entry is in one list at a time.
type list struct{ first, last *entry }

func (l *list) push(e *entry) {
	e.prev, e.next = l.last, nil
	if l.last == nil {
		l.first = e
	} else {
		l.last.next = e
	}
	l.last = e
}

func (l *list) cut(e *entry) {
	if e.prev == nil {
		l.first = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		l.last = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}

// admits tells whether the holders leave room for one more in this mode.
func (r *resource) admits(m lock.Mode) bool {
	return r.holders.first == nil || m == lock.Shared && r.holders.first.mode == lock.Shared
}

// find returns the hold or waiter with that id, or nil.
func (r *resource) find(id lock.HoldID) *entry {
	if r == nil {
		return nil
	}
	for _, first := range [2]*entry{r.holders.first, r.waiters.first} {
		for e := first; e != nil; e = e.next {
			if e.id == id {
				return e
			}
		}
	}
	return nil
}

// position is the place of a waiter in its queue; 1 is next.
func (e *entry) position() int {
	n := 1
	for p := e.prev; p != nil; p = p.prev {
		n++
	}
	return n
}

// hold makes e, which is in no list, a holder.
func (s *Store) hold(e *entry, now time.Duration) {
	e.state = held
	e.since = now
	e.fence = s.nextFence()
	e.resource.holders.push(e)
}

// promote grants what can be granted from the head of the queue, and forgets
// the resource when nobody is left.
func (s *Store) promote(r *resource) {
	for r.waiters.first != nil && r.admits(r.waiters.first.mode) {
		e := r.waiters.first
		r.waiters.cut(e)
		s.hold(e, s.clock())
		e.signal()
	}
	if r.holders.first == nil && r.waiters.first == nil {
		delete(s.resources, r.name)
	}
}

// remove ends a hold or waiter and hands the resource on.
func (s *Store) remove(e *entry) {
	s.unlink(e)
	delete(e.lease.entries, e.id)
	s.promote(e.resource)
}

// unlink takes e out of its resource, and leaves handing on to the caller.
func (s *Store) unlink(e *entry) {
	switch e.state {
	case waiting:
		e.resource.waiters.cut(e)
	case revoked:
		delete(s.revoked, e)
		e.resource.holders.cut(e)
	case held:
		e.resource.holders.cut(e)
	case gone:
		return
	}
	e.state = gone
	e.signal()
}
