package zklock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// spot is one request of ours: its node, and what is known of it. Its fields stand
// under the driver's mutex.
type spot struct {
	leasekit.Ref
	l    *line
	mode lock.Mode
	room *zksession.Room // of its nodes; nil: it has none

	cohort bool           // it stands for several apps
	least  time.Duration  // its MinHold; 0: it has none
	loose  bool           // it may be detached
	key    lock.HandleKey // of the hold that it attaches; empty: it attaches none

	node  string // path of its node; empty: not known
	name  string // the end of that
	guard string // name of the second one, in the layout of Curator
	seq   int32
	czxid int64 // 0: not known

	slot int // that a permit has, or may have, because it has asked for it; -1: none

	unsure    bool // there may be nodes that are not known
	outed     bool // it was forced out while it was unsure
	cleared   bool // nothing is in its way any more, and it can be granted by a transaction
	held      bool
	gone      bool // somebody has deleted its node
	doubted   bool // its node was not found
	leaving   bool // it is being deleted by us
	remains   bool // and something stays of it
	final     bool // nothing is to stay of it, whatever its MinHold or its handle
	detaching bool // it is being detached by us: if its node is gone, that was us

	restoring bool // its data is being written again

	rec     record
	version int32         // of the node's data, when it was rec
	queued  time.Duration // when it got its place
	granted time.Duration
	until   time.Duration // when its MinHold is over; 0: it was not granted
	ends    time.Duration // when the grace of a forced release is over; 0: none is running
}

// place is its node as the queue has it.
func (s *spot) place() node {
	return node{name: s.name, id: s.ID, seq: s.seq, shared: s.mode == lock.Shared, limit: s.mode.Limit(), least: s.least, loose: s.loose, key: s.key}
}

// names are those of its nodes, but for the slot of a permit.
func (s *spot) names() []string {
	switch {
	case s.name == "":
		return nil
	case s.guard == "":
		return []string{s.name}
	default:
		return []string{s.guard, s.name}
	}
}

// answered reports whether it is known what has become of a request: it is granted, or its node is gone. d.mu is held.
func (s *spot) answered() bool { return s.held || s.gone || s.name == "" }

// changed is called when the node of a hold was changed or deleted.
func (s *spot) changed(deleted bool) {
	d := s.l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case s.name == "" || s.gone || s.leaving: // it was us
	case deleted:
		d.missed(s)
	default:
		d.do(func(ctx context.Context) { d.lookAt(ctx, s) })
	}
}

// saw takes what was read of the node that a request has. d.mu is held.
func (d *driver) saw(s *spot, c *zksession.Call) {
	switch {
	case s.gone || s.leaving:
	case errors.Is(c.Err, zksession.ErrNoNode):
		d.missed(s)
	case c.Err != nil || c.Stat.Version < s.version: // the latter is an older answer
	default:
		s.version, s.czxid = c.Stat.Version, c.Stat.Czxid
		switch rec, ours := decodeRecord(c.Data); {
		case !ours:
			d.restore(s, nil)
		case rec.Lease != d.id: // a forced release after that
			d.restore(s, rec.Revoked)
		default:
			s.rec = rec
		}
		d.tellRevoked(s)
	}
}

// restore writes what the node of a request had before another program wrote into it.
// A forced release that was noted there since counts. d.mu is held.
func (d *driver) restore(s *spot, revoked *int64) {
	if revoked != nil && (s.rec.Revoked == nil || *revoked < *s.rec.Revoked) {
		s.rec.Revoked = revoked
	}
	if s.restoring {
		return
	}
	s.restoring = true
	d.do(func(ctx context.Context) {
		_ = d.rewrite(ctx, s, func(*record) bool { return true }) // its watch tells of the next write
		d.mu.Lock()
		defer d.mu.Unlock()
		s.restoring = false
	})
}

// tellRevoked tells of a forced release that is not acknowledged. d.mu is held.
func (d *driver) tellRevoked(s *spot) {
	if grace, revoked := s.rec.unknown(); revoked {
		d.push(leasekit.Push{Kind: leasekit.Revoked, Ref: s.Ref, Grace: grace})
	}
}

// lookAt reads the nodes of spots, and watches them, each in the session that has
// made it: so all sessions of a lease that falls silent end at about the same time.
func (d *driver) lookAt(ctx context.Context, spots ...*spot) {
	at := make(map[*zksession.Session][]seen)
	d.mu.Lock()
	for _, s := range spots {
		if s.node != "" {
			at[s.room.Session()] = append(at[s.room.Session()], seen{s, s.node})
		}
	}
	d.mu.Unlock()
	if d.set.Overdue() {
		return
	}
	var again []*spot
	for session, spots := range at {
		calls := make([]*zksession.Call, len(spots))
		for i, s := range spots {
			d.leaseNode.subscribe(s.path, s.spot)
			calls[i] = zksession.Watch(s.path)
		}
		err := session.Together(ctx, calls...)
		d.mu.Lock()
		for i, s := range spots {
			switch {
			case s.node != s.path: // it was released meanwhile
				d.leaseNode.unsubscribe(s.path, s.spot)
			case err != nil && calls[i].Err != nil:
				again = append(again, s.spot)
			default:
				d.saw(s.spot, calls[i])
			}
		}
		d.mu.Unlock()
	}
	if len(again) > 0 {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.do(func(ctx context.Context) {
			if leasekit.Sleep(ctx, d.recheck) {
				d.lookAt(ctx, again...)
			}
		})
	}
}

// missed takes the news that a node of ours is gone. d.mu is held.
//
// Either somebody has deleted it, or the session is over, which a connection tells
// later than that its nodes are gone: that has to be found out first.
func (d *driver) missed(s *spot) {
	if s.doubted || s.detaching {
		return
	}
	s.doubted = true
	if d.missing = append(d.missing, s); len(d.missing) == 1 {
		d.do(d.explain)
	}
}

// explain finds out why nodes are gone. What fails here the next heartbeat or recheck
// does.
func (d *driver) explain(ctx context.Context) {
	missing := d.takeMissing()
	if len(missing) == 0 {
		return
	}
	if !d.set.Overdue() && d.leaseNode.s.Do(ctx, zksession.Barrier()) == nil {
		d.explained(ctx, missing)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.missing = append(d.missing, missing...)
}

func (d *driver) takeMissing() []*spot {
	d.mu.Lock()
	defer d.mu.Unlock()
	missing := d.missing
	d.missing = nil
	return missing
}

// explained: since these were missed, a write has shown that the session lives, and
// has made its server know them all. So nodes that are gone were deleted. ZooKeeper
// loses none, so it was somebody who wants to end the hold: that is a forced release
// without a grace, or the end of one with it.
func (d *driver) explained(ctx context.Context, missing []*spot) {
	d.mu.Lock()
	var at []seen
	for _, s := range missing {
		if s.node != "" { // else it was us
			at = append(at, seen{s, s.node})
		}
	}
	d.mu.Unlock()
	calls, err := d.read(ctx, at)
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, s := range at {
		switch {
		case s.node != s.path:
		case err != nil:
			d.missing = append(d.missing, s.spot)
		case errors.Is(calls[i].Err, zksession.ErrNoNode):
			d.deleted(s.spot)
		default:
			s.doubted = false
			d.saw(s.spot, calls[i])
			s.l.poke()
		}
	}
}

// deleted: somebody has deleted the node of a request. d.mu is held.
func (d *driver) deleted(s *spot) {
	if s.detaching {
		return
	}
	guard := s.guard
	if s.ends == 0 || d.b.clock() < s.ends {
		d.push(leasekit.Push{Kind: leasekit.Revoked, Ref: s.Ref})
	}
	s.gone, s.until = true, 0
	s.l.leave(s)
	d.clearAfter(s, guard, s.least > 0 || s.key != "")
}

// clearAfter deletes what whoever has deleted the node of a request may have left. d.mu is held.
func (d *driver) clearAfter(s *spot, guard string, least bool) {
	slot := s.slot
	if guard == "" && slot < 0 && !least {
		return
	}
	s.slot = -1 // only once: what is there when it was freed is another's
	path, slots := s.l.path, d.b.tree.slots(s.Resource)
	d.do(func(ctx context.Context) {
		for d.set.Overdue() || d.tidy(ctx, path, guard, slots, s.ID, slot, least) != nil {
			if !leasekit.Sleep(ctx, d.recheck) {
				return
			}
		}
	})
}

// tidy deletes what is left of a request whose node is gone.
func (d *driver) tidy(ctx context.Context, path, guard, slots string, id lock.HoldID, slot int, least bool) error {
	if guard != "" {
		if err := d.leaseNode.remove(ctx, path, []string{guard}); err != nil {
			return err
		}
	}
	if least {
		if _, err := d.leaseNode.endLeft(ctx, path, slots, id, nil); err != nil {
			return err
		}
	}
	if slot < 0 {
		return nil
	}
	return d.leaseNode.freeSlot(ctx, path, slots, id, slot)
}

// lastsAfter is when a hold is worth more: most are released before. Its node is
// watched, so that its holder is told of a forced release; what has happened until
// then is told when the watch is set. And where the hold was waited for so long, that
// is written into the node, so that others can tell since when it has been held.
const lastsAfter = 100 * time.Millisecond

// later are holds in the order in which they are due.
type later []dueHold

type dueHold struct {
	s  *spot
	at time.Duration
}

// take removes what is due and still held. d.mu is held.
func (q *later) take(now time.Duration) []*spot {
	var all []*spot
	for len(*q) > 0 && (*q)[0].at <= now {
		if s := (*q)[0].s; s.held && !s.gone && s.name != "" {
			all = append(all, s)
		}
		(*q)[0] = dueHold{}
		*q = (*q)[1:]
	}
	return all
}

// grant notes that a request is granted, and tells. d.mu is held.
func (d *driver) grant(s *spot) {
	now := d.b.clock()
	s.held, s.granted = true, now
	if s.least > 0 {
		s.until = now + s.least
	}
	d.push(leasekit.Push{Kind: leasekit.Granted, Ref: s.Ref, Fence: d.fence(s)})
	if d.fresh = append(d.fresh, dueHold{s, now + lastsAfter}); len(d.fresh) == 1 {
		leasekit.Ring(d.lasting)
	}
}

// care watches nodes and writes notes until ctx ends.
func (d *driver) care(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		now := d.b.clock()
		d.mu.Lock()
		lasting := d.fresh.take(now)
		pause := time.Hour
		if len(d.fresh) > 0 {
			pause = d.fresh[0].at - now
		}
		d.mu.Unlock()
		d.lookAt(ctx, lasting...)
		d.note(lasting)
		t.Reset(pause)
		select {
		case <-t.C:
		case <-d.lasting:
		case <-ctx.Done():
			return
		}
	}
}

// note writes into the nodes of holds how long they were waited for. One that is not written
// is not missed, and the next holds are not kept waiting for their watches.
func (d *driver) note(lasting []*spot) {
	d.mu.Lock()
	defer d.mu.Unlock()
	waited := slices.DeleteFunc(lasting, func(s *spot) bool { return s.granted-s.queued < lastsAfter })
	if len(waited) == 0 {
		return
	}
	d.do(func(ctx context.Context) {
		for _, s := range waited {
			_ = d.rewrite(ctx, s, func(r *record) bool {
				r.Waited = (s.granted - s.queued).Milliseconds()
				return true
			})
		}
	})
}

// maxTries bounds how often something is done again because others were faster.
const maxTries = 5

// rewrite changes the data of a request's node, where change wants it. What others
// have written meanwhile is kept if it is in our form. What may be left of the request
// has the same data. It is lock.ErrNotHolder where the node is gone.
func (d *driver) rewrite(ctx context.Context, s *spot, change func(*record) bool) error {
	lonely := false // somebody has deleted what may be left of it
	for tries := 1; ; tries++ {
		d.mu.Lock()
		if s.name == "" || s.gone {
			d.mu.Unlock()
			return lock.ErrNotHolder
		}
		rec, path, downgraded := s.rec, s.node, s.rec.Downgraded
		left := s.l.path + "/" + keptName(s.name)
		if !change(&rec) {
			d.mu.Unlock()
			return nil
		}
		set := zksession.Set(path, rec.encode(), s.version)
		d.mu.Unlock()
		call := set
		switch {
		case lonely || rec.Fence == 0:
		case s.key == "":
			call = zksession.Multi(set, zksession.Set(left, rec.encode(), zksession.AnyVersion))
		case rec.Downgraded && !downgraded:
			also, err := d.downgradeDetached(ctx, left)
			if err != nil {
				return err
			}
			if also != nil {
				call = zksession.Multi(set, also)
			}
		}
		if err := d.ask(ctx, call); err != nil {
			return err
		}
		switch {
		case call.Err == nil:
			d.mu.Lock()
			if s.node == path && set.Stat.Version > s.version {
				s.rec, s.version = rec, set.Stat.Version
			}
			d.mu.Unlock()
			return nil
		case errors.Is(call.Err, zksession.ErrNoNode) && call != set: // one of them
			lonely = true
			continue
		case errors.Is(call.Err, zksession.ErrNoNode):
			d.mu.Lock()
			if s.node == path {
				d.missed(s)
			}
			d.mu.Unlock()
			return lock.ErrNotHolder
		case !errors.Is(call.Err, zksession.ErrBadVersion) || tries == maxTries || ctx.Err() != nil:
			return call.Err
		}
		get := zksession.Get(path) // somebody has written into it
		if err := d.ask(ctx, get); err != nil {
			return err
		}
		d.mu.Lock()
		if s.node == path {
			d.saw(s, get)
		}
		d.mu.Unlock()
		if get.Err != nil && !errors.Is(get.Err, zksession.ErrNoNode) {
			return get.Err
		}
	}
}
