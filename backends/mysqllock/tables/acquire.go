package tables

import (
	"context"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// Acquire implements lock.Lease.
//
// A first request for an exclusive hold is tried with one round trip that works
// where the resource is free. Everything else is a transaction of two.
func (l *lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if l.isLost() {
		return lock.Grant{}, lock.ErrLeaseLost
	}
	if len(q.ID) > maxID {
		return lock.Grant{}, &lock.InvalidError{Field: "id", Problem: fmt.Sprintf("is longer than %d bytes", maxID)}
	}
	e, isNew := l.entryOf(q)
	a := &attempt{l: l, q: q, e: e, touched: !isNew}
	if _, busy := l.b.known.get(q.Resource); isNew && (q.Try || !busy) {
		g, done, err := a.quick(ctx)
		if done || err != nil {
			return g, err
		}
	}
	for {
		g, queued, err := a.ask(ctx)
		if !queued || err != nil {
			return g, err
		}
		if g, done, err := a.wait(ctx); done {
			return g, err
		}
	}
}

// maxID is the longest id that the tables have room for.
const maxID = 64

// attempt is one call of Acquire.
type attempt struct {
	l *lease
	q lock.Request
	e *entry

	touched bool // there may be something of the request in the store
}

// failed says what the error of a request means for the caller.
func (a *attempt) failed(ctx context.Context, err error) error {
	var notSent *notSentError
	switch {
	case a.q.Try && mydb.LockWait(err): // somebody keeps the row locked: the guard of the holder's app
		a.l.forget(a.q.ID)
		return a.held(ctx)
	case errors.As(err, &notSent), mydb.Retryable(err):
		if over(ctx) {
			return a.giveUp(ctx, &lock.HeldError{Cause: cause(ctx), Status: lock.Status{Resource: a.q.Resource}})
		}
		if !a.touched {
			a.l.forget(a.q.ID)
		}
	case mydb.FromServer(err): // refused, so nothing has changed
	default:
		a.l.unsure(a.e)
	}
	return mydb.Unavailable(fmt.Sprintf("acquire %q", string(a.q.Resource)), err)
}

// quick tries to get a free resource with one round trip.
func (a *attempt) quick(ctx context.Context) (g lock.Grant, done bool, err error) {
	l, q := a.l, a.q
	if q.Mode == lock.Exclusive {
		fence, err := a.takeFree(ctx)
		switch {
		case mydb.LockWait(err): // as in failed, but what follows knows more
		case err != nil:
			return g, true, a.failed(ctx, err)
		case fence != 0:
			return a.grant(fence), true, nil
		}
	}
	if !q.Try {
		return g, false, nil
	}
	// A try that finds it held needs no transaction.
	st, err := l.b.Get(ctx, q.Resource)
	if err != nil {
		l.forget(q.ID)
		return g, true, err
	}
	if len(st.Waiters) > 0 || len(st.Holders) > 0 && (q.Mode == lock.Exclusive || st.Holders[0].Mode == lock.Exclusive) {
		l.forget(q.ID)
		return g, true, &lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Resource: q.Resource, Holders: st.Holders}}
	}
	return g, false, nil
}

// takeFree takes the exclusive hold if the resource is free and nothing else is
// to be looked at. The fence is 0 if not.
func (a *attempt) takeFree(ctx context.Context) (fence int64, err error) {
	b, q := a.l.b, a.q
	name, id, lease := []byte(q.Resource), []byte(q.ID), []byte(a.l.id)
	take := []any{id, lease, []byte(q.Owner), name, lease}
	known, _ := b.known.get(q.Resource)
	query, args, at := b.sql.take, take, 0 // at: which statement takes
	switch {
	case !known:
		query, args, at = b.sql.first, append([]any{name, name, name}, take...), 4
	case q.Try:
		query, args, at = b.sql.try, append([]any{name}, take...), 1
	}
	res, err := b.exec(ctx, "acquire", query, args...)
	if mydb.Retryable(err) && !mydb.LockWait(err) {
		return 0, nil // another transaction was in the way: the long way is for that
	}
	if err != nil {
		return 0, err
	}
	taken := res.Affected[at] > 0
	b.known.add(q.Resource, !taken)
	if !taken {
		return 0, nil
	}
	return res.IDs[at], nil
}

// ask looks for the request's hold or place, and grants or queues it.
func (a *attempt) ask(ctx context.Context) (g lock.Grant, queued bool, err error) {
	l, q := a.l, a.q
	var fence int64
	var lost, gone bool
	s, err := l.b.changeOrCreate(ctx, "acquire", subject{name: q.Resource, id: string(q.ID), lease: string(l.id), hasty: q.Try}, func(s *state) {
		fence, queued = 0, false
		if lost, gone = !s.leaseLive, s.ownGone; lost || gone {
			return
		}
		s.clean()
		s.promote()
		if fence = s.find(string(q.ID), string(l.id)); fence != 0 {
			return
		}
		if s.x.id == string(q.ID) { // promoted just now
			fence = s.fence
			return
		}
		if s.waits(string(l.id)) {
			queued = true
			return
		}
		fence, queued = s.take(request{id: string(q.ID), lease: string(l.id), owner: q.Owner, mode: q.Mode}, q.Try)
	})
	switch {
	case err != nil:
		return g, false, a.failed(ctx, err)
	case lost:
		l.lose()
		l.forget(q.ID)
		return g, false, lock.ErrLeaseLost
	case gone:
		l.forget(q.ID)
		return g, false, lock.ErrNotHolder
	}
	l.b.known.add(q.Resource, s.busy())
	if s.more {
		l.keeper.settleSoon(q.Resource)
	}
	switch {
	case a.isOut(): // Release came in between, and may have been too early to find it
		a.touched = true
		return g, false, a.giveUp(ctx, lock.ErrNotHolder)
	case fence != 0:
		return a.grant(fence), false, nil
	case !queued:
		l.forget(q.ID)
		return g, false, a.held(ctx)
	}
	a.touched = true
	return g, true, nil
}

// changeOrCreate is change that makes the row of the resource if there is none.
func (b *Backend) changeOrCreate(ctx context.Context, command string, sub subject, decide func(*state)) (*state, error) {
	for {
		s, err := b.change(ctx, command, sub, decide)
		if !errors.Is(err, errNoRow) {
			return s, err
		}
		if err := b.create(ctx, sub.name); err != nil {
			return nil, err
		}
	}
}

func (a *attempt) isOut() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.e.out
}

func (a *attempt) grant(fence int64) lock.Grant {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	a.e.settled, a.e.fence = true, fence
	return lock.Grant{ID: a.q.ID, Resource: a.q.Resource, Mode: a.q.Mode, Fence: lock.FenceOf(fence), Guard: a.e.guard}
}

// held is the error of a try.
func (a *attempt) held(ctx context.Context) error {
	st, err := a.l.b.Get(ctx, a.q.Resource)
	if err != nil { // whoever it is, it is held
		st = lock.Status{Resource: a.q.Resource}
	}
	st.Waiters = nil
	return &lock.HeldError{Cause: lock.ErrHeld, Status: st}
}

// wait waits in the queue for the grant (done), or for an end (done), or until
// the store must be asked again.
func (a *attempt) wait(ctx context.Context) (g lock.Grant, done bool, err error) {
	l, e := a.l, a.e
	l.mu.Lock()
	e.waiting++
	l.waiters++
	if e.woken == nil {
		e.woken = make(chan struct{})
	}
	woken := e.woken
	if e.fence != 0 || e.out {
		e.wake()
	}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		e.waiting--
		l.waiters--
		l.mu.Unlock()
	}()
	poke(l.post.waits)
	select {
	case <-woken:
		l.mu.Lock()
		fence, out := e.fence, e.out
		l.mu.Unlock()
		switch {
		case out:
			l.forget(a.q.ID)
			return g, true, lock.ErrNotHolder
		case fence != 0:
			return a.grant(fence), true, nil
		}
		return g, false, nil
	case <-l.lost:
		return g, true, lock.ErrLeaseLost
	case <-ctx.Done():
		return g, true, a.giveUp(ctx, &lock.HeldError{Cause: context.Cause(ctx), Status: lock.Status{Resource: a.q.Resource}})
	}
}

// giveUp takes the request back and returns why, or that this is not known to
// have worked. Whoever holds the lock, and the place in the queue, are put into why.
func (a *attempt) giveUp(ctx context.Context, why error) error {
	if !a.touched {
		a.l.forget(a.q.ID)
		return why
	}
	// Not for ever: an app may keep the row locked. What is not done by then is
	// owed, see release.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*a.l.b.cfg.Timeout)
	defer cancel()
	held, ok := why.(*lock.HeldError) //nolint:errorlint // made by the caller
	if ok {
		if st, position, err := a.l.b.about(ctx, a.q.Resource, a.q.ID); err == nil {
			held.Status, held.Position = st, position
		}
	}
	switch err := a.l.release(ctx, a.q.Resource, a.q.ID, "cancel"); {
	case err == nil, errors.Is(err, lock.ErrNotHolder):
		return why
	default:
		return err
	}
}
