package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// attempt gets the row lock for a request, on one link after the other if need be.
//
// Its requests are not cut short when nobody wants the lock any more, except for
// the wait for the row: a request that is cut leaves the outcome open, and takes
// the connection with it.
type attempt struct {
	l      *lease
	q      lock.Request
	wanted context.Context // ends when the attempt is to end
	stop   context.CancelFunc
	token  string   // of the link that it is on
	noted  bool     // there may be a row about it
	loose  []string // tokens of links that may still have the row lock

	// Guarded by the lease's mutex.
	callers int   // of Acquire that wait for it
	cause   error // why it is made to end

	done  chan struct{} // closed when it is over
	grant lock.Grant    // the outcome, not changed after done
	err   error
}

var (
	// errGivenUp: nothing is left behind.
	errGivenUp = errors.New("given up")
	// errAgain: the link broke, and is gone from the server: nothing is left behind.
	errAgain = errors.New("the connection broke")
)

// maxLinks bounds how many links an attempt uses up.
const maxLinks = 4

// run gives the grant and the link that has the row, or an error.
func (a *attempt) run() (lock.Grant, *link, error) {
	if len(a.loose) > 0 { // of an attempt before, with the same id
		if err := a.settle(); err != nil {
			return lock.Grant{}, nil, err
		}
		a.noted = true
	}
	for n := 1; ; n++ {
		if a.wanted.Err() != nil {
			return lock.Grant{}, nil, errGivenUp
		}
		k, err := a.l.takeLink(a.wanted)
		if err != nil {
			return lock.Grant{}, nil, err
		}
		g, err := a.on(k)
		if errors.Is(err, errAgain) {
			if err = a.forced(); err == nil && n < maxLinks {
				continue
			} else if err == nil {
				err = mydb.Unavailable(a.what(), errAgain)
			}
		}
		if err != nil {
			return lock.Grant{}, nil, err
		}
		return g, k, nil
	}
}

func (a *attempt) what() string { return fmt.Sprintf("acquire %q", string(a.q.Resource)) }

// on gets the lock on one link. With an error the link is not the attempt's any more.
func (a *attempt) on(k *link) (lock.Grant, error) {
	a.token = k.token
	got, err := a.ask(k)
	switch {
	case got:
		return a.granted(k)
	case err != nil:
		return lock.Grant{}, a.failed(k, err)
	case a.q.Try:
		return lock.Grant{}, a.refused(k)
	}
	if err := a.note(); err != nil {
		return lock.Grant{}, a.failed(k, err)
	}
	for a.wanted.Err() == nil {
		n, err := a.await(k)
		switch {
		case err == nil && n > 0 && a.wanted.Err() == nil:
			return a.granted(k)
		case err == nil && n > 0: // too late: it is given up below
		case err == nil: // somebody deleted the row
			if err := a.l.addRow(a.q.Resource); err != nil {
				return lock.Grant{}, a.failed(k, err)
			}
		case mydb.Retryable(err), mydb.Interrupted(err):
		default:
			return lock.Grant{}, a.failed(k, err)
		}
	}
	return lock.Grant{}, a.refused(k)
}

// ask tries to get the row without waiting.
func (a *attempt) ask(k *link) (got bool, err error) {
	ctx, cancel := a.l.b.patience(a.wanted)
	defer cancel()
	query := lockRow(&a.l.b.cfg, a.l.dialect, a.q.Mode, true)
	for {
		n, err := k.run(ctx, "acquire", query, []byte(a.q.Resource))
		switch {
		case mydb.LockWait(err):
			return false, nil
		case mydb.Retryable(err): // others insert beside it: a deadlock says nothing of this row
			continue
		case err != nil || n > 0:
			return err == nil, err
		}
		// The row is not there yet. (Not asked for at first: INSERT waits for
		// whoever has locked it.)
		if err := a.l.addRow(a.q.Resource); err != nil {
			return false, err
		}
	}
}

// note writes that the attempt waits.
func (a *attempt) note() error {
	ctx, cancel := a.l.b.patience(a.wanted)
	defer cancel()
	a.noted = true
	return mydb.Retry(ctx, func() error {
		_, err := a.l.side.Exec(ctx, "note", a.l.b.sql.wait, a.record()...)
		return err
	})
}

// record are the columns that statements insert.
func (a *attempt) record() []any {
	return []any{
		[]byte(a.q.ID), []byte(a.q.Resource), []byte(a.l.id), []byte(a.token), letter(a.q.Mode), []byte(a.l.sidecar), []byte(a.q.Owner),
	}
}

// await waits for the row, a while or until nobody wants it any more.
func (a *attempt) await(k *link) (int, error) {
	type answer struct {
		rows int
		err  error
	}
	l := a.l
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.wanted), linkWait+2*(l.b.cfg.Timeout+rowWait))
	defer cancel()
	answered := make(chan answer, 1)
	l.routines.Go(func() {
		rows, err := k.run(ctx, "", lockRow(&l.b.cfg, l.dialect, a.q.Mode, false), []byte(a.q.Resource))
		answered <- answer{rows, err}
	})
	select {
	case got := <-answered:
		return got.rows, got.err
	case <-a.wanted.Done():
	}
	// More than once, because the first may come before the wait has begun.
	for pause := 5 * time.Millisecond; ; pause *= 2 {
		l.interrupt(k)
		select {
		case got := <-answered:
			return got.rows, got.err
		case <-time.After(pause):
		}
	}
}

// interrupt ends the statement that a link is at.
func (l *lease) interrupt(k *link) {
	ctx, cancel := l.b.patience(l.run)
	defer cancel()
	// What does not work is tried again, and the wait ends by itself soon anyway.
	if id, err := l.b.connectionOf(ctx, l.side, k.token); err == nil && id != 0 {
		_, _ = l.side.Exec(ctx, "interrupt", fmt.Sprintf("KILL QUERY %d", id))
	}
}

// granted takes a fence for the row lock that the link has, and writes down who
// holds. Both are done on another connection, where they are committed.
//
// A fence is worth something only if the row was locked all the time: a link
// that is alive after the fence was taken had the row when it was. Else the next
// holder could have taken its fence before.
func (a *attempt) granted(k *link) (lock.Grant, error) {
	fence, err := a.fence()
	for mydb.Retryable(err) {
		// An app's transaction with the guard of a hold before; a deadlock is with others,
		// who insert beside it.
		if a.q.Try && mydb.LockWait(err) || a.wanted.Err() != nil {
			return lock.Grant{}, a.refused(k)
		}
		fence, err = a.fence()
	}
	if errors.Is(err, lock.ErrNotHolder) {
		if err := a.giveUp(k); !errors.Is(err, errGivenUp) {
			return lock.Grant{}, err
		}
		return lock.Grant{}, lock.ErrNotHolder
	}
	if err == nil {
		ctx, cancel := a.l.b.patience(a.wanted)
		defer cancel()
		_, err = k.run(ctx, "grant", "DO 0")
	}
	if err != nil {
		return lock.Grant{}, a.failed(k, err)
	}
	g := lock.Grant{ID: a.q.ID, Resource: a.q.Resource, Mode: a.q.Mode, Fence: lock.FenceOf(fence)}
	g.Guard = guardOf(&a.l.b.cfg, a.l.dialect, a.q.Resource, fence)
	return g, nil
}

// fence takes a fence, a reader that of the last writer, and writes down who
// holds. It waits for guards as long as a statement waits for a row.
// lock.ErrNotHolder: it was forced out of the queue.
func (a *attempt) fence() (int64, error) {
	ctx, cancel := a.l.b.patience(a.wanted)
	defer cancel()
	waited := a.noted
	a.noted = true
	name, id := []byte(a.q.Resource), []byte(a.q.ID)
	if a.q.Mode == lock.Exclusive {
		res, err := a.l.side.Exec(ctx, "grant", a.l.b.sql.grantX, append([]any{name, name, id}, a.record()...)...)
		if err != nil {
			return 0, err
		}
		// START TRANSACTION is before it, and behind it who holds.
		return res.IDs[1], a.stays(ctx, waited, res.Affected[3])
	}
	for {
		res, err := a.l.side.Exec(ctx, "grant", a.l.b.sql.grantS, append(append([]any{name, id}, a.record()...), name)...)
		if err != nil {
			return 0, err
		}
		if n := res.Affected[1]; n > 0 {
			return res.IDs[1], a.stays(ctx, waited, n)
		}
		if _, err := a.l.side.Exec(ctx, "add fence", a.l.b.sql.addFence, name); err != nil {
			return 0, err
		}
	}
}

// stays looks whether a waiter was forced out of the queue before it was written
// down as a holder. Where it was not, its row has changed, which counts as two.
func (a *attempt) stays(ctx context.Context, waited bool, affected int64) error {
	if !waited || affected > 1 {
		return nil
	}
	out := false
	if err := a.l.side.Query(ctx, "look for force", func(_ int, rows *sql.Rows) error {
		out = true
		return rows.Scan(new(sql.RawBytes))
	}, a.l.b.sql.outOf, []byte(a.q.ID)); err != nil || !out {
		return err
	}
	return lock.ErrNotHolder
}

// refused gives up what a try cannot have, or what nobody wants any more.
func (a *attempt) refused(k *link) error {
	if err := a.giveUp(k); !errors.Is(err, errGivenUp) {
		return err
	}
	if a.wanted.Err() != nil {
		a.explain()
		return errGivenUp
	}
	return &lock.HeldError{Cause: lock.ErrHeld, Status: a.l.status(a.q.Resource)}
}

// giveUp lets go of whatever the link has. errGivenUp: nothing is left behind.
func (a *attempt) giveUp(k *link) error {
	ctx, cancel := a.l.b.patience(a.wanted)
	defer cancel()
	_, err := k.run(ctx, "give up", "ROLLBACK")
	if mydb.Interrupted(err) { // that was meant for the statement before
		_, err = k.run(ctx, "give up", "ROLLBACK")
	}
	if err != nil {
		return a.drop(ctx, k, err, errGivenUp)
	}
	reuse := !a.noted
	if a.noted {
		if reuse, err = a.l.unmark(ctx, a.q.ID); err != nil {
			return a.drop(ctx, k, err, errGivenUp)
		}
	}
	if reuse {
		a.l.putBack(k)
	} else {
		k.close()
		a.l.forget(ctx, a.q.ID)
	}
	return errGivenUp
}

// failed ends a link on which, or for which, a request failed.
func (a *attempt) failed(k *link, err error) error {
	ctx, cancel := a.l.b.patience(a.wanted)
	defer cancel()
	if broken(err) {
		return a.drop(ctx, k, err, errAgain)
	}
	return a.drop(ctx, k, err, mydb.Unavailable(a.what(), err))
}

// drop closes a link and returns then once it is gone from the server; else
// that this is not known.
func (a *attempt) drop(ctx context.Context, k *link, cause, then error) error {
	k.close()
	a.loose = append(a.loose, k.token)
	if errors.Is(cause, errNoAnswer) { // nor is there one from others
		return mydb.Unavailable(a.what(), cause)
	}
	if err := a.l.b.settle(ctx, a.l.side, a.loose...); err != nil {
		return mydb.Unavailable(a.what(), cause)
	}
	a.loose = nil
	return then
}

// settle makes sure that nothing is left of attempts before.
func (a *attempt) settle() error {
	ctx, cancel := a.l.b.patience(a.wanted)
	defer cancel()
	if err := a.l.b.settle(ctx, a.l.side, a.loose...); err != nil {
		return err
	}
	a.loose = nil
	return nil
}

// forced looks whether the link broke because somebody forced the waiter out of
// the queue: lock.ErrNotHolder.
func (a *attempt) forced() error {
	if !a.noted {
		return nil
	}
	ctx, cancel := a.l.b.patience(a.wanted)
	defer cancel()
	forced, err := a.l.wasForced(ctx, a.q.ID)
	switch {
	case err != nil:
		return mydb.Unavailable(a.what(), err)
	case forced:
		a.l.forget(ctx, a.q.ID)
		return lock.ErrNotHolder
	}
	return nil
}
