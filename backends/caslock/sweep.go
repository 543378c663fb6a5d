package caslock

import (
	"context"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/lock"
)

// A lease that is over leaves its holders and waiters behind. Each is taken out by a request
// about its resource, which hands that on. Nothing comes after it: every request of the
// lease has the condition that the lease is there.

// sweepers is how many leases are swept at a time: when thousands end together, heartbeats must not wait behind
// what those have left.
const sweepers = 8

// sweepSoon has a lease swept in the background that is over, unless that is being done.
func (b *Backend) sweepSoon(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sweeping[id] || b.background.Err() != nil {
		return
	}
	b.sweeping[id] = true
	b.toSweep = append(b.toSweep, id)
	if b.sweepers < sweepers {
		b.sweepers++
		b.routines.Go(b.sweepAll)
	}
}

// sweepAll sweeps leases until there are none.
func (b *Backend) sweepAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.toSweep) > 0 {
		id := b.toSweep[0]
		b.toSweep = b.toSweep[1:]
		b.mu.Unlock()
		_ = b.sweep(b.background, id) // the keeper sees what is left
		b.mu.Lock()
		delete(b.sweeping, id)
	}
	b.sweepers--
}

// sweep takes out all that a lease has left, and forgets the lease.
func (b *Backend) sweep(ctx context.Context, id string) error {
	for _, prefix := range []string{entriesOf(id), forcedOf(id)} {
		err := b.pages(ctx, "sweep", prefix, func(kvs []KV) error { return b.sweepPage(ctx, id, prefix, kvs) })
		if err != nil {
			return err
		}
	}
	if err := b.sweepTold(ctx, id); err != nil {
		return err
	}
	_, err := b.do(ctx, "sweep", Txn{Then: []Write{{Key: deadKey(id), Delete: true}}})
	return err
}

// sweepPage takes out what some keys are about.
func (b *Backend) sweepPage(ctx context.Context, id, prefix string, kvs []KV) error {
	return each(slices.Collect(slices.Chunk(kvs, sweptTogether)), func(some []KV) error {
		if prefix == entriesOf(id) {
			some = b.sweepAlone(ctx, id, some)
		}
		return b.sweepTogether(ctx, id, prefix, some)
	})
}

// sweepAt takes out what a lease that is over has left at one resource.
func (b *Backend) sweepAt(ctx context.Context, name lock.Resource, id string) error {
	return b.pages(ctx, "sweep", entryKey(id, name, ""), func(kvs []KV) error {
		return b.sweepTogether(ctx, id, entriesOf(id), kvs)
	})
}

// sweepTogether takes out what some keys are about. Who waits goes first: of what the holds leave, nothing is granted to a lease
// that is over.
func (b *Backend) sweepTogether(ctx context.Context, id, prefix string, kvs []KV) error {
	together := make(map[lock.Resource][]*op)
	add := func(held bool) {
		for _, kv := range kvs {
			if e := decode[entry](kv); e.held() == held {
				name, hold := refOf(strings.TrimPrefix(kv.Key, prefix))
				together[name] = append(together[name], &op{kind: opSweep, id: hold, lease: id, ctx: ctx})
			}
		}
	}
	add(false)
	add(true)
	for name, ops := range together {
		b.submit(name, ops...)
		for _, o := range ops {
			if o.err != nil {
				return o.err
			}
		}
	}
	return nil
}

// sweptTogether is how many holds one transaction takes out, with three keys each.
const sweptTogether = 40

// sweepAlone takes out, all at a time, those holds that nobody shares or waits for, and gives
// the others. What fails is left, too.
func (b *Backend) sweepAlone(ctx context.Context, id string, kvs []KV) (left []KV) {
	var read []Range
	for _, kv := range kvs {
		name, _ := refOf(strings.TrimPrefix(kv.Key, entriesOf(id)))
		read = append(read, Range{Key: headKey(name)})
	}
	r, err := b.do(ctx, "sweep", Txn{Read: read})
	if err != nil {
		return kvs
	}
	var t Txn
	for i, kv := range kvs {
		name, _ := refOf(strings.TrimPrefix(kv.Key, entriesOf(id)))
		e := decode[entry](kv)
		headKV, there := r.Reads[i].one()
		if h := decode[head](headKV); !there || h.Holders != 1 || h.Waiters > 0 || e.Fence == 0 {
			left = append(left, kv)
			continue
		}
		t.If = append(t.If, Cond{Key: headKV.Key, Version: headKV.Version}, Cond{Key: kv.Key, Version: kv.Version})
		t.Then = append(t.Then, Write{Key: headKV.Key, Delete: true}, Write{Key: lineKey(name, e.Seq), Delete: true}, Write{Key: kv.Key, Delete: true})
	}
	if len(t.Then) == 0 {
		return left
	}
	if r, err = b.do(ctx, "sweep", t); err != nil || !r.Done {
		return kvs
	}
	return left
}

// sweepAhead takes out those of some holders whose lease is over. A try does not wait until that is done in its turn. some: there
// were such holders; swept: some of them were there still.
func (b *Backend) sweepAhead(ctx context.Context, st lock.Status) (some, swept bool) {
	leases := make(map[string]bool)
	for _, h := range st.Holders {
		if h.Kept == 0 {
			leases[string(h.Lease)] = true
		}
	}
	if len(leases) == 0 || b.living(ctx, leases) != nil {
		return false, false
	}
	var ops []*op
	for _, h := range st.Holders {
		if h.Kept == 0 && !leases[string(h.Lease)] {
			ops = append(ops, &op{kind: opSweep, id: string(h.ID), lease: string(h.Lease), ctx: ctx})
		}
	}
	b.submit(st.Resource, ops...)
	failed := slices.ContainsFunc(ops, func(o *op) bool { return o.err != nil })
	swept = slices.ContainsFunc(ops, func(o *op) bool { return o.found })
	if len(ops) > 0 && !failed && !swept { // somebody else has, or the half of them is gone
		failed = b.mend(ctx, st.Resource) != nil
	}
	return len(ops) > 0 && !failed && ctx.Err() == nil, swept
}

// mend writes the entries of those in front of a line that have none: somebody has deleted them by hand. So nobody would take
// their places out of the line. When the entries are there again, their leases find and release what they do not have, or it is swept after them.
func (b *Backend) mend(ctx context.Context, name lock.Resource) error {
	r, err := b.do(ctx, "mend", Txn{Read: []Range{all(lineOf(name), brief)}})
	if err != nil {
		return err
	}
	front := slices.DeleteFunc(r.Reads[0].KVs, func(kv KV) bool {
		m := memberOf(kv)
		return m.Lease == keptLease || m.Lease == "" || m.ID == ""
	})
	var read []Range
	for _, kv := range front {
		m := memberOf(kv)
		read = append(read, Range{Key: entryKey(m.Lease, name, m.ID)})
	}
	if r, err = b.do(ctx, "mend", Txn{Read: read}); err != nil {
		return err
	}
	for i, kv := range front {
		if _, whole := r.Reads[i].one(); whole {
			continue
		}
		m := memberOf(kv)
		_, err := b.do(ctx, "mend", Txn{
			If:   []Cond{{Key: kv.Key, Version: kv.Version}, {Key: read[i].Key}},
			Then: []Write{{Key: read[i].Key, Value: encode(entry{Seq: m.seq, granted: m.granted, Lasts: m.held(), Several: m.Several})}},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
