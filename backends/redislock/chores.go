package redislock

import (
	"context"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about what is done beside the calls: handing on what a script has
// left for the next step, and looking which servers have the buckets.

func ring(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it has been rung
	}
}

// goOn has the store hand a resource on, after a script that has stopped before
// the end. Where this is not done, waiters do it when they ask again.
func (d *driver) goOn(r lock.Resource) {
	select {
	case d.more <- r:
	default:
	}
}

// chores works until ctx ends.
func (d *driver) chores(ctx context.Context) {
	for {
		select {
		case r := <-d.more:
			d.b.advance(ctx, r)
		case <-d.looks:
			_ = d.lookAround(ctx) // it only helps others
		case <-ctx.Done():
			return
		}
	}
}

// advance goes on until nothing is left to hand on.
func (b *Backend) advance(ctx context.Context, r lock.Resource) {
	i := b.keys.bucketOf(r)
	for ctx.Err() == nil {
		reply := b.run(ctx, b.client, scriptAdvance, b.keys.buckets[i].of(r, ""), b.keys.channel, string(r))
		if reply.err != nil || reply.val != int64(1) {
			return
		}
	}
}
