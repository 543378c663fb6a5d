package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// Release implements lock.Lease.
func (l *lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	l.mu.Lock()
	e := l.entries[id]
	switch {
	case e == nil || e.q.Resource != r:
		l.mu.Unlock()
		return lock.ErrNotHolder
	case e.granted:
		delete(l.entries, id)
		l.mu.Unlock()
		return l.release(ctx, e)
	case !e.at.isOver():
		a := e.at
		a.end(lock.ErrNotHolder)
		l.mu.Unlock()
		<-a.done
		if errors.Is(a.err, lock.ErrUnavailable) || errors.Is(a.err, lock.ErrLeaseLost) {
			return a.err
		}
		return nil
	}
	// The outcome of a request before is unknown.
	tokens := slices.Clone(e.loose)
	l.mu.Unlock()
	ctx, cancel := l.b.patience(ctx)
	defer cancel()
	if err := l.b.settle(ctx, l.side, tokens...); err != nil {
		return err
	}
	l.forget(ctx, id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[id] == e && !e.granted && e.at.isOver() {
		delete(l.entries, id)
	}
	return lock.ErrNotHolder
}

// release ends the transaction of a hold that is not in entries any more.
func (l *lease) release(ctx context.Context, e *entry) error {
	ctx, cancel := l.b.patience(ctx)
	defer cancel()
	_, err := e.link.run(ctx, "release", "COMMIT")
	if err == nil {
		// Then what is written about it: who looks sees nothing free that is not.
		// When that fails it goes with the link.
		if reuse, err := l.unmark(ctx, e.q.ID); reuse && err == nil {
			l.putBack(e.link)
		} else {
			e.link.close()
			l.forget(ctx, e.q.ID)
		}
		return nil
	}
	e.link.close()
	known := false
	if !errors.Is(err, errNoAnswer) {
		known = l.b.settle(ctx, l.side, e.link.token) == nil
	}
	if !known {
		l.mu.Lock()
		e.granted, e.loose = false, []string{e.link.token}
		if l.entries[e.q.ID] == nil {
			l.entries[e.q.ID] = e
		}
		l.mu.Unlock()
		return mydb.Unavailable(fmt.Sprintf("release %q", string(e.q.Resource)), err)
	}
	l.forget(ctx, e.q.ID)
	return lock.ErrNotHolder // the server had ended the link before
}

// Downgrade implements lock.Lease. A transaction cannot make less of its row lock.
func (l *lease) Downgrade(_ context.Context, r lock.Resource, id lock.HoldID) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	switch {
	case e == nil || !e.granted || e.q.Resource != r:
		return lock.ErrNotHolder
	case e.q.Mode == lock.Shared:
		return nil
	}
	return fmt.Errorf("downgrade %q: a row lock cannot be made a weaker one: %w", string(r), lock.ErrUnsupported)
}

// takeLink gives a link without a transaction.
func (l *lease) takeLink(ctx context.Context) (*link, error) {
	l.mu.Lock()
	if n := len(l.idle); n > 0 {
		k := l.idle[n-1]
		l.idle = l.idle[:n-1]
		l.mu.Unlock()
		return k, nil
	}
	l.mu.Unlock()
	return l.connect(ctx, l.linkEnded)
}

// putBack keeps a link without a transaction for the next request.
func (l *lease) putBack(k *link) {
	l.mu.Lock()
	keep := !k.gone && l.run.Err() == nil && len(l.idle) < keepIdle
	if keep {
		l.idle = append(l.idle, k)
	}
	l.mu.Unlock()
	if !keep {
		k.close()
	}
}

// unmark removes what is written about a hold or waiter of a link that is to be
// used again. It must not be when somebody has forced the hold: whoever did may
// be about to end the link.
func (l *lease) unmark(ctx context.Context, id lock.HoldID) (reuse bool, err error) {
	err = mydb.Retry(ctx, func() error {
		res, err := l.side.Exec(ctx, "forget", l.b.sql.forget+" AND grace IS NULL", []byte(id), []byte(l.id))
		reuse = err == nil && res.Affected[0] > 0
		return err
	})
	return reuse, err
}

// forget removes what is written about a hold or waiter whose link is gone. It
// means nothing any more, so it does not matter when this fails.
func (l *lease) forget(ctx context.Context, id lock.HoldID) {
	_, _ = l.side.Exec(ctx, "forget", l.b.sql.forget, []byte(id), []byte(l.id))
}

// wasForced reports whether somebody has forced a hold or waiter.
func (l *lease) wasForced(ctx context.Context, id lock.HoldID) (bool, error) {
	forced := false
	err := l.side.Query(ctx, "look for force", func(_ int, rows *sql.Rows) error {
		forced = true
		return rows.Scan(new(sql.RawBytes))
	}, l.b.sql.revokeOf, []byte(id))
	return forced, err
}

// addRow makes the row of a resource, in a transaction of its own. A row that is
// locked is there.
func (l *lease) addRow(r lock.Resource) error {
	ctx, cancel := l.b.patience(l.run)
	defer cancel()
	if _, err := l.side.Exec(ctx, "add row", l.b.sql.addRow, []byte(r)); err != nil && !mydb.Retryable(err) {
		return err
	}
	return nil
}
