package tables

import (
	"context"
	"database/sql"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// idleRow is for how long nobody has taken a resource whose row is deleted.
	idleRow = 10 * time.Minute
	// reapAtATime bounds every statement of the reaper.
	reapAtATime = 500
)

// reap clears away, in small steps, what nobody needs any more: what dead leases
// left, rows of resources that have long been idle, and the old end of the log.
//
// It reads whole tables, so of all sidecars one does it at a time, as far as the
// server gives named locks. More than one would do no harm.
func (b *Backend) reap(ctx context.Context) error {
	return b.on(ctx, func(_ context.Context, conn *sql.Conn) error {
		got := sql.NullInt64{Int64: 1}
		err := b.pool.QueryOn(ctx, conn, "reap", func(_ int, rows *sql.Rows) error { return rows.Scan(&got) },
			"SELECT GET_LOCK(?, 0)", b.lockName("reap"))
		switch {
		case err != nil && !mydb.FromServer(err):
			return err
		case err == nil && got.Int64 == 0:
			return nil // another one does it
		}
		defer drop(ctx, conn, nil) // and with it the named lock
		if err := b.reapDead(ctx); err != nil {
			return err
		}
		if err := b.reapTrails(ctx); err != nil {
			return err
		}
		if err := b.reapIdle(ctx); err != nil {
			return err
		}
		return b.reapLog(ctx)
	})
}

// reapDead settles resources at which something of a dead lease is left, and
// forgets requests that were given up, with the leases that made them.
func (b *Backend) reapDead(ctx context.Context) error {
	names := make(map[lock.Resource]bool)
	if err := b.query(ctx, "reap", func(_ int, rows *sql.Rows) error {
		var r lock.Resource
		if err := rows.Scan(&r); err != nil {
			return err
		}
		names[r] = true
		return nil
	}, b.sql.orphans); err != nil {
		return err
	}
	for r := range names {
		if err := b.settle(ctx, r); err != nil {
			return err
		}
	}
	if _, err := b.exec(ctx, "reap", b.sql.reapNews); err != nil {
		return err
	}
	var noted []lock.Resource
	if err := b.query(ctx, "reap", func(_ int, rows *sql.Rows) error {
		var r lock.Resource
		if err := rows.Scan(&r); err != nil {
			return err
		}
		noted = append(noted, r)
		return nil
	}, b.sql.goneDead); err != nil {
		return err
	}
	for _, r := range noted {
		name := []byte(r)
		if err := mydb.Retry(ctx, func() error {
			_, err := b.exec(ctx, "reap", b.sql.forgetGone, name, name, name)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// reapIdle deletes rows of resources that nobody has taken for long. A row that
// is made again must not begin with a smaller fence, even if the server's clock
// was set back: so the floor, from which new rows begin, is raised first, and
// committed, before any row is deleted. A new row reads the floor only after it
// was inserted, so after the old one was deleted.
func (b *Backend) reapIdle(ctx context.Context) error {
	for {
		more, err := b.reapSomeIdle(ctx)
		if err != nil || !more {
			return err
		}
	}
}

func (b *Backend) reapSomeIdle(ctx context.Context) (more bool, err error) {
	var names []lock.Resource
	var highest int64
	if err := b.query(ctx, "reap", func(_ int, rows *sql.Rows) error {
		var r lock.Resource
		var fence int64
		if err := rows.Scan(&r, &fence); err != nil {
			return err
		}
		names = append(names, r)
		highest = max(highest, fence)
		return nil
	}, b.sql.idle, idleRow.Microseconds(), reapAtATime); err != nil || len(names) == 0 {
		return false, err
	}
	if _, err := b.exec(ctx, "reap", b.sql.raiseFloor, highest); err != nil {
		return false, err
	}
	query, args := in(b.sql.deleteIdle, texts(names), "")
	args = append(args, highest)
	if err := mydb.Retry(ctx, func() error {
		_, err := b.exec(ctx, "reap", query, args...)
		return err
	}); err != nil {
		return false, err
	}
	for _, r := range names {
		b.known.forget(r)
	}
	return len(names) == reapAtATime, nil
}

// reapLog deletes the old end of the log.
func (b *Backend) reapLog(ctx context.Context) error {
	for {
		var last sql.NullInt64
		if err := b.query(ctx, "reap", func(_ int, rows *sql.Rows) error { return rows.Scan(&last) },
			b.sql.oldLog, reapAtATime, b.logKeep.Microseconds()); err != nil || !last.Valid {
			return err
		}
		if _, err := b.exec(ctx, "reap", b.sql.deleteLog, last.Int64); err != nil {
			return err
		}
	}
}
