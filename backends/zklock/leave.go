package zklock

import (
	"context"
	"errors"
	"slices"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// Withdraw implements leasekit.Driver. Nothing is remembered of an id that was given
// up: a request without an answer is looked for until it is certain that no copy of
// it can come.
func (d *driver) Withdraw(ctx context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	d.mu.Lock()
	s := d.spots[w.ID]
	if s == nil || s.Resource != w.Resource {
		d.mu.Unlock()
		return leasekit.Withdrawn{}, nil
	}
	mine, seq, waits := s.name, s.seq, s.name != "" && !s.held
	d.mu.Unlock()
	if d.set.Overdue() {
		return leasekit.Withdrawn{}, d.failed("release", w.Resource, errOverdue)
	}
	var found leasekit.Withdrawn
	if waits { // who was in the way is only for people
		if v, err := s.l.survey(ctx); err == nil {
			found.Status = v.head
			i, there := slices.BinarySearchFunc(v.nodes, node{name: mine, seq: seq, shared: s.mode == lock.Shared}, compareNodes)
			if there && i >= v.holders {
				found.Position = i - v.holders + 1
			}
		}
	}
	there, err := d.remove(ctx, s)
	if err != nil {
		return leasekit.Withdrawn{}, d.failed("release", w.Resource, err)
	}
	found.Found = there
	return found, nil
}

// remove deletes the nodes of a request and forgets it, and says whether there were
// any.
func (d *driver) remove(ctx context.Context, s *spot) (there bool, err error) {
	turn, err := s.l.turn(ctx)
	if err != nil {
		return false, err
	}
	defer turn.end()
	lost := false
	err = insist(ctx, func() (err error) {
		sure := d.isPlaced(s)
		there, err = d.removeOnce(context.WithoutCancel(ctx), s)
		lost = lost || sure && errors.Is(err, zksession.ErrLost)
		return err
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err != nil && s.name != "" && (lost || errors.Is(err, zksession.ErrLost)): // also where it was not sent again
		s.unsure, s.l.known = true, -1 // it may be in the way of others of ours
		s.l.part(s)
		return false, err
	case err != nil:
		return false, err
	}
	d.forget(s)
	return there || lost, nil // without an answer, it was us who deleted it
}

func (d *driver) removeOnce(ctx context.Context, s *spot) (there bool, err error) {
	d.mu.Lock()
	unsure := s.unsure
	d.mu.Unlock()
	if unsure {
		if err := d.find(ctx, s); err != nil {
			return false, err
		}
	}
	d.mu.Lock()
	remove := d.removal(s)
	s.leaving = true
	s.l.hush(s)
	d.mu.Unlock()
	there, err = remove(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.leaving = false; err == nil {
		d.removed(s, there)
	}
	return there, err
}

// removed notes that the node of a request is gone; there: it was until we deleted it. d.mu is held.
func (d *driver) removed(s *spot, there bool) {
	s.l.leave(s)
	if !there && s.least == 0 && s.key == "" { // with those, the rest has gone as well
		d.clearAfter(s, "", false)
	}
}

// removal is what deletes the nodes of a request. d.mu is held.
func (d *driver) removal(s *spot) func(context.Context) (there bool, err error) {
	path, names := s.l.path, s.names()
	if s.name == "" || !s.place().byTransaction() {
		return func(ctx context.Context) (bool, error) { return d.leaseNode.removeOnce(ctx, path, names) }
	}
	s.remains = s.stays()
	p := claimed{
		path: path, slots: d.b.tree.slots(s.Resource), id: s.ID, name: s.name, guard: s.guard, version: s.version,
		slot: s.rec.Slot, least: s.least > 0 || s.key != "", stays: s.remains,
	}
	if slot := s.slot; slot >= 0 {
		p.asked = &slot
	}
	switch {
	case s.remains:
	case s.key != "":
		return func(ctx context.Context) (bool, error) { return d.leaseNode.removeRead(ctx, p) }
	case s.rec.Fence != 0:
		for _, c := range s.leaves(s.rec) {
			p.left = append(p.left, c.Of())
		}
	}
	return func(ctx context.Context) (bool, error) { return d.leaseNode.removeClaimed(ctx, p) }
}

// remove deletes nodes of one request.
func (t *leaseNode) remove(ctx context.Context, path string, names []string) error {
	return insist(ctx, func() error {
		_, err := t.removeOnce(ctx, path, names)
		return err
	})
}

// removeAll deletes the nodes of another's request.
func (t *leaseNode) removeAll(ctx context.Context, r lock.Resource, path string, n node) error {
	queue := zksession.Children(path)
	if err := t.s.Do(ctx, queue); err != nil {
		return err
	}
	names := namesOf(queue.Children, n)
	if n.byTransaction() {
		return insist(ctx, func() error { return t.removeOther(ctx, path, t.b.tree.slots(r), n, names) })
	}
	return t.remove(ctx, path, names)
}

func (t *leaseNode) removeOnce(ctx context.Context, path string, names []string) (there bool, err error) {
	if len(names) > 1 { // as one, so that nobody sees the one without the other
		all := zksession.Multi(deletes(path, names)...)
		if err := t.s.Do(ctx, all); err != nil || all.Err == nil {
			return err == nil, err
		}
	}
	calls := deletes(path, names) // of several, one is gone already
	if len(calls) == 0 {
		return false, nil
	}
	if err := t.s.Do(ctx, calls...); err != nil {
		return false, err
	}
	for _, c := range calls {
		switch {
		case c.Err == nil:
			there = true
		case !errors.Is(c.Err, zksession.ErrNoNode):
			err = errors.Join(err, c.Err)
		}
	}
	return there, err
}

func deletes(path string, names []string) []*zksession.Call {
	var calls []*zksession.Call
	for _, n := range names {
		calls = append(calls, zksession.Delete(path+"/"+n, zksession.AnyVersion))
	}
	return calls
}

// Downgrade implements leasekit.Driver. The node keeps its place and its name, so
// Curator's readers behind it go on waiting; ours read the mark.
func (d *driver) Downgrade(ctx context.Context, r leasekit.Ref) error {
	d.mu.Lock()
	s := d.spots[r.ID]
	held := s != nil && s.Resource == r.Resource && s.held && !s.gone
	d.mu.Unlock()
	switch {
	case !held:
		return lock.ErrNotHolder
	case s.mode == lock.Shared:
		return nil
	}
	err := insist(ctx, func() error {
		return d.rewrite(ctx, s, func(r *record) bool {
			change := !r.Downgraded
			r.Downgraded = true
			return change
		})
	})
	if err != nil {
		return d.failed("downgrade", r.Resource, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.held {
		s.l.downgraded = s.name
	}
	if len(s.l.waiting) > 0 {
		s.l.poke()
	}
	return nil
}
