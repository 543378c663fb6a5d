package sqllock

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
)

const (
	// choresEvery is the time between two steps of the keeper's chores.
	choresEvery = 5 * time.Second
	// idleRow is for how long nobody has taken a resource whose row is deleted.
	idleRow = 10 * time.Minute
	// reapStep bounds what one request is about, and reapSteps how many of them one step
	// sends where there is much to be deleted.
	reapStep, reapSteps = 500, 20
	// eraTime is how long an era lasts. A copy of a request may arrive late; a note is
	// kept for at least one whole era, which is longer than any network keeps a packet
	// and any server a connection that nobody answers on.
	eraTime = 15 * time.Minute
)

// reaper does the keeper's chores in bounded steps: no request reads more than some
// hundred rows.
type reaper struct {
	l *lease
	// Rows below the floor are deleted; 0: it is to be raised.
	floor  int64
	at     string // the server on which it was raised,
	raised time.Duration
	after  string // and the last name that was looked at

	era   int64
	eraAt string        // the server that has said so,
	since time.Duration // and when this era was seen there for the first time

	records bool // some are over
	posts   bool // there is more than one in hold

	lapsed leastAt       // the last row of the table least that was looked at
	more   chan struct{} // has a value when there are more whose time is over
}

// leastAt is the place of a row of the table least, in the order of their ends.
type leastAt struct {
	ends     int64
	name, id string
}

// step does one step of each. What fails comes again.
func (r *reaper) step(ctx context.Context) {
	_ = r.reapIdle(ctx)
	_ = r.reapNotes(ctx)
	_ = r.reapLog(ctx)
	if r.records {
		_ = r.reapRecords(ctx)
	}
	if r.posts {
		_ = r.reapPosts(ctx)
	}
}

// reapIdle deletes rows of resources that nobody has taken for long. A row that is
// made again must not begin with a smaller fence, even if the server's clock was set
// back: so the floor, from which new rows begin, is raised first, and rows are deleted
// when no statement can be under way any more that has read an older one. With one floor
// the whole table is gone through. Another server, which has taken over or to which a pooler leads, may not have that floor.
func (r *reaper) reapIdle(ctx context.Context) error {
	b, q := r.l.b, r.l.b.sql
	if r.floor == 0 {
		res, err := b.pool.Do(ctx, "reap", b.raisingFloor()...)
		if err == nil && len(res[len(res)-1].Rows) > 0 {
			row := res[len(res)-1].Rows[0]
			r.floor, r.at, r.raised, r.after = row.Int(0), row.Text(1), b.clock(), ""
		}
		return err
	}
	if b.clock() < r.raised+lateRequest {
		return nil
	}
	for range reapSteps {
		res, err := b.pool.Do(ctx, "reap", Statement{SQL: q.record.server}, Statement{SQL: q.idle, Args: []any{r.floor, []byte(r.after), reapStep}})
		if err != nil {
			return err
		}
		if res[0].Rows[0].Text(0) != r.at {
			r.floor = 0
			return nil
		}
		rows := res[1].Rows
		var idle [][]byte
		for _, row := range rows {
			if row.Bool(1) {
				idle = append(idle, []byte(row.Text(0)))
			}
		}
		if len(idle) > 0 {
			if _, err := b.deleteFree(ctx, q.lockIdle.with([]byte(r.at), idle, nil, r.floor), q.deleteRow); err != nil {
				return err
			}
		}
		if len(rows) < reapStep { // all were looked at
			r.floor = 0
			return nil
		}
		r.after = rows[len(rows)-1].Text(0)
		if len(idle) < reapStep/2 { // there is no hurry
			return nil
		}
	}
	return nil
}

// deleteFree deletes what a locking SELECT names that skips what an app has locked by a
// guard, and so may stay locked for long. n: how many.
func (b *Backend) deleteFree(ctx context.Context, choose Statement, forget string) (n int, err error) {
	c, err := b.pool.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	res, err := c.Do(ctx, "reap", Statement{SQL: "START TRANSACTION"}, choose)
	if err != nil {
		return 0, err
	}
	rows := res[1].Rows
	batch := make([]Statement, 0, len(rows)+1)
	for _, row := range rows { // each by its key: a scan would wait for a row that an app has locked
		batch = append(batch, Statement{SQL: forget, Args: []any{[]byte(row.Text(0))}})
	}
	_, err = c.Do(ctx, "reap", append(batch, Statement{SQL: "COMMIT"})...)
	return len(rows), err
}

// lapsing reads the next rows of the table least whose time is over. When all were looked at, the first are next
// again. So rows that an app has locked are in nobody's way.
func (r *reaper) lapsing() Statement {
	at := r.lapsed
	return Statement{SQL: r.l.b.sql.lapsed, Args: []any{max(at.ends, 1), at.ends, []byte(at.name), []byte(at.name), []byte(at.id), reapStep}}
}

// reapLeasts goes on with them at once, a step at a time: where hundreds a second lapse, they must not gather.
func (r *reaper) reapLeasts(ctx context.Context) error {
	res, err := r.l.b.pool.Do(ctx, "reap", r.lapsing())
	if err != nil {
		return err
	}
	return r.endLeasts(ctx, res[0].Rows)
}

// endLeasts ends what was read of them, and has what waits for it granted, though nobody looks.
func (r *reaper) endLeasts(ctx context.Context, lapsed []Row) error {
	r.lapsed = leastAt{}
	if n := len(lapsed); n == reapStep {
		last := lapsed[n-1]
		r.lapsed = leastAt{ends: last.Int(2), name: last.Text(0), id: last.Text(1)}
		leasekit.Ring(r.more)
	}
	return r.l.b.onDesks(ctx, lapsed, func(id string) *op { return &op{kind: opLapse, id: id, hasty: true} })
}

// reapNotes counts the eras, on the keeper's own clock, and deletes what is to be
// remembered no more. What keeps a lock for its min_hold ends here, too.
func (r *reaper) reapNotes(ctx context.Context) error {
	b, q := r.l.b, r.l.b.sql
	res, err := b.pool.Do(ctx, "reap", Statement{SQL: q.era}, Statement{SQL: q.oldNotes, Args: []any{r.era - 1, reapStep}},
		Statement{SQL: q.record.anyEnded}, r.lapsing(), Statement{SQL: q.posts, Args: []any{[]byte(post), 2}}) // with these, so that they cost no trip
	r.records = err == nil && len(res[2].Rows) > 0
	r.posts = err == nil && len(res[4].Rows) > 1
	if err != nil {
		return err
	}
	err = r.endLeasts(ctx, res[3].Rows)
	if len(res[0].Rows) == 0 {
		return err
	}
	if era, at := res[0].Rows[0].Int(0), res[0].Rows[0].Text(1); era != r.era || at != r.eraAt || r.since == 0 {
		r.era, r.eraAt, r.since = era, at, b.clock()
		return nil
	}
	// By the desks, so that a row that is crowded no more says so, and can go itself.
	err = errors.Join(err, b.onDesks(ctx, res[1].Rows, func(id string) *op { return &op{kind: opForget, id: id, hasty: true} }))
	if err != nil {
		return err
	}
	if b.clock() >= r.since+eraTime {
		if _, err := b.pool.Do(ctx, "reap", Statement{SQL: q.raiseEra, Args: []any{r.era, []byte(r.eraAt)}}); err != nil {
			return err
		}
		r.era, r.since = r.era+1, b.clock()
	}
	return nil
}

// reapLog deletes the old end of the log: what is too old, and what is too much.
func (r *reaper) reapLog(ctx context.Context) error {
	b, q := r.l.b, r.l.b.sql
	for ctx.Err() == nil {
		res, err := b.pool.Do(ctx, "reap", Statement{SQL: q.logEnd}, Statement{SQL: q.logOld, Args: []any{reapStep}})
		if err != nil || len(res[1].Rows) == 0 {
			return err
		}
		ends, rows := res[0].Rows[0], res[1].Rows
		var last int64
		for _, row := range rows {
			if id := row.Int(0); row.Int(1) < ends.Int(2)-b.o.LogKeep.Microseconds() || ends.Int(1)-id >= b.o.LogRows {
				last = id
			}
		}
		if last == 0 {
			return nil
		}
		if _, err := b.pool.Do(ctx, "reap", Statement{SQL: q.deleteLog, Args: []any{last}}); err != nil {
			return err
		}
		if len(rows) < reapStep || last != rows[len(rows)-1].Int(0) {
			return nil
		}
	}
	return nil
}
