package sqllock

import (
	"context"
	"encoding/hex"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about requests that stand for several apps of a sidecar, which has to
// know when a request of another lease stands behind them.
//
// Whoever puts a waiter into the queue reads on the way whether who is in front has a
// cohort, notes in a hold that it is wanted, and rings the bell of that lease, which then
// looks for its holds that are wanted, and for all who stand behind something of it. So does
// each of its heartbeats. The note stays when the waiter has left: so a try, too, gets a hold
// that nobody has. Leases without a cohort note, ring, look and send nothing for that.

// What ends the owner of a request that has a cohort. Of a hold it is wanted as soon as a
// request of another lease has stood behind it.
const forSeveral, wanted = "\x00c", "\x00b"

// What severalText gives.
const (
	hasCohort = 1
	isWanted  = 2
)

// severalText tells whether a column with an owner ends so.
func (q *statements) severalText(column string) string {
	end := strings.NewReplacer("{c}", q.bytes(forSeveral), "{w}", q.bytes(wanted), "{end}", "SUBSTRING("+column+", LENGTH("+column+")-1)")
	return end.Replace("CASE WHEN {end}={c} THEN 1 WHEN {end}={w} THEN 2 ELSE 0 END")
}

// wantedText gives a column with the owner of a cohort, as it is when it is wanted.
func (q *statements) wantedText(column string) string {
	return q.w.Join("SUBSTRING("+column+", 1, LENGTH("+column+")-2)", q.bytes(wanted))
}

// describedText puts another owner into such a column.
func (q *statements) describedText(column string) string {
	return q.w.Join("?", "SUBSTRING("+column+", LENGTH("+column+")-1)")
}

// bytes is a literal.
func (q *statements) bytes(text string) string {
	return strings.ReplaceAll(q.w.Unhex, "?", "'"+hex.EncodeToString([]byte(text))+"'")
}

// cutSeveral gives an owner, and whether it is that of a cohort.
func cutSeveral(text string) (owner string, several bool) {
	if owner, several = strings.CutSuffix(text, forSeveral); !several {
		owner, several = strings.CutSuffix(text, wanted)
	}
	return owner, several
}

const (
	// behindAtATime bounds what a lease is told at a time of who stands behind it.
	behindAtATime = 1000
	// A lease with many entries looks for who stands behind them no more often than
	// that for each.
	behindForEach = 20 * time.Microsecond
)

// standsForSeveral notes in a request that it has a cohort.
func (l *lease) standsForSeveral(o *op) {
	o.owner += forSeveral
	o.several = true
	l.mu.Lock()
	l.several = true
	l.mu.Unlock()
}

// askBehind asks who stands behind something of the lease, if any of it may have a cohort.
func (l *lease) askBehind() []Statement {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.several {
		return nil
	}
	id := []byte(l.id)
	return []Statement{{SQL: l.b.sql.behind, Args: []any{id, id, id, id}}}
}

// behind takes what a request of another lease stands behind.
func (l *lease) behind(rows []Row) {
	for _, r := range rows {
		l.contended(leasekit.Ref{Resource: lock.Resource(r.Text(0)), ID: lock.HoldID(r.Text(1))})
	}
}

// contended tells that a request of another lease stands behind one of the lease.
func (l *lease) contended(r leasekit.Ref) {
	l.heard(leasekit.Push{Kind: leasekit.Contended, Ref: r}, 0, 0)
}

// has notes how many entries the lease has.
func (l *lease) has(entries int) {
	l.mu.Lock()
	l.entries = entries
	l.mu.Unlock()
}

// behindPause is the least time between two looks for who stands behind the lease.
func (l *lease) behindPause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Duration(l.entries) * behindForEach
}

// Deaf implements leasekit.Deaf. Where the lease has no bell, others would wait for what
// it has parked.
func (l *lease) Deaf() bool { return l.deaf.Load() }

// Guards implements leasekit.Guarder.
func (l *lease) Guards(q lock.Request) bool { return l.b.guards(q.Guard) }

// Describe implements leasekit.Teller.
func (l *lease) Describe(ctx context.Context, r leasekit.Ref, owner string) error {
	q, args := l.b.sql, []any{[]byte(owner), []byte(r.Resource), []byte(r.ID), []byte(l.id)}
	res, err := l.b.pool.Do(ctx, "describe",
		Statement{SQL: q.describeX, Args: args, Count: true}, Statement{SQL: q.describeS, Args: args, Count: true})
	switch {
	case err != nil:
		return l.b.unavailable("describe", err)
	case res[0].Affected+res[1].Affected == 0:
		return lock.ErrNotHolder
	}
	return nil
}

// contend notes that a new waiter stands behind who came last, or behind the holders
// where nobody else waits. Who is so far back that nobody has read him hears of it with
// his next heartbeat.
func (s *state) contend(e *entry) {
	if s.rest != nil {
		return
	}
	var last *entry
	for w := range s.q.Waiters() {
		if w != e {
			last = w
		}
	}
	if last != nil {
		s.stands(e, last)
		return
	}
	for h := range s.q.Holders() {
		s.stands(e, h)
		if h.Value.place != onRow && h != s.x && !isPermit(h) {
			s.crowdOf = e.Value.lease // readers are not known one by one
		}
	}
}

func (s *state) stands(e, front *entry) {
	if m := front.Value; m.several && m.lease != e.Value.lease {
		s.contended = append(s.contended, contended{m.lease, front.ID})
		if front == s.x && !m.wanted {
			s.wantX, front.Value.wanted = string(front.ID), true
		}
	}
}

// contended is a request of a lease, behind which somebody stands.
type contended struct {
	lease string
	id    lock.HoldID
}

// readers are those who share a resource, have cohorts and are not wanted, as the statement of
// that name gives them, in front of who has made it necessary to know. It gives their ids.
func (s *state) readers(rows []Row) (ids [][]byte) {
	for _, r := range rows {
		if lease := r.Text(1); lease != s.crowdOf {
			s.contended = append(s.contended, contended{lease, lock.HoldID(r.Text(0))})
			ids = append(ids, []byte(r.Text(0)))
		}
	}
	return ids
}
