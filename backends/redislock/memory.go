package redislock

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about a store that forgets: restarted, failed over to a replica
// that lagged, or flushed; and about what dead sidecars leave in it.

// bucketMemory is what the backend knows of a bucket over all its leases.
type bucketMemory struct {
	wasFull    bool          // there was data in it once
	emptySince time.Duration // when it was first found empty after that; 0: not
}

// mayBeEmpty says whether an empty bucket is a new one ("1") or one that has
// lost its memory, and has to wait for a TTL.
func (b *Backend) mayBeEmpty(i int, ttl time.Duration) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.memory[i]
	if m.wasFull && (m.emptySince == 0 || b.servers.clock()-m.emptySince < ttl) {
		return "0"
	}
	return "1"
}

func (b *Backend) foundEmpty(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m := b.memory[i]; m.emptySince == 0 {
		m.emptySince = b.servers.clock()
		b.memory[i] = m
	}
}

func (b *Backend) foundFull(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.memory[i] = bucketMemory{wasFull: true}
}

// compareOnce compares if another server has come up since it was done last.
func (l *lease) compareOnce(ctx context.Context) error {
	l.compareMu.Lock()
	defer l.compareMu.Unlock()
	seen := l.b.servers.seen()
	if seen == l.seenServers {
		return nil
	}
	if err := l.compare(ctx); err != nil {
		return err
	}
	l.seenServers = seen // where yet another came up meanwhile, the next heartbeat compares again
	return nil
}

// compare sets the memory of the store beside the lease's own: what the store does not know is lost, what only the store
// knows is released.
func (l *lease) compare(ctx context.Context) error {
	l.mu.Lock()
	held := make(map[lock.HoldID]lock.Resource)
	for id, e := range l.entries {
		if e.settled {
			held[id] = e.resource
		}
	}
	l.mu.Unlock()
	for i := range l.open {
		if !l.open[i].Load() {
			continue
		}
		members, err := l.b.client.ZRange(ctx, l.b.keys.buckets[i].mine+string(l.id), 0, -1).Result()
		if err != nil {
			return unavailable("compare holds", err)
		}
		for _, m := range members {
			r, id := parseMember(m)
			delete(held, id)
			l.mu.Lock()
			_, known := l.entries[id]
			l.mu.Unlock()
			if !known {
				if _, err := l.release(ctx, r, id); err != nil {
					return err
				}
			}
		}
	}
	for id, r := range held {
		l.mu.Lock()
		e := l.entries[id]
		vanished := e != nil && e.settled // and not released meanwhile
		if vanished {
			delete(l.entries, id)
		}
		l.mu.Unlock()
		if vanished {
			l.tell(lock.Event{Kind: lock.Vanished, Resource: r, ID: id})
		}
	}
	return nil
}

// deadLease is a lease that is over and left something behind.
type deadLease struct {
	bucket int
	id     lock.LeaseID
}

// reapDead clears away dead leases until ctx ends. Nothing waits for that:
// scripts skip what is dead. It only keeps the store clean.
func (l *lease) reapDead(ctx context.Context) {
	for {
		select {
		case dead := <-l.dead:
			for _, d := range dead {
				if err := l.reap(ctx, d); err != nil {
					break // the store will ask again
				}
			}
		case <-ctx.Done():
			return
		}
	}
}

func (l *lease) reap(ctx context.Context, d deadLease) error {
	k := &l.b.keys.buckets[d.bucket]
	mine := k.mine + string(d.id)
	for {
		members, err := l.b.client.ZRange(ctx, mine, 0, 255).Result()
		if err != nil {
			return err
		}
		calls := make([]call, len(members))
		for n, m := range members {
			r, id := parseMember(m)
			calls[n] = call{keys: k.of(r, d.id), args: []any{l.b.keys.channel, string(d.id), string(id), m}}
		}
		if err := l.b.runAll(ctx, scriptReap, calls); err != nil {
			return err
		}
		left, err := l.b.run(ctx, l.b.client, scriptDrop, []string{k.leases, mine}, string(d.id))
		if err != nil || left == int64(0) {
			return err
		}
	}
}
