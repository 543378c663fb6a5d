package zklock

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// claimed is a request that is granted by a transaction, because it is for a permit, or has a MinHold, and whose nodes
// are to be deleted.
type claimed struct {
	path, slots string // of the lock, and of its slots
	id          lock.HoldID
	name, guard string
	version     int32    // of the node
	slot        *int     // that it had with this version
	asked       *int     // slot that it may have, where its data do not say so; nil: not known
	left        []string // paths of what is left of it, and was there with this version
	least       bool     // it has a MinHold, or is attached
	stays       bool     // what is left of it stays
}

// deletes are the calls that delete all nodes of a request, if it is as it was read.
func (p claimed) deletes() []*zksession.Call {
	calls := []*zksession.Call{zksession.Delete(p.path+"/"+p.name, p.version)}
	if p.guard != "" {
		calls = append(calls, zksession.Delete(p.path+"/"+p.guard, zksession.AnyVersion))
	}
	if p.stays {
		return calls
	}
	for _, path := range p.left {
		calls = append(calls, zksession.Delete(path, zksession.AnyVersion))
	}
	if p.slot != nil {
		calls = append(calls, zksession.Delete(slotPath(p.slots, *p.slot), zksession.AnyVersion))
	}
	return calls
}

// removeClaimed deletes the nodes of a request, which may have changed since it was read.
func (t *leaseNode) removeClaimed(ctx context.Context, p claimed) (there bool, err error) {
	for tries := 1; ; tries++ {
		all := zksession.Multi(p.deletes()...)
		switch err := t.s.Do(ctx, all); {
		case err != nil || all.Err == nil:
			return err == nil, err
		case tries == maxTries:
			return false, all.Err
		}
		if there, err := t.readClaimed(ctx, &p); err != nil || !there {
			return false, err
		}
	}
}

// readClaimed reads a request again. Of one whose node is gone it deletes the rest.
func (t *leaseNode) readClaimed(ctx context.Context, p *claimed) (there bool, err error) {
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
		return false, t.removeRest(ctx, p)
	case own.Err != nil:
		return false, own.Err
	}
	return true, t.readOwn(ctx, p, own)
}

// readOwn takes what was read of the node of a request, and reads the rest.
func (t *leaseNode) readOwn(ctx context.Context, p *claimed, own *zksession.Call) (err error) {
	p.version, p.slot, p.left = own.Stat.Version, nil, nil
	rec, ours := decodeRecord(own.Data)
	if rec.Revoked != nil {
		p.stays = false
	}
	slot := rec.Slot
	if !ours { // another program has written into it
		slot = p.asked
	}
	if slot != nil {
		has, err := t.hasSlot(ctx, p.slots, p.id, *slot)
		if err != nil {
			return err
		}
		if has {
			p.slot = slot
		}
	}
	if n, _ := parseNode(p.name); p.least && (!ours || rec.Fence != 0 || n.key != "") {
		p.left, err = t.leftOf(ctx, p.path, p.id)
	}
	return err
}

// removeRest deletes what is there of a request whose node is gone.
func (t *leaseNode) removeRest(ctx context.Context, p *claimed) error {
	if p.guard != "" {
		if _, err := t.removeOnce(ctx, p.path, []string{p.guard}); err != nil {
			return err
		}
	}
	if !p.least || p.stays {
		return nil
	}
	_, err := t.endLeft(ctx, p.path, p.slots, p.id, p.slot)
	return err
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

// namedClaimed is a request of which only the names are known.
func namedClaimed(path, slots string, n node, names []string) *claimed {
	p := &claimed{path: path, slots: slots, id: n.id, name: n.name, least: n.least > 0 || n.key != ""}
	for _, name := range names {
		if _, request := parseNode(name); !request && !isKeptGuard(name) {
			p.guard = name
		}
	}
	return p
}

// claimedOf is a request as its node was read, and whether it waits.
func (t *leaseNode) claimedOf(ctx context.Context, path, slots string, n node, names []string, own *zksession.Call) (p *claimed, waits bool, err error) {
	p = namedClaimed(path, slots, n, names)
	rec, ours := decodeRecord(own.Data)
	granted := rec.Slot != nil
	if n.limit == 0 {
		granted = rec.Fence != 0
	}
	return p, own.Err == nil && ours && !granted, t.readOwn(ctx, p, own)
}

// removeOther deletes the nodes of a request of which only the names are known.
func (t *leaseNode) removeOther(ctx context.Context, path, slots string, n node, names []string) error {
	_, err := t.removeRead(ctx, *namedClaimed(path, slots, n, names))
	return err
}

// removeRead deletes the nodes of a request when it has read it, behind a barrier: another session may have made them.
func (t *leaseNode) removeRead(ctx context.Context, p claimed) (there bool, err error) {
	if err := t.s.Do(ctx, zksession.Barrier()); err != nil {
		return false, err
	}
	if there, err := t.readClaimed(ctx, &p); err != nil || !there {
		return false, err
	}
	return t.removeClaimed(ctx, p)
}

// freeSlot deletes the node of a slot whose permit is gone, and nobody else's. Nobody else frees that slot meanwhile: a permit
// may take it as soon as it is free.
func (t *leaseNode) freeSlot(ctx context.Context, path, slots string, id lock.HoldID, slot int) error {
	queue := zksession.Children(path)
	if err := t.s.Do(ctx, zksession.Barrier(), queue); err != nil {
		return err
	}
	if queue.Err != nil && !errors.Is(queue.Err, zksession.ErrNoNode) {
		return queue.Err
	}
	if slices.ContainsFunc(parseAll(queue.Children), func(n node) bool { return n.id == id }) {
		return nil // it is detached
	}
	has, err := t.hasSlot(ctx, slots, id, slot)
	if err != nil || !has {
		return err
	}
	_, err = t.removeOnce(ctx, slots, []string{strconv.Itoa(slot)})
	return err
}

// hasTaken takes what was read of the node of a slot for which a request has asked. What is known of the request is written into its
// node again, so that must have the slot. d.mu is held.
func (d *driver) hasTaken(s *spot, slot *zksession.Call, czxid int64) {
	of, _ := decodeRecord(slot.Data) // none where it is not there
	n := s.slot
	if of.Hold != s.ID || slot.Of() != s.l.slotPath(n) {
		return
	}
	if s.rec.Slot = &n; s.least > 0 {
		s.rec.Fence = d.leaseNode.fence(czxid) + lock.Fence(n)
	}
}
