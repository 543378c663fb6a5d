package rows

import (
	"context"
	"database/sql"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about what a lease does when the release of a hold is forced, or its
// link is ended.

// mark is a forced release as it stands in the tables.
type mark struct {
	id           lock.HoldID
	grace, known int64 // microseconds; known is negative where the lease has not said that it knows
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

// lookForForce tells of holds that somebody forces, and then writes that this
// sidecar knows: from then on others count the grace, too.
func (l *lease) lookForForce(ctx context.Context) {
	var marks []mark
	if err := l.side.Query(ctx, "look for force", func(_ int, rows *sql.Rows) error {
		var m mark
		err := rows.Scan(&m.id, &m.grace, &m.known)
		marks = append(marks, m)
		return err
	}, l.b.sql.revoked, []byte(l.id)); err != nil {
		return // there will be another time
	}
	for _, ev := range l.learn(marks) {
		l.tell(ev)
	}
	for _, m := range marks {
		if m.known < 0 || m.known > m.grace { // where it fails it is found again
			_, _ = l.side.Exec(ctx, "acknowledge", l.b.sql.known, m.grace, []byte(m.id), []byte(l.id), m.grace)
		}
	}
}

// learn takes the news of forced releases: waiters end at once, and the grace of
// holds counts from now. It gives what is news for the holders.
func (l *lease) learn(marks []mark) (news []lock.Event) {
	now := lock.BootTime()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range marks {
		e := l.entries[m.id]
		switch until := now + time.Duration(m.grace)*time.Microsecond; {
		case e == nil: // nobody relies on it any more
		case !e.granted:
			e.at.end(lock.ErrNotHolder)
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

// toldOver reports whether the holder knew that its hold would be over by now.
func (l *lease) toldOver(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.told && e.until <= lock.BootTime()
}

// report is the news that a heartbeat brings: the holds whose release is forced,
// and those that have ended since the last one.
func (l *lease) report() []lock.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.news
	l.news = nil
	for _, e := range l.entries {
		if e.granted && e.told {
			news = append(news, e.revocation())
		}
	}
	return news
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
			l.news = append(l.news, e.revocation()) // see vanished
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
	if l.toldOver(e) {
		l.mu.Lock()
		l.news = append(l.news, e.revocation()) // which the last heartbeat may not have told
		l.mu.Unlock()
		return
	}
	ctx, cancel := l.b.patience(l.run)
	defer cancel()
	ev := lock.Event{Kind: lock.Vanished, Resource: e.q.Resource, ID: e.q.ID}
	if forced, err := l.wasForced(ctx, e.q.ID); err == nil && forced {
		ev.Kind = lock.Revoked
	}
	l.mu.Lock()
	l.news = append(l.news, ev)
	l.mu.Unlock()
	l.tell(ev)
	l.forget(ctx, e.q.ID)
}
