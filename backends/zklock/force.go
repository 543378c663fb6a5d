package zklock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
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
	t, err := b.askThrough(ctx)
	if err != nil {
		return err
	}
	f := &forced{b: b, t: t, r: r, id: id, path: path, grace: max(grace, 0)}
	for {
		if ctx.Err() != nil {
			return unavailable("force release", context.Cause(ctx))
		}
		end, err := f.write(ctx)
		switch {
		case errors.Is(err, lock.ErrNotHolder):
			return err
		case err != nil:
			return unavailable("force release", err)
		case end == gone:
			return nil
		case end != pending:
			return f.wait(ctx, end == marked)
		}
	}
}

// maxRecheck bounds how long a watch is trusted.
const maxRecheck = 3 * time.Second

// forced is a forced release under way.
type forced struct {
	b     *Backend
	t     *leaseNode
	r     lock.Resource
	id    lock.HoldID
	path  string
	grace time.Duration

	node    string
	names   []string
	claimed *claimed // nil: it is not granted by a transaction
	lost    bool     // a removal had no answer
}

// progress is how far a forced release has come.
type progress int

const (
	pending progress = iota // something has changed meanwhile
	marked                  // the holder's sidecar is to acknowledge it
	foreign                 // the holder is another program
	gone
)

// maxForcing is how many forced releases are written at a time. Those of holds of one
// lease write the node of the lease, and all but one of them do so again.
const maxForcing = 4

// write begins when it is its turn.
func (f *forced) write(ctx context.Context) (end progress, err error) {
	select {
	case f.b.forcing <- struct{}{}:
		defer func() { <-f.b.forcing }()
	case <-ctx.Done():
		return pending, context.Cause(ctx)
	}
	err = insist(ctx, func() (err error) { end, err = f.begin(ctx); return err })
	return end, err
}

// begin marks a hold, or removes it or a waiter.
//
// What makes sure that it is what it was goes into the transaction that does so:
// that the node which a waiter waits for is there still, or else it may be granted,
// and its app has a grace; and that the lease's node tells of it, or else the next
// heartbeat would not tell when the watch does not.
func (f *forced) begin(ctx context.Context) (progress, error) {
	// A sync would not do: a leader that does not know yet that there is another one answers it, and may lack the hold.
	queue := zksession.Children(f.path)
	if err := f.t.s.Do(ctx, zksession.Barrier(), queue); err != nil {
		return pending, err
	}
	if err := queue.Err; err != nil && !errors.Is(err, zksession.ErrNoNode) {
		return pending, err
	}
	nodes := parseNodes(queue.Children)
	i := slices.IndexFunc(nodes, func(n node) bool { return n.id == f.id })
	switch {
	case i < 0 && f.lost:
		return gone, nil
	case i < 0:
		return pending, lock.ErrNotHolder
	}
	if nodes[i].kept { // nobody has it
		there, err := f.t.endLeft(ctx, f.path, f.b.tree.slots(f.r), f.id, nil)
		if !there && nodes[i].key != "" { // somebody may have attached it
			return pending, err
		}
		return gone, err
	}
	f.node, f.names = f.path+"/"+nodes[i].name, namesOf(queue.Children, nodes[i])
	get := zksession.Get(f.node)
	if err := f.t.s.Do(ctx, get); err != nil {
		return pending, err
	}
	rec, ours := decodeRecord(get.Data)
	if !ours && nodes[i].bySidecar() { // another program has written into it
		rec, ours = record{}, true
	}
	check, old, err := f.waits(ctx, nodes, i, get)
	waits := check != nil
	switch {
	case err != nil:
		return pending, err
	case old || errors.Is(get.Err, zksession.ErrNoNode):
		return pending, nil
	case get.Err != nil && !errors.Is(get.Err, zksession.ErrNoAuth):
		return pending, get.Err
	case !waits && f.grace > 0 && !ours: // whoever that is does not read what we write
		return foreign, nil
	}
	var calls []*zksession.Call
	tell, err := f.tell(ctx, rec.Lease)
	if err != nil {
		return pending, err
	}
	if tell != nil {
		calls = append(calls, tell)
	}
	end := gone
	switch {
	case waits || f.grace == 0:
		calls = append(append(calls, check...), f.deletes()...)
	case rec.Revoked != nil && fromMillis(*rec.Revoked) <= f.grace: // a longer grace changes nothing
		return marked, nil
	default:
		end = marked
		ms := toMillis(f.grace)
		rec.Revoked = &ms
		calls = append(calls, zksession.Set(f.node, rec.encode(), get.Stat.Version))
		if left := keptName(nodes[i].name); slices.Contains(queue.Children, left) && left != nodes[i].name {
			calls = append(calls, zksession.Set(f.path+"/"+left, rec.encode(), zksession.AnyVersion))
		}
	}
	all := zksession.Multi(calls...)
	if err := f.t.s.Do(ctx, all); err != nil {
		f.lost = f.lost || errors.Is(err, zksession.ErrLost)
		return pending, err
	}
	if errors.Is(all.Err, zksession.ErrNoNode) || errors.Is(all.Err, zksession.ErrBadVersion) {
		return pending, nil
	}
	return end, all.Err
}

// deletes are the calls that delete its nodes.
func (f *forced) deletes() []*zksession.Call {
	if f.claimed != nil {
		return f.claimed.deletes()
	}
	return deletes(f.path, f.names)
}

// waits finds out whether the request at place i, which was read, waits, and gives what fails in a
// transaction when it does not any more; nil: it does not. old: what is known of the
// queue is.
func (f *forced) waits(ctx context.Context, nodes []node, i int, own *zksession.Call) (check []*zksession.Call, old bool, err error) {
	if nodes[i].byTransaction() {
		var waits bool
		if f.claimed, waits, err = f.t.claimedOf(ctx, f.path, f.b.tree.slots(f.r), nodes[i], f.names, own); waits {
			check = []*zksession.Call{} // its delete fails then
		}
		return check, false, err
	}
	j := blocker(nodes, i, nodes[i].shared)
	if j < 0 {
		return nil, false, nil
	}
	get := zksession.Get(f.path + "/" + nodes[j].name)
	if err := f.t.s.Do(ctx, get); err != nil {
		return nil, false, err
	}
	rec, _ := decodeRecord(get.Data)
	switch {
	case errors.Is(get.Err, zksession.ErrNoNode):
		return nil, true, nil
	case get.Err == nil && rec.Downgraded && nodes[i].shared:
		return nil, false, nil
	case errors.Is(get.Err, zksession.ErrNoAuth): // another's node that we may not read is in its way all the same
		return []*zksession.Call{}, false, nil
	case get.Err != nil:
		return nil, false, get.Err
	}
	return []*zksession.Call{zksession.Check(get)}, false, nil
}

// tell is the call that notes the forced release in the node of the holder's lease;
// nil where there is none, as with another program's.
func (f *forced) tell(ctx context.Context, id lock.LeaseID) (*zksession.Call, error) {
	if id == "" {
		return nil, nil //nolint:nilnil // said above
	}
	get := zksession.Get(f.b.tree.lease(id))
	if err := f.t.s.Do(ctx, get); err != nil {
		return nil, err
	}
	if errors.Is(get.Err, zksession.ErrNoNode) { // somebody may have deleted it by hand
		return nil, nil //nolint:nilnil // said above
	}
	rec := decodeLease(get.Data)
	rec.force(f.node, f.grace)
	return zksession.Set(f.b.tree.lease(id), rec.encode(), get.Stat.Version), get.Err
}

// bell is rung when a node was changed or deleted.
type bell chan struct{}

func (b bell) changed(bool) {
	leasekit.Ring(b)
}

// wait waits until the node is gone or the grace is over, and deletes it then.
func (f *forced) wait(ctx context.Context, ours bool) error {
	news := make(bell, 1)
	f.t.subscribe(f.node, news)
	defer func() { f.t.unsubscribe(f.node, news) }()
	due := time.Duration(math.MaxInt64)
	if !ours {
		due = f.b.clock() + f.grace
	}
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		look, err := f.look(ctx, news)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("force release %q: %w; it ends by itself %s after the holder's sidecar knows of it, or with its lease", string(f.r), context.Cause(ctx), f.grace)
		case err != nil:
			return unavailable("force release", err)
		case errors.Is(look.Err, zksession.ErrNoNode):
			if err := f.endLeft(ctx); err != nil {
				return unavailable("force release", err)
			}
			return nil
		}
		now := f.b.clock()
		rec, _ := decodeRecord(look.Data)
		if grace, known := rec.known(); known {
			due = min(due, now+grace)
		}
		if now >= due {
			if err := f.remove(ctx); err != nil {
				return unavailable("force release", err)
			}
			return nil
		}
		t.Reset(min(due-now, maxRecheck))
		select {
		case <-news:
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// remove deletes the nodes of a hold whose grace is over.
func (f *forced) remove(ctx context.Context) error {
	if f.claimed == nil {
		return f.t.remove(ctx, f.path, f.names)
	}
	return insist(ctx, func() error {
		_, err := f.t.removeClaimed(ctx, *f.claimed)
		return err
	})
}

// endLeft deletes what is left of a hold with a MinHold that has ended meanwhile.
func (f *forced) endLeft(ctx context.Context) error {
	if f.claimed == nil || !f.claimed.least {
		return nil
	}
	return insist(ctx, func() error {
		_, err := f.t.endLeft(ctx, f.path, f.b.tree.slots(f.r), f.id, nil)
		return err
	})
}

// look reads the node and watches it. The wait may outlast the lease that it has begun
// through: one that gets no heartbeats any more must not live on by it.
func (f *forced) look(ctx context.Context, news bell) (look *zksession.Call, err error) {
	err = insist(ctx, func() error {
		t, err := f.b.askThrough(ctx)
		if err != nil {
			return err
		}
		if t != f.t {
			f.t.unsubscribe(f.node, news)
			t.subscribe(f.node, news)
			f.t = t
		}
		look = zksession.Watch(f.node)
		if err = t.s.Do(ctx, look); err != nil && t.s.Err() != nil {
			return zksession.ErrLost // another one can tell
		}
		return err
	})
	return look, err
}
