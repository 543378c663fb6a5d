package zklock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// Ask implements leasekit.Driver. A request that has its place is asked about no
// more: its line tells when it is its turn.
func (d *driver) Ask(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	path, err := d.b.tree.lockPath(q.Resource)
	if err != nil {
		return leasekit.Answer{}, err
	}
	if !validID(q.ID) {
		return leasekit.Answer{}, &lock.InvalidError{Field: "lock_id", Problem: "must have 1 to 64 letters, digits, - or _"}
	}
	if d.isLeft(q.ID) { // it was released before
		return leasekit.Answer{}, lock.ErrNotHolder
	}
	s := d.spotOf(q, path)
	var a leasekit.Answer
	if s.key != "" {
		a, err = d.attach(ctx, s, q.Mode)
	} else {
		a, err = d.askFor(ctx, s, q.Try)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.name == "" && !s.unsure {
		d.forget(s)
	}
	return a, d.failed("acquire", q.Resource, err)
}

// spotOf finds the spot of a request, or makes one.
func (d *driver) spotOf(q lock.Request, path string) *spot {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.spots[q.ID]; s != nil {
		return s
	}
	l := d.lines[path]
	if l == nil {
		l = &line{d: d, resource: q.Resource, path: path, known: -1}
		d.lines[path] = l
	}
	if l.users++; l.users == 2 && l.turns == nil { // one alone needs no turn
		l.turns = make(chan struct{}, maxLineTurns)
	}
	s := &spot{Ref: leasekit.Ref{Resource: q.Resource, ID: q.ID}, l: l, mode: q.Mode, cohort: q.Cohort != nil, least: fromMillis(toMillis(q.MinHold)), loose: q.Detachable || q.Handle != "", key: q.Handle, slot: -1}
	if s.cohort || q.Mode.Limit() > 0 {
		d.leaseNode.subscribe(path, (*arrivals)(l))
	}
	s.rec = record{Lease: d.id, Sidecar: d.sidecar, Owner: ownerJSON(q.Owner), Cohort: s.cohort}
	d.spots[q.ID] = s
	return s
}

// forget removes a spot that has no nodes. d.mu is held.
func (d *driver) forget(s *spot) {
	if d.spots[s.ID] != s {
		return
	}
	delete(d.spots, s.ID)
	if s.room != nil {
		s.room.Leave()
	}
	if s.l.users--; s.l.users == 0 {
		s.l.watch("")
		d.leaseNode.unsubscribe(s.l.path, (*arrivals)(s.l))
		delete(d.lines, s.l.path)
		s.l.clear()
	}
}

// answer is what is known of a request without asking; known is false where there is
// something to ask.
func (d *driver) answer(s *spot) (a leasekit.Answer, known bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case s.gone:
		return a, true, lock.ErrNotHolder
	case s.name == "":
		return a, false, nil
	case s.held:
		return leasekit.Answer{Granted: true, Fence: d.fence(s)}, true, nil
	}
	return a, true, nil
}

func (d *driver) askFor(ctx context.Context, s *spot, try bool) (leasekit.Answer, error) {
	a, known, err := d.answer(s)
	switch {
	case d.set.Overdue() && (!known || a.Granted):
		return leasekit.Answer{}, errOverdue
	case known && (!try || a.Granted || err != nil):
		return a, err
	}
	if try {
		return d.try(ctx, s)
	}
	if err := d.enter(ctx, s); err != nil {
		return leasekit.Answer{}, err
	}
	if err := s.l.advanceFor(ctx, s); err != nil && !errors.Is(err, zksession.ErrLost) && !errors.Is(err, zksession.ErrNotSent) {
		return leasekit.Answer{}, err // the server would say it again
	}
	a, _, err = d.answer(s)
	return a, err
}

// place makes sure that a request has its place in the queue.
func (d *driver) place(ctx context.Context, s *spot) error {
	turn, err := s.l.turn(ctx)
	switch {
	case errors.Is(err, zksession.ErrNotSent):
		return d.unsent(s)
	case err != nil:
		return err
	}
	defer turn.end()
	return insist(ctx, func() error { return d.placeOnce(context.WithoutCancel(ctx), s) })
}

// unsent is why nothing was sent.
func (d *driver) unsent(s *spot) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.unsure {
		return zksession.ErrNotSent
	}
	return leasekit.ErrNotSent
}

func (d *driver) placeOnce(ctx context.Context, s *spot) error {
	d.mu.Lock()
	unsure, placed := s.unsure, s.name != ""
	d.mu.Unlock()
	switch {
	case placed:
		return nil
	case unsure:
		if err := d.find(ctx, s); err != nil || d.isPlaced(s) || d.isGone(s) {
			return err
		}
	}
	return d.create(ctx, s)
}

func (d *driver) isPlaced(s *spot) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return s.name != ""
}

func (d *driver) isGone(s *spot) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return s.gone
}

// maxSeq bounds the numbers of nodes. ZooKeeper's count sticks at 2³¹-1, and then
// all have the same number. There is room for those who are refused and come again.
const maxSeq = math.MaxInt32 - 1<<27

// errNumbers is why a request is refused whose number is too large.
var errNumbers = fmt.Errorf("the numbers of the lock's node in ZooKeeper are used up, since it was never empty; they begin at zero again when nobody holds it: %w", lock.ErrUnavailable)

// create takes a place in the queue. Where no other request of ours is there, it lists
// the queue in the same round trip.
func (d *driver) create(ctx context.Context, s *spot) error {
	t, l := &d.b.tree, s.l
	paths := []string{l.path + "/" + s.place().called()}
	if t.curator {
		paths = []string{l.path + "/" + guardName(s.ID), paths[0]}
	}
	room := s.room
	if room == nil {
		all := paths
		if limit := s.mode.Limit(); limit > 0 {
			all = append(slices.Clone(paths), l.slotPath(limit))
		}
		var err error
		if room, err = d.set.Room(ctx, all...); err != nil {
			return err
		}
	}
	d.mu.Lock()
	s.room, s.slot = room, -1
	alone := l.placed == 0 && l.creating == 0
	l.creating++
	changes, data := l.changes, s.rec.encode()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		l.creating--
	}()
	ancestors := d.signed(d.unknown(l.path))
	for tries := 1; ; tries++ {
		var nodes []*zksession.Call
		for _, p := range paths {
			nodes = append(nodes, zksession.Create(p, data, t.acl, zksession.EphemeralSequential))
		}
		place, queue := nodes[0], l.queueCall(s.cohort)
		if t.curator {
			place = zksession.Multi(nodes...)
		}
		d.setUnsure(s, true)
		calls := append(slices.Clone(ancestors), place)
		if alone {
			calls = append(calls, queue)
		}
		var taken *zksession.Call
		var beside sync.WaitGroup
		if alone && s.mode.Limit() > 0 {
			taken = l.listSlots()
			beside.Go(func() { _ = room.Session().Do(ctx, taken) })
		}
		_ = room.Session().Chase(ctx, calls...)
		beside.Wait()
		if place.Err != nil && made(ancestors) {
			d.mu.Lock()
			l.bare = true
			d.mu.Unlock()
		}
		switch {
		case place.Err == nil:
			d.setKnown(l.path, true)
			if !alone || queue.Err != nil {
				return d.arrived(ctx, s, nodes, nil)
			}
			if t.curator { // a transaction does not tell its number
				own := zksession.Get(nodes[1].Path)
				_ = room.Session().Do(ctx, own)
				nodes[1].Stat.Czxid = own.Stat.Czxid
			}
			if s.cohort {
				d.mu.Lock()
				l.listens(changes)
				d.mu.Unlock()
			}
			err := d.arrived(ctx, s, nodes, queue)
			if taken != nil {
				d.mu.Lock()
				_ = l.sawSlots(taken) // else they are counted
				d.mu.Unlock()
			}
			return err
		case errors.Is(place.Err, zksession.ErrLost), errors.Is(place.Err, zksession.ErrExpired), errors.Is(place.Err, zksession.ErrClosed):
			return place.Err
		}
		d.setUnsure(s, false)
		if !errors.Is(place.Err, zksession.ErrNoNode) {
			return whyRefused(place.Err, ancestors)
		}
		// Its ancestors are not there, or not any more: the server removes those that
		// have been empty for a while.
		d.setKnown(l.path, false)
		if tries == maxTries {
			return whyRefused(place.Err, ancestors)
		}
		ancestors = d.signed(t.ancestors(l.path)) // it knows which are there already
	}
}

// unknown are the calls that make the node of a lock, and the one above it, where they may not
// be there.
func (d *driver) unknown(path string) []*zksession.Call {
	if d.b.isKnown(path) {
		return nil
	}
	calls := d.b.tree.ancestors(path)
	if len(calls) == 1 || d.b.isKnown(above(path)) {
		return calls[len(calls)-1:]
	}
	return calls[len(calls)-2:]
}

// signed has the last of calls that make nodes, which is for that of a lock, say who has made it, where it might be another program's.
func (d *driver) signed(calls []*zksession.Call) []*zksession.Call {
	if last := len(calls) - 1; last >= 0 && d.b.tree.curator {
		by := record{Lease: d.id, Sidecar: d.sidecar}
		calls[last] = zksession.Create(calls[last].Of(), by.encode(), d.b.tree.acl, zksession.Container)
	}
	return calls
}

// made reports whether the last of the calls has made its node, or may have, because it had no answer.
func made(calls []*zksession.Call) bool {
	if len(calls) == 0 {
		return false
	}
	err := calls[len(calls)-1].Err
	return err == nil || errors.Is(err, zksession.ErrLost)
}

// clear deletes nodes that may have been made for this line, and that have had nothing below, unless they have by now. The
// server removes only such as have had something. d.mu is held.
func (l *line) clear() {
	if l.bare {
		l.d.clear(l.path, l.d.b.tree.curator)
	}
	if l.bareSlots {
		l.d.clear(l.d.b.tree.slots(l.resource), false)
	}
}

// clear deletes a node unless there is something below; with signed, only if we have made it. d.mu is held.
func (d *driver) clear(path string, signed bool) {
	d.b.setKnown(path, false)
	d.do(func(ctx context.Context) {
		_ = insist(ctx, func() error { // else one empty node stays
			if signed {
				get := zksession.Get(path)
				if err := d.ask(ctx, zksession.Barrier(), get); err != nil {
					return err
				}
				if by, _ := decodeRecord(get.Data); by.Lease != d.id {
					return nil
				}
			}
			return d.ask(ctx, zksession.Delete(path, zksession.AnyVersion))
		})
	})
}

// setKnown remembers, or forgets, that the node of a lock is there, and the one above it.
func (d *driver) setKnown(path string, there bool) {
	d.b.setKnown(path, there)
	d.b.setKnown(above(path), there)
}

// above is the path of the node above another one.
func above(path string) string { return path[:strings.LastIndexByte(path, '/')] }

// arrived takes the nodes of a request, and a list of the queue if there is one.
func (d *driver) arrived(ctx context.Context, s *spot, nodes []*zksession.Call, queue *zksession.Call) error {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Path[len(s.l.path)+1:])
	}
	own, _ := parseNode(names[len(names)-1])
	if own.seq > d.b.maxSeq || own.seq < 0 {
		return d.refuse(ctx, s, names)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last := nodes[len(nodes)-1]
	d.settle(s, last.Path, names, last.Stat.Czxid)
	switch {
	case queue == nil || s.czxid == 0:
	case s.room.Session() == d.leaseNode.s:
		s.l.saw(queue.Children, s.seq)
	default: // what another session sees proves something of itself alone
		all := parseNodes(queue.Children)
		s.l.tellOfOthers(all)
		i := slices.IndexFunc(all, func(n node) bool { return n.name == s.name })
		if i >= 0 && s.mode.Limit() == 0 && s.least == 0 && blocker(all, i, s.mode == lock.Shared) < 0 {
			s.l.waiting = slices.DeleteFunc(s.l.waiting, func(o *spot) bool { return o == s })
			d.grant(s)
		}
	}
	return nil
}

// settle notes where a request has its nodes. d.mu is held.
func (d *driver) settle(s *spot, path string, names []string, czxid int64) {
	own, _ := parseNode(path[len(s.l.path)+1:])
	s.node, s.name, s.seq, s.czxid, s.unsure = path, own.name, own.seq, czxid, false
	if len(names) > 1 {
		s.guard = names[0]
	}
	s.version, s.rec.Slot, s.rec.Fence, s.queued = 0, nil, 0, d.b.clock()
	if s.key != "" {
		s.mode = own.mode()
		s.l.has(s)
		return
	}
	s.l.add(s)
}

// refuse takes a request back whose number is too large. The node of a lock that
// nobody holds is removed, so that numbers begin at zero again.
func (d *driver) refuse(ctx context.Context, s *spot, names []string) error {
	if err := d.leaseNode.remove(ctx, s.l.path, names); err != nil {
		return err // it is unsure
	}
	d.setUnsure(s, false)
	if !d.b.tree.curator { // there it may be somebody else's
		_ = d.leaseNode.s.Do(ctx, zksession.Delete(s.l.path, zksession.AnyVersion))
	}
	return errNumbers
}

// whyRefused is why a place could not be taken: in the first place, why an ancestor
// could not be made.
func whyRefused(err error, ancestors []*zksession.Call) error {
	for _, c := range ancestors {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNodeExists) {
			err = c.Err
			break
		}
	}
	if errors.Is(err, zksession.ErrNoChildrenForEphemerals) {
		return &lock.InvalidError{Field: "resource", Problem: "is below a node in ZooKeeper that cannot have others below it"}
	}
	return err
}

func (d *driver) setUnsure(s *spot, unsure bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.unsure = unsure
}

// find looks for nodes of a request, of whose create or delete there was no answer.
// What it finds, and does not find, is final: the barrier is sent when nothing of that
// session is on its way any more, and only a leader that a majority follows answers
// to it. What came to a server by a connection before was done before that, or is
// refused, because the session has moved, or the leader has changed.
//
// A sync would not do: a leader that does not know yet that there is another one
// answers it, and what it has proposed to some may still be decided by the next.
//
// Where nothing is found, the create may have been carried out, and the request forced out
// since. The node of the lease tells that.
func (d *driver) find(ctx context.Context, s *spot) error {
	queue, lease := zksession.Children(s.l.path), zksession.Get(d.leaseNode.path)
	if err := s.room.Session().Do(ctx, zksession.Barrier(), queue, lease); err != nil {
		return err
	}
	for _, c := range []*zksession.Call{queue, lease} {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNoNode) {
			return c.Err
		}
	}
	var left node
	names := slices.DeleteFunc(namesOf(queue.Children, node{id: s.ID, name: idPrefix(s.ID)}), func(name string) bool {
		n, _ := parseNode(name)
		if n.kept {
			left = n
		}
		return n.kept || isKeptGuard(name)
	})
	slices.SortFunc(names, func(a, _ string) int { // as a create makes them: its guard is first
		if _, request := parseNode(a); request {
			return 1
		}
		return -1
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	d.oust(decodeLease(lease.Data).Forced)
	d.oust(d.leaseNode.heard())
	s.unsure = false
	if len(names) == 0 {
		if s.gone = s.outed; left.kept {
			d.leavesFor(s.Resource, s.l.path, left, s.until-d.b.clock())
		}
		return nil
	}
	d.settle(s, s.l.path+"/"+names[len(names)-1], names, 0)
	return nil
}
