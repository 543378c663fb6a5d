package zklock

import (
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// A permit is a request in the queue like any other. Its place says when it may be granted: when
// all that is in front of it are permits of the same number, which are held, and fewer than that. But its
// place does not say which slot is free. So it takes one, in a transaction that makes the node of the
// slot and writes the slot into the node of the request.
//
// The node of a slot is ephemeral, in the session of the request. It can be made once, so no two
// have it. The transaction is refused when the request was forced out, or has a slot already of which
// we have not heard: its node would have another version. A session that ends takes both nodes with
// it at once. Everybody else deletes both in one transaction too, which is refused when the request
// has another version than was read: it may have taken a slot since.
//
// Permits take their slots in the order of their requests: each when the one before it has taken its own,
// which stands in the node of that one. So their fences, which are those of their nodes, grow with each
// grant, also for whoever looks at one slot alone; and what is behind them has larger ones. That one
// has a slot says that all in front of it are held, too. So a request reads, and
// watches, the node before it, and no other. Where as many are in front as there are, it is the
// next, and watches the queue: any of those who hold may go. So a release wakes one, and that one the next.
//
// Slots are not among the requests, because whoever makes a node there uses up a number, and a line
// knows the queue without a list as long as the next number is ours.

// slotsOf are the slots that are taken, by the names of their nodes.
func slotsOf(names []string) map[int]bool {
	taken := make(map[int]bool, len(names))
	for _, name := range names {
		if slot, err := strconv.Atoi(name); err == nil {
			taken[slot] = true
		}
	}
	return taken
}

// listSlots is the call that lists the slots of a lock.
func (l *line) listSlots() *zksession.Call {
	return zksession.Children(l.d.b.tree.slots(l.resource))
}

// count lists the slots, behind the queue: now one is free for each permit that may be granted.
func (l *line) count() error {
	slots := l.listSlots()
	return l.unlocked(func() error {
		err := l.d.ask(l.d.run, slots)
		l.d.mu.Lock()
		defer l.d.mu.Unlock()
		if err == nil {
			err = l.sawSlots(slots)
		}
		l.counted = err == nil
		return err
	})
}

// sawSlots takes a list of slots, if it could be had. d.mu is held.
func (l *line) sawSlots(c *zksession.Call) error {
	if c.Err != nil && !errors.Is(c.Err, zksession.ErrNoNode) {
		return c.Err
	}
	l.slots = slotsOf(c.Children)
	return nil
}

// permitFree reports whether another permit can be held beside a queue.
func permitFree(nodes []node, limit int) bool {
	return len(nodes) < limit && !slices.ContainsFunc(nodes, func(n node) bool { return n.limit != limit })
}

// otherLimit reports whether there are holds of another number of permits.
func otherLimit(nodes []node, m lock.Mode) bool {
	return m.Limit() > 0 && len(nodes) > 0 && nodes[0].limit > 0 && nodes[0].limit != m.Limit()
}

// awaitsPermit reports whether the first of ours that waits does so for a permit. d.mu is held.
func (l *line) awaitsPermit() bool { return len(l.waiting) > 0 && l.waiting[0].mode.Limit() > 0 }

// stepPermit is step for a permit. d.mu is held, but while it asks.
func (l *line) stepPermit(w *spot) (done bool, err error) {
	d, limit := l.d, w.mode.Limit()
	i, _ := l.find(w.name, w.seq, false)
	if i > 0 {
		b := l.queue[i-1]
		ours := d.ours(b)
		switch {
		case b.limit == limit && (b.name == l.granted || ours && d.spots[b.id].held):
			// It holds, and so do all in front of it.
		case ours: // when that goes, it pokes
			l.watch("")
			return true, nil
		case b.name == l.watching && !l.suspect:
			return true, nil
		default:
			return false, l.look(b)
		}
	}
	l.watch("")
	if i < limit {
		switch {
		case w.rec.Slot != nil: // it was read that it has one
			l.grantPermit(w)
			return false, nil
		case l.strangers && l.unlisted:
			return false, l.list()
		case l.slots == nil:
			return false, l.count()
		case w.least > 0 && w.czxid == 0: // its fence is written with its slot
			return false, l.unlocked(func() error { return l.reread(w.room.Session(), []*spot{w}) })
		}
		switch next := l.next(i); {
		case len(next) > 0:
			return false, l.claim(next)
		case !l.counted: // who has gone may have had one
			return false, l.count()
		}
	}
	if l.ear == listening && !l.suspect {
		return true, nil
	}
	if l.suspect && i <= d.b.shortQueue || l.unknownLeft(i) {
		if err := l.endForced(i); err != nil {
			return false, err
		}
	}
	l.suspect = false
	return false, l.list()
}

// unknownLeft reports whether it is not known yet when something in front of place i is over that is left of
// a permit. d.mu is held.
func (l *line) unknownLeft(i int) bool {
	return slices.ContainsFunc(l.queue[:min(i, len(l.queue))], l.d.unknownLeft)
}

// unknownLeft reports whether a node is what is left of a hold, and it is not known when that is over. d.mu is held.
func (d *driver) unknownLeft(n node) bool { return n.kept && d.lefts.of[n.id] == nil }

// readAtATime is how many permits are read at a time.
const readAtATime = 64

// endForced reads the permits in front of place i, of which one may be to end: whoever has forced that may be gone, and
// so may its holder's sidecar. Where the queue is long, it reads what is left of permits, once. d.mu is held, but while it asks.
func (l *line) endForced(i int) error {
	d := l.d
	front := slices.DeleteFunc(slices.Clone(l.queue[:min(i, len(l.queue))]), func(n node) bool {
		return d.ours(n) || i > d.b.shortQueue && !d.unknownLeft(n)
	})
	for some := range slices.Chunk(front, readAtATime) {
		calls := make([]*zksession.Call, len(some))
		for k, n := range some {
			calls[k] = zksession.Get(l.path + "/" + n.name)
		}
		if err := l.unlocked(func() error { return d.together(d.run, d.leaseNode.s, calls) }); err != nil {
			return err
		}
		for k, n := range some {
			if n.kept {
				l.foundLeft(n, calls[k])
				continue
			}
			rec, _ := decodeRecord(calls[k].Data)
			if grace, known := rec.known(); known {
				l.endAfter(n, grace)
			}
		}
	}
	return nil
}

// claim is a permit that takes a slot.
type claim struct {
	s    *spot
	path string
	rec  record // what it writes into its node
	set  *zksession.Call
	make []*zksession.Call // the node of the slot, and what is left of the permit when it is gone
}

// maxClaims and maxClaimBytes bound how many slots are taken with one transaction: no server takes a packet of more than a
// megabyte, and an app chooses how much its owner has to say.
const (
	maxClaims     = 64
	maxClaimBytes = 512 << 10
)

// claimBytes is how large what takes a slot is at most. With a MinHold, what is left of the request has its data, too.
func (s *spot) claimBytes() int {
	const others = 1 << 10 // of the data, but for the owner
	n := len(s.rec.Owner) + 2*len(s.node) + others
	if s.least > 0 {
		n *= 4 // its guard, in the layout of Curator, and the node by which it is found
	}
	return n
}

// next are those of ours that may take a slot now, from place i in the queue, with slots that nobody has, as
// far as is known. One that has asked before, and had no answer, asks for the same one. d.mu is held.
func (l *line) next(i int) (all []claim) {
	w := l.waiting[0]
	limit := w.mode.Limit()
	slot, size := 0, 0
	for k, s := range l.waiting {
		size += s.claimBytes()
		if i+k >= limit || i+k >= len(l.queue) || l.queue[i+k].name != s.name || s.mode != w.mode ||
			s.doubted || s.leaving || s.rec.Slot != nil || s.least > 0 && s.czxid == 0 || s.room.Session() != w.room.Session() ||
			len(all) == maxClaims || k > 0 && size > maxClaimBytes {
			break
		}
		if s.slot < 0 {
			for l.slots[slot] {
				slot++
			}
			if slot >= limit {
				break
			}
			s.slot = slot
			slot++
		}
		all = append(all, l.claimOf(s, s.slot))
	}
	return all
}

// claimOf is how a permit takes a slot. d.mu is held.
func (l *line) claimOf(s *spot, slot int) claim {
	c := claim{s: s, path: s.node, rec: s.rec}
	c.rec.Slot = &slot
	of := record{Lease: l.d.id, Sidecar: l.d.sidecar, Hold: s.ID}
	mode := zksession.Ephemeral
	if s.least > 0 {
		c.rec.Fence = l.d.leaseNode.fence(s.czxid) + lock.Fence(slot)
		c.make, mode = s.leaves(c.rec), zksession.Persistent
	}
	c.set = zksession.Set(c.path, c.rec.encode(), s.version)
	c.make = append(c.make, zksession.Create(l.slotPath(slot), of.encode(), l.d.b.tree.acl, mode))
	return c
}

func (l *line) slotPath(slot int) string { return l.d.b.tree.slot(l.resource, slot) }

// claim takes slots, as one transaction, and grants. The node above the slots is made just before, in the same round trip, where it
// may be missing: one that was made when a permit began to wait would stay for ever if the permit never had a slot.
// d.mu is held, but while it asks.
func (l *line) claim(all []claim) error {
	d := l.d
	session := all[0].s.room.Session()
	var calls []*zksession.Call
	var spots []*spot
	for _, c := range all {
		calls, spots = append(append(calls, c.set), c.make...), append(spots, c.s)
	}
	take, slots := zksession.Multi(calls...), d.b.tree.slots(l.resource)
	defer func() {
		if l.users == 0 { // all were given up meanwhile
			l.clear()
		}
	}()
	return l.unlocked(func() error {
		ancestors := d.unknown(slots)
		err := d.chase(d.run, session, append(slices.Clone(ancestors), take)...)
		d.mu.Lock()
		l.bareSlots = l.bareSlots || made(ancestors)
		if err != nil {
			l.slots = nil // what others do meanwhile is not known
			d.mu.Unlock()
			return err
		}
		l.ahead = l.ahead || session != d.leaseNode.s
		if take.Err == nil {
			for _, c := range all {
				l.took(c)
			}
		}
		if take.Err != nil { // something has changed
			l.stale, l.slots = true, nil
		}
		d.mu.Unlock()
		switch {
		case take.Err == nil:
			d.setKnown(slots, true)
			return nil
		case errors.Is(take.Err, zksession.ErrNoNode): // a request, or a node above, which the server removes when it is empty
			if err := l.reread(session, spots); err != nil || l.misses(spots) {
				return err
			}
			return l.makeAbove(session, all)
		case !errors.Is(take.Err, zksession.ErrBadVersion) && !errors.Is(take.Err, zksession.ErrNodeExists):
			return take.Err
		}
		return l.reread(session, spots)
	})
}

// misses reports whether one of ours has no node any more.
func (l *line) misses(all []*spot) bool {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	return slices.ContainsFunc(all, func(s *spot) bool { return s.node == "" || s.doubted })
}

// makeAbove makes the nodes above those that claims make.
func (l *line) makeAbove(session *zksession.Session, all []claim) error {
	d := l.d
	d.mu.Lock()
	l.bareSlots = true
	d.mu.Unlock()
	if err := d.makeContainer(d.run, session, d.b.tree.slots(l.resource)); err != nil {
		return err
	}
	for _, c := range all {
		if c.s.least == 0 {
			continue
		}
		if err := d.makeContainer(d.run, session, above(d.b.tree.kept(c.s.ID))); err != nil {
			return err
		}
	}
	return nil
}

// chase is together, but each call is sent as soon as the one before is on its way. It is no error where the last one has
// an answer.
func (d *driver) chase(ctx context.Context, session *zksession.Session, calls ...*zksession.Call) error {
	if err := d.turn(ctx); err != nil {
		return err
	}
	defer func() { <-d.turns }()
	err := session.Chase(context.WithoutCancel(ctx), calls...)
	if last := calls[len(calls)-1].Err; last == nil || errors.As(last, new(zksession.Error)) {
		return nil
	}
	return err
}

// together sends calls in one session, when it is their turn.
func (d *driver) together(ctx context.Context, session *zksession.Session, calls []*zksession.Call) error {
	if err := d.turn(ctx); err != nil {
		return err
	}
	defer func() { <-d.turns }()
	return session.Together(context.WithoutCancel(ctx), calls...)
}

// makeContainer makes a node that the server removes when it has been left empty.
func (d *driver) makeContainer(ctx context.Context, session *zksession.Session, path string) error {
	calls := d.b.tree.ancestors(path)
	if err := session.Chase(context.WithoutCancel(ctx), calls...); err != nil {
		return err
	}
	for _, c := range calls {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNodeExists) && !errors.Is(c.Err, zksession.ErrNoNode) {
			return c.Err
		}
	}
	d.setKnown(path, true)
	return nil
}

// took notes that a claim was carried out. d.mu is held.
func (l *line) took(c claim) {
	s := c.s
	if s.node != c.path { // it was given up since, with its slot
		return
	}
	switch s.czxid = c.set.Stat.Czxid; {
	case c.set.Stat.Version > s.version:
		s.rec, s.version = c.rec, c.set.Stat.Version
	case s.rec.Slot == nil: // another program has written into the node since, and that was read before this answer
		s.rec.Slot, s.rec.Fence = c.rec.Slot, c.rec.Fence
	}
	l.grantPermit(s)
}

// grantPermit grants a permit whose slot stands in its node. d.mu is held.
func (l *line) grantPermit(s *spot) {
	s.slot, l.bareSlots = *s.rec.Slot, false
	if l.slots != nil {
		l.slots[s.slot] = true
	}
	if i := slices.Index(l.waiting, s); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.d.grant(s)
	}
}

// reread reads requests that were refused a slot, in the session that has made them: it knows whether they have one
// already. Nothing of a claim before that can come any more: it came by an older connection. Where another program has
// written into one since, the node of the slot tells.
func (l *line) reread(session *zksession.Session, all []*spot) error {
	d := l.d
	var at []seen
	var calls, slots []*zksession.Call
	asked := make(map[*spot]*zksession.Call)
	d.mu.Lock()
	for _, s := range all {
		if s.node == "" {
			continue
		}
		at, calls = append(at, seen{s, s.node}), append(calls, zksession.Get(s.node))
		if s.slot >= 0 {
			asked[s] = zksession.Get(l.slotPath(s.slot))
			slots = append(slots, asked[s])
		}
	}
	d.mu.Unlock()
	if len(calls) == 0 {
		return nil
	}
	if err := d.together(d.run, session, slices.Concat(calls, slots)); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range at {
		if s.node == s.path {
			if err := calls[i].Err; err != nil && !errors.Is(err, zksession.ErrNoNode) {
				return err
			}
			if _, ours := decodeRecord(calls[i].Data); !ours && s.rec.Slot == nil && asked[s.spot] != nil {
				d.hasTaken(s.spot, asked[s.spot], calls[i].Stat.Czxid)
			}
			if d.saw(s.spot, calls[i]); s.rec.Slot == nil {
				s.slot = -1
			}
		}
	}
	return nil
}

// enter makes sure that a request has its place in the queue, and that it may wait there.
func (d *driver) enter(ctx context.Context, s *spot) error {
	if err := d.place(ctx, s); err != nil || s.mode.Limit() == 0 {
		return err
	}
	var other bool
	err := insist(ctx, func() (err error) { other, err = d.seesOtherLimit(ctx, s); return err })
	if err != nil || !other {
		return err
	}
	if _, err := d.remove(context.WithoutCancel(ctx), s); err != nil {
		return err
	}
	return leasekit.OtherLimit(lock.Request{Mode: s.mode})
}

// seesOtherLimit finds out whether somebody holds one of another number of permits. Where one of ours
// holds one of the same, or nothing else is in front, nobody does.
func (d *driver) seesOtherLimit(ctx context.Context, s *spot) (bool, error) {
	d.mu.Lock()
	l := s.l
	look := s.seq > l.known
	for _, n := range l.queue {
		if n.seq >= s.seq {
			break
		}
		if o := d.spots[n.id]; n.limit == s.mode.Limit() && o != nil && o.held {
			look = false
			break
		}
		look = look || n.limit > 0 && n.limit != s.mode.Limit()
	}
	look = look && s.name != "" && !s.held
	began := l.began
	var calls []*zksession.Call
	if look && s.room.Session() != d.leaseNode.s {
		calls = append(calls, zksession.Barrier())
	}
	d.mu.Unlock()
	if !look {
		return false, nil
	}
	children, err := d.children(ctx, append(calls, zksession.Children(l.path))...)
	if err != nil {
		return false, err
	}
	d.mu.Lock()
	if l.began == began {
		l.saw(children, s.seq)
	}
	d.mu.Unlock()
	nodes := parseNodes(children)
	if otherLimit(nodes, s.mode) {
		nodes, err = d.withoutOver(ctx, s.Resource, l.path, nodes)
	}
	return otherLimit(nodes, s.mode), err
}
