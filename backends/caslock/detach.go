package caslock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about detached holds. Such a hold has lost its own place in the line, and has a second one, as a hold
// with a min_hold has, see kept.go. A key of its own says which one that is. Who attaches it gets a place of its own
// again, behind the second one, under another id, and with the same fence. When it leaves, the second place is what is left.

var (
	_ leasekit.Detacher = (*lease)(nil)
	_ lock.Handles      = (*Backend)(nil)
)

const handlePrefix = "handle/"

func handleKey(r lock.Resource, key string) string { return handlePrefix + string(r) + "\x00" + key }

// handleInfo is which hold has a key.
type handleInfo struct {
	ID    string `json:"id"`
	Lease string `json:"lease"` // that has it, or had it last
}

// Detaches implements leasekit.Detacher.
func (l *lease) Detaches() error { return nil }

// Detach implements leasekit.Detacher.
func (l *lease) Detach(ctx context.Context, w leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (leasekit.Withdrawn, error) {
	o := &op{kind: opDetach, id: string(w.ID), lease: l.id, key: string(key), span: ttl, unsure: w.Unsure, mode: w.Mode}
	l.stopWaiting(w.ID)
	if err := l.b.within(ctx, w.Resource, o); err != nil {
		return leasekit.Withdrawn{}, err
	}
	l.dues.Forget(due{l.id, w.Ref})
	if o.had != "" { // of another lease
		o = &op{kind: opHandle, id: o.id, lease: o.had, key: o.key, span: ttl, again: true}
		if err := l.b.within(ctx, w.Resource, o); err != nil && !errors.Is(err, lock.ErrNoHandle) {
			return leasekit.Withdrawn{}, err
		}
		return leasekit.Withdrawn{Found: o.found}, nil
	}
	if o.kept > 0 {
		l.b.lapsesIn(lapse{w.Resource, o.id, l.id, o.kept}, o.left)
	}
	return leasekit.Withdrawn{Found: o.found}, nil
}

// attach is Ask for a hold that is there.
func (l *lease) attach(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	var was holder
	o, err := l.b.byHandle(ctx, q.Resource, q.Handle, func(is holder) *op {
		was = is
		return &op{kind: opAttach, id: string(q.ID), lease: l.id, key: string(q.Handle), is: is, ctx: ctx, place: place{
			ID: string(q.ID), Lease: l.id, Sidecar: l.sidecar, Mode: q.Mode, Owner: q.Owner,
		}}
	})
	if err != nil {
		return leasekit.Answer{}, err
	}
	if was.id != o.id {
		l.b.lapsesNot(q.Resource, was.id, was.lease)
	}
	if o.kept > 0 {
		l.b.lapsesIn(lapse{q.Resource, o.id, l.id, o.kept}, o.left)
	}
	l.granted(q.Resource, q.ID, o.version, o.fence())
	return leasekit.Answer{Granted: true, Fence: o.fence(), Left: o.left}, nil
}

// SetHandle implements lock.Handles.
func (b *Backend) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (lock.Detached, error) {
	if ttl != 0 {
		if err := lock.CheckDetach(ttl); err != nil {
			return lock.Detached{}, err
		}
	}
	o, err := b.byHandle(ctx, r, key, func(is holder) *op {
		return &op{kind: opHandle, id: is.id, lease: is.lease, key: string(key), span: ttl}
	})
	if err != nil {
		return lock.Detached{}, err
	}
	if o.kept > 0 {
		b.lapsesIn(lapse{r, o.id, o.lease, o.kept}, o.left)
	} else {
		b.lapsesNot(r, o.id, o.lease)
	}
	return lock.Detached{ID: lock.HoldID(o.id), Mode: o.mode, Fence: o.fence()}, nil
}

// byHandle carries out a request about the hold of a key, as long as it is that of the lease. Where somebody has attached it
// meanwhile, it is another one, and the request is made again.
func (b *Backend) byHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, request func(holder) *op) (*op, error) {
	for was := (holder{}); ; {
		answer, err := b.inTurn(ctx, "handle", Txn{Read: []Range{{Key: handleKey(r, string(key))}}})
		if err != nil {
			return nil, b.unavailable("find handle", err)
		}
		kv, _ := answer.Reads[0].one()
		info := decode[handleInfo](kv)
		is := holder{info.Lease, info.ID}
		if is == was { // or there is none
			return nil, fmt.Errorf("find handle: %w", lock.ErrNoHandle)
		}
		o := request(is)
		if o.ctx != nil {
			b.submit(r, o)
			err = o.err
		} else {
			err = b.within(ctx, r, o)
		}
		if !errors.Is(err, lock.ErrNoHandle) {
			return o, err
		}
		was = is
	}
}

// asked is the mode that its handle says.
func (k *kept) asked() lock.Mode {
	if k.Asked > 0 {
		return k.Asked
	}
	return k.Mode
}

// over tells whether the time of what is kept is over on the store's clock.
func (s *state) over(k *kept) bool { return k.Ends > 0 && k.Ends <= s.clock }

// left is for how long it is not over, at most.
func (s *state) left(k *kept) time.Duration {
	if k.Ends == 0 {
		return k.span()
	}
	return min(k.span(), time.Duration(k.Ends-s.clock)*time.Microsecond)
}

// detach takes a hold off its lease, and keeps it for its time; for none, it ends.
//
// Model: kept.DETACH, kept.RELEASE.
func (s *state) detach(o *op, m *member) {
	k := s.kept[o.id]
	_, forcing := s.forced[o.names()]
	switch {
	case m == nil && k != nil && k.Key == o.key && k.Had != o.lease:
		o.had = k.Had
	case m == nil && k != nil && k.Key == o.key: // asked again
		if o.found = true; o.span == 0 {
			s.forgetKept(k)
		}
	case m == nil, !m.held(), forcing: // it is to be released, and not to be kept
		s.remove(o, m)
	default:
		o.found = true
		if o.span > 0 {
			s.keep(m, o.span, o.key)
			if k := s.kept[o.id]; o.mode.Limit() > 0 && o.mode != k.Mode {
				k.Asked = o.mode
				s.begin(k)
			}
		} else if k := s.keptOf(m); k != nil {
			s.forgetKept(k)
		}
		s.remove(o, m)
	}
	s.void(o)
}

// attach puts a detached hold to a lease.
//
// Model: kept.ATTACH.
func (s *state) attach(o *op, m *member) {
	k := s.kept[o.id]
	_, taken := s.forced[o.names()]
	switch {
	case m == nil && (k != nil || taken): // asked again, and it was taken away, or given up, meanwhile
		o.err = lock.ErrNotHolder
	case m == nil:
		s.take(o)
	case k == nil || k.Had != o.lease || s.over(k): // asked again, too late; or a copy, and it is the lease's still
		o.err = lock.ErrNoHandle
	default:
		o.granted = m.granted
	}
}

// take puts a hold of who asks in the place of the one that has the key. Nobody is let in by that.
func (s *state) take(o *op) {
	was := s.kept[o.is.id]
	if was == nil || was.Key != o.key || was.Had != o.is.lease || was.asked() != o.place.Mode || s.over(was) {
		o.err = lock.ErrNoHandle
		return
	}
	e := s.q.Find(keptItem(was.ID))
	if had := s.hadBy(was); had != nil {
		e = s.q.Find(lock.HoldID(memberKey(had.Lease, had.ID)))
		s.takeAway(had)
		s.head.Holders--
	}
	m := &member{place: o.place, seq: was.Seq + 1, lasts: true}
	m.granted, m.Mode, m.Since = was.granted, was.Mode, s.now
	s.members[o.names()] = m
	s.head.Holders++
	s.write(m)
	s.q.Rename(e, lock.HoldID(o.names()))
	e.Value = m

	s.del(keptKey(s.name, was.ID))
	s.del(dueKey(was.Ends, s.name, was.ID))
	delete(s.kept, was.ID)
	k := &kept{place: m.place, Seq: was.Seq, Span: was.Span, Ends: was.Ends, Key: was.Key, Asked: was.Asked}
	k.Lease, k.Had, k.Until, k.Loose = keptLease, m.Lease, was.Until, true
	s.kept[m.ID] = k
	s.begin(k)
	o.granted = m.granted
}

// takeAway takes a hold from its lease, which learns of it.
func (s *state) takeAway(m *member) {
	names := memberKey(m.Lease, m.ID)
	s.del(entryKey(m.Lease, s.name, m.ID))
	if s.leases[m.Lease] {
		s.put(forcedKey(m.Lease, s.name, m.ID), forced{})
	} else {
		s.del(forcedKey(m.Lease, s.name, m.ID))
	}
	delete(s.forced, names)
	delete(s.members, names)
}

// handle moves the end of the hold that has a key, or ends it, whoever has it.
func (s *state) handle(o *op, m *member) {
	k := s.kept[o.id]
	switch {
	case k == nil || k.Key != o.key || k.Had != o.lease || !o.again && s.over(k):
		o.err = lock.ErrNoHandle
		return
	case o.again && o.span > 0:
		o.found = m == nil
		return
	case o.span > 0:
		s.del(dueKey(k.Ends, s.name, k.ID))
		k.Span, k.Of, k.Ends, k.version, k.Until = o.span.Microseconds(), 0, 0, 0, s.now+o.span.Microseconds()
		s.begin(k)
	default:
		s.forgetKept(k)
		if had := m; had != nil && had.held() {
			s.takeAway(had)
			s.leave(had)
		}
	}
	o.found, o.mode, o.granted = true, k.asked(), k.granted
}
