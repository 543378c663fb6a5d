package caslock

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about who notices that a lease is over, or a grace.
//
// The keeper is the sidecar that observes all leases. The key of that name says who it is,
// and gets another version with each of its rounds. The answers of heartbeats have it: so
// the others observe the keeper without a request of their own, and the first for whom it
// has stood still for the keeper's TTL takes its place. Who waits observes the leases that
// are in the way itself, so a holder that ends together with the keeper is noticed as soon.

const (
	// Leases are observed a few times a TTL of the shortest, but no more often than
	// every leastRound, nor, where they are many, than roundForEach a lease.
	leastRound, mostRound = 50 * time.Millisecond, 2 * time.Second
	roundForEach          = 2 * time.Millisecond
	// A keeper is not waited for longer than that, or than its TTL if it is shorter, but
	// for longer than a heartbeat takes to come round.
	keeperSilence = 3 * mostRound
	// inTheWay is how much of a line is looked at for who is in the way of a waiter, and
	// lookAtATime for how many resources at a time.
	inTheWay, lookAtATime = 4, 40
)

// observed is a lease as it was seen: the version of its beat, and when the read that
// showed it for the first time was over.
type observed struct {
	version int64
	since   time.Duration
	last    time.Duration // when it was looked at last
	ttl     time.Duration
}

// keeperSeen is the keeper as it was seen.
type keeperSeen struct {
	version int64 // 0: there is none
	lease   string
	since   time.Duration
	ttl     time.Duration
}

// due is a hold whose grace is counted.
type due struct {
	lease string
	leasekit.Ref
}

// sawKeeper notes what an answer tells of the keeper.
func (l *lease) sawKeeper(f Found) {
	kv, _ := f.one()
	info := decode[keeperInfo](kv)
	l.mu.Lock()
	if kv.Version != l.keeper.version || l.keeper.since == 0 {
		l.keeper = keeperSeen{version: kv.Version, lease: info.Lease, since: l.b.clock(), ttl: min(time.Duration(info.TTL)*time.Millisecond, max(keeperSilence, l.ttl/2))}
	}
	l.mu.Unlock()
	leasekit.Ring(l.look)
}

// isKeeper tells whether this lease is the keeper, and makes it so where there is none.
func (l *lease) isKeeper(ctx context.Context) bool {
	l.mu.Lock()
	k := l.keeper
	l.mu.Unlock()
	if k.lease != l.id && k.version != 0 && l.b.clock() < k.since+k.ttl {
		return false
	}
	return l.takeTurn(ctx, k)
}

// takeTurn begins a round as the keeper, if k is still what the key says.
func (l *lease) takeTurn(ctx context.Context, k keeperSeen) bool {
	r, err := l.b.do(ctx, "keeper", Txn{
		If:   []Cond{{Key: keeperKey, Version: k.version}, {Key: leaseKey(l.id), There: true}},
		Then: []Write{{Key: keeperKey, Value: encode(keeperInfo{Lease: l.id, TTL: l.ttl.Milliseconds()})}},
		Read: []Range{{Key: keeperKey}},
	})
	if err != nil {
		return false
	}
	l.sawKeeper(r.Reads[0])
	return r.Done
}

// resign has another lease be the keeper at once.
func (l *lease) resign(ctx context.Context) {
	l.mu.Lock()
	k := l.keeper
	l.mu.Unlock()
	if k.lease == l.id { // what fails ends with the TTL
		_, _ = l.b.do(ctx, "keeper", Txn{If: []Cond{{Key: keeperKey, Version: k.version}}, Then: []Write{{Key: keeperKey, Delete: true}}})
	}
}

// watch ends leases that are over, and is the keeper where it has to, until ctx ends.
func (l *lease) watch(ctx context.Context) {
	var nextRound, nextLook time.Duration
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.look:
		case <-t.C:
		}
		if l.b.clock() >= nextLook {
			nextLook = 0
			if pause, waits := l.lookAround(ctx); waits {
				nextLook = l.b.clock() + pause
			}
		}
		if l.b.clock() >= nextRound {
			nextRound = l.b.clock() + l.round(ctx)
		}
		next := nextRound
		if nextLook > 0 {
			next = min(next, nextLook)
		}
		t.Reset(max(leastRound/10, next-l.b.clock()))
	}
}

// round is one of the keeper's: it reads the beats of all leases, and which are over. pause
// is the time until the next one.
func (l *lease) round(ctx context.Context) (pause time.Duration) {
	if !l.isKeeper(ctx) {
		l.b.forgetUnseen()
		return min(l.ttl/4, mostRound)
	}
	shortest, leases := l.ttl, 0
	err := l.b.pages(ctx, "observe", beatPrefix, func(kvs []KV) error {
		for _, kv := range kvs {
			ttl := decode[leaseInfo](kv).ttl()
			shortest = min(shortest, ttl)
			leases++
			l.b.observe(ctx, kv)
		}
		return nil
	})
	if err != nil {
		return leastRound // nothing was seen, and time goes on
	}
	l.b.forgetUnseen()
	_ = l.b.pages(ctx, "observe", deadPrefix, func(kvs []KV) error { // what fails comes again
		for _, kv := range kvs {
			l.b.sweepSoon(strings.TrimPrefix(kv.Key, deadPrefix))
		}
		return nil
	})
	if more, err := l.b.reapRecords(ctx); err == nil && more { // or they would come faster than they go
		return leastRound
	}
	pause = min(max(shortest/4, leastRound, time.Duration(leases)*roundForEach), mostRound)
	return pause - rand.N(pause/8) //nolint:gosec // not a secret
}

// observe notes the beat of a lease that was read just now, and ends the lease when that has
// stood still for its TTL. That it is still the same is a condition of the transaction; so a
// lease that was renewed meanwhile is left alone. It tells whether the lease is over.
func (b *Backend) observe(ctx context.Context, kv KV) (over bool) {
	id, now := strings.TrimPrefix(kv.Key, beatPrefix), b.clock()
	b.mu.Lock()
	o, known := b.seen[id]
	if !known || o.version != kv.Version {
		o = observed{version: kv.Version, since: now, ttl: decode[leaseInfo](kv).ttl()}
	}
	o.last = now
	b.seen[id] = o
	b.mu.Unlock()
	if now < o.since+o.ttl {
		return false
	}
	r, err := b.do(ctx, "end", Txn{
		If:   []Cond{{Key: beatKey(id), Version: o.version}},
		Then: []Write{{Key: beatKey(id), Delete: true}, {Key: leaseKey(id), Delete: true}, {Key: deadKey(id)}},
	})
	if err != nil || !r.Done {
		return false
	}
	b.mu.Lock()
	delete(b.seen, id)
	b.mu.Unlock()
	b.sweepSoon(id)
	return true
}

// forgetUnseen forgets leases that nobody looks at any more.
func (b *Backend) forgetUnseen() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, o := range b.seen {
		if b.clock() > o.last+2*max(o.ttl, mostRound) {
			delete(b.seen, id)
		}
	}
}

// lookAround looks at who is in the way of those who wait, if any. pause is the time until it
// looks again.
func (l *lease) lookAround(ctx context.Context) (pause time.Duration, waits bool) {
	l.mu.Lock()
	names := make([]lock.Resource, 0, len(l.waiting))
	for _, name := range l.waiting {
		names = append(names, name)
	}
	l.mu.Unlock()
	slices.Sort(names)
	names = slices.Compact(names)
	pause = mostRound
	for chunk := range slices.Chunk(names, lookAtATime) {
		shortest, err := l.b.lookAt(ctx, chunk, l.id, l.dues.In)
		if err != nil {
			return leastRound, true
		}
		pause = min(pause, max(shortest/4, leastRound))
	}
	return pause, len(names) > 0
}

// lookAt observes the leases of who is in the way at some resources, ends what is over, and
// tells of graces that are counted. shortest is the least of their TTLs.
func (b *Backend) lookAt(ctx context.Context, names []lock.Resource, own string, counted func(due, time.Duration)) (shortest time.Duration, err error) {
	var read []Range
	for _, n := range names {
		read = append(read, all(lineOf(n), inTheWay))
	}
	r, err := b.do(ctx, "look", Txn{Read: read})
	if err != nil {
		return 0, err
	}
	var ahead []due
	for i, f := range r.Reads {
		for _, kv := range f.KVs {
			if p := decode[place](kv); p.Lease != own {
				ahead = append(ahead, due{p.Lease, leasekit.Ref{Resource: names[i], ID: lock.HoldID(p.ID)}})
			}
		}
	}
	shortest = lock.MaxTTL
	for chunk := range slices.Chunk(ahead, MaxParts/2) {
		read = read[:0]
		for _, d := range chunk {
			read = append(read, Range{Key: beatKey(d.lease)}, Range{Key: forcedKey(d.lease, d.Resource, string(d.ID))})
		}
		if r, err = b.do(ctx, "look", Txn{Read: read}); err != nil {
			return 0, err
		}
		for i, d := range chunk {
			kv, there := r.Reads[2*i].one()
			shortest = min(shortest, max(decode[leaseInfo](kv).ttl(), lock.MinTTL))
			if !there || b.observe(ctx, kv) {
				b.submit(d.Resource, &op{kind: opSweep, id: string(d.ID), lease: d.lease})
			}
			if kv, forcing := r.Reads[2*i+1].one(); forcing {
				if f := decode[forced](kv); f.Known > 0 {
					counted(d, f.known())
				}
			}
		}
	}
	return shortest, nil
}

// endForced ends a hold whose grace is over. The holder's sidecar does, and whoever waits;
// whoever forced the release, too.
func (l *lease) endForced(d due) {
	o := &op{kind: opEnd, id: string(d.ID), lease: d.lease}
	if l.b.submit(d.Resource, o); o.err != nil {
		l.dues.In(d, leastRound)
	}
}
