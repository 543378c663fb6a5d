package redislock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// forcePoll is how often ForceRelease looks at first whether the hold is gone, see leasekit.Pace.
const forcePoll = 25 * time.Millisecond

// errMayLack: whoever holds what is not there may not know that yet.
var errMayLack = errors.New("another server has taken over, or this one has lost its data, and may lack the hold: its app may rely on it until the next heartbeat of its sidecar")

// ForceRelease implements lock.Backend.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	i := b.keys.bucketOf(r)
	at := b.pasts[i].version.Load() // mostly the heartbeats know who has the bucket
	if at == 0 {
		var err error
		if at, err = b.whoHas(ctx, i); err != nil {
			return unavailable("force release", err)
		}
	}
	var holder lock.LeaseID // the store says whose it is
	first, began := true, b.clock()
	for {
		reply := b.run(ctx, b.client, scriptForce, b.keys.buckets[i].leaving(r, holder),
			string(r), string(holder), string(id), grace.Microseconds(), lock.MaxTTL.Microseconds())
		if reply.err != nil {
			if end, ok := ctx.Deadline(); !first && (ctx.Err() != nil || ok && time.Until(end) <= 0) { // it ended in the middle of a request
				return stillHeld(r, cmp.Or(context.Cause(ctx), context.DeadlineExceeded))
			}
			return unavailable("force release", reply.err)
		}
		if is, ok := reply.val.([]any); ok && len(is) == 1 && holder == "" {
			holder = lock.LeaseID(word(is, 0))
			continue
		}
		wait, ok := reply.val.(int64)
		switch {
		case !ok:
			return fmt.Errorf("force release: Redis answered %v: %w", reply.val, lock.ErrUnavailable)
		case wait == 0:
			b.advance(ctx, r) // many may have waited for it
			return nil
		case wait < 0:
			return b.notForced(ctx, i, at, first)
		}
		first = false
		if !leasekit.Sleep(ctx, min(time.Duration(wait)*time.Millisecond, leasekit.Pace(b.clock()-began, forcePoll))) { // the holder may be quick
			return stillHeld(r, context.Cause(ctx))
		}
	}
}

// whoHas looks which server has a bucket: the number changes whenever that may know less than before.
func (b *Backend) whoHas(ctx context.Context, i int) (version uint64, err error) {
	k := &b.keys.buckets[i]
	for range 2 { // the first answer of a server may come before it is known who it is
		sent := b.clock()
		reply := b.run(ctx, b.client, scriptOpen, []string{k.leases, k.leases}, b.open(i, "", 0)...)
		if err = reply.err; err != nil {
			break
		}
		if _, err = b.opened(i, reply, sent); !errors.Is(err, errAnotherServer) {
			break
		}
	}
	return b.pasts[i].version.Load(), err
}

// notForced is for a hold that is not there. at is which server had the bucket before, and first tells that the hold has
// not been seen. While the server must not grant it may lack the hold, and who has it may not know that yet.
func (b *Backend) notForced(ctx context.Context, i int, at uint64, first bool) error {
	b.mu.Lock()
	grace := b.grace
	b.mu.Unlock()
	now, err := b.whoHas(ctx, i)
	left, _ := b.pasts[i].left(grace, b.clock())
	switch {
	case err != nil:
		return unavailable("force release", err)
	case now != at, first && left > 0:
		return unavailable("force release", errMayLack)
	case first:
		return lock.ErrNotHolder
	}
	return nil
}

func stillHeld(r lock.Resource, why error) error {
	return fmt.Errorf("force release %q: %w; it ends by itself when its holder's grace or lease is over", string(r), why)
}
