package caslock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// forcePoll is how often ForceRelease looks at first what has become of the hold, see leasekit.Pace.
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
	o := &op{kind: opForce, id: string(id), lease: lease, grace: max(grace, 0), ctx: ctx}
	if b.submit(r, o); errors.Is(o.err, lock.ErrNotHolder) { // it is gone meanwhile, or the half of it
		if err := b.mend(ctx, r); err != nil {
			return b.unavailable("force release", err)
		}
		b.submit(r, o)
	}
	switch {
	case errors.Is(o.err, leasekit.ErrNotSent):
		return b.unavailable("force release", o.err)
	case o.err != nil || !o.queued:
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
			if p := decode[place](kv); p.ID == string(id) && (lease == "" || lease == keptLease) { // who has it before what is kept of it
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
	ends, began := time.Duration(math.MaxInt64), b.clock()
	for {
		answer, err := b.inTurn(ctx, "force", Txn{Read: []Range{
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
			o := &op{kind: kind, id: string(id), lease: lease, ctx: ctx}
			if b.submit(r, o); o.err != nil {
				return o.err
			}
			continue
		}
		if !leasekit.Sleep(ctx, min(max(ends-now, forcePoll/10), leasekit.Pace(now-began, forcePoll))) {
			return context.Cause(ctx)
		}
	}
}

// ackedTogether is how many acknowledgements one transaction carries out.
const ackedTogether = 32

// acknowledge notes in the store which forced releases the sidecar knows of, and counts the grace of from now on. Only
// that is written, not the head of the resource: so neither others who come and go there nor the number of
// acknowledgements keep a heartbeat waiting.
func (l *lease) acknowledge(ctx context.Context, acks []leasekit.Revocation) error {
	return each(slices.Collect(slices.Chunk(acks, ackedTogether)), func(some []leasekit.Revocation) error {
		done, err := l.acknowledgeOnce(ctx, some)
		for err == nil && !done { // one of them has changed meanwhile, by a release perhaps: that concerns no other
			for _, a := range some {
				if done, err = l.acknowledgeOnce(ctx, []leasekit.Revocation{a}); err != nil || !done {
					break
				}
			}
		}
		if err != nil {
			return err
		}
		for _, a := range some {
			if a.Grace > 0 {
				l.dues.In(due{l.id, a.Ref}, a.Grace)
			}
		}
		return nil
	})
}

// acknowledgeOnce is acknowledge of some, all or none.
func (l *lease) acknowledgeOnce(ctx context.Context, acks []leasekit.Revocation) (done bool, err error) {
	read := []Range{{Key: leaseKey(l.id)}}
	for _, a := range acks {
		read = append(read, Range{Key: forcedKey(l.id, a.Resource, string(a.ID))})
	}
	r, err := l.b.do(ctx, "acknowledge", Txn{Read: read})
	if err != nil {
		return false, l.b.unavailable("acknowledge", err)
	}
	if _, lives := r.Reads[0].one(); !lives {
		return false, lock.ErrLeaseLost
	}
	t := Txn{If: []Cond{{Key: leaseKey(l.id), There: true}}}
	for i, a := range acks {
		kv, there := r.Reads[i+1].one()
		f, grace := decode[forced](kv), max(a.Grace.Microseconds(), 1)
		w := Write{Key: kv.Key}
		switch {
		case !there:
			continue
		case f.Grace == 0: // it is gone, and that was news
			w.Delete = true
		case f.Known == 0 || grace < f.Known:
			f.Known = grace
			w.Value = encode(f)
		default:
			continue
		}
		t.If, t.Then = append(t.If, Cond{Key: kv.Key, Version: kv.Version}), append(t.Then, w)
	}
	if len(t.Then) == 0 {
		return true, nil
	}
	if r, err = l.b.do(ctx, "acknowledge", t); err != nil {
		return false, l.b.unavailable("acknowledge", err)
	}
	return r.Done, nil
}
