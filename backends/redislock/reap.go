package redislock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// reapTurn is for how long no other sidecar clears dead leases away.
const reapTurn = 3 * time.Second

// reapDead clears dead leases away until ctx ends. Nothing waits for that: scripts
// skip what is dead. It only keeps the store clean.
func (d *driver) reapDead(ctx context.Context) {
	for {
		select {
		case <-time.After(d.recheck/2 + rand.N(d.recheck)): //nolint:gosec // not a secret
		case <-ctx.Done():
			return
		}
		if dead, ours := d.deadIn(ctx, 0); ours {
			d.reap(ctx, 0, dead)
			d.reapOthers(ctx)
		}
	}
}

// reapOthers clears all buckets but the first, in which the sidecars take turns:
// nobody else may have any reason to come by.
func (d *driver) reapOthers(ctx context.Context) {
	others := d.slots[1:]
	calls := make([]call, len(others))
	for n, s := range others {
		calls[n] = d.findDead(s.index)
	}
	_ = d.b.runAll(ctx, scriptDead, calls) // each call has its own error
	for n, s := range others {
		ids, _ := calls[n].val.([]any)
		d.reap(ctx, s.index, ids)
	}
}

// reap clears leases away in a bucket, and those that come after them.
func (d *driver) reap(ctx context.Context, bucket int, dead []any) {
	for len(dead) > 0 {
		for _, id := range dead {
			id, _ := id.(string)
			if err := d.clear(ctx, bucket, lock.LeaseID(id), scriptReap); err != nil {
				return // in some other turn
			}
			if _, ours := d.deadIn(ctx, 0); !ours {
				return
			}
		}
		dead, _ = d.deadIn(ctx, bucket)
	}
}

// deadIn gives some dead leases of a bucket. In the first one it also takes the
// turn, or prolongs it; ours is false when another sidecar has it.
func (d *driver) deadIn(ctx context.Context, bucket int) (ids []any, ours bool) {
	c := d.findDead(bucket)
	r := d.b.run(ctx, d.b.client, scriptDead, c.keys, c.args...)
	ids, ours = r.val.([]any)
	return ids, ours && r.err == nil
}

func (d *driver) findDead(bucket int) call {
	k := &d.b.keys.buckets[bucket]
	turn := reapTurn
	if bucket > 0 {
		turn = 0
	}
	return call{keys: []string{k.leases, k.reaper}, args: []any{string(d.id), turn.Milliseconds()}}
}
