package sqllock

import (
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about holds that keep others out at least so long. Such a hold has a second row,
// in the table least, from its grant until that time is over. Where it has no other row any more, or that
// one's lease is over, this one keeps others out. So what ends holds and leases need not know of it.

// maxLeasts bounds how many of these rows of one resource a transaction reads: those that last longest. What is over
// it deletes, because it may let others in: the row must not count again for a later one whose time is an
// earlier one, after a wait for a lock or a jump of the clock.
const maxLeasts = lock.MaxPermits

// least is a row of that table.
type least struct {
	mode  lock.Mode
	fence int64
	ends  int64 // 0: it waits
}

var _ leasekit.Keeper = (*lease)(nil)

// KeepsMinHold implements leasekit.Keeper.
func (l *lease) KeepsMinHold() error { return nil }

// addLeasts puts in those holds that nobody has any more. It comes after the other holders.
func (s *state) addLeasts(rows []Row) {
	for _, r := range rows {
		id := r.Text(0)
		k := least{mode: lock.Mode(r.Int(1)), fence: r.Int(2), ends: r.Int(3)} //nolint:gosec // a mode
		s.leasts[id] = k
		if key := r.Text(4); key != "" {
			s.keys[id] = key
		}
		switch e := s.entries[id]; {
		case k.ends == 0:
		case k.ends <= s.now:
			s.forgetLeast(id)
		case e != nil:
			e.Value.ends = k.ends
		default:
			s.putLeast(id, k, fenceOf(k.fence).Slot())
		}
	}
}

func (s *state) putLeast(id string, k least, slot int) {
	if k.mode.Limit() == 0 {
		slot = 0
	}
	e := &entry{ID: lock.HoldID(id), Value: member{place: inLeast, fence: k.fence, ends: k.ends}}
	s.q.PutPermit(e, queue.RoomOf(k.mode), slot)
	s.entries[id] = e
}

// isLeast tells whether nobody has a hold any more that keeps others out.
func (s *state) isLeast(id string) bool {
	e := s.entries[id]
	return e != nil && e.Value.place == inLeast
}

// endLeast ends such a hold.
func (s *state) endLeast(e *entry) {
	s.q.Remove(e)
	delete(s.entries, string(e.ID))
	s.forgetLeast(string(e.ID))
	s.promote()
}

// forgetLeast takes the time of a hold, or of a waiter, away.
func (s *state) forgetLeast(id string) {
	s.newLeasts = slices.DeleteFunc(s.newLeasts, func(e *entry) bool { return string(e.ID) == id })
	s.delLeasts = append(s.delLeasts, id)
	s.forgetKey(id)
}

// writingLeasts writes what has changed of them.
func (b *Backend) writingLeasts(n []byte, s *state) (batch []Statement) {
	q := b.sql
	add := func(e *entry, ends int64) {
		m := e.Value
		batch = append(batch, Statement{SQL: q.addLeast, Args: []any{
			n, []byte(e.ID), int64(e.Room().Mode()), m.least, m.fence, []byte(m.lease), []byte(m.owner), ends,
		}})
	}
	for _, e := range s.newLeasts {
		if e.Value.place == inQueue {
			batch = append(batch, Statement{SQL: q.grantLeast, Args: []any{e.Value.fence, e.Value.ends, n, []byte(e.ID)}})
		} else {
			add(e, e.Value.ends)
		}
	}
	for e := range s.q.Waiters() {
		if m := e.Value; m.place == nowhere && m.lease != "" && m.least > 0 {
			add(e, 0)
		}
	}
	if len(s.shareds) > 0 {
		batch = append(batch, q.shareLeasts.with(n, texts(s.shareds), nil, 0))
	}
	if len(s.delLeasts) > 0 {
		batch = append([]Statement{q.delLeasts.with(n, texts(s.delLeasts), nil, 0)}, batch...)
	}
	return batch
}

// lapsesIn notes that a hold keeps others out of what the lease waits for, for so long at least.
func (l *lease) lapsesIn(name lock.Resource, left time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lapses[name] = l.b.clock() + left
}

// lapse looks at the resources for which that is over, and tells when the next one will be.
func (l *lease) lapse() (next time.Duration) {
	now := l.b.clock()
	next = now + l.recheck
	var over []lock.Resource
	l.mu.Lock()
	for name, at := range l.lapses {
		if at > now {
			next = min(next, at)
			continue
		}
		over = append(over, name)
		delete(l.lapses, name)
	}
	l.mu.Unlock()
	for _, name := range over {
		l.b.post(name, &op{kind: opSettle, hasty: true})
	}
	return next
}
