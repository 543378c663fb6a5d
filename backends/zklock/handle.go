package zklock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// handle is a detached hold as it was read, by its key.
type handle struct {
	r    lock.Resource
	path string // of the lock

	node  node // that is there for it
	stat  zksession.Stat
	rec   record
	left  time.Duration // for which others are kept out by it; 0 or less: its time is over, or its release is forced
	guard string        // name of its guard, in the layout of Curator
	index bool          // it is found by the sweep
	slot  bool          // it has its slot

	by      node // of the lease to which it is attached; no name: it is attached to none
	version int32
	lease   lock.LeaseID
}

// detachedFor is how much longer others are kept out by the node of a detached hold.
func (t *leaseNode) detachedFor(rec record, stat zksession.Stat) time.Duration {
	span := fromMillis(rec.Detached)
	if rec.Ends != 0 {
		span = fromMillis(rec.Ends - stat.Mtime)
	}
	return min(span, lock.MaxDetach) - t.time.since(stat.Mtime, t.b.clock())
}

// mode is that of the hold.
func (h *handle) mode() lock.Mode {
	if h.rec.Downgraded {
		return lock.Shared
	}
	return h.node.mode()
}

// mode is what a request asks for, by its node.
func (n node) mode() lock.Mode {
	switch {
	case n.limit > 0:
		return lock.Permits(n.limit)
	case n.shared:
		return lock.Shared
	}
	return lock.Exclusive
}

// handleOf reads the hold that a key names; nil: there is none.
func (t *leaseNode) handleOf(ctx context.Context, r lock.Resource, path string, key lock.HandleKey) (*handle, error) {
	if err := t.refresh(ctx); err != nil {
		return nil, err
	}
	for {
		queue := zksession.Children(path)
		if err := t.s.Do(ctx, zksession.Barrier(), queue); err != nil {
			return nil, err
		}
		if queue.Err != nil && !errors.Is(queue.Err, zksession.ErrNoNode) {
			return nil, queue.Err
		}
		h := &handle{r: r, path: path}
		for _, n := range parseAll(queue.Children) {
			switch {
			case n.key != key:
			case n.kept:
				h.node = n
			default:
				h.by = n
			}
		}
		if h.node.name == "" {
			return nil, nil //nolint:nilnil // said above
		}
		for _, name := range namesOf(queue.Children, h.node) {
			if isKeptGuard(name) {
				h.guard = name
			}
		}
		if there, err := t.readHandle(ctx, h); err != nil || there {
			return h, err
		}
	}
}

// readHandle reads the nodes of a handle, and reports whether they are still there.
func (t *leaseNode) readHandle(ctx context.Context, h *handle) (there bool, err error) {
	own, index := zksession.Get(h.path+"/"+h.node.name), zksession.Get(t.b.tree.kept(h.node.id))
	calls := []*zksession.Call{own, index}
	if h.by.name != "" {
		calls = append(calls, zksession.Get(h.path+"/"+h.by.name))
	}
	if err := t.s.Together(ctx, calls...); err != nil {
		return false, err
	}
	for _, c := range calls {
		if errors.Is(c.Err, zksession.ErrNoNode) && c != index {
			return false, nil
		}
	}
	if own.Err != nil {
		return false, own.Err
	}
	h.rec, _ = decodeRecord(own.Data)
	h.stat, h.index, h.left = own.Stat, index.Err == nil, t.leftFor(h.node, own)
	if h.by.name != "" {
		by, _ := decodeRecord(calls[2].Data)
		if h.version, h.lease = calls[2].Stat.Version, by.Lease; by.Revoked != nil {
			h.left = 0
		}
	}
	if h.rec.Slot != nil {
		h.slot, err = t.hasSlot(ctx, t.b.tree.slots(h.r), h.node.id, *h.rec.Slot)
	}
	return true, err
}

// takeAway are the calls that end what a lease has attached, and tell it; none where nobody has it.
func (t *leaseNode) takeAway(ctx context.Context, h *handle) ([]*zksession.Call, error) {
	if h.by.name == "" {
		return nil, nil
	}
	path := h.path + "/" + h.by.name
	calls := []*zksession.Call{zksession.Delete(path, h.version)}
	tell, err := (&forced{b: t.b, t: t, node: path}).tell(ctx, h.lease)
	if tell != nil {
		calls = append(calls, tell)
	}
	return calls, err
}

// deletes are the calls that delete the node of a detached hold and what belongs to it, but for its slot.
func (t *leaseNode) deletes(h *handle) []*zksession.Call {
	calls := []*zksession.Call{zksession.Delete(h.path+"/"+h.node.name, h.stat.Version)}
	if h.guard != "" {
		calls = append(calls, zksession.Delete(h.path+"/"+h.guard, zksession.AnyVersion))
	}
	if h.index {
		calls = append(calls, zksession.Delete(t.b.tree.kept(h.node.id), zksession.AnyVersion))
	}
	return calls
}

// endHandle ends a detached hold, whoever has it attached. It is not done where something has changed since it was read.
func (t *leaseNode) endHandle(ctx context.Context, h *handle) (done bool, err error) {
	calls, err := t.takeAway(ctx, h)
	if err != nil {
		return false, err
	}
	calls = append(calls, t.deletes(h)...)
	if h.slot {
		calls = append(calls, zksession.Delete(t.b.tree.slot(h.r, *h.rec.Slot), zksession.AnyVersion))
	}
	return t.unlessRaced(ctx, calls)
}

// unlessRaced carries out a transaction, which is not done where somebody was faster.
func (t *leaseNode) unlessRaced(ctx context.Context, calls []*zksession.Call) (done bool, err error) {
	all := zksession.Multi(calls...)
	if err := t.s.Do(ctx, all); err != nil {
		return false, err
	}
	if all.Err != nil && !raced(all.Err) {
		return false, all.Err
	}
	return all.Err == nil, nil
}

// endOver ends what is left of a hold that is gone, and says whether there was any. That of a detached hold, which
// has a key, is ended only when its time is over: left is how long that takes yet, and 0 or less where somebody
// has attached it.
func (t *leaseNode) endOver(ctx context.Context, r lock.Resource, path string, id lock.HoldID, key lock.HandleKey, slot *int) (left time.Duration, there bool, err error) {
	if key == "" {
		there, err = t.endLeft(ctx, path, t.b.tree.slots(r), id, slot)
		return 0, there, err
	}
	for {
		h, err := t.handleOf(ctx, r, path, key)
		switch {
		case err != nil:
			return 0, false, err
		case h == nil || h.node.id != id:
			there, err = t.endRest(ctx, r, path, id, slot)
			return 0, there, err
		case h.by.name != "":
			return 0, false, nil
		case h.left > 0:
			return h.left, false, nil
		}
		if done, err := t.endHandle(ctx, h); err != nil || done {
			return 0, done, err
		}
	}
}

// endRest deletes what belongs to the node of a detached hold that somebody has deleted by hand.
func (t *leaseNode) endRest(ctx context.Context, r lock.Resource, path string, id lock.HoldID, slot *int) (there bool, err error) {
	queue := zksession.Children(path)
	if err := t.s.Do(ctx, queue); err != nil {
		return false, err
	}
	if queue.Err != nil && !errors.Is(queue.Err, zksession.ErrNoNode) {
		return false, queue.Err
	}
	if slices.ContainsFunc(parseAll(queue.Children), func(n node) bool { return n.id == id }) {
		return false, nil // it was detached under another key
	}
	return t.endLeft(ctx, path, t.b.tree.slots(r), id, slot)
}

// indexOf is the data of the node by which the sweep finds a detached hold.
func (h *handle) indexOf(left time.Duration) []byte {
	return keptRecord{Path: h.path, Resource: h.r, Least: toMillis(left), Slot: h.rec.Slot, Key: h.node.key}.encode()
}

// SetHandle implements lock.Handles.
func (b *Backend) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (lock.Detached, error) {
	if ttl != 0 {
		if err := lock.CheckDetach(ttl); err != nil {
			return lock.Detached{}, err
		}
	}
	path, err := b.tree.lockPath(r)
	if err != nil {
		return lock.Detached{}, err
	}
	var d lock.Detached
	var ending bool // a request to end it had no answer
	err = b.ask(ctx, func(t *leaseNode) error {
		for ctx.Err() == nil {
			h, err := t.handleOf(ctx, r, path, key)
			switch {
			case err != nil:
				return err
			case ending && h == nil:
				return nil
			case h == nil || h.left <= 0:
				return lock.ErrNoHandle
			}
			d = lock.Detached{ID: h.node.id, Mode: h.mode(), Fence: h.rec.Fence}
			var done bool
			if ttl == 0 {
				done, err = t.endHandle(ctx, h)
				ending = ending || errors.Is(err, zksession.ErrLost)
			} else {
				done, err = t.extendHandle(ctx, h, ttl)
			}
			if err != nil || done {
				return err
			}
		}
		return context.Cause(ctx)
	})
	switch {
	case errors.Is(err, lock.ErrNoHandle):
		return lock.Detached{}, err
	case err != nil:
		return lock.Detached{}, unavailable("set handle", err)
	}
	return d, nil
}

// extendHandle makes the time of a detached hold end ttl from now. It is not done where something has changed since it was read.
func (t *leaseNode) extendHandle(ctx context.Context, h *handle, ttl time.Duration) (done bool, err error) {
	rec := h.rec
	rec.Detached, rec.Ends = toMillis(ttl), 0
	set := zksession.Set(h.path+"/"+h.node.name, rec.encode(), h.stat.Version)
	index := t.b.tree.kept(h.node.id)
	if !h.index { // it was deleted by hand
		return t.unlessRaced(ctx, []*zksession.Call{set})
	}
	return t.unlessRaced(ctx, []*zksession.Call{set, zksession.Set(index, h.indexOf(ttl), zksession.AnyVersion)})
}

// renamed is the name of a guard of one hold as that of another one.
func renamed(guard string, from, to lock.HoldID) string {
	return idPrefix(to) + strings.TrimPrefix(guard, idPrefix(from))
}
