package shedlock

import (
	"database/sql"
	"strings"
	"time"

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
