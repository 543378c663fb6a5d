package redislock

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about what is done beside the calls: handing on what a script has
// left for the next step, looking which servers have the buckets, and clearing up.

// clearPage is how many holds of a lease are read together.
const clearPage = 8 * maxPipeline

// goOn has the store hand a resource on, after a script that has stopped before
// the end. Where this is not done, waiters do it when they ask again.
func (d *driver) goOn(r lock.Resource) {
	select {
	case d.more <- r:
	default:
	}
}

// tellAll has all sidecars told that share a lock that somebody waits for, where the
// script has told some. Where this is not done, they find out when their time is over.
func (d *driver) tellAll(r lock.Resource) {
	select {
	case d.crowd <- r:
	default:
	}
}

// contend tells them. It looks at them in steps, and each sidecar shares as one.
func (d *driver) contend(ctx context.Context, r lock.Resource) {
	st, err := d.b.Get(ctx, r)
	if err != nil {
		return
	}
	for some := range slices.Chunk(st.Holders, maxPipeline) {
		pipe := d.b.client.Pipeline()
		for _, h := range some {
			if h.Cohort && h.Lease != d.id {
				pipe.Publish(ctx, d.b.keys.channel+string(h.Lease), "c "+string(h.ID))
			}
		}
		if pipe.Len() == 0 {
			continue
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return
		}
	}
}

// chores works until ctx ends.
func (d *driver) chores(ctx context.Context) {
	for {
		select {
		case r := <-d.more:
			d.b.advance(ctx, r)
		case r := <-d.crowd:
			d.contend(ctx, r)
		case <-d.looks:
			_, _ = d.lookAround(ctx) // it only helps others
		case <-d.probes:
			d.probe(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// advance goes on until nothing is left to hand on.
func (b *Backend) advance(ctx context.Context, r lock.Resource) {
	i := b.keys.bucketOf(r)
	for ctx.Err() == nil {
		reply := b.run(ctx, b.client, scriptAdvance, b.keys.buckets[i].of(r, ""), string(r))
		if reply.err != nil || reply.val != int64(1) {
			return
		}
	}
}

// Close implements leasekit.Driver: all buckets at once, so that a server that does
// not answer holds up none of the others.
func (d *driver) Close(ctx context.Context) error {
	d.closed.Store(true)
	errs := make([]error, len(d.slots))
	var all sync.WaitGroup
	for i, s := range d.slots {
		all.Go(func() {
			select { // who opens the bucket right now comes first
			case s.turn <- struct{}{}:
				defer func() { <-s.turn }()
			case <-ctx.Done():
				errs[i] = unavailable("close lease", context.Cause(ctx))
				return
			}
			if !s.open.Load() {
				return
			}
			if err := d.clear(ctx, i, d.id, scriptRelease); err != nil {
				errs[i] = unavailable("close lease", err)
			}
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// clear releases or reaps all that hangs on a lease in a bucket, and ends it. A lease that
// is to be reaped and lives is left alone: it was opened in the bucket again.
func (d *driver) clear(ctx context.Context, bucket int, id lock.LeaseID, how *script) error {
	k := &d.b.keys.buckets[bucket]
	mine := k.mine + string(id)
	for {
		members, err := d.b.client.ZRange(ctx, mine, 0, clearPage-1).Result()
		if err != nil {
			return err
		}
		calls := make([]call, len(members))
		for n, m := range members {
			r, hold := parseMember(m)
			calls[n] = call{keys: k.leaving(r, id), args: []any{string(r), string(id), string(hold)}}
		}
		if err := d.b.runAll(ctx, how, calls); err != nil {
			return err
		}
		for n, m := range members {
			if how == scriptReap && calls[n].val == int64(0) {
				return nil
			}
			if more(calls[n].val) {
				r, _ := parseMember(m)
				d.b.advance(ctx, r)
			}
		}
		if len(members) == clearPage {
			continue
		}
		left := d.b.run(ctx, d.b.client, scriptDrop, []string{k.leases, mine, k.revoked + string(id)}, string(id), how.name)
		if left.err != nil || left.val == int64(0) {
			return left.err
		}
	}
}

// clearKept ends the holds of no lease in a bucket whose own time is over.
func (d *driver) clearKept(ctx context.Context, bucket int) error {
	k := &d.b.keys.buckets[bucket]
	for {
		found := d.b.run(ctx, d.b.client, scriptKept, []string{k.leases, k.keptEnds}, clearPage)
		members, _ := found.val.([]any)
		if found.err != nil || len(members) == 0 {
			return found.err
		}
		calls := make([]call, len(members))
		for n := range members {
			r, hold := parseMember(word(members, n))
			calls[n] = call{keys: k.leaving(r, noLease), args: []any{string(r), noLease, string(hold)}}
		}
		if err := d.b.runAll(ctx, scriptReap, calls); err != nil {
			return err
		}
		for n := range members {
			if more(calls[n].val) {
				r, _ := parseMember(word(members, n))
				d.b.advance(ctx, r)
			}
		}
	}
}

// more tells whether a release or reap has left something to hand on.
func more(val any) bool {
	fields, _ := val.([]any)
	return val == int64(2) || (len(fields) > 2 && fields[2] == int64(1))
}
