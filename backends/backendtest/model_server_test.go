package backendtest

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// server is a store in memory that keeps the laws, unless it is told to break
// one. It can be copied, as a replica is, which no store of ours can.
type server struct {
	bad     faults
	mutex   chan struct{} // a channel, so that who waits for it lets the bubble's time pass
	number  int64
	leases  map[lock.LeaseID]*leaseRow
	locks   map[lock.Resource]*lockRow
	forced  map[lock.HoldID]bool
	records map[lock.Resource]recordRow
	hidden  []string // what nobody sees and nobody clears away

	listeners map[lock.LeaseID]*modelLease
	changed   chan struct{} // closed and replaced by each change
	dirty     bool          // something has changed
}

type leaseRow struct {
	sidecar string
	ttl     time.Duration
	ends    time.Time
	over    bool
}

type lockRow struct{ holders, waiters []*holdRow }

type holdRow struct {
	lock.Holding
	owner   string
	since   time.Time
	pending time.Duration // grace of which the holder does not know yet; negative: none
	until   time.Time     // when its grace ends; zero: it does not know yet
	minHold time.Duration
	least   time.Time // when its minHold ends
	kept    bool      // nobody has it any more
	key     lock.HandleKey

	formerly []lock.HandleKey // that it had
}

func newServer(bad faults) *server {
	return &server{
		bad: bad, mutex: make(chan struct{}, 1), leases: make(map[lock.LeaseID]*leaseRow), locks: make(map[lock.Resource]*lockRow),
		forced:    make(map[lock.HoldID]bool),
		records:   make(map[lock.Resource]recordRow),
		listeners: make(map[lock.LeaseID]*modelLease), changed: make(chan struct{}),
	}
}

// fork copies the server, as a replica that was cut off at this moment.
func (s *server) fork() *server {
	f := newServer(s.bad)
	s.do(func(time.Time) {
		f.number = s.number
		f.listeners = maps.Clone(s.listeners)
		f.records = maps.Clone(s.records)
		for id, l := range s.leases {
			row := *l
			f.leases[id] = &row
		}
		for r, l := range s.locks {
			row := &lockRow{}
			for _, h := range l.holders {
				hold := *h
				row.holders = append(row.holders, &hold)
			}
			for _, h := range l.waiters {
				hold := *h
				row.waiters = append(row.waiters, &hold)
			}
			f.locks[r] = row
		}
	})
	return f
}

// do carries out one request: what is over is ended first, and what is free after
// it is handed on.
func (s *server) do(f func(now time.Time)) {
	s.mutex <- struct{}{}
	defer func() { <-s.mutex }()
	now := time.Now()
	s.tidy(now)
	f(now)
	s.tidy(now)
	if s.dirty {
		close(s.changed)
		s.changed, s.dirty = make(chan struct{}), false
	}
}

func (s *server) tidy(now time.Time) {
	for id, l := range s.leases {
		if !l.over && !now.Before(l.ends) {
			s.end(id, now)
		}
	}
	if !s.bad.keepsOldRecords && !s.bad.keepsForLonger {
		maps.DeleteFunc(s.records, func(_ lock.Resource, r recordRow) bool { return !now.Before(r.ends) })
	}
	for _, r := range slices.Sorted(maps.Keys(s.locks)) {
		l := s.locks[r]
		l.holders = slices.DeleteFunc(l.holders, func(h *holdRow) bool {
			return !h.until.IsZero() && !now.Before(h.until) || h.kept && !now.Before(h.least)
		})
		for len(l.waiters) > 0 && l.admits(l.waiters[0].Mode) {
			h := l.waiters[0]
			l.waiters = l.waiters[1:]
			s.hold(l, h, now)
		}
		if len(l.holders)+len(l.waiters) == 0 {
			delete(s.locks, r)
		}
	}
}

// end ends a lease with all that hangs on it.
func (s *server) end(id lock.LeaseID, now time.Time) {
	s.leases[id].over, s.dirty = true, true
	for r, l := range s.locks {
		of := func(h *holdRow) bool { return h.Lease == id }
		l.holders = slices.DeleteFunc(l.holders, func(h *holdRow) bool {
			return of(h) && (s.bad.keepsNoDead || !s.keeps(h, now))
		})
		if s.bad.keepsDeadWaiters && slices.ContainsFunc(l.waiters, of) {
			s.hidden = append(s.hidden, string(r))
		}
		l.waiters = slices.DeleteFunc(l.waiters, of)
	}
}

// keeps tells whether a hold outlasts its end, and notes it.
func (s *server) keeps(h *holdRow, now time.Time) bool {
	h.kept = now.Before(h.least) && (!h.Revoked || s.bad.keepsForced)
	return h.kept
}

func (s *server) hold(l *lockRow, h *holdRow, now time.Time) {
	h.least = now.Add(h.minHold)
	s.number = max(s.number+1, now.UnixMicro())
	h.Fence, h.since = lock.PermitFence(s.number, l.slot(h.Mode, s.bad.sharesSlots)), now
	if s.bad.leavesNoRoom {
		h.Fence = lock.Fence(s.number)
	}
	l.holders = append(l.holders, h)
	s.dirty = true
}

// slot is the lowest that no holder of a permit has; 0 for a lock.
func (l *lockRow) slot(m lock.Mode, shared bool) (n int) {
	of := func(h *holdRow) bool { return h.Fence.Slot() == n }
	for n < m.Limit()-1 && !shared && slices.ContainsFunc(l.holders, of) {
		n++
	}
	return n
}

func (l *lockRow) admits(m lock.Mode) bool {
	return len(l.holders) == 0 || l.holders[0].Mode == m && (m == lock.Shared || len(l.holders) < m.Limit())
}

// clashes tells whether permits of another number are held.
func (l *lockRow) clashes(m lock.Mode) bool {
	return m.Limit() > 0 && len(l.holders) > 0 && l.holders[0].Mode.Limit() > 0 && l.holders[0].Mode != m
}

// lives tells whether a lease lives. A bad server brings it back.
func (s *server) lives(id lock.LeaseID, now time.Time, revive bool) bool {
	l := s.leases[id]
	if l != nil && l.over && revive {
		l.over, l.ends = false, now.Add(l.ttl)
	}
	return l != nil && !l.over
}

// find gives a hold or a waiter of that id.
func (s *server) find(r lock.Resource, id lock.HoldID) (row *holdRow, holder bool) {
	l := s.locks[r]
	if l == nil {
		return nil, false
	}
	is := func(h *holdRow) bool { return h.ID == id }
	if i := slices.IndexFunc(l.holders, is); i >= 0 {
		return l.holders[i], true
	}
	if i := slices.IndexFunc(l.waiters, is); i >= 0 {
		return l.waiters[i], false
	}
	return nil, false
}

// remove takes out a hold or a waiter.
func (s *server) remove(r lock.Resource, id lock.HoldID) {
	l := s.locks[r]
	s.dirty = true
	is := func(h *holdRow) bool { return h.ID == id }
	l.holders, l.waiters = slices.DeleteFunc(l.holders, is), slices.DeleteFunc(l.waiters, is)
}

// force revokes a hold. The grace counts from when the holder acknowledges it.
func (s *server) force(r lock.Resource, id lock.HoldID, grace time.Duration, now time.Time) error {
	h, holder := s.find(r, id)
	switch {
	case h == nil:
		return lock.ErrNotHolder
	case !holder:
		s.remove(r, id)
		return nil
	case h.kept:
		s.remove(r, id)
		return nil
	case grace <= 0:
		s.remove(r, id)
		s.forced[id] = true
		s.push(h.Lease)
		return nil
	case s.bad.ignoresSecondForce && h.Revoked:
		return nil
	case s.bad.forcersClock:
		h.until = now.Add(grace)
	case h.pending >= 0 && h.pending <= grace, !h.until.IsZero() && !now.Add(grace).Before(h.until) && !s.bad.prolongsGrace:
		return nil // not shorter
	}
	h.Revoked, h.pending = true, grace
	s.push(h.Lease)
	return nil
}

func (s *server) push(id lock.LeaseID) {
	if l := s.listeners[id]; l != nil {
		l.pushed(s)
	}
}

// acknowledge starts the grace of holds whose sidecar knows of the revocation.
func (s *server) acknowledge(id lock.LeaseID, known []lock.HoldID, now time.Time) {
	for _, l := range s.locks {
		for _, h := range l.holders {
			if h.Lease != id || h.pending < 0 || !slices.Contains(known, h.ID) {
				continue
			}
			if end := now.Add(h.pending); h.until.IsZero() || end.Before(h.until) || s.bad.prolongsGrace {
				h.until = end
			}
			h.pending = -1
		}
	}
}

// of are copies of all that hangs on a lease, holds and waiters.
func (s *server) of(id lock.LeaseID) map[lock.HoldID]ofLease {
	all := make(map[lock.HoldID]ofLease)
	for r, l := range s.locks {
		for _, h := range slices.Concat(l.holders, l.waiters) {
			if h.Lease == id && !h.kept {
				all[h.ID] = ofLease{holdRow: *h, resource: r, held: slices.Contains(l.holders, h)}
			}
		}
	}
	return all
}

type ofLease struct {
	holdRow
	resource lock.Resource
	held     bool
}

func (s *server) status(r lock.Resource, now time.Time) lock.Status {
	st := lock.Status{Resource: r}
	l := s.locks[r]
	if l == nil {
		return st
	}
	tell := func(rows []*holdRow) (all []lock.Holding) {
		for _, h := range rows {
			one := h.Holding
			one.Age, one.Sidecar, one.Owner = now.Sub(h.since), s.leases[h.Lease].sidecar, lock.DecodeOwner(h.owner)
			if h.kept && !s.bad.keepsUnseen {
				one.Kept, one.Detached = h.least.Sub(now), h.key != ""
			}
			all = append(all, one)
		}
		return all
	}
	st.Holders, st.Waiters = tell(l.holders), tell(l.waiters)
	return st
}

func (s *server) names(prefix string) []lock.Resource {
	return slices.SortedFunc(func(yield func(lock.Resource) bool) {
		for r := range s.locks {
			if strings.HasPrefix(string(r), prefix) && !yield(r) {
				return
			}
		}
	}, cmp.Compare)
}
