package sqllock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about a server that has taken over. It may lack the last grants of the
// one before, whose holders do not know that yet. So a mark in the tables says which
// server may grant, and where it names another than the one that answers nothing is
// granted, until every lease has either been renewed there, and its holds compared, or
// is over. Then the keeper changes the mark; who opens a lease while nobody is there does
// it too. Each counts that time on its own clock, from when it saw the change. With the mark stands when that was, by the clock of
// the server: the fences of those before it are of a time before that.
//
// Tables that are new have no mark, and who opens a lease there sets it at once: nobody has locks. But a sidecar that has had
// a lease before has seen tables go, with all that they knew, and waits as for another server.
//
// A server that grants again after another one did, such as an old primary, bears its own
// mark, and does not know. So whose heartbeats come from another server writes the name of
// that one in its place, before any of its requests follow.

// markSeen is a mark that names another server than the one that answers.
type markSeen struct {
	mark, server string
	since, last  time.Duration // when it was seen for the first time, and for the last time
}

// markSeenFor is for how long one that was seen stays the same if it is seen again. The keeper looks at least every mostRound, and who
// opens a lease every two seconds or so. Whoever was cut off for longer does not know whether another server has granted meanwhile.
const markSeenFor = 3 * mostRound

// trust has requests go to the server that answers the heartbeats: those of the lease
// that was opened last. One that is over may be answered late, by the server before. Where
// that lease was closed, those of another one count, also if they have moved before.
func (b *Backend) trust(l *lease, server string, stranger bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if (b.trusting == nil || b.trusting == l) && (stranger || b.answering != server) {
		b.moveTo(server)
	}
}

// moveTo has a server asked, and no other. b.mu is held.
func (b *Backend) moveTo(server string) {
	b.answering = server
	b.pool.Trust(server)
	b.rings.Trust(server)
	b.strangers.Add(1) // what is asked from now on, that server answers
}

// checkMark makes sure that the server on which a lease is to be opened may grant.
func (b *Backend) checkMark(ctx context.Context, c Conn, ttl time.Duration) error {
	res, err := c.Do(ctx, "schema", Statement{SQL: b.sql.mark}, Statement{SQL: b.sql.leases})
	if err != nil {
		return b.unavailable("check server", err)
	}
	longest := ttl
	for _, r := range res[1].Rows {
		longest = max(longest, time.Duration(r.Int(2))*time.Millisecond)
	}
	left, err := b.keepMark(ctx, c, res[0].Rows, longest)
	switch {
	case err != nil:
		return b.unavailable("check server", err)
	case left > 0:
		why := errKept
		if res[0].Rows[0].Text(0) == "" {
			why = errNewTables
		}
		return fmt.Errorf("%w; locks are granted again in %s: %w", why, left.Round(100*time.Millisecond), lock.ErrUnavailable)
	}
	return nil
}

var errNewTables = errors.New("the tables are new, and lack what those before them knew")

// keepMark takes note of the mark that a server has answered, and changes it there when it
// is time. It gives the time that is left; 0: the server may grant.
func (b *Backend) keepMark(ctx context.Context, c Conn, rows []Row, longest time.Duration) (left time.Duration, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	now := b.clock()
	seen := markSeen{mark: rows[0].Text(0), server: rows[0].Text(1), since: now, last: now}
	if seen.mark == seen.server {
		from := b.movedFrom(seen.server)
		if from == "" {
			b.mayGrant()
			return 0, nil
		}
		if _, err := c.Do(ctx, "keeper", b.doubt(from)); err != nil {
			return 0, err
		}
		seen.mark = from
	}
	grace := b.o.FailoverGrace
	if grace < 0 {
		grace = longest
	}
	b.mu.Lock()
	if b.marked.mark == seen.mark && b.marked.server == seen.server && now < b.marked.last+markSeenFor {
		seen.since = b.marked.since
	}
	b.marked = seen
	first := seen.mark == "" && b.answering == ""
	b.mu.Unlock()
	if left = seen.since + grace - b.clock(); left > 0 && !first {
		return left, nil
	}
	// A pooler may lead to yet another server by now, which has not waited.
	if _, err = c.Do(ctx, "keeper", Statement{SQL: b.sql.setMark, Args: []any{[]byte(seen.mark), []byte(seen.server)}}); err == nil {
		b.mayGrant()
	}
	return 0, err
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

// trusted is the server that grants count from, as the heartbeats have met it; "": there are
// no heartbeats.
func (b *Backend) trusted() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.answering
}

// notElsewhere is an error where a pooler leads to another server than that of the heartbeats. It may not know of what is
// asked for.
func (b *Backend) notElsewhere(server string) error {
	if trusted := b.trusted(); trusted != "" && server != trusted {
		return errOtherServer(server, trusted)
	}
	return nil
}

// doubt takes its own mark from a server.
func (b *Backend) doubt(from string) Statement {
	return Statement{SQL: b.sql.doubt, Args: []any{[]byte(from)}}
}
