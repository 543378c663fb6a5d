package zklock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
)

const (
	// sweepEvery is how often one of all sidecars deletes records that are over.
	sweepEvery = time.Minute
	// sweepLooks bounds how many requests it reads with, where little is over.
	sweepLooks = 512
	// sweepDeletes is how many records are deleted in one transaction.
	sweepDeletes = 64
)

// sweepRecords deletes records that are over, when it is this sidecar's turn, until ctx
// ends. Nothing waits for that: nobody sees what is over.
//
// Whatever is asked for in a session keeps it alive, so the sidecar asks behind a heartbeat
// alone: a lease that gets no heartbeats any more must not outlive them by its own chores.
func (d *driver) sweepRecords(ctx context.Context) {
	every := d.b.sweepEvery
	for leasekit.Sleep(ctx, every+rand.N(every/4)) { //nolint:gosec // not a secret
		select {
		case <-d.renewed:
			_ = d.sweepOnce(ctx, every) // in some other turn
		case <-ctx.Done():
		}
	}
}

// sweepOnce takes the turn, which the node above the buckets tells: when the last one was
// its mtime, and where it ended its data. It goes on for as long as a quarter of what it
// reads is over.
func (d *driver) sweepOnce(ctx context.Context, every time.Duration) error {
	b, t := d.b, d.leaseNode
	root := zksession.Get(b.tree.records())
	if err := t.s.Do(ctx, root); err != nil || root.Err != nil {
		return err // there was never a record
	}
	if t.time.since(root.Stat.Mtime, b.clock()) < every {
		return nil
	}
	turn := zksession.Set(b.tree.records(), root.Data, root.Stat.Version)
	list := zksession.Children(b.tree.records())
	if err := t.s.Do(ctx, turn, list); err != nil || turn.Err != nil || list.Err != nil {
		return err // it is another's
	}
	buckets := list.Children
	slices.Sort(buckets)
	first, _ := slices.BinarySearch(buckets, string(root.Data))
	for n, looks := 0, b.sweepLooks; n < len(buckets) && looks > 0; n++ {
		name := buckets[(first+n)%len(buckets)]
		read, over, err := b.sweepBucket(ctx, t, b.tree.records()+"/"+name)
		if err != nil {
			return err
		}
		if looks -= 1 + read; over*4 >= read && over > 0 {
			looks = max(looks, 1)
		}
		root.Data = []byte(name + "0") // behind this one
	}
	return t.s.Do(ctx, zksession.Set(b.tree.records(), root.Data, zksession.AnyVersion))
}

// sweepBucket deletes the records of a bucket that are over.
func (b *Backend) sweepBucket(ctx context.Context, t *leaseNode, path string) (read, over int, err error) {
	bucket, list := zksession.Get(path), zksession.Children(path)
	if err := t.s.Do(ctx, bucket, list); err != nil || errors.Join(bucket.Err, list.Err) != nil {
		return 0, 0, err
	}
	nodes := make([]*zksession.Call, len(list.Children))
	for i, name := range list.Children {
		nodes[i] = zksession.Get(path + "/" + name)
	}
	if err := doAll(ctx, t, nodes); err != nil {
		return 0, 0, err
	}
	dead := slices.DeleteFunc(nodes, func(n *zksession.Call) bool {
		_, left := t.recordIn(n)
		return left > 0 || n.Err != nil
	})
	for some := range slices.Chunk(dead, sweepDeletes) {
		call := b.deleteRecords(bucket, some...)
		if err := t.s.Do(ctx, call); err != nil {
			return 0, 0, err
		}
		if call.Err != nil { // somebody was faster: in some other turn
			break
		}
		bucket.Stat.Version++
	}
	return len(list.Children), len(dead), nil
}
