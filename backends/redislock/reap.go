package redislock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// maxUnlooked bounds for how long a sidecar waits for its heartbeats to look for dead
// leases in the first bucket, before it sends a request for that alone: where the TTL is
// long, or the lease is open in other buckets only.
const maxUnlooked = 6 * time.Second

// finding is what a look for dead leases in a bucket has brought.
type finding struct {
	bucket int
	lease  string // a dead one; or empty
	ours   bool   // it is the turn of this sidecar to clear it away
}

func findingOf(bucket int, val any) finding {
	id, ours := val.(string)
	return finding{bucket, id, ours}
}

// looked passes on what a heartbeat has found in a bucket. Mostly that is nothing, and
// wakes nobody.
func (d *driver) looked(f finding) {
	switch {
	case f.bucket > 0 && f.lease == "":
		return
	case f.ours && f.lease == "" && len(d.slots) == 1:
		d.lookLater()
		return
	}
	select {
	case d.found <- f:
	default: // the next heartbeat finds it, too
	}
}

// reapDead clears dead leases away until ctx ends. Nothing waits for that: scripts
// skip what is dead. It only keeps the store clean.
func (d *driver) reapDead(ctx context.Context) {
	var late <-chan time.Time
	if d.unlooked != nil {
		late = d.unlooked.C
		defer d.unlooked.Stop()
	}
	var swept time.Duration
	for {
		var f finding
		select {
		case f = <-d.found:
		case <-late:
			f = d.findDead(ctx, 0)
			d.listens(true)
		case <-ctx.Done():
			return
		}
		if f.ours {
			d.reap(ctx, f)
		}
		if f.bucket > 0 {
			continue
		}
		if now := d.b.clock(); f.ours && now-swept > d.recheck/2 {
			swept = now
			d.reapOthers(ctx)
		}
		d.lookLater()
	}
}

// looksSeldom tells that the heartbeats may look at the first bucket too seldom: where they go to
// others, or the TTL is long.
func (d *driver) looksSeldom() bool { return len(d.slots) > 1 || d.ttl/3 > maxUnlooked }

// lookLater puts off the next look of its own, after a look at the first bucket.
func (d *driver) lookLater() {
	if d.unlooked != nil {
		d.unlooked.Reset(d.lookAgain())
	}
}

// lookAgain is how long after a look at the first bucket the next one is due.
func (d *driver) lookAgain() time.Duration {
	most := min(maxUnlooked, d.ttl/2)
	return most + rand.N(most/4) //nolint:gosec // not a secret
}

// reapOthers clears all buckets but the first, in which the sidecars take turns:
// nobody else may have any reason to come by.
func (d *driver) reapOthers(ctx context.Context) {
	others := d.slots[1:]
	calls := make([]call, len(others))
	for n, s := range others {
		calls[n] = d.look(s.index)
	}
	_ = d.b.runAll(ctx, scriptDead, calls) // each call has its own error
	for n, s := range others {
		d.reap(ctx, findingOf(s.index, calls[n].val))
	}
}

// reap clears a lease away in a bucket, and those that come after it.
func (d *driver) reap(ctx context.Context, f finding) {
	for f.lease != "" {
		var err error
		if f.lease == keptMark {
			err = d.clearKept(ctx, f.bucket)
		} else {
			err = d.clear(ctx, f.bucket, lock.LeaseID(f.lease), scriptReap)
		}
		if err != nil {
			return // in some other turn
		}
		f = d.findDead(ctx, f.bucket)
	}
}

// findDead looks for a dead lease in a bucket.
func (d *driver) findDead(ctx context.Context, bucket int) finding {
	c := d.look(bucket)
	return findingOf(bucket, d.b.run(ctx, d.b.client, scriptDead, c.keys, c.args...).val)
}

func (d *driver) look(bucket int) call {
	k := &d.b.keys.buckets[bucket]
	return call{keys: []string{k.leases, k.reaper, k.records, k.recordEnds}, args: []any{string(d.id), d.sweeps(bucket)}}
}

// sweeps says whether a look in a bucket is also for the turn to go through all others.
func (d *driver) sweeps(bucket int) string {
	if bucket == 0 && len(d.slots) > 1 {
		return "1"
	}
	return "0"
}
