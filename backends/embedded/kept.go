package embedded

import (
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// A hold is there as long as its lease lives, or until a moment of its own: that at which its
// minHold is over, or its time as a detached hold. Whoever lets go of it before that, or whose lease is over, leaves it to a
// lease that has nothing but this hold and ends at that moment.

var _ leasekit.Keeper = (*lease)(nil)

// KeepsMinHold implements leasekit.Keeper.
func (l *lease) KeepsMinHold() error { return nil }

// keeps tells whether the end of its lease does not end a hold. A forced release ends it.
func (h *hold) keeps(now time.Duration) bool { return h.force == nil && now < h.until }

// isKept tells whether nobody has a hold that is there still.
func (h *hold) isKept() bool { return h.lease.ofHold || h.lease.over }

// end ends a hold or waiter for who has it, and hands the resource on, to how many it tells.
// A hold is kept until its minHold is over.
//
// Model: kept.RELEASE.
func (s *Store) end(e *entry, now time.Duration) (granted int) {
	if s.closed || !e.Value.keeps(now) {
		return s.remove(e, now)
	}
	s.leave(e)
	return 0
}

// leave takes a hold off its lease: it is there until its moment.
//
// Model: kept.KEEP, kept.OVER.
func (s *Store) leave(e *entry) {
	had := e.Value.lease
	l := &lease{
		store: s, id: lock.LeaseID(e.ID), sidecar: had.sidecar, ofHold: true,
		push: func(leasekit.Push) {}, dropped: make(chan struct{}),
	}
	l.end.over = func(now time.Duration) { s.drop(l, now) }
	had.unlink(e)
	e.Value.lease = l
	l.link(e)
	s.leases[l] = struct{}{}
	s.endsAt(&l.end, e.Value.until)
}

// give ends a hold that is kept.
func (s *Store) give(e *entry, now time.Duration) {
	e.Value.until = 0
	if e.Value.lease.ofHold {
		s.drop(e.Value.lease, now)
	} else {
		s.remove(e, now)
	}
}
