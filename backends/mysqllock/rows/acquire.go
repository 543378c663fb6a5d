package rows

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// entry is what the lease knows of one hold or waiter of its own. The lease's
// mutex guards it.
type entry struct {
	q       lock.Request
	at      *attempt // the last one; it waits as long as that is not over
	granted bool
	link    *link    // of the hold
	loose   []string // tokens of links that may still have the row, unknown to us

	told  bool          // that its release is forced
	until time.Duration // end of the grace, on lock.BootTime; 0: there was none
}

// Acquire implements lock.Lease. An attempt is a goroutine of its own, so that
// calls with the same id share it, and it ends when none of them waits any more.
func (l *lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	for {
		if l.isLost() {
			return lock.Grant{}, lock.ErrLeaseLost
		}
		if ctx.Err() != nil {
			return lock.Grant{}, waitEnded(ctx, q)
		}
		a := l.enter(q) //nolint:contextcheck // it goes on when this call ends and another waits for the same
		select {
		case <-a.done:
		case <-ctx.Done():
			if !l.leave(a, waitEnded(ctx, q)) {
				return lock.Grant{}, waitEnded(ctx, q) // others go on
			}
			<-a.done
		}
		var held *lock.HeldError
		if errors.As(a.err, &held) && ctx.Err() == nil && !errors.Is(held.Cause, lock.ErrHeld) {
			continue // it was another call's wait that ended
		}
		return a.grant, a.err
	}
}

func waitEnded(ctx context.Context, q lock.Request) *lock.HeldError {
	return &lock.HeldError{Cause: context.Cause(ctx), Status: lock.Status{Resource: q.Resource}}
}

// enter joins the attempt under way or the one that was granted, or begins one.
func (l *lease) enter(q lock.Request) *attempt {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[q.ID]
	if e != nil && (e.granted || !e.at.isOver()) {
		e.at.callers++
		return e.at
	}
	a := &attempt{l: l, q: q, callers: 1, done: make(chan struct{})}
	if l.run.Err() != nil {
		a.err = lock.ErrLeaseLost
		close(a.done)
		return a
	}
	if e == nil {
		e = &entry{q: q}
		l.entries[q.ID] = e
	}
	e.at, a.loose = a, e.loose
	a.wanted, a.stop = context.WithCancel(l.run)
	l.routines.Go(func() {
		defer a.stop()
		l.try(e, a)
	})
	return a
}

// leave is for a caller whose wait ended. It reports whether it was the last,
// so that the attempt comes to its end.
func (l *lease) leave(a *attempt, why *lock.HeldError) (last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.callers--; a.callers > 0 {
		return false
	}
	a.end(why)
	return true
}

// try carries out an attempt and keeps its outcome.
func (l *lease) try(e *entry, a *attempt) {
	g, k, err := a.run()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && (a.wanted.Err() != nil || k.gone) {
		l.mu.Unlock()
		if err = a.giveUp(k); errors.Is(err, errGivenUp) && a.wanted.Err() == nil { // the link was gone
			if err = a.forced(); err == nil {
				err = mydb.Unavailable(a.what(), errAgain)
			}
		}
		l.mu.Lock()
	}
	switch {
	case err == nil:
		e.granted, e.link = true, k
	case errors.Is(err, errGivenUp) && a.cause != nil:
		err = a.cause
	case errors.Is(err, errGivenUp):
		err = lock.ErrLeaseLost
	}
	a.grant, a.err, e.loose = g, err, a.loose
	if err != nil {
		a.grant = lock.Grant{}
		if len(e.loose) == 0 && l.entries[a.q.ID] == e {
			delete(l.entries, a.q.ID)
		}
	}
	close(a.done)
}

// end makes the attempt give up for a reason; the first one counts. The lease is
// locked.
func (a *attempt) end(cause error) {
	if a.cause == nil {
		a.cause = cause
	}
	a.stop()
}

func (a *attempt) isOver() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// explain puts into the error of a wait that ended who is in the way.
func (a *attempt) explain() {
	a.l.mu.Lock()
	held, ok := a.cause.(*lock.HeldError) //nolint:errorlint // made by leave, not wrapped
	a.l.mu.Unlock()
	if ok {
		held.Status = a.l.status(a.q.Resource)
	}
}
