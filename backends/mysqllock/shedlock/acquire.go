package shedlock

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// noPlace is the place in the queue of who has none: behind all others.
const noPlace = math.MaxInt64

// entry is what the lease knows of one hold or waiter of its own. The lease's
// mutex guards what changes.
type entry struct {
	q  lock.Request
	by string

	settled bool          // it is held, for Acquire has said so or will
	fence   int64         // as the store counts
	sent    time.Duration // on the boot-time clock, before the last request was sent that moved lock_until
	seq     int64         // place in the queue; 0: none
	unsure  bool          // a request on it had no answer, so a copy may still arrive
	out     bool          // it was released, or forced out of the queue
	woken   chan struct{} // closed to wake who waits, and replaced

	told  bool          // that its release is forced
	until time.Duration // end of the grace, on lock.BootTime; 0: there was none

	// Whoever takes the request back (Release, and the Acquire that hears of it)
	// does so one after the other, and the second knows what the first has done.
	releasing sync.Mutex
	taken     bool // back: it was there, and is gone
}

// wake makes all calls of Acquire look again, with the lease locked.
func (e *entry) wake() {
	close(e.woken)
	e.woken = make(chan struct{})
}

// Acquire implements lock.Lease.
func (l *lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if l.isLost() {
		return lock.Grant{}, lock.ErrLeaseLost
	}
	if err := check(q); err != nil {
		return lock.Grant{}, err
	}
	if ctx.Err() != nil {
		return lock.Grant{}, &lock.HeldError{Cause: context.Cause(ctx), Status: lock.Status{Resource: q.Resource}}
	}
	l.mu.Lock()
	e := l.entries[q.ID]
	if e == nil {
		e = &entry{q: q, by: l.by(q.ID), woken: make(chan struct{})}
		l.entries[q.ID] = e
	}
	l.mu.Unlock()
	a := &attempt{l: l, e: e, q: q}
	for {
		l.mu.Lock()
		woken := e.woken
		l.mu.Unlock()
		g, done, err := a.ask(ctx)
		if !done {
			done, err = a.wait(ctx, woken)
		}
		if done {
			return g, err
		}
	}
}

// attempt is one call of Acquire.
type attempt struct {
	l *lease
	e *entry
	q lock.Request
}

func (a *attempt) what() string { return fmt.Sprintf("acquire %q", string(a.q.Resource)) }

// unknown is for a request without an answer.
func (a *attempt) unknown(err error) error {
	a.l.mu.Lock()
	a.e.unsure = true
	a.l.mu.Unlock()
	return mydb.Unavailable(a.what(), err)
}

// ask tries to take the lock. done is false when it has to be waited for, and
// the request has its place in the queue.
func (a *attempt) ask(ctx context.Context) (g lock.Grant, done bool, err error) {
	l, e := a.l, a.e
	there := l.b.hasRow(a.q.Resource)
	for {
		l.mu.Lock()
		if e.settled && !e.out {
			defer l.mu.Unlock()
			return a.grant(e.fence), true, nil
		}
		l.mu.Unlock()
		sent := lock.BootTime()
		fence, err := a.take(ctx, there)
		if err != nil {
			return g, true, a.unknown(err)
		}
		var st state
		if fence == 0 {
			if st, err = a.state(ctx); err != nil {
				return g, true, a.unknown(err)
			}
			sent = 0 // nobody knows when lock_until was moved
		}
		switch {
		case fence != 0 || st.mine && st.fence > 0:
			if fence == 0 {
				fence = st.fence
			}
			if ok, err := a.settle(ctx, fence, sent); err != nil || ok {
				return a.granted(ctx, fence, err)
			}
			continue // it was lost at once
		case !st.alive:
			l.forget(e)
			l.lose()
			return g, true, lock.ErrLeaseLost
		case st.gone:
			l.forget(e)
			return g, true, lock.ErrNotHolder
		case a.isOut(): // Release came in between, and may have been too early to find it
			return g, true, a.withdraw(ctx)
		case !st.there: // somebody has deleted it
			there = false
			continue
		case a.q.Try:
			if err := a.giveUp(ctx); err != nil {
				return g, true, err
			}
			return g, true, &lock.HeldError{Cause: lock.ErrHeld, Status: l.status(ctx, a.q.Resource)}
		case st.fence == 0 && a.placed():
			return g, false, nil
		}
		if err := a.queue(ctx); err != nil {
			return g, true, a.unknown(err)
		}
		// Once more: it may have become free before the poll knew of this one.
	}
}

// granted is the outcome when the store has granted the request.
func (a *attempt) granted(ctx context.Context, fence int64, err error) (lock.Grant, bool, error) {
	if err != nil {
		return lock.Grant{}, true, a.unknown(err)
	}
	if a.isOut() {
		return lock.Grant{}, true, a.withdraw(ctx)
	}
	return a.grant(fence), true, nil
}

func (a *attempt) isOut() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.e.out
}

// withdraw is for a request that was released while it was under way.
func (a *attempt) withdraw(ctx context.Context) error {
	if err := a.giveUp(ctx); err != nil {
		return err
	}
	return lock.ErrNotHolder
}

func (a *attempt) grant(fence int64) lock.Grant {
	return lock.Grant{ID: a.q.ID, Resource: a.q.Resource, Mode: a.q.Mode, Fence: lock.FenceOf(fence)}
}

// take is ShedLock's update, with a fence for who gets the lock; 0: it was not
// free, or not for this request. there says whether the lock has a row already.
func (a *attempt) take(ctx context.Context, there bool) (int64, error) {
	l := a.l
	l.taking.RLock()
	defer l.taking.RUnlock()
	ctx, cancel := l.b.patience(ctx)
	defer cancel()
	l.mu.Lock()
	seq := a.e.seq
	l.mu.Unlock()
	if seq == 0 {
		seq = noPlace
	}
	name, id, lease := string(a.q.Resource), []byte(a.q.ID), []byte(l.id)
	query, args := l.b.sql.begin, []any(nil)
	if !there {
		query, args = l.b.sql.beginNew, []any{name}
	}
	args = append(args, name, l.ttl.Microseconds(), a.e.by, name, []byte(name), lease, id, []byte(name), seq,
		[]byte(name), id, []byte(name), lease, []byte(a.e.by), []byte(a.q.Owner))
	var res mydb.Results
	err := mydb.Retry(ctx, func() (err error) {
		res, err = l.b.pool.Exec(ctx, "acquire", query+l.b.sql.take, args...)
		return err
	})
	if err != nil {
		return 0, err
	}
	if !there {
		l.b.gotRow(a.q.Resource)
	}
	n := len(res.Affected) // lock, fence, hold, COMMIT
	if res.Affected[n-4] == 0 {
		return 0, nil
	}
	return res.IDs[n-3], nil
}

// state is what the store knows of a request that was not granted.
type state struct {
	alive bool  // the lease
	gone  bool  // the request was given up or forced out
	there bool  // the lock has a row
	mine  bool  // it is held by this request
	fence int64 // 0: it waits; negative: the store does not know it
}

func (a *attempt) state(ctx context.Context) (st state, err error) {
	ctx, cancel := a.l.b.patience(ctx)
	defer cancel()
	name := string(a.q.Resource)
	err = a.l.b.pool.Query(ctx, "acquire", func(_ int, rows *sql.Rows) error {
		return rows.Scan(&st.alive, &st.gone, &st.there, &st.mine, &st.fence)
	}, a.l.b.sql.state, []byte(a.l.id), []byte(a.q.ID), name, name, a.e.by, []byte(a.q.ID))
	return st, err
}

// settle makes sure that lock_until is not before the end of the lease, and that
// heartbeats know of the hold from then on. It is false when the hold was over
// before that.
func (a *attempt) settle(ctx context.Context, fence int64, sent time.Duration) (bool, error) {
	l := a.l
	for {
		l.mu.Lock()
		if l.renewed <= sent {
			a.e.settled, a.e.fence, a.e.sent, a.e.seq = true, fence, sent, 0
			l.mu.Unlock()
			return true, nil
		}
		l.mu.Unlock()
		sent = lock.BootTime()
		query, args := l.extension([]*entry{a.e})
		bounded, cancel := l.b.patience(ctx)
		res, err := l.b.pool.Exec(bounded, "extend", query, args...)
		cancel()
		if err != nil || res.Affected[0] == 0 {
			return false, err
		}
	}
}

// queue takes a place in the queue.
func (a *attempt) queue(ctx context.Context) error {
	l := a.l
	ctx, cancel := l.b.patience(ctx)
	defer cancel()
	var res mydb.Results
	err := mydb.Retry(ctx, func() (err error) {
		res, err = l.b.pool.Exec(ctx, "queue", l.b.sql.queue, string(a.q.Resource), []byte(a.q.ID), []byte(a.q.Resource), []byte(l.id), []byte(a.e.by), []byte(a.q.Owner),
			[]byte(l.id), []byte(a.q.ID))
		return err
	})
	if err != nil || res.Affected[2] == 0 { // the next look at the state says why
		return err
	}
	l.mu.Lock()
	a.e.seq = res.IDs[2]
	l.mu.Unlock()
	l.look()
	return nil
}

// wait waits in the queue for the poll to say that it is this one's turn, for the
// time to look for itself, or for an end; done then.
func (a *attempt) wait(ctx context.Context, woken <-chan struct{}) (done bool, err error) {
	l := a.l
	t := time.NewTimer(l.recheck + rand.N(l.recheck/8+1)) //nolint:gosec // not a secret
	defer t.Stop()
	select {
	case <-woken:
		if a.isOut() {
			l.forget(a.e)
			return true, lock.ErrNotHolder
		}
		return false, nil
	case <-t.C:
		return false, nil
	case <-l.lost:
		return true, lock.ErrLeaseLost
	case <-ctx.Done():
		held := &lock.HeldError{Cause: context.Cause(ctx), Status: l.status(ctx, a.q.Resource), Position: a.place(ctx)}
		if err := a.giveUp(ctx); err != nil {
			return true, err
		}
		return true, held
	}
}

// place is the place in the queue for people: 1 is next, 0 is unknown.
func (a *attempt) place(ctx context.Context) (n int) {
	ctx, cancel := a.l.b.patience(ctx)
	defer cancel()
	a.l.mu.Lock()
	seq := a.e.seq
	a.l.mu.Unlock()
	if err := a.l.b.pool.Query(ctx, "place", func(_ int, rows *sql.Rows) error { return rows.Scan(&n) },
		a.l.b.sql.place, []byte(a.q.Resource), seq); err != nil {
		return 0
	}
	return n
}

// placed reports whether the place in the queue is known. It is not when the
// store did not answer.
func (a *attempt) placed() bool {
	a.l.mu.Lock()
	defer a.l.mu.Unlock()
	return a.e.seq != 0
}

// giveUp takes the request back, whatever has become of it.
func (a *attempt) giveUp(ctx context.Context) error {
	a.l.mu.Lock()
	nothing := !a.e.unsure && !a.e.out && a.e.seq == 0
	a.l.mu.Unlock()
	if nothing { // a try that was not granted
		a.l.forget(a.e)
		return nil
	}
	_, err := a.l.release(ctx, a.q.Resource, a.q.ID)
	return err
}

func (l *lease) forget(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[e.q.ID] == e {
		delete(l.entries, e.q.ID)
	}
}
