package embedded

import (
	"iter"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// resource is in the store only as long as somebody holds or waits.
type resource struct {
	queue.Queue[hold]
	name  lock.Resource
	index int  // in Store.listed; -1: it is not in the store
	more  bool // stands in Store.unfinished

	// alone are those with a cohort that came after the last waiter, and that waiter:
	// the next one stands behind them. Some may have left.
	alone []*entry
}

// entry is one hold or one waiter.
type entry = queue.Entry[hold]

// hold is what the store keeps with an entry.
type hold struct {
	resource   *resource
	lease      *lease
	prev, next *entry // of the lease
	owner      string
	since      time.Duration // on the store's clock, granted or queued
	fence      lock.Fence
	force      *force // nil: its release is not forced
	cohort     bool
	minHold    time.Duration  // of the request
	until      time.Duration  // of a hold: when its minHold, or its time as a detached one, is over, on the store's clock
	key        lock.HandleKey // of a hold that is detached, or was and is attached; "": it is not one
}

// force is a forced release under way. The hold blocks until it is released,
// until its lease is over, or until grace has passed since the holder's sidecar
// has acknowledged it.
type force struct {
	grace time.Duration
	end   ending        // set by the acknowledgement
	gone  chan struct{} // closed when the hold is
}

// dead is the first hold or the first waiter, where its lease is over; nil: neither.
func (r *resource) dead() *entry {
	for _, all := range []iter.Seq[*entry]{r.Holders(), r.Waiters()} {
		for e := range all {
			if e.Value.lease.over {
				return e
			}
			break
		}
	}
	return nil
}

// clashes is Clashes, but for holds that nobody has any more: these are about to go.
func (r *resource) clashes(room queue.Room, now time.Duration) bool {
	if r.Clashes(room) {
		for e := range r.Holders() {
			if !e.Value.lease.over || e.Value.keeps(now) {
				return true
			}
		}
	}
	return false
}

// put makes a request a hold or a waiter on r, or on a new resource where that
// is nil.
func (s *Store) put(r *resource, l *lease, q lock.Request, now time.Duration) *entry {
	if r == nil {
		if r = s.spare; r == nil {
			r = new(resource)
		}
		s.spare = nil
		r.name, r.index = q.Resource, len(s.listed)
		s.resources[q.Resource] = r
		s.listed = append(s.listed, r)
	}
	e := &entry{ID: q.ID, Value: hold{resource: r, lease: l, owner: q.Owner, since: now, cohort: q.Cohort != nil, minHold: q.MinHold}}
	r.Put(e, queue.RoomOf(q.Mode))
	if e.Held() {
		s.grant(e, now)
	}
	l.link(e)
	r.contend(e)
	return e
}

// contend tells those of other leases that somebody stands behind now. Each is told once, so it takes
// no longer than to put them in.
func (r *resource) contend(e *entry) {
	if e.Waiting() {
		for _, o := range r.alone {
			if (o.Held() || o.Waiting()) && o.Value.lease != e.Value.lease {
				o.Value.lease.push(leasekit.Push{Kind: leasekit.Contended, Ref: ref(o)})
			}
		}
		clear(r.alone)
		r.alone = r.alone[:0]
	}
	if !e.Value.cohort {
		return
	}
	if holders, waiters := r.Len(); len(r.alone) > 2*(holders+waiters)+slack {
		r.alone = slices.DeleteFunc(r.alone, func(o *entry) bool { return !o.Held() && !o.Waiting() })
	}
	r.alone = append(r.alone, e)
}

// slack is how many that have left are remembered.
const slack = 16

// remove ends a hold or waiter and hands the resource on, to how many it tells.
func (s *Store) remove(e *entry, now time.Duration) (granted int) {
	s.unlink(e)
	return s.promote(e.Value.resource, now)
}

// unlink takes e out, and leaves handing on to the caller.
func (s *Store) unlink(e *entry) {
	v := &e.Value
	v.resource.Remove(e)
	v.lease.unlink(e)
	s.forgetHandle(e)
	if v.force != nil {
		delete(v.lease.unacknowledged, e.ID)
		s.endings.cancel(&v.force.end)
		close(v.force.gone)
	}
}

// grantStep is how many are granted before others are let in: it takes less than a
// millisecond.
const grantStep = 256

// promote grants what can be granted from the front of the queue, to how many it
// tells, and forgets the resource when nobody is left. After a step of many readers it leaves the rest
// to expire; until then they stand at the front, so that nobody overtakes them.
//
// Model: lease.GRANT, queue.NEXT.
func (s *Store) promote(r *resource, now time.Duration) (granted int) {
	for e := r.Next(); e != nil; e = r.Next() {
		s.grant(e, now)
		e.Value.lease.push(leasekit.Push{Kind: leasekit.Granted, Ref: ref(e), Fence: e.Value.fence})
		if granted++; granted == grantStep {
			s.later(r)
			return granted
		}
	}
	if r.Empty() && r.index >= 0 {
		delete(s.resources, r.name)
		last := s.listed[len(s.listed)-1]
		s.listed[r.index], last.index = last, r.index
		s.listed[len(s.listed)-1] = nil
		s.listed = s.listed[:len(s.listed)-1]
		r.index = -1
		clear(r.alone)
		r.alone = r.alone[:0]
		s.spare = r
	}
	return granted
}

// later notes that the front of r may not be granted yet.
func (s *Store) later(r *resource) {
	if !r.more {
		r.more = true
		s.unfinished = append(s.unfinished, r)
		s.ring()
	}
}

// step goes on with what was left: it grants some more, and clears away some more of a
// lease that is over.
func (s *Store) step(now time.Duration) {
	if r := take(&s.unfinished); r != nil {
		r.more = false
		s.promote(r, now)
	}
	if l := take(&s.leaving); l != nil {
		if s.clear(l, now); l.first != nil {
			s.leaving = append(s.leaving, l)
		}
	}
	if len(s.unfinished)+len(s.leaving) > 0 {
		s.ring()
	}
}

// take takes the first of some, or nil.
func take[T any](all *[]*T) *T {
	if len(*all) == 0 {
		return nil
	}
	first := (*all)[0]
	(*all)[0] = nil
	*all = (*all)[1:]
	return first
}

func ref(e *entry) leasekit.Ref {
	return leasekit.Ref{Resource: e.Value.resource.name, ID: e.ID}
}
