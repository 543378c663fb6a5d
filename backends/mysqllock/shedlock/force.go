package shedlock

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// forcePoll is how often ForceRelease looks whether the holder has let go.
const forcePoll = 20 * time.Millisecond

// ForceRelease implements lock.Backend.
//
// A hold is marked first, for its lease to see; that tells its app, writes that it
// knows, and frees the hold when the grace is over. The grace counts from then on
// here too. What ShedLock itself holds is not marked, and cannot be forced.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	by, err := b.mark(ctx, r, id, grace)
	switch {
	case err != nil:
		return mydb.Unavailable("force release", err)
	case by == "": // it was a waiter
		return nil
	case by == notThere:
		return lock.ErrNotHolder
	}
	due := time.Duration(math.MaxInt64)
	if grace.Microseconds() == 0 {
		due = 0
	}
	for lock.BootTime() < due {
		select {
		case <-time.After(min(due-lock.BootTime(), forcePoll)):
		case <-ctx.Done():
			return fmt.Errorf("force release %q: %w; it ends by itself %s after the holder's sidecar knows of it, or with its lease", string(r), context.Cause(ctx), grace)
		}
		there, known := false, int64(0)
		if err := b.pool.Query(ctx, "force release", func(_ int, rows *sql.Rows) error {
			there = true
			return rows.Scan(&known)
		}, b.sql.held, []byte(id), string(r)); err != nil {
			return mydb.Unavailable("force release", err)
		}
		switch {
		case !there:
			return nil
		case known >= 0:
			due = min(due, lock.BootTime()+time.Duration(known)*time.Microsecond)
		}
	}
	if err := mydb.Retry(ctx, func() error {
		_, err := b.pool.Exec(ctx, "force release", b.sql.unlock+" AND name=? AND locked_by=?", string(r), by)
		return err
	}); err != nil {
		return mydb.Unavailable("force release", err)
	}
	return nil
}

// notThere is what mark gives for an id that nobody has. It is no locked_by.
const notThere = "-"

// mark writes down that a hold is to end, and gives its locked_by; a waiter it
// takes out of the queue, and gives "".
func (b *Backend) mark(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) (by string, err error) {
	for {
		by = notThere
		var lease string
		var waits bool
		if err := b.pool.Query(ctx, "force release", func(_ int, rows *sql.Rows) error {
			return rows.Scan(&by, &lease, &waits)
		}, b.sql.find, []byte(id), []byte(r), string(r)); err != nil || by == notThere {
			return by, err
		}
		query, args := b.sql.mark, []any{grace.Microseconds(), grace.Microseconds(), []byte(id)}
		if waits {
			// It is written first that it is gone: so a grant under way fails, or the
			// row is not that of a waiter any more.
			query, args = b.sql.forceOut, []any{[]byte(id), []byte(lease), []byte(id)}
		}
		var res mydb.Results
		if err := mydb.Retry(ctx, func() (err error) {
			res, err = b.pool.Exec(ctx, "force release", query, args...)
			return err
		}); err != nil {
			return "", err
		}
		switch done := res.Affected[len(res.Affected)-1] > 0; {
		case done && waits:
			return "", nil
		case done:
			return by, nil
		case waits: // it was granted, or gave up
			if _, err := b.pool.Exec(ctx, "force release", b.sql.undo, []byte(id)); err != nil {
				return "", err
			}
		}
	}
}
