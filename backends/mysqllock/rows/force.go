package rows

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// forcePoll is how often ForceRelease looks whether the holder has let go.
const forcePoll = 20 * time.Millisecond

// ForceRelease implements lock.Backend. A hold is marked first, for its lease to
// see, and when the grace is over its link is ended. A lease does not use a link
// again after a hold that was marked, so no other hold is hit.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	began := lock.BootTime()
	token, waits, err := b.mark(ctx, r, id, grace)
	switch {
	case err != nil:
		return mydb.Unavailable("force release", err)
	case token == "":
		return lock.ErrNotHolder
	case waits: // it has nothing to lose
		grace = 0
	}
	for {
		left := grace - (lock.BootTime() - began)
		if left <= 0 {
			return b.settle(ctx, b.pool, token)
		}
		select {
		case <-time.After(min(left, forcePoll)):
		case <-ctx.Done():
			return fmt.Errorf("force release %q: %w; it ends by itself within %s", string(r), context.Cause(ctx), left.Round(time.Millisecond))
		}
		there := false
		if err := b.pool.Query(ctx, "force release", func(_ int, rows *sql.Rows) error {
			there = true
			return rows.Scan(new(sql.RawBytes))
		}, b.sql.held, []byte(id)); err != nil {
			return mydb.Unavailable("force release", err)
		}
		if !there {
			return nil
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
			res, err = b.pool.Exec(ctx, "force release", b.sql.revoke, grace.Microseconds(), []byte(id), []byte(token), waits)
			return err
		}); err != nil {
			return "", false, err
		}
		if res.Affected[0] > 0 {
			return token, waits, nil
		}
	}
}

// attend looks for forced holds, ends those whose grace is over, and clears away
// rows of links that are gone, until the lease falls.
func (l *lease) attend() {
	tick := time.NewTicker(revokePoll)
	defer tick.Stop()
	reaped := -reapEvery
	for {
		select {
		case <-l.falling:
			return
		case <-tick.C:
		}
		ctx, cancel := l.b.patience(l.run)
		l.mu.Lock()
		busy := len(l.entries) > 0
		l.mu.Unlock()
		if busy {
			l.lookForForce(ctx)
			l.endForced(ctx)
		}
		if at := lock.BootTime(); at-reaped >= reapEvery {
			reaped = at
			_, _ = l.side.Exec(ctx, "reap", l.b.sql.reap) // there will be another time
		}
		cancel()
	}
}

// lookForForce tells of holds that somebody forces, and ends waiters.
func (l *lease) lookForForce(ctx context.Context) {
	left := make(map[lock.HoldID]time.Duration)
	at := lock.BootTime()
	if err := l.side.Query(ctx, "look for force", func(_ int, rows *sql.Rows) error {
		var id string
		var us int64
		if err := rows.Scan(&id, &us); err != nil {
			return err
		}
		left[lock.HoldID(id)] = max(0, time.Duration(us)*time.Microsecond)
		return nil
	}, l.b.sql.revoked, []byte(l.id)); err != nil {
		return // there will be another time
	}
	var events []lock.Event
	l.mu.Lock()
	for id, grace := range left {
		e := l.entries[id]
		switch {
		case e == nil:
		case !e.granted:
			e.at.end(lock.ErrNotHolder)
		case !e.told:
			e.told, e.until = true, at+grace
			events = append(events, lock.Event{Kind: lock.Revoked, Resource: e.q.Resource, ID: id, Until: e.until})
		default:
			e.until = min(e.until, at+grace)
		}
	}
	l.mu.Unlock()
	for _, ev := range events {
		l.tell(ev)
	}
}

// endForced ends holds whose grace is over. Whoever forced them does that too,
// if it is still there.
func (l *lease) endForced(ctx context.Context) {
	at := lock.BootTime()
	l.mu.Lock()
	var over []*entry
	for id, e := range l.entries {
		if e.granted && e.told && e.until <= at {
			delete(l.entries, id)
			over = append(over, e)
		}
	}
	l.mu.Unlock()
	for _, e := range over {
		e.link.close() // it has no request under way that would wait
		l.forget(ctx, e.q.ID)
	}
}

// linkEnded is called when a link has ended. It must not block.
func (l *lease) linkEnded(k *link) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k.gone = true
	for i, other := range l.idle {
		if other == k {
			l.idle = append(l.idle[:i:i], l.idle[i+1:]...)
			l.routines.Go(k.close)
			return
		}
	}
	for id, e := range l.entries {
		if e.granted && e.link == k {
			delete(l.entries, id)
			l.routines.Go(func() { l.vanished(e) })
			return
		}
	}
}

// vanished tells how a hold was lost whose link was ended.
func (l *lease) vanished(e *entry) {
	e.link.close()
	if e.told {
		return
	}
	ctx, cancel := l.b.patience(l.run)
	defer cancel()
	ev := lock.Event{Kind: lock.Vanished, Resource: e.q.Resource, ID: e.q.ID}
	if forced, err := l.wasForced(ctx, e.q.ID); err == nil && forced {
		ev.Kind = lock.Revoked
	}
	l.tell(ev)
	l.forget(ctx, e.q.ID)
}
