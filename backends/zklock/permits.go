package zklock

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

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
		l.sawSlots(slots)
		l.counted = err == nil
		return err
	})
}

// sawSlots takes a list of slots, if it could be had. d.mu is held.
func (l *line) sawSlots(c *zksession.Call) {
	if c.Err == nil || errors.Is(c.Err, zksession.ErrNoNode) {
		l.slots = slotsOf(c.Children)
	}
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
		switch unsure, free := l.next(i); {
		case l.strangers && l.unlisted:
			return false, l.list()
		case l.slots == nil:
			return false, l.count()
		case len(unsure) > 0:
			return false, l.reread(unsure)
		case len(free) > 0:
			return false, l.claim(free)
		case !l.counted: // who has gone may have had one
			return false, l.count()
		}
	}
	if l.ear == listening && !l.suspect {
		return true, nil
	}
	l.suspect = false
	return false, l.list()
}

// claim is a permit that takes a slot.
type claim struct {
	s    *spot
	path string
	rec  record // what it writes into its node
	set  *zksession.Call
	make *zksession.Call // the node of the slot
}

// maxClaims bounds how many slots are taken with one transaction.
const maxClaims = 64

// next are those of ours that may take a slot now, from place i in the queue, with slots that nobody has, as
// far as is known; and those of which it is not known whether they have one. d.mu is held.
func (l *line) next(i int) (unsure []*spot, all []claim) {
	w := l.waiting[0]
	limit := w.mode.Limit()
	slot := 0
	for k, s := range l.waiting {
		if i+k >= limit || i+k >= len(l.queue) || l.queue[i+k].name != s.name || s.mode != w.mode ||
			s.doubted || s.leaving || s.room.Session() != w.room.Session() || len(all) == maxClaims {
			break
		}
		if s.asked || s.rec.Slot != nil {
			unsure = append(unsure, s)
			continue
		}
		for l.slots[slot] {
			slot++
		}
		if slot >= limit {
			break
		}
		all = append(all, l.claimOf(s, slot))
		slot++
	}
	return unsure, all
}

// claimOf is how a permit takes a slot. d.mu is held.
func (l *line) claimOf(s *spot, slot int) claim {
	c := claim{s: s, path: s.node, rec: s.rec}
	c.rec.Slot = &slot
	of := record{Lease: l.d.id, Sidecar: l.d.sidecar, Hold: s.ID}
	c.set = zksession.Set(c.path, c.rec.encode(), s.version)
	c.make = zksession.Create(l.slotPath(slot), of.encode(), l.d.b.tree.acl, zksession.Ephemeral)
	return c
}

func (l *line) slotPath(slot int) string { return l.d.b.tree.slot(l.resource, slot) }

// claim takes slots, as one transaction, and grants. d.mu is held, but while it asks.
func (l *line) claim(all []claim) error {
	d := l.d
	session := all[0].s.room.Session()
	var calls []*zksession.Call
	var spots []*spot
	for _, c := range all {
		c.s.slot, c.s.asked = *c.rec.Slot, true
		calls, spots = append(calls, c.set, c.make), append(spots, c.s)
	}
	take := zksession.Multi(calls...)
	return l.unlocked(func() error {
		if err := d.together(session, []*zksession.Call{take}); err != nil {
			return err
		}
		d.mu.Lock()
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
			return nil
		case errors.Is(take.Err, zksession.ErrNoNode): // a request, or the node above the slots, which the server removes when it is empty
			if err := d.makeSlots(session, l.resource); err != nil {
				return err
			}
		case !errors.Is(take.Err, zksession.ErrBadVersion) && !errors.Is(take.Err, zksession.ErrNodeExists):
			return take.Err
		}
		return l.rereadIn(session, spots)
	})
}

// together sends calls in one session, when it is their turn.
func (d *driver) together(session *zksession.Session, calls []*zksession.Call) error {
	if err := d.turn(d.run); err != nil {
		return err
	}
	defer func() { <-d.turns }()
	return session.Together(context.WithoutCancel(d.run), calls...)
}

// makeSlots makes the node above the slots of a lock.
func (d *driver) makeSlots(session *zksession.Session, r lock.Resource) error {
	path := d.b.tree.slots(r)
	calls := d.b.tree.ancestors(path)
	if err := session.Chase(context.WithoutCancel(d.run), calls...); err != nil {
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
	if s.czxid = c.set.Stat.Czxid; c.set.Stat.Version > s.version {
		s.rec, s.version = c.rec, c.set.Stat.Version
	}
	l.grantPermit(s)
}

// grantPermit grants a permit whose slot stands in its node. d.mu is held.
func (l *line) grantPermit(s *spot) {
	s.slot, s.asked = *s.rec.Slot, false
	if l.slots != nil {
		l.slots[s.slot] = true
	}
	if i := slices.Index(l.waiting, s); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.d.grant(s)
	}
}

// reread reads requests again that may have a slot: there was no answer. What is read behind a
// barrier is final. d.mu is held, but while it asks.
func (l *line) reread(all []*spot) error {
	at := make(map[*zksession.Session][]*spot)
	for _, s := range all {
		at[s.room.Session()] = append(at[s.room.Session()], s)
	}
	return l.unlocked(func() error {
		for session, some := range at {
			if err := l.d.together(session, []*zksession.Call{zksession.Barrier()}); err != nil {
				return err
			}
			if err := l.rereadIn(session, some); err != nil {
				return err
			}
		}
		return nil
	})
}

// rereadIn reads requests in the session that has made them, which knows whether they have a slot.
func (l *line) rereadIn(session *zksession.Session, all []*spot) error {
	d := l.d
	var at []seen
	var calls []*zksession.Call
	d.mu.Lock()
	for _, s := range all {
		if s.node != "" {
			at, calls = append(at, seen{s, s.node}), append(calls, zksession.Get(s.node))
		}
	}
	d.mu.Unlock()
	if len(calls) == 0 {
		return nil
	}
	if err := d.together(session, calls); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range at {
		if s.node == s.path {
			d.saw(s.spot, calls[i])
			s.asked = s.asked && calls[i].Err != nil
			if s.rec.Slot != nil && s.czxid != 0 && !s.doubted {
				l.grantPermit(s.spot)
			}
		}
	}
	return nil
}

// answerBehind is the answer to a try for a permit. Where those in front of it have not taken their slots yet, it
// waits for them: permits may be left for it all the same.
func (d *driver) answerBehind(ctx context.Context, s *spot) (leasekit.Answer, error) {
	for end := d.b.clock() + d.b.cfg.timeout; ; {
		a, _, err := d.answer(s)
		if a.Granted || err != nil || s.mode.Limit() == 0 {
			return a, err
		}
		d.mu.Lock()
		i, _ := s.l.find(s.name, s.seq, false)
		free := s.name != "" && permitFree(s.l.queue[:i], s.mode.Limit())
		d.mu.Unlock()
		if !free || d.b.clock() >= end || !leasekit.Sleep(ctx, pauseForSlots) {
			return a, nil
		}
	}
}

// pauseForSlots is how often a try looks whether those in front of it have taken their slots.
const pauseForSlots = 2 * time.Millisecond

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
	defer d.mu.Unlock()
	if l.began == began {
		l.saw(children, s.seq)
	}
	return otherLimit(parseNodes(children), s.mode), nil
}

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
