package zklock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// line is what all requests of ours for one resource share. Its fields stand under
// the driver's mutex.
//
// However many of them wait, only the first one matters: as long as that is not
// granted, no other one is. So one node is watched, that which is in its way, and one
// list of the queue serves all: new requests get larger numbers than all before, so
// a list is complete for numbers up to the largest in it, for ever, but for nodes that
// have gone since. A request of ours that has the very next number makes it longer.
//
// A request is granted when no node in its way is left, while its own is there. That
// rests on what the store has answered, in one of two ways:
//
//   - One list has its node, and none in its way.
//   - Every node in its way is gone, each by an answer: it was read and was not
//     there, or was deleted by us; and its own node was read after that, and was there.
//
// That a node is gone is final: names have numbers that are not given again while a
// node of ours is there, because then their parent is. That our own is there must be
// read last: whoever forces a waiter out of the queue deletes its node in a
// transaction that fails unless the node in its way is still there. All these requests
// go by one session, which never sees an older state than it has seen before, also at
// another server; but only answers count, for the library does not tell the next
// server of what a watch has told it (Conn.lastZxid). So a watch makes us ask, and
// proves nothing.
//
// In the layout of Curator only a list proves the grant of an exclusive request behind a
// writer that is another program's: a thread that has Curator's write lock can take its
// read lock, too, whose node gets the number of the first.
type line struct {
	d        *driver
	resource lock.Resource
	path     string
	turns    chan struct{} // creates and deletes under way
	users    int           // spots

	bare, bareSlots bool // the node of the lock, or that above its slots, may have been made, and nothing of ours was below it yet

	placed   int     // nodes of ours
	creating int     // requests under way that make some
	waiting  []*spot // with nodes and not granted, in the order of their numbers

	began      int          // how often it began without a node of ours
	ahead      bool         // a node of ours was made in another session, which the first may not have seen
	queue      []node       // nodes that may be there, in order: all that are, up to the number known
	known      int32        // -1: none
	downgraded string       // name of a writer that lets readers pass
	strangers  bool         // another program's writer was in the queue
	granted    string       // name of a permit that is known to have a slot
	unlisted   bool         // a node was taken out of the queue that no list has shown to be gone
	slots      map[int]bool // that are taken, as the last list of them had it, and by ours since; nil: not known
	counted    bool         // they were listed behind the queue
	stale      bool         // the queue is to be listed, because somebody else was faster

	watching string // name of the node that the first of ours waits for; empty: none
	suspect  bool   // it is to be read again
	deleted  bool   // it is said to be gone
	doomed   string // name of one whose forced release is about to be over
	doom     time.Duration

	last    []*spot // with a cohort, and nobody is known to stand behind them
	ear     ear
	changes int // of the children that were heard of

	busy, again, poked bool          // see advance
	calm               chan struct{} // closed when who is busy has stopped; nil while nobody waits for that

	surveyTurn chan struct{} // has room for one
	nextSurvey *survey
}

// shortQueue is up to which length the queue is listed rather than single nodes read.
const shortQueue = 64

// advance finds out whose turn it is, as far as nobody else is doing so: then that one
// looks again when it has finished. It stops where somebody wants to look for himself.
func (l *line) advance() error {
	_, err := l.advanced(false, func(bool) bool { return l.calm != nil })
	return err
}

// advanceFor is advance for who has asked for a request. When that has its answer, or ctx has ended, it leaves the others to
// another goroutine: on a busy line there is always one more.
func (l *line) advanceFor(ctx context.Context, s *spot) error {
	_, err := l.advanced(false, func(bool) bool { return l.calm != nil || s.answered() || ctx.Err() != nil })
	return err
}

// settled is advance for who has asked for a request, but does not leave it to somebody else, unless that has its answer.
func (l *line) settled(s *spot) error {
	for {
		calm, err := l.advanced(true, func(looked bool) bool { return looked || s.answered() })
		if calm == nil {
			return err
		}
		<-calm
		if l.leaves(s) {
			return nil
		}
	}
}

// leaves reports whether a request has its answer. Then another goroutine does what is left to do.
func (l *line) leaves(s *spot) bool {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	answered := s.answered()
	if answered {
		l.poke()
	}
	return answered
}

// advanced asks until there is no question, or it is enough. What is left to do then another goroutine does. After each question
// enough is called, with d.mu held; looked: there is no other one. Where somebody else is doing so, who wants to wait gets
// what is closed when that one has stopped; nil: it was us.
func (l *line) advanced(wait bool, enough func(looked bool) bool) (busy <-chan struct{}, err error) {
	l.d.mu.Lock()
	defer l.d.mu.Unlock()
	l.poked, l.again = false, true
	if l.busy {
		if wait && l.calm == nil {
			l.calm = make(chan struct{})
		}
		return l.calm, nil
	}
	l.busy = true
	left := false
	defer func() {
		switch l.busy = false; {
		case l.calm != nil: // who waits goes on
			close(l.calm)
			l.calm = nil
		case left:
			l.poke()
		}
	}()
	for l.again {
		l.again = false
		for done := false; !done; {
			var err error
			if done, err = l.step(); err != nil {
				l.suspect = true // the next connection, heartbeat or recheck makes it look again
				return nil, err
			}
			if left = (l.again || !done && len(l.waiting) > 0) && enough(done); left {
				return nil, nil
			}
		}
	}
	return nil, nil
}

// poke has advance called. d.mu is held.
func (l *line) poke() {
	switch {
	case l.busy:
		l.again = true
	case !l.poked:
		l.poked = true
		l.d.do(func(context.Context) { _ = l.advance() })
	}
}

// step asks one question; done: there is none. d.mu is held, but while it asks.
func (l *line) step() (done bool, err error) {
	d := l.d
	if len(l.waiting) == 0 {
		l.watch("")
	}
	switch {
	case d.closed || d.set.Overdue():
		return true, nil
	case l.curious() || l.stale:
		return false, l.list()
	case len(l.waiting) == 0 || l.waiting[0].doubted:
		return true, nil
	}
	w := l.waiting[0]
	if w.seq > l.known || l.deleted && len(l.queue) <= d.b.shortQueue {
		return false, l.list()
	}
	switch {
	case w.mode.Limit() > 0:
		return l.stepPermit(w)
	case w.cleared:
		return false, l.keep(w)
	}
	b, blocked := l.blocker(w)
	switch {
	case !blocked:
		return false, l.confirm(w)
	case d.ours(b): // when that goes, it pokes
		l.watch("")
		return true, nil
	case b.name == l.watching && !l.suspect:
		return true, nil
	}
	return false, l.look(b)
}

// ours reports whether a node is that of a request of ours. d.mu is held.
func (d *driver) ours(n node) bool {
	s := d.spots[n.id]
	return s != nil && s.name == n.name
}

// blocker is the node that a request for a lock must wait for. d.mu is held.
func (l *line) blocker(s *spot) (b node, blocked bool) {
	i, _ := l.find(s.name, s.seq, s.mode == lock.Shared)
	for i--; i >= 0; i-- {
		b = l.queue[i]
		if s.mode == lock.Exclusive || !b.shared && b.name != l.downgraded {
			return b, true
		}
	}
	return node{}, false
}

// list lists the queue, and grants what that proves.
func (l *line) list() error {
	d := l.d
	l.deleted = false
	began, upTo, ahead, changes, stale := l.began, l.known, l.ahead, l.changes, l.stale
	var before []*zksession.Call
	if ahead {
		before = append(before, zksession.Barrier())
	}
	l.ahead, l.stale = false, false
	listen := len(l.last) > 0 || l.awaitsPermit()
	queue := l.queueCall(listen)
	var slots *zksession.Call
	if l.awaitsPermit() && !ahead { // else they might be read before the barrier is answered
		slots = l.listSlots()
	}
	var w *spot // that is not known when it was made
	var own *zksession.Call
	if n := len(l.waiting); n > 0 {
		upTo = max(upTo, l.waiting[n-1].seq)
		if l.waiting[0].czxid == 0 {
			w, own = l.waiting[0], zksession.Get(l.waiting[0].node)
		}
	}
	return l.unlocked(func() error {
		var all sync.WaitGroup
		for _, beside := range []*zksession.Call{own, slots} {
			if beside != nil {
				all.Go(func() { _ = d.ask(d.run, beside) })
			}
		}
		children, err := d.children(d.run, append(before, queue)...)
		all.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if w != nil && w.czxid == 0 && own.Err == nil {
			w.czxid = own.Stat.Czxid
		}
		switch {
		case err != nil:
			l.ahead, l.stale = l.ahead || ahead, l.stale || stale
		case l.began == began:
			if listen {
				l.listens(changes)
			}
			if slots != nil {
				_ = l.sawSlots(slots) // else they are counted
			}
			l.saw(children, upTo)
		}
		return err
	})
}

// unlocked does something without d.mu.
func (l *line) unlocked(f func() error) error {
	l.d.mu.Unlock()
	defer l.d.mu.Lock()
	return f()
}

// saw takes a list of the queue, which is complete up to a number at least, and grants
// what it proves. What is known of larger numbers stays. d.mu is held.
func (l *line) saw(children []string, upTo int32) {
	nodes, last, before := parseNodes(children), upTo, l.queue
	l.unlisted, l.counted = false, false
	l.tellOfOthers(nodes)
	if l.d.b.tree.curator && !l.strangers {
		l.strangers = slices.ContainsFunc(nodes, func(n node) bool { return !n.shared && !n.bySidecar() })
	}
	if len(nodes) > 0 {
		last = max(last, nodes[len(nodes)-1].seq)
	}
	if last >= l.known {
		l.queue, l.known = nodes, last
	} else {
		i, _ := slices.BinarySearchFunc(l.queue, last+1, func(n node, seq int32) int { return cmp.Compare(n.seq, seq) })
		l.queue = append(nodes, l.queue[i:]...)
	}
	l.forgetLeft(before, last)
	next, _ := slices.BinarySearchFunc(l.waiting, l.known+1, func(o *spot, seq int32) int { return int(o.seq - seq) })
	l.extend(next)
	for _, w := range l.waiting {
		if w.seq > last {
			break
		}
		if _, there := l.find(w.name, w.seq, w.mode == lock.Shared); !there {
			l.d.missed(w)
		}
	}
	for len(l.waiting) > 0 && !l.awaitsPermit() {
		if _, blocked := l.blocker(l.waiting[0]); blocked {
			return
		}
		for range l.together(l.waiting[0]) {
			w := l.waiting[0]
			if w.doubted || w.seq > last || w.czxid == 0 {
				return
			}
			if w.least > 0 {
				w.cleared = true
				return
			}
			l.waiting = l.waiting[1:]
			l.d.grant(w)
		}
	}
}

// find gives the place of a node in the queue. d.mu is held.
func (l *line) find(name string, seq int32, shared bool) (i int, there bool) {
	return slices.BinarySearchFunc(l.queue, node{name: name, seq: seq, shared: shared}, compareNodes)
}

// confirm reads the node of a request that nothing is in the way of any more.
func (l *line) confirm(w *spot) error {
	d := l.d
	if w.czxid != 0 && (l.mustList(w) || len(l.queue) <= d.b.shortQueue*l.together(w)) {
		return l.list()
	}
	path := w.node
	get := zksession.Get(path)
	if err := l.unlocked(func() error { return d.ask(d.run, get) }); err != nil {
		return err
	}
	if get.Err != nil && !errors.Is(get.Err, zksession.ErrNoNode) {
		return get.Err
	}
	if w.node == path {
		d.saw(w, get)
	}
	if w.doubted || w.node != path || len(l.waiting) == 0 || l.waiting[0] != w {
		return nil
	}
	if _, blocked := l.blocker(w); blocked || l.mustList(w) {
		return nil
	}
	if w.least > 0 {
		w.cleared = true
		return nil
	}
	l.waiting = l.waiting[1:]
	d.grant(w)
	return nil
}

// mustList reports whether only a list proves the grant of a request. d.mu is held.
func (l *line) mustList(w *spot) bool { return l.strangers && w.mode == lock.Exclusive }

// together is how many of those that wait are granted with the first one, which nothing
// is in the way of. d.mu is held.
func (l *line) together(w *spot) int {
	if w.mode == lock.Exclusive {
		return 1
	}
	last := l.known
	i, _ := l.find(w.name, w.seq, true)
	for _, n := range l.queue[i:] {
		if !n.shared && n.name != l.downgraded {
			last = n.seq
			break
		}
	}
	after := slices.IndexFunc(l.waiting, func(o *spot) bool { return o.seq > last || o.mode != lock.Shared })
	if after < 0 {
		return len(l.waiting)
	}
	return max(1, after)
}

// begin notes that a request has got its node. d.mu is held.
func (l *line) begin(s *spot) {
	if l.placed == 0 { // until now, numbers may have started at zero again
		l.queue, l.known, l.downgraded, l.strangers, l.slots = nil, -1, "", false, nil
		l.began++
	}
	l.placed++
	l.bare = false
	l.ahead = l.ahead || s.room.Session() != l.d.leaseNode.s
}

// add takes a request that has got its node. d.mu is held.
func (l *line) add(s *spot) {
	l.begin(s)
	i, _ := slices.BinarySearchFunc(l.waiting, s.seq, func(o *spot, seq int32) int { return int(o.seq - seq) })
	l.waiting = slices.Insert(l.waiting, i, s)
	if s.cohort {
		l.last = append(l.last, s)
	}
	l.extend(i)
}

// extend takes into the known queue what is ours and has the very next number, from that
// place among those that wait: answers come in any order. d.mu is held.
func (l *line) extend(i int) {
	for ; l.known >= 0 && i < len(l.waiting); i++ {
		o := l.waiting[i]
		first := o.seq
		if o.guard != "" {
			first--
		}
		if first != l.known+1 {
			return
		}
		l.queue, l.known = append(l.queue, o.place()), o.seq
	}
}

// leave takes out a request whose node is gone. d.mu is held.
func (l *line) leave(s *spot) {
	if s.name == "" {
		return
	}
	l.gone(s.place())
	if s.remains {
		l.d.leavesFor(l.resource, l.path, s.place().left(), s.until-l.d.b.clock())
	} else if s.rec.Slot != nil {
		delete(l.slots, *s.rec.Slot)
	}
	l.part(s)
	s.room.Leave()
}

// part takes out a request whose node may still be there. d.mu is held.
func (l *line) part(s *spot) {
	if i := slices.Index(l.waiting, s); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
	l.hush(s)
	l.d.leaseNode.unsubscribe(s.node, s)
	s.node, s.name, s.guard, s.held, s.doubted, s.cleared, s.remains, s.ends = "", "", "", false, false, false, false, 0
	l.placed--
	if len(l.waiting) > 0 {
		l.poke()
	}
}
