package shedlock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// Release implements lock.Lease.
func (l *lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	was, err := l.release(ctx, r, id)
	if err != nil || was {
		return err
	}
	bounded, cancel := l.b.patience(ctx)
	defer cancel()
	alive := false
	if err := l.b.pool.Query(bounded, "release", func(_ int, rows *sql.Rows) error { return rows.Scan(&alive) },
		l.b.sql.alive, []byte(l.id)); err != nil {
		return mydb.Unavailable(fmt.Sprintf("release %q", string(r)), err)
	}
	if !alive {
		l.lose()
		return lock.ErrLeaseLost
	}
	return lock.ErrNotHolder
}

// release frees the lock of a hold, or takes a waiter out of the queue. It
// reports whether there was either.
func (l *lease) release(ctx context.Context, r lock.Resource, id lock.HoldID) (was bool, err error) {
	ctx, cancel := l.b.patience(ctx)
	defer cancel()
	l.mu.Lock()
	e := l.entries[id]
	if e != nil && e.q.Resource != r {
		e = nil
	}
	query, args := "", []any(nil)
	if e != nil {
		e.out = true
		if e.unsure {
			query, args = l.b.sql.giveUp, []any{[]byte(id), []byte(l.id)}
		}
	}
	l.mu.Unlock()
	if e != nil {
		e.releasing.Lock()
		defer e.releasing.Unlock()
	}
	lease, name := []byte(l.id), []byte(r)
	args = append(args, string(r), l.by(id), lease, []byte(id), lease, name, lease, []byte(id), lease, name)
	var res mydb.Results
	if err := mydb.Retry(ctx, func() (err error) {
		res, err = l.b.pool.Exec(ctx, "release", query+l.b.sql.release, args...)
		return err
	}); err != nil {
		return false, mydb.Unavailable(fmt.Sprintf("release %q", string(r)), err)
	}
	n := len(res.Affected)
	was = res.Affected[n-4]+res.Affected[n-3] > 0 // before the last DELETE and COMMIT
	l.mu.Lock()
	if e != nil {
		was = was || e.taken
		e.taken = was
		e.wake()
		if l.entries[id] == e {
			delete(l.entries, id)
		}
	}
	l.mu.Unlock()
	l.look() // others of ours may wait for it
	return was, nil
}

// Downgrade implements lock.Lease.
func (l *lease) Downgrade(_ context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[id]; e == nil || !e.settled || e.out || e.q.Resource != r {
		return lock.ErrNotHolder
	}
	return fmt.Errorf("downgrade %q: ShedLock has no shared locks: %w", string(r), lock.ErrUnsupported)
}
