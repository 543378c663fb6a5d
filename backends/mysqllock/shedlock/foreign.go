package shedlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxKnown bounds the memory of names that have a row.
	maxKnown = 20_000
	// maxHolds bounds the locks of one lease, and holdsASecond how many it has for each
	// second of its TTL: each heartbeat writes the row of each.
	maxHolds, holdsASecond = 20_000, 2000
	// step is how many rows are locked at a time.
	step = 500
	// again is when a request is sent again that another transaction was in the way of.
	again = 10 * time.Millisecond
	// freeTime is how long the last release waits for rows that somebody has locked, when
	// all others are free.
	freeTime = 2 * time.Second
)

// foreign implements sqllock.Foreign: what one lease has in ShedLock's table.
type foreign struct {
	b     *Backend
	pool  sqllock.Pool
	beats sqllock.Pool // one connection, for heartbeats
	now   lock.Clock
	ttl   time.Duration
	label string // first part of locked_by

	mu    sync.Mutex
	known map[lock.Resource]struct{}    // names that have a row
	holds map[lock.HoldID]time.Duration // that have a lock, or ask for one, with their MinHold
}

var _ sqllock.Lasting = (*foreign)(nil)

// kept is at the end of locked_by of a hold that nobody has any more, but whose MinHold is not over.
const kept = "/kept"

// by is locked_by of a hold: it tells people where it is, and is its own.
func (f *foreign) by(id lock.HoldID) string { return f.label + "/" + string(id) }

// Check implements sqllock.Foreign.
func (f *foreign) Check(q lock.Request) error { return check(q) }

// Take implements sqllock.Foreign: ShedLock's update.
func (f *foreign) Take(ctx context.Context, q lock.Request) (bool, error) {
	if !f.count(q) {
		return false, &lock.LimitError{Limit: "locks of one sidecar with this TTL and strategy=shedlock, for each heartbeat writes the row of each", Max: f.most()}
	}
	name, by := string(q.Resource), f.by(q.ID)
	take := sqllock.Statement{SQL: f.b.sql.take, Args: []any{f.ttl.Microseconds(), by, by, name, by}, Count: true}
	if q.MinHold > 0 {
		take.SQL, take.Args = f.b.sql.takeLeast, []any{f.ttl.Microseconds(), by, by, by, name, by}
	}
	batch := []sqllock.Statement{take}
	if !f.hasRow(q.Resource) {
		batch = []sqllock.Statement{{SQL: f.b.sql.create, Args: []any{name}}, take}
	}
	for {
		res, err := f.pool.Do(ctx, "acquire", batch...)
		switch f.b.d.Class(err) {
		case sqllock.Blocked: // ShedLock is at it
			return false, nil
		case sqllock.NotSent:
			if isOver(ctx) {
				return false, nil
			}
		case sqllock.Conflict:
			if !leasekit.Sleep(ctx, again) {
				return false, nil
			}
			continue
		}
		took := err == nil && res[len(res)-1].Affected > 0
		f.gotRow(q.Resource, took)
		if took && q.MinHold > f.ttl {
			err = f.last(ctx, q)
		}
		return took && err == nil, err
	}
}

// last makes what was just taken last for its MinHold. The request that takes it does not: one that comes
// to the table when its sidecar has given it up, or is dead, would keep all out for so long, for nobody.
func (f *foreign) last(ctx context.Context, q lock.Request) error {
	return f.retry(ctx, "acquire", sqllock.Statement{SQL: f.b.sql.last, Args: []any{q.MinHold.Microseconds(), string(q.Resource), f.by(q.ID)}})
}

// trust has that server asked, and no other. So is who looks at the table.
func (f *foreign) trust(server string) {
	for _, p := range []sqllock.Pool{f.pool, f.beats, f.b.pool} {
		p.Trust(server)
	}
}

// count notes that a hold has a lock, or asks for one; false: there are too many.
func (f *foreign) count(q lock.Request) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, known := f.holds[q.ID]; !known && len(f.holds) >= f.most() {
		return false
	}
	f.holds[q.ID] = q.MinHold
	return true
}

// least is the MinHold of a hold.
func (f *foreign) least(id lock.HoldID) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.holds[id]
}

// most is how many locks the lease can have: as many as its heartbeats can move with time to
// spare.
func (f *foreign) most() int {
	return min(int(f.ttl.Seconds()*holdsASecond), maxHolds)
}

// hasRow reports whether a name is known to have a row in ShedLock's table.
func (f *foreign) hasRow(r lock.Resource) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.known[r]
	return ok
}

func (f *foreign) gotRow(r lock.Resource, there bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !there: // it is held, or somebody has deleted it
		delete(f.known, r)
	case len(f.known) >= maxKnown:
		clear(f.known)
		fallthrough
	default:
		f.known[r] = struct{}{}
	}
}

// Give implements sqllock.Foreign.
func (f *foreign) Give(ctx context.Context, r leasekit.Ref) error {
	return f.end(ctx, r, sqllock.Statement{SQL: f.b.sql.give, Args: []any{string(r.Resource), f.by(r.ID)}})
}

// Leave implements sqllock.Lasting: lock_until becomes the end of the MinHold.
func (f *foreign) Leave(ctx context.Context, r leasekit.Ref) error {
	least := f.least(r.ID)
	if least == 0 {
		return f.Give(ctx, r)
	}
	by := f.by(r.ID)
	return f.end(ctx, r, sqllock.Statement{SQL: f.b.sql.leave, Args: []any{least.Microseconds(), by + kept, string(r.Resource), by}})
}

// end sends the release of a hold.
func (f *foreign) end(ctx context.Context, r leasekit.Ref, s sqllock.Statement) error {
	err := f.retry(ctx, "release", s)
	if err == nil {
		f.mu.Lock()
		delete(f.holds, r.ID)
		f.mu.Unlock()
	}
	return err
}

// retry sends a request until no other transaction is in its way.
func (f *foreign) retry(ctx context.Context, command string, s sqllock.Statement) error {
	for {
		_, err := f.pool.Do(ctx, command, s)
		if !f.b.d.Class(err).Again() || !leasekit.Sleep(ctx, again) {
			return err
		}
	}
}

// isOver tells whether ctx has ended, or its time is over: a connection that is being opened
// may notice that first.
func isOver(ctx context.Context) bool {
	end, ends := ctx.Deadline()
	return ctx.Err() != nil || ends && !time.Now().Before(end)
}

// Keep implements sqllock.Foreign. The rows are moved in the order of their names.
func (f *foreign) Keep(ctx context.Context, server string, holds []leasekit.Ref) (kept map[lock.HoldID]time.Duration, lost []lock.HoldID) {
	f.trust(server)
	holds = slices.SortedFunc(slices.Values(holds), func(a, b leasekit.Ref) int { return cmp.Compare(a.Resource, b.Resource) })
	kept, lost, _ = f.change(ctx, f.beats, "heartbeat", f.b.sql.extend, f.ttl/6, holds, f.ttl.Microseconds())
	return kept, lost
}

// change changes the rows of holds, step by step until ctx ends, and then waits for those
// that somebody has locked. changed says from before when, gone are those that are not there
// any more, and the error says why others are left.
func (f *foreign) change(ctx context.Context, p sqllock.Pool, command, statement string, wait time.Duration, holds []leasekit.Ref, args ...any) (changed map[lock.HoldID]time.Duration, gone []lock.HoldID, err error) {
	changed = make(map[lock.HoldID]time.Duration, len(holds))
	waiting := ctx
	for {
		var locked []leasekit.Ref
		for part := range slices.Chunk(holds, step) {
			if ctx.Err() != nil {
				return changed, gone, context.Cause(ctx)
			}
			sent := f.now()
			did, not, others, err := f.changeFree(ctx, p, command, statement, part, args...)
			for _, h := range did {
				changed[h.ID] = sent
			}
			gone, locked = append(gone, not...), append(locked, others...)
			if err != nil && !f.b.d.Class(err).Again() {
				return changed, gone, err
			}
		}
		if holds = locked; len(holds) == 0 {
			return changed, gone, nil
		}
		if waiting == ctx {
			limit, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			waiting = limit
		}
		if !leasekit.Sleep(waiting, again) {
			return changed, gone, errLocked
		}
	}
}

var errLocked = errors.New("somebody has locked rows")

// changeFree changes the rows of holds in one transaction, but for those that somebody has
// locked: these are left. Those that it has locked need not be looked at once more: nobody
// takes them.
func (f *foreign) changeFree(ctx context.Context, p sqllock.Pool, command, statement string, holds []leasekit.Ref, args ...any) (changed []leasekit.Ref, gone []lock.HoldID, left []leasekit.Ref, err error) {
	c, err := p.Conn(ctx)
	if err != nil {
		return nil, nil, holds, err
	}
	defer c.Close()
	res, err := c.Do(ctx, command, sqllock.Statement{SQL: "START TRANSACTION"}, f.of(f.b.sql.lock, holds))
	if err != nil {
		return nil, nil, holds, err
	}
	locked, rest := f.split(holds, res[1].Rows)
	batch := []sqllock.Statement{{SQL: "COMMIT"}}
	if statement == f.b.sql.extend {
		var leasts []leasekit.Ref
		plain := slices.DeleteFunc(slices.Clone(locked), func(h leasekit.Ref) bool {
			least := f.least(h.ID) > 0
			if least {
				leasts = append(leasts, h)
			}
			return least
		})
		if len(leasts) > 0 {
			batch = slices.Insert(batch, 0, f.of(f.b.sql.extendLeast, leasts, args...))
		}
		if len(plain) > 0 {
			batch = slices.Insert(batch, 0, f.of(statement, plain, args...))
		}
	} else if len(locked) > 0 {
		batch = slices.Insert(batch, 0, f.of(statement, locked, args...))
	}
	if _, err = c.Do(ctx, command, batch...); err != nil {
		return nil, nil, holds, err
	}
	if len(rest) == 0 {
		return locked, nil, nil, nil
	}
	if res, err = c.Do(ctx, "compare", f.of(f.b.sql.holding, rest)); err != nil {
		return locked, nil, rest, err
	}
	left, away := f.split(rest, res[0].Rows)
	for _, h := range away {
		gone = append(gone, h.ID)
	}
	return locked, gone, left, nil
}

// split splits holds by whether their locked_by is among the rows.
func (f *foreign) split(holds []leasekit.Ref, rows []sqllock.Row) (in, out []leasekit.Ref) {
	there := make(map[string]bool, len(rows))
	for _, r := range rows {
		there[r.Text(0)] = true
	}
	for _, h := range holds {
		if there[f.by(h.ID)] {
			in = append(in, h)
		} else {
			out = append(out, h)
		}
	}
	return in, out
}

// Lapse implements sqllock.Foreign. lock_until has come.
func (f *foreign) Lapse() {}

// Strangers implements sqllock.Foreign.
func (f *foreign) Strangers(ctx context.Context, r lock.Resource) lock.Status {
	st, err := f.b.Get(ctx, r)
	if err != nil {
		return lock.Status{Resource: r}
	}
	return st
}

// Close implements sqllock.Foreign. What somebody has locked for long stays locked until
// lock_until, and is not in the way of the others.
func (f *foreign) Close(ctx context.Context, holds []leasekit.Ref) error {
	_, _, err := f.change(ctx, f.pool, "close", f.b.sql.free, freeTime, holds)
	if err != nil {
		err = fmt.Errorf("release in ShedLock's table: %w: %w", lock.ErrUnavailable, err)
	}
	return errors.Join(err, f.pool.Close(), f.beats.Close())
}
