package sqllock

import (
	"context"
	"errors"
	"sync"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// sweepStep is how many rows one step of a sweep is about, and sweepers how many
	// resources are swept at the same time.
	sweepStep, sweepers = 200, 4
)

// sweep clears away what hangs on a lease that is over, in bounded steps: its waiters
// first, so that none of them is in the way of others. found: there was something. What
// somebody has locked is left for the next sweep.
func (b *Backend) sweep(ctx context.Context, lease string) (found bool, err error) {
	q := b.sql
	if there, err := b.anyOf(ctx, lease); err != nil || !there { // usually: one trip
		return false, err
	}
	for _, s := range []struct {
		sql string
		all func(ctx context.Context, lease string, rows []Row) (done int, err error)
	}{{q.sweepWaits, b.sweepEach}, {q.sweepRows, b.sweepRows}, {q.sweepHolds, b.sweepEach}, {q.sweepNotes, b.sweepEach}} {
		for {
			if ctx.Err() != nil {
				return found, context.Cause(ctx)
			}
			res, err := b.pool.Do(ctx, "sweep", Statement{SQL: s.sql, Args: []any{[]byte(lease), sweepStep}})
			if err != nil {
				return found, err
			}
			rows := res[0].Rows
			if len(rows) == 0 {
				break
			}
			found = true
			done, err := s.all(ctx, lease, rows)
			if err != nil {
				return found, err
			}
			if done == 0 { // the rest is locked
				break
			}
		}
	}
	return found, nil
}

// anyOf tells whether anything hangs on a lease.
func (b *Backend) anyOf(ctx context.Context, lease string) (there bool, err error) {
	q, args := b.sql, []any{[]byte(lease), 1}
	res, err := b.pool.Do(ctx, "sweep", Statement{SQL: q.sweepWaits, Args: args}, Statement{SQL: q.sweepRows, Args: args},
		Statement{SQL: q.sweepHolds, Args: args}, Statement{SQL: q.sweepNotes, Args: args})
	for _, r := range res {
		there = there || len(r.Rows) > 0
	}
	return there, err
}

// sweepEach clears rows away by the desks of their resources.
func (b *Backend) sweepEach(ctx context.Context, lease string, rows []Row) (done int, err error) {
	return b.onDesks(ctx, rows, func(id string) *op {
		return &op{kind: opSweep, id: id, of: lease, hasty: true}
	})
}

// onDesks has a request carried out for each row, which has a name and an id, by the
// desks of the names. done: how many were, and not left because somebody has locked them.
func (b *Backend) onDesks(ctx context.Context, rows []Row, request func(id string) *op) (done int, err error) {
	byName := make(map[lock.Resource][]*op)
	for _, r := range rows {
		name := lock.Resource(r.Text(0))
		byName[name] = append(byName[name], request(r.Text(1)))
	}
	names := make(chan lock.Resource, len(byName))
	for name := range byName {
		names <- name
	}
	close(names)
	var wg sync.WaitGroup
	for range min(sweepers, len(byName)) {
		wg.Go(func() {
			for name := range names {
				b.submit(ctx, name, byName[name]...)
			}
		})
	}
	wg.Wait()
	for _, ops := range byName {
		for _, o := range ops {
			switch {
			case o.err == nil:
				done++
			case errors.Is(o.err, errHasty):
			default:
				err = o.err
			}
		}
	}
	return done, err
}

// sweepRows clears exclusive holds away: those that nobody waits for many at a time,
// and the others by their desks.
func (b *Backend) sweepRows(ctx context.Context, lease string, rows []Row) (done int, err error) {
	names := make([][]byte, len(rows))
	for i, r := range rows {
		names[i] = []byte(r.Text(0))
	}
	if err := b.retry(ctx, func() (err error) { done, err = b.clearRows(ctx, lease, names); return err }); err != nil {
		return 0, err
	}
	if done == len(rows) {
		return done, nil
	}
	res, err := b.pool.Do(ctx, "sweep", b.sql.leftRows.with([]byte(lease), names, nil, 0))
	if err != nil {
		return done, err
	}
	more, err := b.sweepEach(ctx, lease, res[0].Rows)
	return done + more, err
}

// clearRows is one transaction that clears what nobody waits for and nobody has locked.
func (b *Backend) clearRows(ctx context.Context, lease string, names [][]byte) (done int, err error) {
	c, err := b.pool.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	q, id := b.sql, []byte(lease)
	res, err := c.Do(ctx, "sweep", Statement{SQL: "START TRANSACTION"}, q.lockRows.with(id, names, nil, 0))
	if err != nil {
		return 0, err
	}
	rows := res[1].Rows
	locked := make([][]byte, len(rows))
	for i, r := range rows {
		locked[i] = []byte(r.Text(0))
	}
	if len(locked) > 0 {
		freed := q.clearRows.with(id, locked, nil, 0)
		freed.Count = true
		if res, err = c.Do(ctx, "sweep", freed); err != nil {
			return 0, err
		}
		if res[0].Affected != int64(len(rows)) { // somebody has come in between: one by one
			return 0, nil
		}
	}
	if _, err = c.Do(ctx, "sweep", Statement{SQL: "COMMIT"}); err != nil {
		return 0, err
	}
	for _, r := range rows {
		b.log.add(event{what: ending(r.Int(3)).of(r.Int(2)), name: lock.Resource(r.Text(0)), id: r.Text(1), lease: lease, fence: r.Int(2)})
	}
	return len(rows), nil
}
