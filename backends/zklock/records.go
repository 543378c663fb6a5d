package zklock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// A record is a persistent node. Its data are the version that the writer chose, for how
// many milliseconds it is kept, and the value; when it was written is the node's mtime, by
// the leader's clock.
//
// A node that is deleted and made again has the data version 0 again. So whoever deletes
// records also writes the bucket above them, and whoever writes over a record also checks
// that the bucket is as it was when the record was read.

var _ lock.Records = (*Backend)(nil)

// kept is a node of a record as it was read, with its bucket.
type kept struct {
	bucket, node *zksession.Call
	lock.Record  // the zero one where there is none, or it is over
}

// readKept reads a record. With certain the server knows all that was written before: a sync would not do, which a leader
// answers that does not know yet that there is another one.
func (b *Backend) readKept(ctx context.Context, t *leaseNode, r lock.Resource, certain bool) (k kept, err error) {
	if err := t.refresh(ctx); err != nil {
		return k, err
	}
	if certain {
		if err := t.s.Do(ctx, zksession.Barrier()); err != nil {
			return k, err
		}
	}
	path := b.tree.record(r)
	k.bucket, k.node = zksession.Get(b.tree.recordBucket(r)), zksession.Get(path)
	// The bucket comes first: who deletes the node after that has written it.
	if err := t.s.Do(ctx, k.bucket, k.node); err != nil {
		return k, err
	}
	for _, c := range []*zksession.Call{k.bucket, k.node} {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNoNode) {
			return k, fmt.Errorf("%s: %w", c, c.Err)
		}
	}
	rec, left := t.recordIn(k.node)
	if left > 0 && left < nearEnd {
		if err := t.beat(ctx); err != nil {
			return k, err
		}
		rec, left = t.recordIn(k.node)
	}
	if left > 0 {
		k.Record = rec
	}
	return k, nil
}

// nearEnd is when a sidecar asks for the leader's time before it says that a record is there:
// what it knows of that time lags behind by as long as an answer took, and another sidecar may
// have seen the end already.
const nearEnd = 10 * time.Second

// recordIn is what a node says that was read, and for how long it is kept yet: 0 or less
// where it is none, or over.
func (t *leaseNode) recordIn(node *zksession.Call) (lock.Record, time.Duration) {
	parts := bytes.SplitN(node.Data, []byte(" "), 3)
	if node.Err != nil || len(parts) != 3 {
		return lock.Record{}, 0
	}
	keep, _ := strconv.ParseInt(string(parts[1]), 10, 64)
	age := t.time.since(node.Stat.Mtime, t.b.clock())
	return lock.Record{Version: string(parts[0]), Value: parts[2], Age: age}, fromMillis(keep) - age
}

func recordData(r lock.Record, keep time.Duration) []byte {
	return append(fmt.Appendf(nil, "%s %d ", r.Version, toMillis(keep)), r.Value...)
}

// ReadRecord implements lock.Records.
func (b *Backend) ReadRecord(ctx context.Context, r lock.Resource) (rec lock.Record, err error) {
	err = b.onRecords(ctx, "read record", func(t *leaseNode) error {
		k, err := b.readKept(ctx, t, r, true)
		rec = k.Record
		return err
	})
	return rec, err
}

// onRecords does something through a session, again where an answer is lost.
func (b *Backend) onRecords(ctx context.Context, what string, do func(*leaseNode) error) error {
	err := b.ask(ctx, do)
	switch {
	case errors.Is(err, lock.ErrRecordChanged):
		return fmt.Errorf("%s: %w", what, err)
	}
	return unavailable(what, err)
}

// WriteRecord implements lock.Records.
func (b *Backend) WriteRecord(ctx context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	if err := next.Check(keep); err != nil {
		return err
	}
	path, data := b.tree.record(r), recordData(next, keep)
	create := func() *zksession.Call { return zksession.Create(path, data, b.tree.acl, zksession.Persistent) }
	if after == "" { // most likely there is none
		done := false
		err := b.onRecords(ctx, fmt.Sprintf("write record of %q", string(r)), func(t *leaseNode) error {
			call := create()
			err := t.s.Do(ctx, call)
			done = err == nil && call.Err == nil
			return err
		})
		if done || err != nil {
			return err
		}
	}
	return b.changeRecord(ctx, "write record", r, func(t *leaseNode, k kept) (done bool, call *zksession.Call, err error) {
		switch {
		case k.Version == next.Version:
			return true, nil, nil
		case k.Version != after:
			return true, nil, lock.ErrRecordChanged
		case k.bucket.Err != nil:
			call = create()
			above := b.tree.ancestors(b.tree.recordBucket(r))
			err := t.s.Do(ctx, append(above, call)...)
			for _, c := range above { // the first that failed is the reason
				if c.Err != nil && !errors.Is(c.Err, zksession.ErrNodeExists) {
					return false, c, err
				}
			}
			return false, call, err
		case k.node.Err != nil:
			call = create()
		default:
			call = zksession.Multi(zksession.Check(k.bucket), zksession.Set(path, data, k.node.Stat.Version))
		}
		return false, call, t.s.Do(ctx, call)
	})
}

// DeleteRecord implements lock.Records.
func (b *Backend) DeleteRecord(ctx context.Context, r lock.Resource, after string) error {
	return b.changeRecord(ctx, "delete record", r, func(t *leaseNode, k kept) (done bool, call *zksession.Call, err error) {
		switch {
		case k.Version != "" && k.Version != after:
			return true, nil, lock.ErrRecordChanged
		case k.node.Err != nil:
			return true, nil, nil
		}
		call = b.deleteRecords(k.bucket, k.node)
		return false, call, t.s.Do(ctx, call)
	})
}

// deleteRecords deletes nodes as they were read after their bucket.
func (b *Backend) deleteRecords(bucket *zksession.Call, nodes ...*zksession.Call) *zksession.Call {
	parts := []*zksession.Call{zksession.Set(bucket.Of(), nil, bucket.Stat.Version)}
	for _, n := range nodes {
		parts = append(parts, zksession.Delete(n.Of(), n.Stat.Version))
	}
	return zksession.Multi(parts...)
}

// changeRecord reads a record and changes it, again where another was faster. What is read
// without asking the leader is only a guess, on which no refusal rests.
func (b *Backend) changeRecord(ctx context.Context, what string, r lock.Resource,
	change func(t *leaseNode, k kept) (done bool, call *zksession.Call, err error),
) error {
	certain := false
	return b.onRecords(ctx, fmt.Sprintf("%s of %q", what, string(r)), func(t *leaseNode) error {
		for tries := 1; ; tries++ {
			k, err := b.readKept(ctx, t, r, certain)
			if err != nil {
				return err
			}
			done, call, err := change(t, k)
			switch {
			case done && !certain: // it may be another by now
			case done || call.Err == nil && err == nil:
				return err
			case err != nil:
				certain = true
				return err
			case !raced(call.Err) || tries == maxRaces || !leasekit.Sleep(ctx, rand.N(time.Duration(tries)*racePause)): //nolint:gosec // not a secret
				return fmt.Errorf("%s: %w", call, call.Err)
			}
			certain = true
		}
	})
}

// A change of a record is refused as well where another one of its bucket is deleted meanwhile.
// A sweep deletes many, one transaction after the other. The pauses let others through.
const (
	maxRaces  = 32
	racePause = 4 * time.Millisecond
)

// raced reports whether the server has refused a change because a node is not as it was
// read.
func raced(err error) bool {
	return errors.Is(err, zksession.ErrBadVersion) || errors.Is(err, zksession.ErrNoNode) || errors.Is(err, zksession.ErrNodeExists)
}

// ListRecords implements lock.Records.
func (b *Backend) ListRecords(ctx context.Context, prefix string, p lock.Page) (list []lock.NamedRecord, err error) {
	limit := p.Most()
	err = b.onRecords(ctx, "list records", func(t *leaseNode) (err error) {
		list, err = b.listRecords(ctx, t, prefix, p.After, limit)
		return err
	})
	return list, err
}

func (b *Backend) listRecords(ctx context.Context, t *leaseNode, prefix string, after lock.Resource, limit int) ([]lock.NamedRecord, error) {
	if err := t.refresh(ctx); err != nil {
		return nil, err
	}
	if err := t.s.Do(ctx, zksession.Sync(b.tree.leases())); err != nil {
		return nil, err
	}
	names, err := namesBelow(ctx, t, b.tree.records())
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(r lock.Resource) bool { return r <= after || !strings.HasPrefix(string(r), prefix) })
	slices.Sort(names)
	var list []lock.NamedRecord
	for some := range slices.Chunk(names, min(limit, maxBatch)) {
		nodes := make([]*zksession.Call, len(some))
		for i, r := range some {
			nodes[i] = zksession.Get(b.tree.record(r))
		}
		if err := doAll(ctx, t, nodes); err != nil {
			return nil, err
		}
		if err := unlisted(nodes); err != nil {
			return nil, err
		}
		for i, n := range nodes {
			if rec, left := t.recordIn(n); left > 0 {
				if list = append(list, lock.NamedRecord{Resource: some[i], Record: rec}); len(list) == limit {
					return list, nil
				}
			}
		}
	}
	return list, nil
}
