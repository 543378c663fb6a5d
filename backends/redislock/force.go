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
var errMayLack = errors.New("another server has taken over, or this one has restarted, and may lack the hold: its app may rely on it until the next heartbeat of its sidecar")

// ForceRelease implements lock.Backend.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	i := b.keys.bucketOf(r)
	var holder lock.LeaseID // the store says whose it is
	var at *presence        // the server that has the hold
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
		case wait < 0 && !first && (at == nil || reply.by != at):
			return unavailable("force release", errMayLack)
		case wait < 0 && !first:
			return nil
		case wait < 0:
			return lock.ErrNotHolder
		}
		first, at = false, reply.by
		if !leasekit.Sleep(ctx, min(time.Duration(wait)*time.Millisecond, leasekit.Pace(b.clock()-began, forcePoll))) { // the holder may be quick
			return stillHeld(r, context.Cause(ctx))
		}
	}
}

func stillHeld(r lock.Resource, why error) error {
	return fmt.Errorf("force release %q: %w; it ends by itself when its holder's grace or lease is over", string(r), why)
}
