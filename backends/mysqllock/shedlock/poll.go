package shedlock

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// The poll asks often for waiters that came lately, and less often when even the
// last of them waits for long: every tenth of its time, from pollSoon to pollLate.
const (
	pollSoon = 2 * time.Millisecond
	pollLate = 50 * time.Millisecond
	// pollMany bounds how many locks one statement asks for.
	pollMany = 200
)

// look makes the poll look at once.
func (l *lease) look() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// poll wakes waiters whose lock is free and whose turn it is, until the lease is
// over.
func (l *lease) poll() {
	var newest int64 // place of the waiter that came last
	came := lock.BootTime()
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		heads, last := l.heads()
		if last > newest {
			newest, came = last, lock.BootTime()
		}
		if len(heads) == 0 {
			t.Stop()
		} else {
			l.pollOnce(heads)
			t.Reset(min(max((lock.BootTime()-came)/10, pollSoon), pollLate))
		}
		select {
		case <-t.C:
		case <-l.kick:
		case <-l.run.Done():
			return
		}
	}
}

// heads gives the first of the lease's waiters for each lock, and the place of
// the last waiter of all.
func (l *lease) heads() (heads []*entry, last int64) {
	first := make(map[lock.Resource]*entry)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.entries {
		if e.seq == 0 || e.out {
			continue
		}
		last = max(last, e.seq)
		if f := first[e.q.Resource]; f == nil || e.seq < f.seq {
			first[e.q.Resource] = e
		}
	}
	for _, e := range first {
		heads = append(heads, e)
	}
	return heads, last
}

// pollOnce asks for all of them. When the store does not answer they go on
// waiting: each looks for itself now and then, and tells its caller.
func (l *lease) pollOnce(heads []*entry) {
	for len(heads) > 0 {
		some := heads[:min(len(heads), pollMany)]
		heads = heads[len(some):]
		queries := make([]string, len(some))
		var args []any
		for i, e := range some {
			name := string(e.q.Resource)
			l.mu.Lock()
			seq := e.seq
			l.mu.Unlock()
			queries[i] = l.b.sql.poll
			args = append(args, i, name, []byte(name), []byte(name), seq)
		}
		ctx, cancel := l.b.patience(l.run)
		_ = l.looks.Query(ctx, "poll", func(_ int, rows *sql.Rows) error {
			var i int
			if err := rows.Scan(&i); err != nil {
				return err
			}
			l.mu.Lock()
			some[i].wake()
			l.mu.Unlock()
			return nil
		}, strings.Join(queries, " UNION ALL "), args...)
		cancel()
	}
}

// attend looks for holds and waiters that somebody forces, ends holds whose grace
// is over, and clears away what ended leases left, until the lease is over.
func (l *lease) attend() {
	tick := time.NewTicker(newsPoll)
	defer tick.Stop()
	reaped := -reapEvery
	for {
		select {
		case <-l.run.Done():
			return
		case <-l.lost:
			return
		case <-tick.C:
		}
		ctx, cancel := l.b.patience(l.run)
		l.mu.Lock()
		busy := len(l.entries) > 0
		l.mu.Unlock()
		if busy {
			l.lookForForce(ctx)
		}
		if at := lock.BootTime(); at-reaped >= reapEvery {
			reaped = at
			_, _ = l.looks.Exec(ctx, "reap", l.b.sql.reap) // there will be another time
		}
		cancel()
	}
}

// readNews gives the forced holds with what is left of the grace, and the waiters
// that were forced out with a negative time.
func (l *lease) readNews(ctx context.Context, pool *mydb.Pool) (map[lock.HoldID]time.Duration, error) {
	news := make(map[lock.HoldID]time.Duration)
	err := pool.Query(ctx, "look for force", func(_ int, rows *sql.Rows) error {
		var id string
		var us int64
		err := rows.Scan(&id, &us)
		news[lock.HoldID(id)] = time.Duration(us) * time.Microsecond
		return err
	}, l.b.sql.news, []byte(l.id), []byte(l.id))
	return news, err
}

func (l *lease) lookForForce(ctx context.Context) {
	at := lock.BootTime()
	news, err := l.readNews(ctx, l.looks)
	if err != nil {
		return // there will be another time
	}
	var events []lock.Event
	var over []*entry
	l.mu.Lock()
	for id, left := range news {
		e := l.entries[id]
		switch {
		case e == nil || e.out:
		case left < 0:
			if !e.settled {
				e.out = true
				e.wake()
			}
		case !e.settled: // Acquire has not returned yet: it will be told when it has
		case !e.told:
			e.told, e.until = true, at+left
			events = append(events, lock.Event{Kind: lock.Revoked, Resource: e.q.Resource, ID: id, Until: e.until})
		default:
			e.until = min(e.until, at+left)
		}
	}
	for id, e := range l.entries {
		if e.told && e.until <= at {
			delete(l.entries, id)
			over = append(over, e)
		}
	}
	l.mu.Unlock()
	for _, ev := range events {
		l.tell(ev)
	}
	for _, e := range over { // whoever forced it does that too, if it is still there
		_, _ = l.release(ctx, e.q.Resource, e.q.ID)
	}
}
