package tables

import (
	"context"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// Release implements lock.Lease.
func (l *lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	return l.release(ctx, r, id, "release")
}

// release takes a hold or a waiter away and, once that is answered, forgets the
// entry. Until then it is tried again, for what took several round trips may
// have come to half of them, and others wait. event is what the log calls it
// where it was not granted.
func (l *lease) release(ctx context.Context, r lock.Resource, id lock.HoldID, event string) error {
	l.mu.Lock()
	e := l.entries[id]
	var unsure, quick bool
	var fence int64
	if e != nil {
		e.out = true
		unsure, fence = e.unsure, e.fence
		quick = e.settled && !e.unsure && e.mode == lock.Exclusive
	}
	l.mu.Unlock()
	err := l.releaseIn(ctx, r, id, fence, event, unsure, quick)
	switch {
	case errors.Is(err, lock.ErrLeaseLost):
		l.lose()
	case err != nil && !errors.Is(err, lock.ErrNotHolder):
		if e != nil {
			l.keeper.owe(r, id)
		}
		return mydb.Unavailable(fmt.Sprintf("release %q", string(r)), err)
	}
	l.mu.Lock()
	if e != nil {
		e.wake()
	}
	if l.entries[id] == e {
		delete(l.entries, id)
	}
	l.mu.Unlock()
	return err
}

// releaseIn releases in the store.
//
// unsure: a request of this id had no answer, and a copy of it may be carried
// out after this. So that it is not granted then, the id is noted as given up.
// The row of the resource counts such notes, and the quick way to a grant works
// only where it counts none. The long way looks for the note in a statement of
// its own after it has locked the row. To look in the statement that takes the
// row would not do: a statement sees other tables as they were before it waited
// for the row, perhaps for the very transaction that wrote the note.
func (l *lease) releaseIn(ctx context.Context, r lock.Resource, id lock.HoldID, fence int64, event string, unsure, quick bool) error {
	b := l.b
	if _, busy := b.known.get(r); quick && !busy {
		name, lease := []byte(r), []byte(l.id)
		args := []any{name, []byte(id), lease}
		if b.logKeep > 0 {
			args = append([]any{trailOf(id, l.id, fence)}, args...)
		}
		res, err := b.exec(ctx, "release", b.sql.give, args...)
		switch {
		case err == nil && res.Affected[0] > 0:
			l.keeper.trailed(r)
			return nil
		case err != nil && !mydb.Retryable(err):
			return err
		}
	}
	var lost, found bool
	decide := func(s *state) {
		lost, found = !s.leaseLive, false
		if lost {
			return
		}
		s.clean()
		m := member{id: string(id), lease: string(l.id)}
		switch {
		case s.x.id == m.id && s.x.lease == m.lease:
			found = true
			s.note("release", m, s.fence, "")
			s.clearX()
		case s.own != nil && s.own.lease == m.lease:
			found = true
			s.note("release", m, s.own.fence, "")
			s.removeHold(m.id)
		case s.waits(m.lease):
			found = true
			s.note("cancel", m, 0, event)
			s.removeWaiter(s.place.seq)
		}
		if unsure && !s.ownGone {
			s.note("give up", m, 0, "")
			s.gone++
			s.addGone = &m
		}
		s.promote()
	}
	change := b.change
	if unsure { // where there is no row yet, a late copy would make it
		change = b.changeOrCreate
	}
	s, err := change(ctx, "release", subject{name: r, id: string(id), lease: string(l.id), exclusive: quick}, decide)
	switch {
	case errors.Is(err, errNoRow):
		live, err := l.alive(ctx)
		if err != nil {
			return err
		}
		if !live {
			return lock.ErrLeaseLost
		}
		return lock.ErrNotHolder
	case err != nil:
		return err
	case lost:
		return lock.ErrLeaseLost
	}
	b.known.add(r, s.busy())
	if s.more {
		l.keeper.settleSoon(r)
	}
	if !found {
		return lock.ErrNotHolder
	}
	return nil
}

// Downgrade implements lock.Lease.
func (l *lease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	l.mu.Lock()
	if e := l.entries[id]; e != nil {
		e.mode = lock.Shared // its release looks at the other table
	}
	l.mu.Unlock()
	var lost, found bool
	s, err := l.b.change(ctx, "downgrade", subject{name: r, id: string(id), lease: string(l.id)}, func(s *state) {
		lost, found = !s.leaseLive, false
		if lost {
			return
		}
		s.clean()
		switch {
		case s.x.id == string(id) && s.x.lease == string(l.id):
			found = true
			x := s.x
			x.fence = s.fence
			s.note("downgrade", x, x.fence, "")
			s.clearX()
			s.readers++
			s.addHolds = append(s.addHolds, holdFrom{member: x, fromX: true})
		case s.own != nil && s.own.lease == string(l.id):
			found = true
		}
		s.promote()
	})
	switch {
	case errors.Is(err, errNoRow):
		live, err := l.alive(ctx)
		if err != nil {
			return mydb.Unavailable(fmt.Sprintf("downgrade %q", string(r)), err)
		}
		lost, found = !live, false
	case err != nil:
		return mydb.Unavailable(fmt.Sprintf("downgrade %q", string(r)), err)
	case s.more:
		l.keeper.settleSoon(r)
	}
	switch {
	case lost:
		l.lose()
		return lock.ErrLeaseLost
	case !found:
		return lock.ErrNotHolder
	}
	return nil
}
