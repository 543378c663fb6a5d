package caslock

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// forcePoll is how often ForceRelease looks what has become of the hold.
const forcePoll = 50 * time.Millisecond

// ForceRelease implements lock.Backend.
//
// It writes the grace beside the hold. The holder's sidecar hears of it, tells its app, and
// writes that it knows: from then on the grace counts. Each of those who take part counts
// it on a clock of its own, from after that was written. The first of them for whom it is
// over ends the hold: usually the holder's sidecar; where that is cut off, whoever forced
// the release, or a sidecar that waits.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	lease, err := b.leaseOf(ctx, r, id)
	if err != nil {
		return b.unavailable("force release", err)
	}
	if lease == "" {
		return lock.ErrNotHolder
	}
	o := &op{kind: opForce, id: string(id), lease: lease, grace: max(grace, 0)}
	if b.submit(r, o); o.err != nil || !o.queued {
		return o.err
	}
	if err := b.awaitForced(ctx, r, id, lease); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("force release %q: %w: %w; it ends by itself %s after the holder's sidecar knows of it, or with its lease", string(r), lock.ErrUnavailable, err, grace)
		}
		return b.unavailable("force release", err)
	}
	return nil
}

// leaseOf finds whose a hold or a waiter is, in bounded steps; "": it is nobody's.
func (b *Backend) leaseOf(ctx context.Context, r lock.Resource, id lock.HoldID) (lease string, err error) {
	err = b.pages(ctx, "force", lineOf(r), func(kvs []KV) error {
		for _, kv := range kvs {
			if p := decode[place](kv); p.ID == string(id) {
				lease = p.Lease
			}
		}
		return nil
	})
	return lease, err
}

// awaitForced waits until a hold is gone whose release is forced, and ends it when its grace
// is over, or its lease was ended.
func (b *Backend) awaitForced(ctx context.Context, r lock.Resource, id lock.HoldID, lease string) error {
	ends := time.Duration(math.MaxInt64)
	for {
		answer, err := b.do(ctx, "force", Txn{Read: []Range{
			{Key: entryKey(lease, r, string(id))}, {Key: forcedKey(lease, r, string(id))}, {Key: leaseKey(lease)},
		}})
		if err != nil {
			return err
		}
		if _, there := answer.Reads[0].one(); !there {
			return nil
		}
		now := b.clock()
		if kv, _ := answer.Reads[1].one(); decode[forced](kv).Known > 0 {
			ends = min(ends, now+decode[forced](kv).known())
		}
		kind := opSettle
		if _, lives := answer.Reads[2].one(); !lives {
			kind = opSweep
		} else if now >= ends {
			kind = opEnd
		}
		if kind != opSettle {
			o := &op{kind: kind, id: string(id), lease: lease}
			if b.submit(r, o); o.err != nil {
				return o.err
			}
			continue
		}
		if !leasekit.Sleep(ctx, min(max(ends-now, forcePoll/10), forcePoll)) {
			return context.Cause(ctx)
		}
	}
}
