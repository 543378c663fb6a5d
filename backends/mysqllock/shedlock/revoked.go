package shedlock

import (
	"context"
	"database/sql"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about what a lease does when the release of a hold is forced.

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
			l.endForced(ctx)
		}
		if at := lock.BootTime(); at-reaped >= reapEvery {
			reaped = at
			_, _ = l.looks.Exec(ctx, "reap", l.b.sql.reap) // there will be another time
		}
		cancel()
	}
}

// mark is a forced release as it stands in the tables.
type mark struct {
	id           lock.HoldID
	grace, known int64 // microseconds; grace is negative for a waiter, known where the lease has not said that it knows
}

// readNews gives the forced holds, and the waiters that were forced out.
func (l *lease) readNews(ctx context.Context, pool *mydb.Pool) (marks []mark, err error) {
	err = pool.Query(ctx, "look for force", func(_ int, rows *sql.Rows) error {
		var m mark
		err := rows.Scan(&m.id, &m.grace, &m.known)
		marks = append(marks, m)
		return err
	}, l.b.sql.news, []byte(l.id), []byte(l.id))
	return marks, err
}

// lookForForce tells of holds that somebody forces, and then writes that this
// sidecar knows: from then on others count the grace, too.
func (l *lease) lookForForce(ctx context.Context) {
	marks, err := l.readNews(ctx, l.looks)
	if err != nil {
		return // there will be another time
	}
	for _, ev := range l.learn(marks) {
		l.tell(ev)
	}
	for _, m := range marks {
		if m.grace > 0 && (m.known < 0 || m.known > m.grace) { // where it fails it is found again
			_, _ = l.looks.Exec(ctx, "acknowledge", l.b.sql.known, m.grace, []byte(m.id), []byte(l.id), m.grace)
		}
	}
}

// learn takes the news of forced releases: requests without a grant end at once, and
// the grace of holds counts from now. It gives what is news for the holders.
func (l *lease) learn(marks []mark) (news []lock.Event) {
	now := lock.BootTime()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range marks {
		e := l.entries[m.id]
		switch until := now + time.Duration(m.grace)*time.Microsecond; {
		case e == nil || e.out: // nobody relies on it any more
		case !e.settled: // it waits, or it was granted and nobody knows: its Acquire takes it back
			e.out = true
			e.wake()
		case m.grace < 0: // it was granted before
		case m.grace == 0 && (!e.told || e.until != 0):
			e.told, e.until = true, 0
			news = append(news, e.revocation())
		case m.grace > 0 && (!e.told || until < e.until):
			e.told, e.until = true, until
			news = append(news, e.revocation())
		}
	}
	return news
}

// revocation tells of the forced release. The lease is locked.
func (e *entry) revocation() lock.Event {
	return lock.Event{Kind: lock.Revoked, Resource: e.q.Resource, ID: e.q.ID, Until: e.until}
}

// report is the news that a heartbeat brings: the holds whose release is forced,
// and those that have ended since the last one.
func (l *lease) report() []lock.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.news
	l.news = nil
	for _, e := range l.entries {
		if e.settled && e.told && !e.out {
			news = append(news, e.revocation())
		}
	}
	return news
}

// endForced ends holds whose grace is over. Whoever forced them does that too, if
// it is still there.
func (l *lease) endForced(ctx context.Context) {
	at := lock.BootTime()
	l.mu.Lock()
	var over []*entry
	for id, e := range l.entries {
		if e.settled && e.told && e.until <= at {
			delete(l.entries, id)
			over = append(over, e)
			l.news = append(l.news, e.revocation()) // which the last heartbeat may not have told
		}
	}
	l.mu.Unlock()
	for _, e := range over {
		_, _ = l.release(ctx, e.q.Resource, e.q.ID)
	}
}
