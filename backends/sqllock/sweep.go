package sqllock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// sweepStep is how many rows one step of a sweep is about, and sweepers how many
	// resources are swept at the same time.
	sweepStep, sweepers = 200, 4
	// sweepTogether is of how many leases at most one request asks whether anything is left. A power of four.
	sweepTogether = 64
)

// sweep clears away what hangs on a lease that is over, in bounded steps: its waiters
// first, so that none of them is in the way of others. found: there was something. What
// somebody has locked is left for the next sweep.
func (b *Backend) sweep(ctx context.Context, lease string) (found bool, err error) {
	if there, err := b.anyOf(ctx, []string{lease}); err != nil || !there { // usually: one trip
		return false, err
	}
	q := b.sql
	for i, p := range []pages{q.waitersOf(lease), q.rowsOf(lease), q.holdsOf(lease), q.notesAbout(lease)} {
		end := b.sweepEach
		if i == 1 {
			end = b.sweepRows
		}
		if err := p.read(ctx, b.pool, "sweep", func(rows []Row) error {
			found = true
			for some := range slices.Chunk(rows, sweepStep) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err := end(ctx, lease, some); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return found, err
		}
	}
	return found, nil
}

// anyOf tells whether anything hangs on some leases.
func (b *Backend) anyOf(ctx context.Context, leases []string) (there bool, err error) {
	ids := texts(leases)
	size := 1
	for size < len(ids) {
		size *= 4
	}
	for len(ids) < size { // so that there are few texts, for a connection keeps each prepared
		ids = append(ids, ids[0])
	}
	res, err := b.pool.Do(ctx, "sweep", b.sql.hanging.with(nil, nil, ids, 0))
	return err == nil && len(res[0].Rows) > 0 && res[0].Rows[0].Bool(0), err
}

// sweepEach clears rows away by the desks of their resources.
func (b *Backend) sweepEach(ctx context.Context, lease string, rows []Row) error {
	return b.onDesks(ctx, rows, func(id string) *op {
		return &op{kind: opSweep, id: id, of: lease, hasty: true}
	})
}

// onDesks has a request carried out for each row, which has a name and an id, by the
// desks of the names. What somebody has locked is left, and where one of them has waited for such
// a row, the others do not wait: an app may have locked all of them.
func (b *Backend) onDesks(ctx context.Context, rows []Row, request func(id string) *op) (err error) {
	byName := make(map[lock.Resource][]*op)
	var blocked atomic.Bool
	for _, r := range rows {
		name, o := lock.Resource(r.Text(0)), request(r.Text(1))
		o.blocked = &blocked
		byName[name] = append(byName[name], o)
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
			if o.err != nil && !errors.Is(o.err, errHasty) {
				err = o.err
			}
		}
	}
	return err
}

// sweepRows clears exclusive holds away: those that nobody waits for many at a time,
// and the others by their desks.
func (b *Backend) sweepRows(ctx context.Context, lease string, rows []Row) error {
	done, names := 0, make([][]byte, len(rows))
	for i, r := range rows {
		names[i] = []byte(r.Text(0))
	}
	if err := b.retry(ctx, func() (err error) { done, err = b.clearRows(ctx, lease, names); return err }); err != nil || done == len(rows) {
		return err
	}
	res, err := b.pool.Do(ctx, "sweep", b.sql.leftRows.with([]byte(lease), names, nil, 0))
	if err != nil {
		return err
	}
	return b.sweepEach(ctx, lease, res[0].Rows)
}

// errLives: another server has said that the lease is over, and this one knows that it lives.
var errLives = errors.New("the lease is not over on this server")

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
		if ending(r.Int(3)) == notEnded {
			return 0, errLives
		}
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
