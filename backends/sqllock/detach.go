package sqllock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about detached holds. Such a hold has a row in the table least, as one with a MinHold has, see
// least.go, and one in the table handle, by which it is found. So while nobody has it, or the lease of who has
// it is over, the row of least keeps others out. Who attaches it puts a row of its own, with another id, in the
// place of whatever the hold was, and both other rows follow it.

var (
	_ leasekit.Detacher = (*lease)(nil)
	_ lock.Handles      = (*Backend)(nil)
)

// detached is a hold that a transaction takes off its lease.
type detached struct {
	id string
	least
}

// Detaches implements leasekit.Detacher.
func (l *lease) Detaches() error { return nil }

// Detach implements leasekit.Detacher.
func (l *lease) Detach(ctx context.Context, w leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (leasekit.Withdrawn, error) {
	l.stopWaiting(w.ID)
	o := &op{kind: opDetach, id: string(w.ID), lease: string(l.id), unsure: w.Unsure, key: string(key), span: ttl.Microseconds()}
	l.b.submit(ctx, w.Resource, o)
	if o.err != nil {
		return leasekit.Withdrawn{}, l.unknown(o)
	}
	l.dues.Forget(w.Ref)
	return leasekit.Withdrawn{Found: o.found}, nil
}

// attach is Ask for a hold that is there.
func (l *lease) attach(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	o, err := l.b.byHandle(ctx, q.Resource, q.Handle, func(is string) *op {
		return &op{kind: opAttach, id: string(q.ID), is: is, lease: string(l.id), mode: q.Mode, owner: q.Owner, key: string(q.Handle), ctx: ctx}
	})
	switch {
	case errors.Is(err, errKept):
		return leasekit.Answer{}, l.b.unavailable("attach", err)
	case err != nil:
		return leasekit.Answer{}, err
	}
	return leasekit.Answer{
		Granted: true, Fence: fenceOf(o.fence), Left: time.Duration(o.lasts) * time.Microsecond,
		Guard: l.b.guard(q.Resource, q.ID, q.Mode, l.Guards(q), o.at),
	}, nil
}

// SetHandle implements lock.Handles.
func (b *Backend) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (lock.Detached, error) {
	if b.o.Beside != nil {
		return lock.Detached{}, lock.NoHandles()
	}
	if ttl != 0 {
		if err := lock.CheckDetach(ttl); err != nil {
			return lock.Detached{}, err
		}
	}
	if err := b.once(&b.checked, func() error { return b.checkTables(ctx) }); err != nil {
		return lock.Detached{}, err
	}
	o, err := b.byHandle(ctx, r, key, func(is string) *op {
		return &op{kind: opHandle, id: is, key: string(key), span: ttl.Microseconds()}
	})
	switch {
	case err == nil:
		return lock.Detached{ID: lock.HoldID(o.id), Mode: o.mode, Fence: fenceOf(o.fence)}, nil
	case errors.Is(err, lock.ErrNoHandle), errors.Is(err, lock.ErrUnavailable):
		return lock.Detached{}, err
	default:
		return lock.Detached{}, b.unavailable("set handle", err)
	}
}

// byHandle carries out a request about the hold that a handle names, as long as it has that id. Where
// somebody has attached it meanwhile, it has another one, and the request is made again.
func (b *Backend) byHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, request func(is string) *op) (*op, error) {
	for was := ""; ; {
		res, err := b.pool.Do(ctx, "handle", Statement{SQL: b.sql.handle, Args: []any{[]byte(r), []byte(key)}})
		if err != nil {
			return nil, b.unavailable("find handle", err)
		}
		found := res[0].Rows[0]
		server, is := found.Text(0), found.Text(1)
		if err := b.notElsewhere(server); err != nil {
			return nil, b.unavailable("find handle", err)
		}
		if is == "" || is == was {
			return nil, fmt.Errorf("find handle: %w", lock.ErrNoHandle)
		}
		o := request(is)
		b.submit(ctx, r, o)
		if !errors.Is(o.err, lock.ErrNoHandle) {
			return o, o.err
		}
		was = is
	}
}

// attach moves a detached hold to a lease, under another id.
//
// Model: kept.ATTACH.
func (s *state) attach(o *op) {
	e := s.own(o)
	n, noted := s.notes[o.id]
	switch {
	case s.kept:
		o.err = errKept
	case noted && (!n.forced || e == nil), s.isLeast(o.id): // asked again, and it was given up, or taken away, meanwhile
		o.err = lock.ErrNotHolder
	case e == nil:
		s.take(o)
	case e.Value.ends == 0: // asked again, too late; or a copy, and it is the lease's still
		o.err = lock.ErrNoHandle
	default:
		o.fence, o.at, o.lasts = e.Value.fence, e.Value.at, e.Value.ends-s.now
	}
}

// take puts a hold of who asks in the place of the one that its handle names. Nobody is let in by that.
func (s *state) take(o *op) {
	was := s.entries[o.is]
	if was == nil || s.keys[o.is] != o.key || was.Room() != queue.RoomOf(o.mode) {
		o.err = lock.ErrNoHandle
		return
	}
	s.takeAway(was)
	slot, place := was.Slot(), was.Value.place
	e := &entry{ID: lock.HoldID(o.id), Value: member{lease: o.lease, owner: o.owner, fence: was.Value.fence, ends: was.Value.ends}}
	s.q.Remove(was)
	delete(s.entries, o.is)
	s.drop(o.is, place)
	s.forgetLeast(o.is)
	s.q.PutPermit(e, was.Room(), slot)
	s.entries[o.id] = e
	if s.x == was {
		s.x = nil
	}
	if e.Value.at = s.now; e.Room() == queue.One {
		s.x, s.fence = e, max(s.fence, e.Value.fence)
		e.Value.at = s.fence
	}
	s.newLeasts = append(s.newLeasts, e)
	s.setKey(o.id, o.key)
	s.note("attach", o.id, o.lease, e.Value.fence, "")
	o.fence, o.at, o.lasts = e.Value.fence, e.Value.at, e.Value.ends-s.now
}

// takeAway has the lease that has a detached hold learn that it has it no more.
func (s *state) takeAway(e *entry) {
	if e.Value.place != inLeast {
		s.remember(string(e.ID), note{lease: e.Value.lease, forced: true, known: -1})
		s.told = append(s.told, e.Value.lease)
	}
}

// detach takes a hold off its lease.
//
// Model: kept.DETACH, kept.RELEASE.
func (s *state) detach(o *op) {
	e := s.own(o)
	if e == nil && s.entries[o.id] != nil && s.keys[o.id] == o.key && (s.isLeast(o.id) || o.span == 0) { // asked again, or after its lease
		if o.found = true; o.span == 0 {
			s.endHandle(s.entries[o.id], "")
		}
		s.withdrawn(o)
		return
	}
	if e == nil || !e.Held() || s.notes[o.id].forced { // it is to be released, and not to be kept
		s.withdraw(o)
		o.found = false
		return
	}
	what := "release"
	s.forgetLeast(o.id)
	e.Value.ends = 0
	if o.span > 0 {
		what, e.Value.ends = "detach", s.now+o.span
		s.delLeasts = slices.DeleteFunc(s.delLeasts, func(id string) bool { return id == o.id }) // it is replaced
		s.detached = append(s.detached, detached{o.id, least{mode: e.Room().Mode(), fence: e.Value.fence, ends: e.Value.ends}})
		s.setKey(o.id, o.key)
	}
	s.note(what, o.id, o.lease, e.Value.fence, "")
	s.remove(e)
	o.found = true
	s.withdrawn(o)
}

// setHandle moves the end of the hold that a handle names, or ends it.
func (s *state) setHandle(o *op) {
	e := s.entries[o.id]
	if e == nil || s.keys[o.id] != o.key {
		o.err = lock.ErrNoHandle
		return
	}
	o.mode, o.fence = e.Room().Mode(), e.Value.fence
	if o.span > 0 {
		e.Value.ends = s.now + o.span
		s.moved = append(s.moved, e)
		return
	}
	s.endHandle(e, "by its handle")
}

// endHandle ends what a handle names, whoever has it.
func (s *state) endHandle(e *entry, how string) {
	id := string(e.ID)
	s.note("release", id, e.Value.lease, e.Value.fence, how)
	if s.isLeast(id) {
		s.endLeast(e)
		return
	}
	s.takeAway(e)
	s.forgetLeast(id)
	e.Value.ends = 0
	s.remove(e)
}

// setKey notes by what a hold is found.
func (s *state) setKey(id, key string) { s.keys[id], s.newKeys[id] = key, key }

// forgetKey has a hold found no more.
func (s *state) forgetKey(id string) {
	if _, found := s.keys[id]; found {
		delete(s.keys, id)
		delete(s.newKeys, id)
		s.goneKeys = append(s.goneKeys, id)
	}
}

// writingDetached copies to least what is taken off its lease, before its own row is gone.
func (b *Backend) writingDetached(n []byte, s *state) (batch []Statement) {
	for _, d := range s.detached {
		id := []byte(d.id)
		batch = append(batch, b.sql.delLeasts.with(n, [][]byte{id}, nil, 0),
			Statement{SQL: b.sql.detach, Args: []any{n, id, int64(d.mode), d.fence, d.ends, n, id, n, id}})
	}
	return batch
}

// writingHandles writes what is found by a handle, and until when that is kept.
func (b *Backend) writingHandles(n []byte, s *state) (batch []Statement) {
	for _, e := range s.moved {
		batch = append(batch, Statement{SQL: b.sql.moveLeast, Args: []any{e.Value.ends, n, []byte(e.ID)}})
	}
	if len(s.goneKeys) > 0 {
		batch = append(batch, b.sql.delHandles.with(n, texts(s.goneKeys), nil, 0))
	}
	for id, key := range s.newKeys {
		batch = append(batch, Statement{SQL: b.sql.addHandle, Args: []any{n, []byte(id), []byte(key)}})
	}
	return batch
}
