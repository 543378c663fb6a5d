package sqllock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
)

// This file is about who notices that a lease is over.
//
// The keeper is the sidecar that observes all leases. Which one that is stands in the
// table meta, with a number that changes with each of its rounds. The answers of
// heartbeats carry both: so the others observe the keeper without a request of their own,
// and the first that has seen no new number for the keeper's TTL, or its own (keeperSilence
// at least) where that is shorter, takes its place. Who waits for a resource observes the
// leases that are in the way itself, so even where a holder ends together with the keeper
// the time until the next grant is the same.

const (
	// Leases are observed a few times a TTL of the shortest, but no more often
	// than every leastRound, nor, where they are many, than roundForEach a lease.
	leastRound, mostRound = 50 * time.Millisecond, 5 * time.Second
	roundForEach          = 2 * time.Millisecond
	// A keeper is not waited for longer than that, or than the own TTL if it is longer,
	// whatever the keeper's TTL is.
	keeperSilence = 3 * mostRound
)

// observed is a lease as it was seen: the beat, and when the read that showed
// it for the first time was over.
type observed struct {
	beat  int64
	since time.Duration
	ttl   time.Duration
}

// keeperSeen is the keeper as it was seen.
type keeperSeen struct {
	round int64
	id    string
	alive bool
	since time.Duration // when this round was seen for the first time
	ttl   time.Duration // for which it may be silent
}

// sawKeeper notes what an answer tells of the keeper: its round and id, and the beat
// and TTL of its lease.
func (l *lease) sawKeeper(rows []Row) {
	if len(rows) == 0 {
		return
	}
	r, now := rows[0], l.b.clock()
	k := keeperSeen{round: r.Int(0), id: r.Text(1), alive: !r.Null(2), since: now, ttl: min(time.Duration(r.Int(3))*time.Millisecond, max(keeperSilence, l.ttl))}
	l.mu.Lock()
	if k.id == string(l.id) && l.keeper.id == k.id { // it knows better
		l.mu.Unlock()
		return
	}
	if k.round == l.keeper.round && k.id == l.keeper.id {
		k.since = l.keeper.since
	}
	l.keeper = k
	l.mu.Unlock()
	if k.alive && k.id != string(l.id) {
		l.observe(k.id, r.Int(2), r.Int(3))
	}
	if k.id != string(l.id) && (!k.alive || now >= k.since+k.ttl) {
		leasekit.Ring(l.look)
	}
}

// observe notes the beat of a lease, that was read just now.
func (l *lease) observe(id string, beat, ttlMillis int64) {
	now := l.b.clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if o, known := l.seen[id]; !known || o.beat != beat {
		l.seen[id] = observed{beat: beat, since: now, ttl: time.Duration(ttlMillis) * time.Millisecond}
		if !known {
			leasekit.Ring(l.look)
		}
	}
}

// watch ends leases that are over, and is the keeper where it has to, until ctx ends.
func (l *lease) watch(ctx context.Context) {
	var nextRound time.Duration
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.look:
		case <-t.C:
		}
		next := l.endDue(ctx)
		if l.isKeeper(ctx) {
			if l.b.clock() >= nextRound {
				nextRound = l.b.clock() + l.round(ctx)
			}
			next = min(next, nextRound)
		} else {
			nextRound = 0
		}
		t.Reset(max(0, next-l.b.clock()))
	}
}

// isKeeper tells whether this lease is the keeper, and makes it so where there is none.
func (l *lease) isKeeper(ctx context.Context) bool {
	l.mu.Lock()
	k := l.keeper
	l.mu.Unlock()
	switch {
	case k.id == string(l.id):
		return true
	case k.alive && l.b.clock() < k.since+k.ttl:
		return false
	}
	mine := keeperSeen{round: newBeat(), id: string(l.id), alive: true, ttl: l.ttl}
	res, err := l.b.pool.Do(ctx, "keeper", Statement{
		SQL: l.b.sql.takeOver, Args: []any{mine.round, []byte(mine.id), k.round, []byte(k.id)}, Count: true,
	})
	if err != nil || res[0].Affected == 0 { // the next heartbeat tells who is
		return false
	}
	mine.since = l.b.clock()
	l.mu.Lock()
	l.keeper = mine
	l.mu.Unlock()
	return true
}

// round is one of the keeper's: it reads the beats of all leases. pause is the time
// until the next one.
func (l *lease) round(ctx context.Context) (pause time.Duration) {
	q := l.b.sql
	round := newBeat()
	c, err := l.b.pool.Conn(ctx) // one server for all of it
	if err != nil {
		return leastRound
	}
	defer c.Close()
	res, err := c.Do(ctx, "observe",
		Statement{SQL: q.round, Args: []any{round, []byte(l.id)}, Count: true},
		Statement{SQL: q.leases}, Statement{SQL: q.mark})
	if err != nil {
		return leastRound // nothing was seen, and time goes on
	}
	now := l.b.clock()
	l.mu.Lock()
	if res[0].Affected == 0 {
		l.keeper = keeperSeen{id: "somebody", alive: true, since: now, ttl: l.ttl} // the next heartbeat tells who
		l.mu.Unlock()
		return l.ttl
	}
	l.keeper.round, l.keeper.since = round, now
	l.mu.Unlock()
	shortest, longest, others := l.ttl, l.ttl, 0
	there := make(map[string]bool, len(res[1].Rows))
	for _, r := range res[1].Rows {
		id, ttl := r.Text(0), time.Duration(r.Int(2))*time.Millisecond
		there[id] = true
		switch {
		case r.Bool(3):
			l.overdue(id, now)
		default: // its own, too: what it has not renewed itself is over
			if id != string(l.id) {
				others++
			}
			shortest, longest = min(shortest, ttl), max(longest, ttl)
			l.observe(id, r.Int(1), r.Int(2))
		}
	}
	l.forgetGone(there)
	_, _ = l.b.keepMark(ctx, c, res[2].Rows, longest) // what fails is tried with the next round
	pause = min(max(shortest/4, leastRound, time.Duration(others)*roundForEach), mostRound)
	if others == 0 {
		pause = min(l.ttl/2, mostRound)
	}
	return pause - rand.N(pause/8) //nolint:gosec // not a secret
}

// forgetGone forgets what was seen of leases that are not there any more.
func (l *lease) forgetGone(there map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.seen {
		if !there[id] {
			delete(l.seen, id)
		}
	}
	for id := range l.ended {
		if !there[id] {
			delete(l.ended, id)
		}
	}
}

// overLease is a lease that is over, as far as its sweeping has come.
type overLease struct {
	since  time.Duration // when it was seen to be over for the first time
	queued bool          // it is to be swept
	clean  bool          // nothing was left of it when it was swept last
}

// overdue has a lease swept that was ended, now and then, until it is forgotten. Those of
// which something may be left come first, so that they do not wait for the many of which
// nothing is.
func (l *lease) overdue(id string, now time.Duration) {
	l.mu.Lock()
	delete(l.seen, id)
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
	l.mu.Unlock()
	leasekit.Ring(l.sweeps)
}

// nextSweep takes the lease that is to be swept next; "": there is none.
func (l *lease) nextSweep() (id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range []*[]string{&l.dirty, &l.again} {
		for len(*q) > 0 {
			id, *q = (*q)[0], (*q)[1:]
			if o := l.ended[id]; o != nil && o.queued {
				o.queued = false
				return id
			}
		}
	}
	return ""
}

// sweepNext sweeps one lease, and has the next one swept.
func (l *lease) sweepNext(ctx context.Context) {
	id := l.nextSweep()
	if id == "" {
		return
	}
	defer leasekit.Ring(l.sweeps)
	found, err := l.b.sweep(ctx, id)
	clean := err == nil && !found
	l.mu.Lock()
	if o := l.ended[id]; o != nil {
		o.clean = clean
	}
	l.mu.Unlock()
	if clean {
		l.forgetLease(ctx, id)
	}
}

// endDue ends the leases whose beat has not changed for their TTL, and says when
// the next one is due. That the beat is still the same is checked by the statement,
// so of several observers one succeeds, and a lease that was renewed meanwhile is
// left alone.
func (l *lease) endDue(ctx context.Context) (next time.Duration) {
	next = l.b.clock() + mostRound
	l.mu.Lock()
	due := make(map[string]observed)
	for id, o := range l.seen {
		if at := o.since + o.ttl; at <= l.b.clock() {
			due[id] = o
		} else {
			next = min(next, at)
		}
	}
	l.mu.Unlock()
	for id, o := range due {
		res, err := l.b.pool.Do(ctx, "end", Statement{SQL: l.b.sql.end, Args: []any{[]byte(id), o.beat}, Count: true})
		if err != nil {
			next = min(next, l.b.clock()+leastRound)
			continue
		}
		l.mu.Lock()
		delete(l.seen, id) // it is read again if it lives
		l.mu.Unlock()
		if res[0].Affected > 0 {
			l.b.log.add(event{what: "end", lease: id, note: l.sidecar})
			l.overdue(id, l.b.clock())
			leasekit.Ring(l.rang) // those in the way may be gone
		}
	}
	return next
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
			l.mu.Lock()
			mine := l.keeper.id == string(l.id)
			l.mu.Unlock()
			if mine {
				r.step(ctx)
			}
		}
	}
}

// lateRequest is for how long a request of a lease that is over may still be carried
// out: longer than any statement and transaction lasts.
const lateRequest = time.Minute

// forgetLease deletes the row of a lease that is over, of which nothing is left, and
// long enough ago that nothing can come after it.
func (l *lease) forgetLease(ctx context.Context, id string) {
	l.mu.Lock()
	o := l.ended[id]
	over := o != nil && l.b.clock() >= o.since+lateRequest
	l.mu.Unlock()
	if over {
		_, _ = l.b.pool.Do(ctx, "end", Statement{SQL: l.b.sql.forgetLease, Args: []any{[]byte(id)}})
	}
}
