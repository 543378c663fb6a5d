package rows

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
// knows, and ends the hold when the grace is over. The grace counts from then on
// here too, and when it is over the hold's link is ended, whatever has become of its
// sidecar. A lease does not use a link again after a hold that was marked, so no
// other hold is hit.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	token, waits, err := b.mark(ctx, r, id, grace)
	switch {
	case err != nil:
		return mydb.Unavailable("force release", err)
	case token == "":
		return lock.ErrNotHolder
	}
	due := time.Duration(math.MaxInt64)
	if waits || grace.Microseconds() == 0 {
		due = 0
	}
	for {
		if lock.BootTime() >= due {
			return b.settle(ctx, b.pool, token)
		}
		select {
		case <-time.After(min(due-lock.BootTime(), forcePoll)):
		case <-ctx.Done():
			return fmt.Errorf("force release %q: %w; it ends by itself %s after the holder's sidecar knows of it, or with its connection", string(r), context.Cause(ctx), grace)
		}
		there, known := false, int64(0)
		if err := b.pool.Query(ctx, "force release", func(_ int, rows *sql.Rows) error {
			there = true
			return rows.Scan(&known)
		}, b.sql.held, []byte(id)); err != nil {
			return mydb.Unavailable("force release", err)
		}
		switch {
		case !there:
			return nil
		case known >= 0:
			due = min(due, lock.BootTime()+time.Duration(known)*time.Microsecond)
		}
	}
}

// mark writes down that a hold or waiter is to end, and gives the token of its
// link. Only what was marked as it was found may be ended: the link of a hold
// that was released meanwhile is another's. The token is empty when it is not
// there.
func (b *Backend) mark(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) (token string, waits bool, err error) {
	for {
		token = ""
		if err := b.pool.Query(ctx, "force release", func(_ int, rows *sql.Rows) error {
			return rows.Scan(&token, &waits)
		}, b.sql.find, []byte(id), []byte(r)); err != nil || token == "" {
			return "", false, err
		}
		var res mydb.Results
		if err := mydb.Retry(ctx, func() (err error) {
			res, err = b.pool.Exec(ctx, "force release", b.sql.revoke, grace.Microseconds(), grace.Microseconds(), []byte(id), []byte(token), waits)
			return err
		}); err != nil {
			return "", false, err
		}
		if res.Affected[0] > 0 {
			return token, waits, nil
		}
	}
}
