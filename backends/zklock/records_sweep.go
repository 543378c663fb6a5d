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
	// sweepEvery is how often one of all sidecars deletes records that are over.
	sweepEvery = time.Minute
	// sweepLooks bounds how many requests it reads with, where little is over.
	sweepLooks = 512
	// sweepStep is how many records are read at a time, and deleted in one transaction.
	sweepStep = 64
)

// sweepRecords deletes records that are over, when it is this sidecar's turn, until ctx
// ends. Nothing waits for that: nobody sees what is over.
//
// Whatever is asked for in a session keeps it alive, so the sidecar asks behind a heartbeat
// alone, and stops when the lease is overdue: one that gets no heartbeats any more must not
// outlive them by its own chores.
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
	place := string(root.Data)
	bucket, _, _ := strings.Cut(place, "/")
	first, _ := slices.BinarySearch(buckets, bucket)
	for n, looks := 0, b.sweepLooks; n < len(buckets) && looks > 0 && !d.set.Overdue(); n++ {
		var err error
		if place, looks, err = d.sweepBucket(ctx, buckets[(first+n)%len(buckets)], place, looks); err != nil {
			return err
		}
	}
	if d.set.Overdue() {
		return nil
	}
	return t.s.Do(ctx, zksession.Set(b.tree.records(), []byte(place), zksession.AnyVersion))
}

// sweepBucket deletes the records of a bucket that are over, in steps, from a place on: BUCKET/NAME
// is behind that name. It gives the place where it ended, and how many looks are left.
func (d *driver) sweepBucket(ctx context.Context, name, place string, looks int) (string, int, error) {
	t, path := d.leaseNode, d.b.tree.records()+"/"+name
	behind := name + "0" // the whole bucket
	bucket, list := zksession.Get(path), zksession.Children(path)
	if err := t.s.Do(ctx, bucket, list); err != nil || errors.Join(bucket.Err, list.Err) != nil {
		return behind, looks, err
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
		dead := slices.DeleteFunc(nodes, func(n *zksession.Call) bool {
			_, left := t.recordIn(n)
			return left > 0 || n.Err != nil
		})
		if looks -= len(some); len(dead)*4 >= len(some) {
			looks = max(looks, 1)
		}
		place = name + "/" + some[len(some)-1]
		if len(dead) == 0 {
			continue
		}
		call := d.b.deleteRecords(bucket, dead...)
		if err := t.s.Do(ctx, call); err != nil {
			return place, looks, err
		}
		if call.Err != nil { // somebody was faster: in some other turn
			break
		}
		bucket.Stat.Version++
	}
	return behind, looks, nil
}
