package redislock

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

var (
	_ leasekit.Detacher = (*driver)(nil)
	_ lock.Handles      = (*Backend)(nil)
)

// Detaches implements leasekit.Detacher.
func (d *driver) Detaches() error { return nil }

// Detach implements leasekit.Detacher.
func (d *driver) Detach(ctx context.Context, w leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (leasekit.Withdrawn, error) {
	s := d.slots[d.b.keys.bucketOf(w.Resource)]
	s.users.Add(1)
	defer s.leave()
	d.asked.forget(w.ID)
	open := s.open.Load()
	keep := "0"
	if w.Unsure {
		keep = strconv.FormatInt(max(tombstone, d.ttl).Microseconds(), 10)
	}
	r := d.b.run(ctx, d.b.batchers[s.index], scriptDetach, d.b.keys.buckets[s.index].leaving(w.Resource, d.id),
		words(string(w.Resource), string(d.id), string(w.ID), keep, string(key), strconv.FormatInt(ttl.Microseconds(), 10))...)
	n, ok := r.val.(int64)
	switch {
	case r.err != nil:
		return leasekit.Withdrawn{}, unavailable("detach", r.err)
	case !ok:
		return leasekit.Withdrawn{}, fmt.Errorf("detach: Redis answered %v: %w", r.val, lock.ErrUnavailable)
	}
	return d.taken(w.Resource, n, open)
}

// taken reads the number by which a script says what it has found of a hold that was to leave its lease. open: the bucket
// knew the lease when it was asked.
func (d *driver) taken(r lock.Resource, n int64, open bool) (leasekit.Withdrawn, error) {
	switch {
	case n == 0, n == -1 && !open: // the lease need not be known there
		return leasekit.Withdrawn{}, nil
	case n == -1:
		return leasekit.Withdrawn{}, lock.ErrLeaseLost
	case n == 2:
		d.goOn(r)
	}
	return leasekit.Withdrawn{Found: true}, nil
}

// holderOf is the lease that has a hold, where a script must be given its keys.
func holderOf(r reply) (string, bool) {
	fields, _ := r.val.([]any)
	return word(fields, 1), r.err == nil && word(fields, 0) == "HOLDER"
}

// SetHandle implements lock.Handles.
func (b *Backend) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (lock.Detached, error) {
	if ttl != 0 {
		if err := lock.CheckDetach(ttl); err != nil {
			return lock.Detached{}, err
		}
	}
	k := &b.keys.buckets[b.keys.bucketOf(r)]
	for holder, end := noLease, ""; ; {
		reply := b.run(ctx, b.client, scriptHandle, k.leaving(r, lock.LeaseID(holder)),
			string(r), holder, end, string(key), ttl.Microseconds())
		if reply.err != nil {
			return lock.Detached{}, unavailable("set handle", reply.err)
		}
		fields, _ := reply.val.([]any)
		if is, has := holderOf(reply); has {
			holder, end = is, word(fields, 2)
			continue
		}
		switch {
		case word(fields, 0) == "NOHANDLE":
			return lock.Detached{}, lock.ErrNoHandle
		case len(fields) != 5:
			return lock.Detached{}, fmt.Errorf("set handle: Redis answered %v: %w", reply.val, lock.ErrUnavailable)
		case fields[4] == int64(1):
			b.advance(ctx, r)
		}
		fence, err := parseFence(word(fields, 3))
		if err != nil {
			return lock.Detached{}, unavailable("set handle", err)
		}
		return lock.Detached{ID: lock.HoldID(word(fields, 1)), Mode: parseMode(word(fields, 2)), Fence: fence}, nil
	}
}
