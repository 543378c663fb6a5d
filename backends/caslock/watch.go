package caslock

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about who notices that a lease is over, or a grace: leasekit.Observer, for
// which the store is asked here. The key of the keeper says who that is, and gets another
// version with each of its rounds.

const (
	// mostRound is the longest pause between two of the keeper's rounds, and leastRound the
	// shortest between two tries.
	mostRound, leastRound = 2 * time.Second, leasekit.LeastRound
	// inTheWay is how much of a line is looked at for who is in the way of a waiter, and
	// lookAtATime for how many resources at a time.
	inTheWay, lookAtATime = 4, 40
)

var _ leasekit.Observed = (*lease)(nil)

// due is a hold whose grace is counted.
type due struct {
	lease string
	leasekit.Ref
}

// keeperOf reads the key of the keeper.
func keeperOf(f Found) leasekit.KeeperRound {
	kv, _ := f.one()
	info := decode[keeperInfo](kv)
	return leasekit.KeeperRound{Lease: info.Lease, TTL: time.Duration(info.TTL) * time.Millisecond, Round: kv.Version}
}

// beatOf reads the beat of a lease.
func beatOf(kv KV) leasekit.Beat {
	return leasekit.Beat{Lease: strings.TrimPrefix(kv.Key, beatPrefix), TTL: decode[leaseInfo](kv).ttl(), Number: kv.Version}
}

// TakeOver implements leasekit.Observed.
func (l *lease) TakeOver(ctx context.Context, seen leasekit.KeeperRound) (leasekit.KeeperRound, error) {
	k, _, err := l.takeTurn(ctx, seen)
	return k, err
}

// takeTurn begins a round of this lease as the keeper, if the key is as it was seen.
func (l *lease) takeTurn(ctx context.Context, seen leasekit.KeeperRound) (k leasekit.KeeperRound, done bool, err error) {
	r, err := l.b.do(ctx, "keeper", Txn{
		If:   []Cond{{Key: keeperKey, Version: seen.Round}, {Key: leaseKey(l.id), There: true}},
		Then: []Write{{Key: keeperKey, Value: encode(keeperInfo{Lease: l.id, TTL: l.ttl.Milliseconds()})}},
		Read: []Range{{Key: keeperKey}},
	})
	if err != nil {
		return k, false, err
	}
	return keeperOf(r.Reads[0]), r.Done, nil
}

// Round implements leasekit.Observed.
func (l *lease) Round(ctx context.Context, seen leasekit.KeeperRound, saw func(leasekit.Beat)) (leasekit.KeeperRound, error) {
	k, done, err := l.takeTurn(ctx, seen)
	if err == nil && !done && k.Lease == l.id { // its last turn had no answer
		k, done, err = l.takeTurn(ctx, k)
	}
	switch {
	case err != nil || k.Lease != l.id:
		return k, err
	case !done:
		return k, lock.ErrLeaseLost
	}
	return k, l.b.pages(ctx, "observe", beatPrefix, func(kvs []KV) error {
		for _, kv := range kvs {
			if kv.Key != beatKey(keptLease) {
				saw(beatOf(kv))
			}
		}
		return nil
	})
}

// End implements leasekit.Observed.
func (l *lease) End(ctx context.Context, b leasekit.Beat) error {
	r, err := l.b.do(ctx, "end", Txn{
		If:   []Cond{{Key: beatKey(b.Lease), Version: b.Number}},
		Then: []Write{{Key: beatKey(b.Lease), Delete: true}, {Key: leaseKey(b.Lease), Delete: true}, {Key: deadKey(b.Lease)}},
	})
	if err == nil && r.Done {
		l.b.sweepSoon(b.Lease)
		leasekit.Ring(l.over) // what is in the way of waiters comes first
	}
	return err
}

// lastSteps bounds what a keeper counts at its end.
const lastSteps = 5

// resign has another lease be the keeper at once.
func (l *lease) resign(ctx context.Context) {
	if k, keeps := l.observer.Keeps(); keeps { // what fails ends with the TTL
		for range lastSteps { // who comes next may come in an hour
			if more, err := l.b.endDue(ctx); err != nil {
				return
			} else if !more {
				break
			}
		}
		_, _ = l.b.do(ctx, "keeper", Txn{If: []Cond{{Key: keeperKey, Version: k.Round}}, Then: []Write{{Key: keeperKey, Delete: true}}})
	}
}

// chores clears away what is over, where the lease is the keeper, until ctx ends. What fails
// comes again.
func (l *lease) chores(ctx context.Context) {
	for pause := mostRound; leasekit.Sleep(ctx, pause); {
		pause = mostRound
		if _, keeps := l.observer.Keeps(); !keeps {
			continue
		}
		_ = l.b.pages(ctx, "observe", deadPrefix, func(kvs []KV) error {
			for _, kv := range kvs {
				l.b.sweepSoon(strings.TrimPrefix(kv.Key, deadPrefix))
			}
			return nil
		})
		for _, reap := range []func(context.Context) (bool, error){l.b.endDue, l.b.reapRecords} {
			if more, err := reap(ctx); err == nil && more { // or they would come faster than they go
				pause = leastRound
			}
		}
	}
}

// looks looks at who is in the way of those who wait, a few times a TTL, until ctx ends.
func (l *lease) looks(ctx context.Context) {
	var next time.Duration // 0: nobody waits
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.over:
			next = 0
		case <-l.look:
		case <-t.C:
		}
		if l.b.clock() >= next {
			next = 0
			if pause, waits := l.lookAround(ctx); waits {
				next = l.b.clock() + pause
			}
		}
		if next > 0 {
			t.Reset(next - l.b.clock())
		}
	}
}

// lookAround looks at who is in the way of those who wait, if any. pause is the time until it
// looks again.
func (l *lease) lookAround(ctx context.Context) (pause time.Duration, waits bool) {
	l.mu.Lock()
	var names []lock.Resource
	for _, a := range l.asked {
		if a.waits {
			names = append(names, a.resource)
		}
	}
	l.mu.Unlock()
	slices.Sort(names)
	names = slices.Compact(names)
	pause = mostRound
	for chunk := range slices.Chunk(names, lookAtATime) {
		shortest, err := l.lookAt(ctx, chunk)
		if err != nil {
			return leastRound, true
		}
		pause = min(pause, max(shortest/4, leastRound))
	}
	return pause, len(names) > 0
}

// lookAt observes the leases of who is in the way at some resources, ends what is over, and
// counts the graces that have begun. shortest is the least of their TTLs.
func (l *lease) lookAt(ctx context.Context, names []lock.Resource) (shortest time.Duration, err error) {
	var read []Range
	for _, n := range names {
		read = append(read, all(lineOf(n), inTheWay))
	}
	r, err := l.b.do(ctx, "look", Txn{Read: read})
	if err != nil {
		return 0, err
	}
	var ahead, stay []due
	for i, f := range r.Reads {
		for _, kv := range f.KVs {
			switch p := decode[place](kv); p.Lease {
			case l.id:
			case keptLease:
				stay = append(stay, due{p.Had, leasekit.Ref{Resource: names[i], ID: lock.HoldID(p.ID)}})
			default:
				ahead = append(ahead, due{p.Lease, leasekit.Ref{Resource: names[i], ID: lock.HoldID(p.ID)}})
			}
		}
	}
	if err := l.lookAtKept(ctx, stay); err != nil {
		return 0, err
	}
	shortest = lock.MaxTTL
	for chunk := range slices.Chunk(ahead, MaxParts/3) {
		read = read[:0]
		for _, d := range chunk {
			read = append(read, Range{Key: beatKey(d.lease)}, Range{Key: forcedKey(d.lease, d.Resource, string(d.ID))}, Range{Key: entryKey(d.lease, d.Resource, string(d.ID))})
		}
		if r, err = l.b.do(ctx, "look", Txn{Read: read}); err != nil {
			return 0, err
		}
		for i := range chunk { // first: what follows may find that the store went back since
			if kv, there := r.Reads[3*i].one(); there {
				beat := beatOf(kv)
				l.observer.Saw(beat)
				shortest = min(shortest, max(beat.TTL, lock.MinTTL))
			}
		}
		for i, d := range chunk {
			if _, whole := r.Reads[3*i+2].one(); !whole {
				if err := l.b.mend(ctx, d.Resource); err != nil {
					return 0, err
				}
			}
			if _, there := r.Reads[3*i].one(); !there {
				if err := l.b.sweepAt(ctx, d.Resource, d.lease); err != nil {
					return 0, err
				}
			}
			if kv, forcing := r.Reads[3*i+1].one(); forcing {
				if f := decode[forced](kv); f.Known > 0 {
					l.dues.In(d, f.known())
				}
			}
		}
	}
	return shortest, nil
}

// lookAtKept counts the time of what is kept and in the way. Where it is nobody's, that is from now on: it is
// over later than it could be, but never too soon.
func (l *lease) lookAtKept(ctx context.Context, stay []due) error {
	for chunk := range slices.Chunk(stay, MaxParts) {
		var read []Range
		for _, d := range chunk {
			read = append(read, Range{Key: keptKey(d.Resource, string(d.ID))})
		}
		r, err := l.b.do(ctx, "look", Txn{Read: read})
		if err != nil {
			return err
		}
		for i, d := range chunk {
			if kv, there := r.Reads[i].one(); there {
				k := keptOf(kv)
				l.b.lapsesIn(lapse{d.Resource, k.ID, d.lease, k.generation()}, k.span())
			}
		}
	}
	return nil
}

// endForced ends a hold whose grace is over. The holder's sidecar does, and whoever waits;
// whoever forced the release, too.
func (l *lease) endForced(d due) {
	o := &op{kind: opEnd, id: string(d.ID), lease: d.lease}
	if l.b.submit(d.Resource, o); o.err != nil {
		l.dues.In(d, leastRound)
	}
}
