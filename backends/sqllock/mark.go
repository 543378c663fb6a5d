package sqllock

import (
	"context"
	"time"
)

// This file is about a server that has taken over. It may lack the last grants of the
// one before, whose holders do not know that yet. So a mark in the tables says which
// server may grant, and where it names another than the one that answers nothing is
// granted, until every lease has either been renewed there, and its holds compared, or
// is over. Then the keeper changes the mark; who opens a lease while nobody is there does
// it too. Each counts that time on its own clock, from when it saw the change.

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
		b.mayGrant()
		return 0
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
