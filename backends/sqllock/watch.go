package sqllock

import (
	"context"
	"maps"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
)

// This file is about who notices that a lease is over: leasekit.Observer, for which the tables
// are asked here. Which sidecar is the keeper stands in the table meta, with a number that
// changes with each of its rounds. The answers of heartbeats carry both.

// mostRound is the longest pause between two of the keeper's rounds.
const mostRound = 5 * time.Second

var _ leasekit.Observed = (*lease)(nil)

// keeperOf reads what an answer tells of the keeper: its round and id, and the beat and TTL of
// its lease.
func keeperOf(rows []Row) (k leasekit.KeeperRound) {
	for _, r := range rows {
		k = leasekit.KeeperRound{Round: r.Int(0), Lease: r.Text(1), Over: r.Null(2), TTL: millis(r.Int(3))}
	}
	return k
}

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// sawKeeper notes what an answer tells of the keeper. Its lease is observed, too.
func (l *lease) sawKeeper(rows []Row) {
	if len(rows) == 0 {
		return
	}
	k := keeperOf(rows)
	l.observer.SawKeeper(k)
	if k.Lease != string(l.id) && !k.Over {
		l.observer.Saw(leasekit.Beat{Lease: k.Lease, Number: rows[0].Int(2), TTL: k.TTL})
	}
}

// TakeOver implements leasekit.Observed.
func (l *lease) TakeOver(ctx context.Context, seen leasekit.KeeperRound) (k leasekit.KeeperRound, err error) {
	q := l.b.sql
	res, err := l.b.pool.Do(ctx, "keeper",
		Statement{SQL: q.takeOver, Args: []any{newBeat(), []byte(l.id), seen.Round, []byte(seen.Lease)}}, Statement{SQL: q.keeper})
	if err != nil {
		return k, err
	}
	return keeperOf(res[1].Rows), nil
}

// Round implements leasekit.Observed. Leases that are over are swept, and the mark of the server
// is kept.
func (l *lease) Round(ctx context.Context, _ leasekit.KeeperRound, saw func(leasekit.Beat)) (k leasekit.KeeperRound, err error) {
	q := l.b.sql
	c, err := l.b.pool.Conn(ctx) // one server for all of it
	if err != nil {
		return k, err
	}
	defer c.Close()
	k = leasekit.KeeperRound{Lease: string(l.id), TTL: l.ttl, Round: newBeat()}
	res, err := c.Do(ctx, "observe",
		Statement{SQL: q.round, Args: []any{k.Round, []byte(l.id)}, Count: true},
		Statement{SQL: q.leases}, Statement{SQL: q.mark})
	if err != nil {
		return k, err
	}
	if res[0].Affected == 0 {
		l.mu.Lock()
		maps.DeleteFunc(l.ended, func(_ string, o *overLease) bool { return !o.queued })
		l.mu.Unlock()
		if res, err = c.Do(ctx, "keeper", Statement{SQL: q.keeper}); err != nil {
			return k, err
		}
		return keeperOf(res[0].Rows), nil
	}
	now, longest := l.b.clock(), l.ttl
	if len(res[2].Rows) > 0 {
		l.roundAt(res[2].Rows[0].Text(1))
	}
	there := make(map[string]bool, len(res[1].Rows))
	for _, r := range res[1].Rows {
		b := leasekit.Beat{Lease: r.Text(0), Number: r.Int(1), TTL: millis(r.Int(2))}
		there[b.Lease] = true
		// Also of one that is over here: it may have been renewed at a server before, or was closed there, and the same sidecar has
		// opened another one since; see mark.go.
		longest = max(longest, b.TTL)
		if r.Bool(3) {
			l.sawOver(b.Lease, now)
		} else { // its own, too: what it has not renewed itself is over
			saw(b)
		}
	}
	l.mu.Lock()
	maps.DeleteFunc(l.ended, func(id string, _ *overLease) bool { return !there[id] })
	l.mu.Unlock()
	leasekit.Ring(l.sweeps)                           // when all were seen, so that they are swept together
	_, _ = l.b.keepMark(ctx, c, res[2].Rows, longest) // what fails is tried with the next round
	return k, nil
}

// roundAt notes which server has answered a round. What another one has said does not count here: a lease that was over there long ago
// may have ended here just now.
func (l *lease) roundAt(server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rounds != server {
		l.rounds = server
		clear(l.ended)
	}
}

// End implements leasekit.Observed.
func (l *lease) End(ctx context.Context, b leasekit.Beat) error {
	res, err := l.b.pool.Do(ctx, "end", Statement{SQL: l.b.sql.end, Args: []any{[]byte(b.Lease), b.Number}, Count: true})
	if err != nil || res[0].Affected == 0 {
		return err
	}
	l.b.log.add(event{what: "end", lease: b.Lease, note: l.sidecar})
	l.overdue(b.Lease, l.b.clock())
	leasekit.Ring(l.rang) // those in the way may be gone
	return nil
}

// overLease is a lease that is over, as far as its sweeping has come.
type overLease struct {
	since  time.Duration // when it was seen to be over for the first time
	queued bool          // it is to be swept
	clean  bool          // nothing was left of it when it was swept last
}

// overdue has a lease swept that was ended, now and then, until it is forgotten.
func (l *lease) overdue(id string, now time.Duration) {
	l.sawOver(id, now)
	leasekit.Ring(l.sweeps)
}

// sawOver notes that a lease is to be swept. Those of which something may be left come first,
// so that they do not wait for the many of which nothing is.
func (l *lease) sawOver(id string, now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.ended[id]
	if o == nil {
		o = &overLease{since: now}
		l.ended[id] = o
	}
	if !o.queued {
		o.queued = true
		if o.clean {
			l.again = append(l.again, id)
		} else {
			l.dirty = append(l.dirty, id)
		}
	}
}

// nextSweep takes the leases that are to be swept next: by turns one of which something may be left, and many of which nothing was.
// Of these the keeper hears with each of its rounds, for as long as lateRequest, and one sweep for all costs a trip. One
// whose holds an app has locked is there again with each round, too, and its sweep may last for longer than that.
func (l *lease) nextSweep() (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	take := func(q *[]string, most int) {
		for len(*q) > 0 && len(ids) < most {
			id := (*q)[0]
			*q = (*q)[1:]
			if o := l.ended[id]; o != nil && o.queued {
				o.queued = false
				ids = append(ids, id)
			}
		}
	}
	if l.many {
		take(&l.dirty, 1)
	}
	if l.many = len(ids) == 0; l.many {
		take(&l.again, sweepTogether)
	}
	if len(ids) == 0 {
		take(&l.dirty, 1)
	}
	return ids
}

// sweepNext sweeps what is next, and has the rest swept.
func (l *lease) sweepNext(ctx context.Context) {
	ids := l.nextSweep()
	if len(ids) == 0 {
		return
	}
	defer leasekit.Ring(l.sweeps)
	if len(ids) > 1 {
		switch left, err := l.b.anyOf(ctx, ids); {
		case err != nil: // they come again
		case left:
			l.sweepApart(ids)
		default:
			l.forgetLeases(ctx, ids)
		}
		return
	}
	found, err := l.b.sweep(ctx, ids[0])
	clean := err == nil && !found
	_, keeps := l.observer.Keeps()
	l.mu.Lock()
	if o := l.ended[ids[0]]; o != nil {
		if o.clean = clean; !keeps && !o.queued { // what is left of it may be in the way again, and is seen then
			delete(l.ended, ids[0])
		}
	}
	l.mu.Unlock()
	if clean {
		l.forgetLeases(ctx, ids)
	}
}

// sweepApart has each of some leases swept by itself: of one of them something is left.
func (l *lease) sweepApart(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if o := l.ended[id]; o != nil && !o.queued {
			o.queued = true
			l.dirty = append(l.dirty, id)
		}
	}
}

// endForced ends a hold whose grace is over. The holder's sidecar does, and whoever waits;
// whoever forced the release, too.
func (l *lease) endForced(r leasekit.Ref) {
	l.b.post(r.Resource, &op{kind: opEnd, id: string(r.ID)})
}

// chores does what may take a while, until ctx ends.
func (l *lease) chores(ctx context.Context) {
	r := reaper{l: l, more: make(chan struct{}, 1)}
	t := time.NewTicker(choresEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.sweeps:
			l.sweepNext(ctx)
		case <-r.more:
			_ = r.reapLeasts(ctx) // what fails comes again
		case <-t.C:
			if _, keeps := l.observer.Keeps(); keeps {
				r.step(ctx)
			}
		}
	}
}

// lateRequest is for how long a request of a lease that is over may still be carried
// out: longer than any statement and transaction lasts.
const lateRequest = time.Minute

// forgetLeases deletes the rows of leases that are over, of which nothing is left, and
// long enough ago that nothing can come after it, on the server on which that is so.
func (l *lease) forgetLeases(ctx context.Context, ids []string) {
	var batch []Statement
	l.mu.Lock()
	for _, id := range ids {
		if o := l.ended[id]; o != nil && l.b.clock() >= o.since+lateRequest {
			batch = append(batch, Statement{SQL: l.b.sql.forgetLease, Args: []any{[]byte(id), []byte(l.rounds)}})
		}
	}
	l.mu.Unlock()
	for _, s := range batch { // each by itself, for an app may have locked a row
		_, _ = l.b.pool.Do(ctx, "end", s)
	}
}
