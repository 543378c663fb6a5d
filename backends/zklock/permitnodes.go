package zklock

import (
	"context"
	"errors"
	"strconv"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// permit is a request for a permit whose nodes are to be deleted.
type permit struct {
	path, slots string // of the lock, and of its slots
	id          lock.HoldID
	name, guard string
	version     int32 // of the node
	slot        *int  // that it had with this version
}

// deletes are the calls that delete all nodes of a permit, if it is as it was read.
func (p permit) deletes() []*zksession.Call {
	calls := []*zksession.Call{zksession.Delete(p.path+"/"+p.name, p.version)}
	if p.guard != "" {
		calls = append(calls, zksession.Delete(p.path+"/"+p.guard, zksession.AnyVersion))
	}
	if p.slot != nil {
		calls = append(calls, zksession.Delete(slotPath(p.slots, *p.slot), zksession.AnyVersion))
	}
	return calls
}

// removePermit deletes the nodes of a permit, which may have changed since it was read.
func (t *leaseNode) removePermit(ctx context.Context, p permit) (there bool, err error) {
	for tries := 1; ; tries++ {
		all := zksession.Multi(p.deletes()...)
		switch err := t.s.Do(ctx, all); {
		case err != nil || all.Err == nil:
			return err == nil, err
		case tries == maxTries:
			return false, all.Err
		}
		if there, err := t.readPermit(ctx, &p); err != nil || !there {
			return false, err
		}
	}
}

// readPermit reads a permit again. Of one whose node is gone it deletes the guard.
func (t *leaseNode) readPermit(ctx context.Context, p *permit) (there bool, err error) {
	own := zksession.Get(p.path + "/" + p.name)
	calls := []*zksession.Call{own}
	if p.guard != "" {
		calls = append(calls, zksession.Get(p.path+"/"+p.guard))
	}
	if err := t.s.Do(ctx, calls...); err != nil {
		return false, err
	}
	if p.guard != "" && errors.Is(calls[1].Err, zksession.ErrNoNode) {
		p.guard = ""
	}
	switch {
	case errors.Is(own.Err, zksession.ErrNoNode):
		if p.guard == "" {
			return false, nil
		}
		_, err := t.removeOnce(ctx, p.path, []string{p.guard})
		return false, err
	case own.Err != nil:
		return false, own.Err
	}
	p.version = own.Stat.Version
	if rec, ours := decodeRecord(own.Data); ours {
		p.slot = rec.Slot
	}
	if p.slot == nil {
		return true, nil
	}
	has, err := t.hasSlot(ctx, p.slots, p.id, *p.slot)
	if !has {
		p.slot = nil
	}
	return true, err
}

// hasSlot reports whether the node of a slot is that of a permit.
func (t *leaseNode) hasSlot(ctx context.Context, slots string, id lock.HoldID, slot int) (bool, error) {
	get := zksession.Get(slotPath(slots, slot))
	if err := t.s.Do(ctx, get); err != nil {
		return false, err
	}
	if errors.Is(get.Err, zksession.ErrNoNode) {
		return false, nil
	}
	of, _ := decodeRecord(get.Data)
	return of.Hold == id, get.Err
}

// namedPermit is a permit of which only the names are known.
func namedPermit(path, slots string, n node, names []string) *permit {
	p := &permit{path: path, slots: slots, id: n.id, name: n.name}
	for _, name := range names {
		if name != n.name {
			p.guard = name
		}
	}
	return p
}

// permitOf is a permit as its node was read, and whether it waits.
func (t *leaseNode) permitOf(ctx context.Context, path, slots string, n node, names []string, own *zksession.Call) (p *permit, waits bool, err error) {
	p = namedPermit(path, slots, n, names)
	p.version = own.Stat.Version
	rec, ours := decodeRecord(own.Data)
	if rec.Slot != nil {
		var has bool
		if has, err = t.hasSlot(ctx, slots, n.id, *rec.Slot); has {
			p.slot = rec.Slot
		}
	}
	return p, own.Err == nil && ours && rec.Slot == nil, err
}

// removeOther deletes the nodes of a permit of which only the names are known.
func (t *leaseNode) removeOther(ctx context.Context, path, slots string, n node, names []string) error {
	p := namedPermit(path, slots, n, names)
	there, err := t.readPermit(ctx, p)
	if err == nil && there {
		_, err = t.removePermit(ctx, *p)
	}
	return err
}

// freeSlot deletes the node of a slot whose permit is gone, and nobody else's.
func (t *leaseNode) freeSlot(ctx context.Context, slots string, id lock.HoldID, slot int) error {
	if err := t.s.Do(ctx, zksession.Barrier()); err != nil {
		return err
	}
	has, err := t.hasSlot(ctx, slots, id, slot)
	if err != nil || !has {
		return err
	}
	_, err = t.removeOnce(ctx, slots, []string{strconv.Itoa(slot)})
	return err
}
