package sqllock

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about a server that has taken over. It may lack the last grants of the
// one before, whose holders do not know that yet. So a mark in the tables says which
// server may grant, and where it names another than the one that answers nothing is
// granted, until every lease has either been renewed there, and its holds compared, or
// is over. Then the keeper changes the mark; who opens a lease while nobody is there does
// it too. Each counts that time on its own clock, from when it saw the change.
//
// A server that grants again after another one did, such as an old primary, bears its own
// mark, and does not know. So whose heartbeats come from another server writes the name of
// that one in its place, before any of its requests follow.

// markSeen is a mark that names another server than the one that answers.
type markSeen struct {
	mark, server string
	since        time.Duration
}

// keepMark takes note of the mark, and changes it when it is time. It gives the time
// that is left; 0: the server may grant, or soon.
func (b *Backend) keepMark(ctx context.Context, rows []Row, longest time.Duration) (left time.Duration) {
	if len(rows) == 0 {
		return 0
	}
	seen := markSeen{mark: rows[0].Text(0), server: rows[0].Text(1), since: b.clock()}
	if seen.mark == seen.server {
		from := b.movedFrom(seen.server)
		if from == "" {
			b.mayGrant()
			return 0
		}
		if _, err := b.pool.Do(ctx, "keeper", b.doubt(from)); err != nil {
			return lock.MinTTL // nothing is known
		}
		seen.mark = from
	}
	grace := b.o.FailoverGrace
	if grace < 0 {
		grace = longest
	}
	b.mu.Lock()
	if b.marked.mark == seen.mark && b.marked.server == seen.server {
		seen.since = b.marked.since
	}
	b.marked = seen
	b.mu.Unlock()
	if left = seen.since + grace - b.clock(); left > 0 && seen.mark != "" { // "": the tables are new
		return left
	}
	_, _ = b.pool.Do(ctx, "keeper", Statement{SQL: b.sql.setMark, Args: []any{[]byte(seen.mark)}})
	return 0
}

// mayGrant notes that a server has answered that may grant. Whichever takes over after it
// has the whole grace before it, also one that was seen before.
func (b *Backend) mayGrant() {
	b.mu.Lock()
	b.marked = markSeen{}
	b.mu.Unlock()
}

// movedFrom is the server that has answered before, where another one answers now that may
// lack what that one has granted; "": there is none.
func (b *Backend) movedFrom(server string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.o.FailoverGrace == 0 || b.answering == server {
		return ""
	}
	return b.answering
}

// doubt takes its own mark from a server.
func (b *Backend) doubt(from string) Statement {
	return Statement{SQL: b.sql.doubt, Args: []any{[]byte(from)}}
}
