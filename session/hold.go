package session

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
)

// key is what a session may hold once: reentrancy goes by it.
type key struct {
	resource lock.Resource
	owner    string
}

type holdState uint8

const (
	asking holdState = iota + 1 // a caller of Acquire asks the store
	held
	grace // lost for the app, and the store still keeps others out
	over  // nothing is left of it here
)

// hold is one lock of one session, from the request to the end. There may be
// tens of thousands, so it is small: no goroutine, no context, and a timer only
// with max_hold. Its fields stand under the session's mutex, except those that
// never change.
type hold struct {
	session *Session
	key     key
	mode    lock.Mode
	state   holdState
	reason  LostReason // why it was lost
	unsure  bool       // Shared, but the store has not confirmed the downgrade

	id       lock.HoldID // new for each lease that is asked
	lease    *generation // that was asked; nil while there is none
	fence    lock.Fence
	guard    *lock.Guard
	count    int
	claims   []*claim            // of requests that have an id; the latest is the last
	limit    *heartbeat.Deadline // the end by max_hold, then of the grace; or nil
	graceEnd time.Duration       // on the clock; of a lost hold
	flight   *flight             // while asking
}

// claim is a request with an id: one count of a hold, however often it is asked.
type claim struct {
	requestID string
	hold      *hold
	mode      lock.Mode
	callers   int                  // of Acquire, at the moment
	handed    bool                 // one of them has got the grant
	cancels   []context.CancelFunc // of those callers
}

// forget takes a hold out of everything where it can be found, except among the
// lost ones. s.mu is held.
func (s *Session) forget(h *hold) {
	if s.keys[h.key] == h {
		delete(s.keys, h.key)
	}
	if h.state == held {
		delete(s.holds, h.id)
		h.lease.drop(h.id)
	}
	if h.limit != nil {
		h.limit.Stop()
		h.limit = nil
	}
	for _, c := range h.claims {
		delete(s.requests, c.requestID)
	}
	h.claims = nil
}

// unclaim takes one claim off a hold. s.mu is held.
func (s *Session) unclaim(c *claim) {
	delete(s.requests, c.requestID)
	if i := slices.Index(c.hold.claims, c); i >= 0 {
		c.hold.claims = slices.Delete(c.hold.claims, i, i+1)
	}
}

// valid tells how long a hold may be relied on, after looking at all the
// clocks; what is found to be over is lost from then on, and the answer is 0.
// However long the program stood still before the call, it tells the truth.
// s.mu is held.
func (s *Session) valid(h *hold) time.Duration {
	if h.state != held {
		return 0
	}
	left := h.lease.keeper.ValidFor()
	if left == 0 {
		s.lose(h, h.lease.reason(), maxGrace)
		return 0
	}
	if h.limit != nil {
		limit := h.limit.Remaining()
		if limit == 0 {
			s.lose(h, MaxHold, s.m.o.LostGrace)
			return 0
		}
		left = min(left, limit)
	}
	if s.ttl != nil {
		limit := s.ttl.Remaining()
		if limit == 0 {
			s.windLocked(SessionExpired)
			return 0
		}
		left = min(left, limit)
	}
	return left
}

// lose ends a hold that nobody released, and tells the app, who has at most that
// time until others may be let in: less when the lease may be over before. For
// the reasons that the sidecar has made itself, settle must follow. s.mu is held.
func (s *Session) lose(h *hold, reason LostReason, left time.Duration) {
	left = min(left, h.lease.keeper.Kept())
	s.forget(h)
	h.state, h.reason, h.graceEnd = over, reason, s.m.o.Clock()+left
	switch {
	case reason.ours():
		h.state = grace
		s.graces++
	default:
		if left > 0 { // the store counts it
			h.state = grace
		}
		s.m.uncountHold()
	}
	if reason == MaxHold {
		h.limit = heartbeat.NewDeadline(s.m.o.Clock, left, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.settle(h)
		})
	}
	s.remember(h)
	s.mail.lost = append(s.mail.lost, h)
	if len(s.mail.lost) > max(s.m.o.Limits.HoldsPerSession, maxRemembered) {
		s.mail.lost = s.mail.lost[1:] // an app that never reads
	}
	s.mail.ring()
	s.m.o.Observer.HoldLost(reason)
	s.m.o.Logger.Debug("lock lost", keySession, s.id, keyResource, h.key.resource, keyLockID, h.id, keyReason, reason, keyGrace, left)
}

// ours tells that the sidecar decides when others are let in.
func (r LostReason) ours() bool {
	return r == MaxHold || r == SessionExpired || r == Stopping
}

// settle ends the grace of a lost hold: the store is told, if it is not done
// already. s.mu is held.
func (s *Session) settle(h *hold) {
	if h.state != grace {
		return
	}
	s.ungrace(h)
	h.state = over
	h.lease.clean(h.key.resource, h.id)
	if s.state == ending && s.graces == 0 {
		s.endLocked()
	}
}

// ungrace stops what was begun for the grace of a hold. s.mu is held.
func (s *Session) ungrace(h *hold) {
	if h.limit != nil {
		h.limit.Stop()
		h.limit = nil
	}
	if h.reason.ours() {
		s.graces--
		s.m.uncountHold()
	}
}

// maxRemembered is how many lost holds a session can still name when their
// grace is over.
const maxRemembered = 256

// remember keeps a lost hold, so that a late Release learns why it is gone.
// s.mu is held.
func (s *Session) remember(h *hold) {
	if s.lost == nil {
		s.lost = make(map[lock.HoldID]*hold)
	}
	s.lost[h.id] = h
	s.lostOrder = append(s.lostOrder, h)
	now := s.m.o.Clock()
	for len(s.lostOrder) > maxRemembered {
		oldest := s.lostOrder[0]
		if oldest.state == grace && now < oldest.graceEnd {
			break // a Release of it still means something
		}
		delete(s.lost, oldest.id)
		s.lostOrder = s.lostOrder[1:]
	}
}

// lostOf is what the app is told of a lost hold. s.mu is held.
func (s *Session) lostOf(h *hold) Lost {
	l := Lost{LockID: h.id, Resource: s.m.toApp(h.key.resource), Fence: h.fence, Reason: h.reason}
	if h.state == grace {
		l.GraceEnd = h.graceEnd
	}
	return l
}
