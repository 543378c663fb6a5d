package zklock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
)

const (
	// sweepEvery is how often one of all sidecars deletes what is over.
	sweepEvery = time.Minute
	// sweepLooks bounds how many nodes it reads, where little is over. Empty buckets do not count.
	sweepLooks = 512
	// sweepStep is how many nodes or buckets are read at a time, and records deleted in one transaction.
	sweepStep = 64
)

// chore is what is swept: nodes in buckets below a root.
type chore struct {
	root string
	over func(*zksession.Call) bool // whether a node that was read is over
	// end deletes nodes that are over, as they were read after their bucket, and says how many were; negative:
	// somebody was faster, so the rest of the bucket is left for another turn.
	end func(ctx context.Context, bucket *zksession.Call, over []*zksession.Call) (ended int, err error)
}

// recordsChore deletes records that are over. Nothing waits for that: nobody sees what is over.
func (d *driver) recordsChore() chore {
	return chore{
		root: d.b.tree.records(),
		over: func(n *zksession.Call) bool {
			_, left := d.leaseNode.recordIn(n)
			return left <= 0
		},
		end: func(ctx context.Context, bucket *zksession.Call, over []*zksession.Call) (int, error) {
			call := d.b.deleteRecords(bucket, over...)
			if err := d.leaseNode.s.Do(ctx, call); err != nil {
				return 0, err
			}
			if call.Err != nil {
				return -1, nil
			}
			bucket.Stat.Version++
			return len(over), nil
		},
	}
}

// sweep deletes what is over, when it is this sidecar's turn, until ctx ends.
//
// Whatever is asked for in a session keeps it alive, so the sidecar asks behind a heartbeat
// alone, and stops when the lease is overdue: one that gets no heartbeats any more must not
// outlive them by its own chores.
func (d *driver) sweep(ctx context.Context) {
	every := d.b.sweepEvery
	for leasekit.Sleep(ctx, every+rand.N(every/4)) { //nolint:gosec // not a secret
		select {
		case <-d.renewed:
			for _, c := range []chore{d.recordsChore(), d.keptChore()} {
				_ = d.sweepOnce(ctx, c, every) // in some other turn
			}
		case <-ctx.Done():
		}
	}
}

// sweepOnce takes the turn, which the node above the buckets tells: when the last one was
// its mtime, and where it ended its data. It goes on for as long as a quarter of what it
// reads is over.
func (d *driver) sweepOnce(ctx context.Context, c chore, every time.Duration) error {
	b, t := d.b, d.leaseNode
	root := zksession.Get(c.root)
	if err := t.s.Do(ctx, root); err != nil || root.Err != nil {
		return err // there is nothing
	}
	if t.time.since(root.Stat.Mtime, b.clock()) < every {
		return nil
	}
	turn := zksession.Set(c.root, root.Data, root.Stat.Version)
	list := zksession.Children(c.root)
	if err := t.s.Do(ctx, turn, list); err != nil || turn.Err != nil || list.Err != nil {
		return err // it is another's
	}
	buckets := list.Children
	slices.Sort(buckets)
	place := string(root.Data)
	bucket, _, _ := strings.Cut(place, "/")
	first, _ := slices.BinarySearch(buckets, bucket)
	buckets = slices.Concat(buckets[first:], buckets[:first])
	looks := b.sweepLooks
	for len(buckets) > 0 && looks > 0 && !d.set.Overdue() {
		some := make([]*zksession.Call, min(len(buckets), sweepStep))
		for i := range some {
			some[i] = zksession.Get(c.root + "/" + buckets[i])
		}
		if err := doAll(ctx, t, some); err != nil {
			return err
		}
		for _, bucket := range some {
			if looks <= 0 || d.set.Overdue() {
				break
			}
			name := buckets[0]
			buckets = buckets[1:]
			if bucket.Err != nil || bucket.Stat.NumChildren == 0 {
				place = behind(name)
				continue
			}
			var err error
			if place, looks, err = d.sweepBucket(ctx, c, name, place, looks); err != nil {
				return err
			}
		}
	}
	if d.set.Overdue() {
		return nil
	}
	return t.s.Do(ctx, zksession.Set(c.root, []byte(place), zksession.AnyVersion))
}

// sweepBucket deletes what is over in a bucket, in steps, from a place on: BUCKET/NAME
// is behind that name. It gives the place where it ended, and how many looks are left.
func (d *driver) sweepBucket(ctx context.Context, c chore, name, place string, looks int) (string, int, error) {
	t, path := d.leaseNode, c.root+"/"+name
	bucket, list := zksession.Get(path), zksession.Children(path)
	if err := t.s.Do(ctx, bucket, list); err != nil || errors.Join(bucket.Err, list.Err) != nil {
		return behind(name), looks, err
	}
	looks--
	slices.Sort(list.Children)
	if after, here := strings.CutPrefix(place, name+"/"); here {
		list.Children = slices.DeleteFunc(list.Children, func(n string) bool { return n <= after })
	}
	for some := range slices.Chunk(list.Children, sweepStep) {
		if looks <= 0 || d.set.Overdue() {
			return place, looks, nil
		}
		nodes := make([]*zksession.Call, len(some))
		for i, n := range some {
			nodes[i] = zksession.Get(path + "/" + n)
		}
		if err := doAll(ctx, t, nodes); err != nil {
			return place, looks, err
		}
		over := slices.DeleteFunc(nodes, func(n *zksession.Call) bool { return n.Err != nil || !c.over(n) })
		looks -= len(some)
		place = name + "/" + some[len(some)-1]
		if len(over) == 0 {
			continue
		}
		ended, err := c.end(ctx, bucket, over)
		if err != nil {
			return place, looks, err
		}
		if ended < 0 || ended*4 >= len(some) {
			looks = max(looks, 1)
		}
		if ended < 0 {
			break
		}
	}
	return behind(name), looks, nil
}

// behind is the place behind a whole bucket.
func behind(bucket string) string { return bucket + "0" }
