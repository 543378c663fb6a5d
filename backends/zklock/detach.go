package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// A detached hold is a persistent node in the queue, in the place of the request: with the same number, and
// with the hash of its secret in its name, so that one list of the queue finds it by its handle. It keeps the same ones
// out, and is shown, as what is left of a request with a MinHold. Its time stands in its data, because it may be
// moved, and counts on the leader's clock from when the data was written.
//
// Who attaches it makes, in one transaction, a node of its own session with the same number and the same hash, and
// puts another one in the place of the first, which has its HoldID. As long as it has it, the persistent node says nothing.
// When it has gone, the persistent node is what is left. A lease that had it attached before loses its node with
// the same transaction, which notes that in the node of the lease, as a forced release without a grace does.
//
// So a place in the queue may go over to a node with another name. Whoever sees that a node is gone whose name says
// that it is such a one, or may become one, forgets what it knows of the queue, and lists it: see line.gone. That
// costs only those who wait behind one. A list shows, at whatever time, one of these nodes.

var _ lock.Handles = (*Backend)(nil)

// Detaches implements leasekit.Detacher.
func (d *driver) Detaches() error { return nil }

// Detach implements leasekit.Detacher.
func (d *driver) Detach(ctx context.Context, w leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (leasekit.Withdrawn, error) {
	d.mu.Lock()
	s := d.spots[w.ID]
	mine := s != nil && s.Resource == w.Resource
	keeps := mine && s.held && !s.gone && s.rec.Revoked == nil && ttl > 0
	if mine && ttl == 0 {
		s.final = true
	}
	d.mu.Unlock()
	if d.set.Overdue() {
		return leasekit.Withdrawn{}, d.failed("detach", w.Resource, errOverdue)
	}
	var found bool
	var err error
	switch {
	case !mine:
		found, err = d.detachedBefore(ctx, w.Ref, key, ttl)
	case keeps:
		found, err = d.detach(ctx, s, key, ttl)
	default: // it is to end, and not to be kept
		found, err = d.remove(ctx, s)
		found = found && ttl == 0
	}
	if err != nil {
		return leasekit.Withdrawn{}, d.failed("detach", w.Resource, err)
	}
	return leasekit.Withdrawn{Found: found}, nil
}

// detachedBefore finds a hold that was detached already, and ends it if it is to end.
func (d *driver) detachedBefore(ctx context.Context, r leasekit.Ref, key lock.HandleKey, ttl time.Duration) (found bool, err error) {
	path, err := d.b.tree.lockPath(r.Resource)
	if err != nil {
		return false, err
	}
	err = insist(ctx, func() error {
		for done := false; !done; {
			h, err := d.leaseNode.handleOf(ctx, r.Resource, path, key)
			switch {
			case err != nil:
				return err
			case h == nil || h.node.id != r.ID || ttl > 0 && h.by.name != "":
				return nil
			case ttl > 0:
				found = true
				return nil
			}
			done, err = d.leaseNode.endHandle(ctx, h)
			if found = found || done || errors.Is(err, zksession.ErrLost); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// detach takes a hold of ours off the lease.
func (d *driver) detach(ctx context.Context, s *spot, key lock.HandleKey, ttl time.Duration) (found bool, err error) {
	turn, err := s.l.turn(ctx)
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	s.detaching = true
	d.mu.Unlock()
	err = insist(ctx, func() (err error) {
		found, err = d.detachOnce(context.WithoutCancel(ctx), s, key, ttl)
		return err
	})
	turn.end()
	if err != nil || found { // without an answer, it may be detached
		return found, err
	}
	d.mu.Lock()
	s.detaching = false
	d.mu.Unlock()
	_, err = d.remove(ctx, s)
	return false, err
}

// detachOnce is detach; nothing is found where the hold is gone, or its release is forced.
func (d *driver) detachOnce(ctx context.Context, s *spot, key lock.HandleKey, ttl time.Duration) (found bool, err error) {
	t, path := d.leaseNode, s.l.path
	index := d.b.tree.kept(s.ID)
	for tries := 1; ; tries++ {
		left, err := t.leftIf(ctx, path, s)
		if err != nil {
			return false, err
		}
		d.mu.Lock()
		own, calls := d.detachCalls(s, left, key, ttl)
		name := s.name
		revoked := s.rec.Revoked != nil
		d.mu.Unlock()
		if revoked {
			return false, nil
		}
		take := zksession.Multi(calls...)
		if err := t.s.Do(ctx, append(d.unknown(above(index)), take)...); err != nil {
			return false, err
		}
		switch {
		case take.Err == nil:
			d.setKnown(above(index), true)
			d.detached(s, own, ttl)
			return true, nil
		case !raced(take.Err) || tries == maxTries:
			return false, take.Err
		case errors.Is(take.Err, zksession.ErrNoNode):
			if err := d.makeContainer(ctx, t.s, above(index)); err != nil {
				return false, err
			}
		}
		h, err := t.handleOf(ctx, s.Resource, path, key)
		switch {
		case err != nil:
			return false, err
		case h != nil && h.node.id == s.ID && h.by.name == "": // a request before had no answer
			d.detached(s, h.node, h.left)
			return true, nil
		}
		get := zksession.Get(path + "/" + name)
		if err := t.s.Do(ctx, get); err != nil {
			return false, err
		}
		if errors.Is(get.Err, zksession.ErrNoNode) {
			return false, nil
		}
		d.mu.Lock()
		d.saw(s, get)
		d.mu.Unlock()
	}
}

// leftIf are the paths of the nodes that are there beside that of a request, if it may have such. Another session may have
// made them, so they are read behind a barrier: half of them would be worse than none.
func (t *leaseNode) leftIf(ctx context.Context, path string, s *spot) ([]string, error) {
	if s.least == 0 && s.key == "" {
		return nil, nil
	}
	if err := t.s.Do(ctx, zksession.Barrier()); err != nil {
		return nil, err
	}
	return t.leftOf(ctx, path, s.ID)
}

// detachCalls are the calls that put the node of a detached hold in the place of that of a request, beside which there
// are those paths. d.mu is held.
func (d *driver) detachCalls(s *spot, left []string, key lock.HandleKey, ttl time.Duration) (own node, calls []*zksession.Call) {
	t, l := &d.b.tree, s.l
	own = s.place()
	own.least, own.kept, own.loose, own.key = 0, true, true, key
	own.name = own.numbered()
	rec := s.rec
	rec.Fence, rec.Known, rec.Detached, rec.Ends = d.fence(s), nil, toMillis(ttl), 0
	h := handle{r: s.Resource, path: l.path, node: own, rec: rec}

	calls = append(calls, zksession.Delete(s.node, s.version))
	index, guard := t.kept(s.ID), keptGuard(s.guard)
	note := zksession.Create(index, h.indexOf(ttl), t.acl, zksession.Persistent)
	for _, p := range left {
		switch {
		case p == index:
			note = zksession.Set(index, h.indexOf(ttl), zksession.AnyVersion)
		case isKeptGuard(p):
			guard = ""
		default:
			calls = append(calls, zksession.Delete(p, zksession.AnyVersion))
		}
	}
	if s.guard != "" {
		calls = append(calls, zksession.Delete(l.path+"/"+s.guard, zksession.AnyVersion))
	}
	calls = append(calls, zksession.Create(l.path+"/"+own.name, rec.encode(), t.acl, zksession.Persistent), note)
	if guard != "" {
		calls = append(calls, zksession.Create(l.path+"/"+guard, rec.encode(), t.acl, zksession.Persistent))
	}
	if rec.Slot != nil && s.least == 0 && s.key == "" { // it goes with the session
		slot := l.slotPath(*rec.Slot)
		of := record{Lease: d.id, Sidecar: d.sidecar, Hold: s.ID}
		calls = append(calls, zksession.Delete(slot, zksession.AnyVersion), zksession.Create(slot, of.encode(), t.acl, zksession.Persistent))
	}
	return own, calls
}

// detached notes that a hold of ours was detached.
func (d *driver) detached(s *spot, as node, ttl time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.rec.Slot = nil // it is still taken
	s.l.leave(s)
	d.leavesFor(s.Resource, s.l.path, as, ttl)
	d.forget(s)
}

// attach is Ask for a hold that is there.
func (d *driver) attach(ctx context.Context, s *spot, m lock.Mode) (a leasekit.Answer, err error) {
	if d.set.Overdue() {
		return a, errOverdue
	}
	turn, err := s.l.turn(ctx)
	switch {
	case errors.Is(err, zksession.ErrNotSent):
		return a, d.unsent(s)
	case err != nil:
		return a, err
	}
	defer turn.end()
	err = insist(ctx, func() (err error) {
		a, err = d.attachOnce(context.WithoutCancel(ctx), s, m)
		return err
	})
	return a, err
}

func (d *driver) attachOnce(ctx context.Context, s *spot, m lock.Mode) (leasekit.Answer, error) {
	d.mu.Lock()
	unsure := s.unsure
	d.mu.Unlock()
	if unsure {
		if err := d.find(ctx, s); err != nil {
			return leasekit.Answer{}, err
		}
	}
	switch {
	case d.isGone(s):
		return leasekit.Answer{}, lock.ErrNotHolder
	case d.isPlaced(s):
		return d.attachedBefore(ctx, s)
	}
	for tries := 1; ; tries++ {
		h, err := d.leaseNode.handleOf(ctx, s.Resource, s.l.path, s.key)
		switch {
		case err != nil:
			return leasekit.Answer{}, err
		case h == nil || h.left <= 0 || h.mode() != m:
			return leasekit.Answer{}, lock.ErrNoHandle
		}
		err = d.take(ctx, s, h)
		switch {
		case err == nil:
			return leasekit.Answer{Granted: true, Fence: h.rec.Fence, Left: h.left}, nil
		case !raced(err) || tries == maxTries:
			return leasekit.Answer{}, err
		}
	}
}

// take attaches a hold as it was read.
func (d *driver) take(ctx context.Context, s *spot, h *handle) error {
	t, path := &d.b.tree, s.l.path
	own := h.node
	own.id, own.kept = s.ID, false
	own.name = own.numbered()
	calls, err := d.leaseNode.takeAway(ctx, h)
	if err != nil {
		return err
	}
	d.mu.Lock()
	rec, room := s.rec, s.room
	d.mu.Unlock()
	if room == nil {
		if room, err = d.set.Room(ctx, path+"/"+own.name); err != nil {
			return err
		}
	}
	rec.Fence, rec.Slot, rec.Downgraded = h.rec.Fence, h.rec.Slot, h.rec.Downgraded
	left := rec
	if left.Ends = h.rec.Ends; left.Ends == 0 {
		left.Ends = h.stat.Mtime + h.rec.Detached
	}
	index := t.kept(s.ID)
	calls = append(append(calls, d.leaseNode.deletes(h)...),
		zksession.Create(path+"/"+own.name, rec.encode(), t.acl, zksession.Ephemeral),
		zksession.Create(path+"/"+own.left().name, left.encode(), t.acl, zksession.Persistent),
		zksession.Create(index, h.indexOf(h.left), t.acl, zksession.Persistent))
	if h.guard != "" {
		calls = append(calls, zksession.Create(path+"/"+renamed(h.guard, h.node.id, s.ID), left.encode(), t.acl, zksession.Persistent))
	}
	if h.slot {
		of := record{Lease: d.id, Sidecar: d.sidecar, Hold: s.ID}
		calls = append(calls, zksession.Set(t.slot(s.Resource, *h.rec.Slot), of.encode(), zksession.AnyVersion))
	}
	take := zksession.Multi(calls...)
	d.mu.Lock()
	s.room, s.unsure = room, true
	d.mu.Unlock()
	err = room.Session().Do(ctx, append(d.unknown(above(index)), take)...)
	switch {
	case errors.Is(err, zksession.ErrNotSent):
		d.setUnsure(s, false)
		return err
	case err != nil:
		return err
	case take.Err == nil:
		d.setKnown(above(index), true)
		d.mu.Lock()
		defer d.mu.Unlock()
		s.unsure, s.node, s.name, s.seq, s.mode = false, path+"/"+own.name, own.name, own.seq, own.mode()
		s.rec, s.version = rec, 0
		s.l.has(s)
		d.attached(s, h.left)
		return nil
	}
	d.setUnsure(s, false)
	if errors.Is(take.Err, zksession.ErrNoNode) {
		if err := d.makeContainer(ctx, room.Session(), above(index)); err != nil {
			return err
		}
	}
	return take.Err
}

// attached notes that a request has its hold. d.mu is held.
func (d *driver) attached(s *spot, left time.Duration) {
	if s.rec.Slot != nil {
		s.slot = *s.rec.Slot
	}
	if s.rec.Downgraded {
		s.l.downgraded = s.name
	}
	s.queued = d.b.clock()
	d.grant(s)
	s.until = s.granted + left
}

// attachedBefore is attach where the request has its node already.
func (d *driver) attachedBefore(ctx context.Context, s *spot) (leasekit.Answer, error) {
	t := d.leaseNode
	d.mu.Lock()
	n := s.place()
	d.mu.Unlock()
	own, left := zksession.Get(s.l.path+"/"+n.name), zksession.Get(s.l.path+"/"+n.left().name)
	if err := t.s.Do(ctx, zksession.Barrier(), own, left); err != nil {
		return leasekit.Answer{}, err
	}
	for _, c := range []*zksession.Call{own, left} {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNoNode) {
			return leasekit.Answer{}, c.Err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if own.Err != nil {
		d.deleted(s)
		return leasekit.Answer{}, lock.ErrNotHolder
	}
	d.saw(s, own)
	remains := t.leftFor(n.left(), left)
	if left.Err == nil && remains > 0 {
		if !s.held {
			d.attached(s, remains)
		}
		return leasekit.Answer{Granted: true, Fence: d.fence(s), Left: remains}, nil
	}
	s.final = true // too late
	d.mu.Unlock()
	_, err := d.removeOnce(ctx, s)
	d.mu.Lock()
	if err != nil {
		return leasekit.Answer{}, err
	}
	return leasekit.Answer{}, lock.ErrNoHandle
}

// has notes that a request has a node with a number that is not new. d.mu is held.
func (l *line) has(s *spot) {
	l.begin(s)
	l.known, l.slots = -1, nil
	if len(l.waiting) > 0 {
		l.poke()
	}
}

// downgradeDetached is the call by which others may read beside an attached hold also when its lease is gone; nil: its
// node was deleted by hand.
func (d *driver) downgradeDetached(ctx context.Context, path string) (*zksession.Call, error) {
	get := zksession.Get(path)
	if err := d.ask(ctx, get); err != nil {
		return nil, err
	}
	if get.Err != nil {
		if errors.Is(get.Err, zksession.ErrNoNode) {
			return nil, nil //nolint:nilnil // said above
		}
		return nil, get.Err
	}
	rec, _ := decodeRecord(get.Data)
	if rec.Downgraded = true; rec.Ends == 0 {
		rec.Ends = get.Stat.Mtime + rec.Detached
	}
	return zksession.Set(path, rec.encode(), get.Stat.Version), nil
}
