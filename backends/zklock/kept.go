package zklock

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// A request with a MinHold is granted by a transaction, which writes its fence into its node, and makes
// a second, persistent node: with the same number, and the same data. As long as the request is there,
// the second node says nothing. When the request is gone, because it was released, or with the session
// of its sidecar, the second node is what is left of it: it has its place in the queue, keeps the same ones
// out, and is shown as a hold that is Kept. In the layout of Curator a second guard comes with it, for
// plain mutexes.
//
// Others learn from the name of a request that something may be left of it. So whoever sees that it is
// gone, by any answer but a list, looks for that as well. Nothing is left of a request later than
// it is gone: the transaction is refused then.
//
// How old such a node is tells the leader's clock (serverTime): a sidecar that counted from when it has first
// seen the node would keep out a job that comes once an hour, long after the time is over. The first for whom the time is over deletes it: the sidecar that made it, those
// who wait for it or ask for it, or the sweep, which finds it by a third node, in a bucket of its own. A
// permit's slot is persistent then, too. They all come and go in one transaction.

// KeepsMinHold implements leasekit.Keeper.
func (d *driver) KeepsMinHold() error { return nil }

// keptRecord is the data of the node by which what is left of a hold is found.
type keptRecord struct {
	Version  int           `json:"locksidecar"`
	Path     string        `json:"path"` // of the lock
	Resource lock.Resource `json:"resource"`
	Least    int64         `json:"least_ms"`
	Slot     *int          `json:"slot,omitempty"`
	// Key is that of a detached hold. Its time may have been moved since.
	Key lock.HandleKey `json:"key,omitempty"`
}

func (r keptRecord) encode() []byte {
	r.Version = recordVersion
	return encode(r)
}

// decodeKept reads the data of such a node; false when it is not ours.
func decodeKept(data []byte) (rec keptRecord, ours bool) {
	if json.Unmarshal(data, &rec) != nil || rec.Version != recordVersion {
		return keptRecord{}, false
	}
	return rec, true
}

// leaves are the calls that make what is left of a request when it is gone. d.mu is held.
func (s *spot) leaves(rec record) []*zksession.Call {
	t := &s.l.d.b.tree
	data := rec.encode()
	calls := []*zksession.Call{zksession.Create(s.l.path+"/"+keptName(s.name), data, t.acl, zksession.Persistent)}
	if s.guard != "" {
		calls = append(calls, zksession.Create(s.l.path+"/"+keptGuard(s.guard), data, t.acl, zksession.Persistent))
	}
	of := keptRecord{Path: s.l.path, Resource: s.Resource, Least: toMillis(s.least), Slot: rec.Slot}
	return append(calls, zksession.Create(t.kept(s.ID), of.encode(), t.acl, zksession.Persistent))
}

// stays reports whether something is to be left of a request that ends now: nobody forces its release, and it was
// granted and its MinHold is not over, or it is attached. d.mu is held.
func (s *spot) stays() bool {
	return !s.final && s.rec.Revoked == nil && (s.key != "" || s.until > s.l.d.b.clock())
}

// keep grants a request with a MinHold that nothing is in the way of. d.mu is held, but while it asks.
func (l *line) keep(w *spot) error {
	d := l.d
	if w.rec.Fence != 0 { // it was read that it is granted
		l.waiting = slices.DeleteFunc(l.waiting, func(o *spot) bool { return o == w })
		d.grant(w)
		return nil
	}
	path, rec := w.node, w.rec
	rec.Fence = d.leaseNode.fence(w.czxid)
	set := zksession.Set(path, rec.encode(), w.version)
	take := zksession.Multi(append([]*zksession.Call{set}, w.leaves(rec)...)...)
	return l.unlocked(func() error {
		above := above(d.b.tree.kept(w.ID))
		err := d.ask(d.run, append(d.unknown(above), take)...)
		if err == nil && errors.Is(take.Err, zksession.ErrNodeExists) { // another program has overwritten the request since
			take = zksession.Set(path, rec.encode(), w.version)
			set = take
			err = d.ask(d.run, take)
		}
		if err != nil {
			return err
		}
		switch {
		case take.Err == nil:
			d.setKnown(above, true)
			d.mu.Lock()
			if w.node == path && set.Stat.Version > w.version {
				w.rec, w.version = rec, set.Stat.Version
			}
			d.mu.Unlock()
			return nil
		case errors.Is(take.Err, zksession.ErrNoNode): // the request, or the bucket, which the server removes when it is empty
			if err := d.makeContainer(d.run, d.leaseNode.s, above); err != nil {
				return err
			}
		case !raced(take.Err):
			return take.Err
		}
		return l.reread(d.leaseNode.s, []*spot{w})
	})
}

// leftOf are the paths of the nodes that are there and are what is left of a hold when it is gone, the one in
// the queue first.
func (t *leaseNode) leftOf(ctx context.Context, path string, id lock.HoldID) ([]string, error) {
	queue, index := zksession.Children(path), zksession.Get(t.b.tree.kept(id))
	if err := t.s.Do(ctx, queue, index); err != nil {
		return nil, err
	}
	if queue.Err != nil && !errors.Is(queue.Err, zksession.ErrNoNode) {
		return nil, queue.Err
	}
	var left []string
	for _, name := range namesOf(queue.Children, node{id: id, name: idPrefix(id)}) {
		if n, request := parseNode(name); request && n.kept {
			left = slices.Insert(left, 0, path+"/"+name)
		} else if isKeptGuard(name) {
			left = append(left, path+"/"+name)
		}
	}
	if index.Err == nil {
		left = append(left, index.Of())
	}
	return left, nil
}

// leftFor is how much longer others are kept out by a node that was read; 0 or less: it is over.
func (t *leaseNode) leftFor(n node, read *zksession.Call) time.Duration {
	rec, _ := decodeRecord(read.Data)
	switch {
	case read.Err != nil && n.key != "": // it may not be read
		return lock.MaxDetach
	case read.Err != nil:
		return n.least
	case rec.Revoked != nil:
		return 0
	case n.key != "":
		return t.detachedFor(rec, read.Stat)
	}
	return n.least - t.time.since(read.Stat.Ctime, t.b.clock())
}

// endLeft deletes what is left of a hold that is gone, and says whether there was any. slot is that which it has as far as
// is known; else it stands in each of the nodes, of which somebody may have deleted one.
func (t *leaseNode) endLeft(ctx context.Context, path, slots string, id lock.HoldID, slot *int) (there bool, err error) {
	index := t.b.tree.kept(id)
	for tries := 1; ; tries++ {
		queue, found := zksession.Children(path), zksession.Get(index)
		if err := t.s.Do(ctx, queue, found); err != nil {
			return false, err
		}
		if queue.Err != nil && !errors.Is(queue.Err, zksession.ErrNoNode) {
			return false, queue.Err
		}
		var own []string // a node before its guard
		for _, name := range namesOf(queue.Children, node{id: id, name: idPrefix(id)}) {
			switch n, request := parseNode(name); {
			case request && !n.kept:
				return false, nil // somebody has it
			case request:
				own = slices.Insert(own, 0, path+"/"+name)
			case isKeptGuard(name):
				own = append(own, path+"/"+name)
			}
		}
		if rec, ours := decodeKept(found.Data); ours && rec.Slot != nil {
			slot = rec.Slot
		} else if !ours && len(own) > 0 {
			get := zksession.Get(own[0])
			if err := t.s.Do(ctx, get); err != nil {
				return false, err
			}
			if rec, ours := decodeRecord(get.Data); ours && rec.Slot != nil {
				slot = rec.Slot
			}
		}
		if slot != nil {
			has, err := t.hasSlot(ctx, slots, id, *slot)
			if err != nil {
				return false, err
			}
			if has {
				own = append(own, slotPath(slots, *slot))
			}
		}
		if !errors.Is(found.Err, zksession.ErrNoNode) { // it would be refused for a node that is not there
			own = append(own, index)
		}
		if len(own) == 0 {
			return false, nil
		}
		if there, err = t.deleteTogether(ctx, own, tries == maxTries); err != nil || there {
			return there, err
		}
	}
}

// deleteTogether deletes nodes as one, so that nobody sees the one without the other. With anyway it deletes
// each that is there.
func (t *leaseNode) deleteTogether(ctx context.Context, paths []string, anyway bool) (done bool, err error) {
	calls := make([]*zksession.Call, len(paths))
	for i, p := range paths {
		calls[i] = zksession.Delete(p, zksession.AnyVersion)
	}
	if !anyway {
		all := zksession.Multi(calls...)
		if err := t.s.Do(ctx, all); err != nil || all.Err == nil {
			return err == nil, err
		}
		if !errors.Is(all.Err, zksession.ErrNoNode) {
			return false, all.Err
		}
		return false, nil
	}
	if err := t.s.Do(ctx, calls...); err != nil {
		return false, err
	}
	for _, c := range calls {
		if c.Err != nil && !errors.Is(c.Err, zksession.ErrNoNode) {
			err = errors.Join(err, c.Err)
		}
	}
	return err == nil, err
}

// leftover is what is left of a hold, and when it is over.
type leftover struct {
	at       time.Duration
	resource lock.Resource
	path     string
	node
	theirs bool // it was found by who waits for it
}

// leftovers are those that a lease has seen, and will end. They stand under the driver's mutex.
type leftovers struct {
	all  []*leftover // by when they are over, but those that are being ended
	of   map[lock.HoldID]*leftover
	more chan struct{} // has a value when there is an earlier one
}

// maxLefts bounds what a lease remembers of its own holds that have left something. Others may have ended that long before its time
// is over, and nobody is told of that.
const maxLefts = 10_000

// leavesFor is endsIn for what nobody is known to wait for. Where there is too much of that, those who will wait for it end it, or
// the sweep. d.mu is held.
func (d *driver) leavesFor(r lock.Resource, path string, n node, left time.Duration) {
	if len(d.lefts.of) < d.b.maxLefts || d.lefts.of[n.id] != nil {
		d.endsIn(r, path, n, left)
	}
}

// endsIn notes when what is left of a hold is over. d.mu is held.
func (d *driver) endsIn(r lock.Resource, path string, n node, left time.Duration) {
	o := &leftover{at: d.b.clock() + left, resource: r, path: path, node: n}
	if old := d.lefts.of[n.id]; old != nil {
		i := slices.Index(d.lefts.all, old)
		if i < 0 || old.at <= o.at && old.key == o.key { // it is being ended, or will be before
			return
		}
		o.theirs = old.theirs
		d.lefts.all = slices.Delete(d.lefts.all, i, i+1)
	}
	d.lefts.add(o)
}

func (q *leftovers) add(o *leftover) {
	i, _ := slices.BinarySearchFunc(q.all, o, func(a, b *leftover) int { return cmp.Compare(a.at, b.at) })
	q.all = slices.Insert(q.all, i, o)
	q.of[o.id] = o
	if i == 0 {
		leasekit.Ring(q.more)
	}
}

// forget forgets what was found, and is gone, unless it is being ended.
func (q *leftovers) forget(id lock.HoldID) {
	o := q.of[id]
	if o == nil || !o.theirs {
		return
	}
	if i := slices.Index(q.all, o); i >= 0 {
		q.all = slices.Delete(q.all, i, i+1)
		delete(q.of, id)
	}
}

// take takes out what is over, at most so many. It is forgotten when it was ended.
func (q *leftovers) take(now time.Duration, most int) []*leftover {
	i := slices.IndexFunc(q.all, func(o *leftover) bool { return o.at > now })
	if i < 0 {
		i = len(q.all)
	}
	i = min(i, most)
	over := slices.Clone(q.all[:i])
	q.all = slices.Delete(q.all, 0, i)
	return over
}

// maxEnding is how many of them are ended at a time.
const maxEnding = 16

// endLeftovers ends what is left of holds when it is over, until ctx ends.
func (d *driver) endLeftovers(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		now := d.b.clock()
		d.mu.Lock()
		over := d.lefts.take(now, maxEnding)
		pause := time.Hour
		if len(d.lefts.all) > 0 {
			pause = max(0, d.lefts.all[0].at-now)
		}
		d.mu.Unlock()
		var all sync.WaitGroup
		for _, o := range over {
			all.Go(func() { d.endLeftover(ctx, o) })
		}
		all.Wait()
		t.Reset(pause)
		select {
		case <-t.C:
		case <-d.lefts.more:
		case <-ctx.Done():
			return
		}
	}
}

// endLeftover ends one, or tries again later: a lease that gets no heartbeats any more must not live on by it.
func (d *driver) endLeftover(ctx context.Context, o *leftover) {
	overdue := d.set.Overdue()
	left := d.recheck
	var err error
	if !overdue {
		err = insist(ctx, func() (err error) {
			left, _, err = d.leaseNode.endOver(ctx, o.resource, o.path, o.id, o.key, nil)
			return err
		})
	}
	if err != nil {
		left = d.recheck
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if left > 0 {
		o.at = d.b.clock() + left
		d.lefts.add(o)
		return
	}
	delete(d.lefts.of, o.id)
	if l := d.lines[o.path]; l != nil {
		l.suspect = true
		l.poke()
	}
}

// foundLeft takes what was read of a node in the queue that is left of a hold. d.mu is held.
func (l *line) foundLeft(n node, read *zksession.Call) {
	if errors.Is(read.Err, zksession.ErrNoNode) {
		l.gone(n)
		return
	}
	_, known := l.d.lefts.of[n.id]
	l.d.endsIn(l.resource, l.path, n, l.d.leaseNode.leftFor(n, read))
	if !known {
		l.d.lefts.of[n.id].theirs = true
	}
}

// forgetLeft forgets what was found in the queue before, and is not there any more, up to a number. d.mu is held.
func (l *line) forgetLeft(before []node, last int32) {
	there := func(n node) bool {
		i, _ := l.find("", n.seq, false)
		for ; i < len(l.queue) && l.queue[i].seq == n.seq; i++ {
			if l.queue[i].id == n.id {
				return true
			}
		}
		return false
	}
	for _, n := range before {
		if n.kept && n.seq <= last && !there(n) {
			l.d.lefts.forget(n.id)
		}
	}
}

// gone takes a node out of the queue that is not there any more. What may be left of it comes in its place.
// d.mu is held.
func (l *line) gone(n node) {
	if n.kept {
		l.d.lefts.forget(n.id)
	}
	i, there := l.find(n.name, n.seq, n.shared)
	switch {
	case !there:
	case n.loose: // another one may have its place, which only a list shows
		l.known, l.slots = -1, nil
	case n.least > 0 && !n.kept:
		l.queue[i] = n.left()
	default:
		l.queue = slices.Delete(l.queue, i, i+1)
	}
}

// isLeft reports whether something is left of a hold of that id.
func (d *driver) isLeft(id lock.HoldID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lefts.of[id] != nil
}

// withoutOver ends what is over among what is left of holds in a queue, and gives the others.
func (d *driver) withoutOver(ctx context.Context, r lock.Resource, path string, nodes []node) ([]node, error) {
	var calls []*zksession.Call
	for _, n := range nodes {
		if n.kept {
			calls = append(calls, zksession.Get(path+"/"+n.name))
		}
	}
	if len(calls) == 0 {
		return nodes, nil
	}
	if err := doAll(ctx, d.leaseNode, calls); err != nil {
		return nil, err
	}
	over := make(map[lock.HoldID]bool)
	for _, n := range nodes {
		if !n.kept {
			continue
		}
		read := calls[0]
		calls = calls[1:]
		switch {
		case errors.Is(read.Err, zksession.ErrNoNode):
			over[n.id] = true
		case d.leaseNode.leftFor(n, read) <= 0:
			left, _, err := d.leaseNode.endOver(ctx, r, path, n.id, n.key, nil)
			if err != nil {
				return nil, err
			}
			over[n.id] = left <= 0
		}
	}
	return slices.DeleteFunc(nodes, func(n node) bool { return n.kept && over[n.id] }), nil
}

// keptChore deletes what is left of holds whose sidecars are gone, and that nobody waits for.
func (d *driver) keptChore() chore {
	t := d.leaseNode
	return chore{
		root: d.b.tree.keeps(),
		over: func(n *zksession.Call) bool {
			rec, _ := decodeKept(n.Data)
			return rec.Path != "" && t.time.since(n.Stat.Mtime, d.b.clock()) >= fromMillis(rec.Least)
		},
		end: func(ctx context.Context, _ *zksession.Call, over []*zksession.Call) (ended int, err error) {
			for _, n := range over {
				rec, _ := decodeKept(n.Data)
				id := lock.HoldID(n.Of()[strings.LastIndexByte(n.Of(), '/')+1:])
				_, there, err := t.endOver(ctx, rec.Resource, rec.Path, id, rec.Key, rec.Slot)
				if err != nil {
					return ended, err
				}
				if there {
					ended++
				}
			}
			return ended, nil
		},
	}
}
