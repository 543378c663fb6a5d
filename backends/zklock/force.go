package zklock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// ForceRelease implements lock.Backend.
//
// With a grace it marks the holder's node, which the holder's sidecar watches: that
// tells its app, and writes into the node that it knows. From then on the grace
// counts, for each of those who take part on a clock of its own. The first for whom
// it is over deletes the node: the holder's sidecar, us, or those who wait for it.
//
// Another program's node says nothing about who knows, so there the grace counts
// from now.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	path, err := b.tree.lockPath(r)
	if err != nil {
		return err
	}
	t, err := b.seat(ctx)
	if err != nil {
		return err
	}
	f := &forced{b: b, t: t, r: r, id: id, path: path}
	for {
		held, gone := false, false
		err := insist(ctx, func() (err error) { held, gone, err = f.end(ctx, grace); return err })
		switch {
		case errors.Is(err, lock.ErrNotHolder):
			return err
		case err != nil:
			return unavailable("force release", err)
		case held:
			return f.wait(ctx, grace)
		case gone:
			return nil
		}
	}
}

// forced is a forced release under way.
type forced struct {
	b    *Backend
	t    *seat
	r    lock.Resource
	id   lock.HoldID
	path string

	node  string
	names []string
	lost  bool // a removal had no answer
	alone bool // the lease's node may be gone
}

// end removes a waiter, or a hold without a grace. held: there is a hold, and a
// grace. Where it is neither held nor gone, something has changed meanwhile.
//
// What makes sure that it is what it was goes into the transaction that removes it:
// that the node which a waiter waits for is there still, or else it may be granted,
// and its app has a grace; and that the holder's lease is told, or else the next
// heartbeat would not tell when the watch does not.
func (f *forced) end(ctx context.Context, grace time.Duration) (held, gone bool, err error) {
	st, children, err := f.b.statusOf(ctx, f.t, f.r, f.path)
	if err != nil {
		return false, false, err
	}
	nodes := parseNodes(children)
	i := slices.IndexFunc(nodes, func(n node) bool { return n.id == f.id })
	switch {
	case i < 0 && f.lost:
		return false, true, nil
	case i < 0:
		return false, false, lock.ErrNotHolder
	}
	f.node, f.names = f.path+"/"+nodes[i].name, namesOf(children, nodes[i])
	var calls []*zksession.Call
	var touch *zksession.Call
	if h := slices.IndexFunc(st.Holders, func(h lock.Holding) bool { return h.ID == f.id }); h >= 0 {
		if grace > 0 {
			return true, false, nil
		}
		if lease := st.Holders[h].Lease; lease != "" { // else it is another program's
			touch = f.touchCall(lease)
		}
		if touch != nil && !f.alone {
			calls = append(calls, touch)
		}
	} else {
		check, waits, err := f.waits(ctx, nodes, i)
		if err != nil || !waits {
			return false, false, err
		}
		calls = append(calls, check...)
	}
	for _, n := range f.names {
		calls = append(calls, zksession.Delete(f.path+"/"+n, zksession.AnyVersion))
	}
	all := zksession.Multi(calls...)
	err = f.t.s.Do(ctx, all)
	f.lost = f.lost || errors.Is(err, zksession.ErrLost)
	switch {
	case err != nil:
		return false, false, err
	case errors.Is(all.Err, zksession.ErrNoNode), errors.Is(all.Err, zksession.ErrBadVersion):
		f.alone = touch != nil // one of them, it does not say which
		return false, false, nil
	case all.Err == nil && touch != nil && f.alone:
		_ = f.t.s.Do(ctx, touch) // the hold has ended all the same, and the watch tells
	}
	return false, all.Err == nil, all.Err
}

// waits finds out whether the request at place i waits, and gives what fails in a
// transaction when it does not any more.
func (f *forced) waits(ctx context.Context, nodes []node, i int) (check []*zksession.Call, waits bool, err error) {
	j := blocker(nodes, i, nodes[i].shared)
	if j < 0 { // some of them were gone when they were read
		return nil, false, nil
	}
	get := zksession.Get(f.path + "/" + nodes[j].name)
	if err := f.t.s.Do(ctx, get); err != nil {
		return nil, false, err
	}
	rec, _ := decodeRecord(get.Data)
	switch {
	case errors.Is(get.Err, zksession.ErrNoNode), get.Err == nil && rec.Downgraded && nodes[i].shared:
		return nil, false, nil
	case errors.Is(get.Err, zksession.ErrNoAuth): // another's node that we may not read is in its way all the same
		return nil, true, nil
	case get.Err != nil:
		return nil, false, get.Err
	}
	return []*zksession.Call{zksession.Check(get)}, true, nil
}

// wait marks the node, waits until it is gone or the grace is over, and deletes
// it then.
func (f *forced) wait(ctx context.Context, grace time.Duration) error {
	gone := make(chan struct{}, 1)
	s := &sub{notify: func(zksession.Event) { signal(gone) }}
	f.t.subscribe(f.node, s)
	defer f.t.unsubscribe(f.node, s)
	there, ours := false, false
	err := insist(ctx, func() (err error) { there, ours, err = f.mark(ctx, grace); return err })
	switch {
	case err != nil:
		return unavailable("force release", err)
	case !there:
		return lock.ErrNotHolder
	}
	due := time.Duration(math.MaxInt64)
	if !ours {
		due = f.b.clock() + grace
	}
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		var look *zksession.Call
		err := insist(ctx, func() error {
			look = zksession.Watch(f.node)
			return f.t.s.Do(ctx, look)
		})
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("force release %q: %w; it ends by itself %s after the holder's sidecar knows of it, or with its lease", string(f.r), context.Cause(ctx), grace)
		case err != nil:
			return unavailable("force release", err)
		case errors.Is(look.Err, zksession.ErrNoNode):
			return nil
		}
		now := f.b.clock()
		rec, _ := decodeRecord(look.Data)
		if grace, known := rec.known(); known {
			due = min(due, now+grace)
		}
		if now >= due {
			if _, _, err := f.t.remove(ctx, f.path, f.names); err != nil {
				return unavailable("force release", err)
			}
			return nil
		}
		t.Reset(min(due-now, maxRecheck))
		select {
		case <-gone:
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// mark writes the grace into the node, and says whether the node was there and is
// ours. What another program has written stays as it is: nobody reads our mark
// there.
func (f *forced) mark(ctx context.Context, grace time.Duration) (there, ours bool, err error) {
	ms := int64((grace + time.Millisecond - 1) / time.Millisecond)
	for alone := false; ; {
		get := zksession.Get(f.node)
		if err := f.t.s.Do(ctx, get); err != nil {
			return false, false, err
		}
		if get.Err != nil {
			if errors.Is(get.Err, zksession.ErrNoNode) {
				return false, false, nil
			}
			return false, false, get.Err
		}
		rec, ours := decodeRecord(get.Data)
		switch {
		case !ours:
			return true, false, nil
		case rec.Revoked != nil && *rec.Revoked <= ms: // a longer grace changes nothing
			return true, true, nil
		}
		rec.Revoked = &ms
		set, touch := zksession.Set(f.node, rec.encode(), get.Stat.Version), f.touchCall(rec.Lease)
		all := zksession.Multi(set, touch)
		if alone {
			all = set
		}
		if err := f.t.s.Do(ctx, all); err != nil {
			return false, false, err
		}
		switch {
		case all.Err == nil:
			return true, true, nil
		case errors.Is(all.Err, zksession.ErrNoNode): // one of them, it does not say which
			alone = true // somebody may have deleted the lease's node by hand
		case !errors.Is(all.Err, zksession.ErrBadVersion):
			return true, true, all.Err
		}
	}
}

// touchCall writes the node of the holder's lease, together with what happens to
// its hold: the lease's next heartbeat meets another version there than it has
// left, and reads the nodes of its holds, also where the watch has told it nothing.
// The heartbeat writes again what people may want to see there.
func (f *forced) touchCall(id lock.LeaseID) *zksession.Call {
	return zksession.Set(f.b.tree.leases()+"/"+string(id), []byte("{}"), zksession.AnyVersion)
}
