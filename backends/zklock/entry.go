package zklock

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// entry is what the lease knows of one hold or waiter of its own.
type entry struct {
	l    *lease
	q    lock.Request
	path string // of the lock
	own  *sub   // for news of its node
	wait *sub   // for news of the node it waits for

	// turn is held by whoever asks the store about the request, so that a release
	// does not come in between a create and its answer.
	turn sync.Mutex

	room atomic.Pointer[zksession.Room] // for its nodes; nil: it has none yet

	// Guarded by l.mu.
	nodes   []string // names of its nodes, that of the request itself last; empty: none known
	unsure  bool     // there may be nodes that are not known
	held    bool
	out     bool // it was released, or forced out of the queue, or is about to be
	unheard bool // a release of it had no answer
	watched bool // its node is watched, or about to be
	fence   lock.Fence
	rec     record
	version int32         // of the node's data, when it was rec
	queued  time.Duration // when it got its place
	granted time.Duration
	blocked string        // path of the node it waits for; empty: not known
	names   []string      // of the nodes of the request that it waits for
	revoked time.Duration // when the grace of a forced release is over; 0: there is none
	over    chan struct{} // closed when it is forgotten; made when somebody waits for that
	news    chan struct{} // closed and replaced when something has happened to it
}

// enter finds the entry of a request, or makes one.
func (l *lease) enter(q lock.Request, path string) *entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entries[q.ID]; e != nil {
		if e.unheard { // whatever the release has left is found, and kept
			e.displace()
			e.unheard, e.out, e.held, e.unsure = false, false, false, true
		}
		return e
	}
	e := &entry{l: l, q: q, path: path, news: make(chan struct{})}
	e.rec = record{Lease: l.id, Sidecar: l.sidecar, Owner: ownerJSON(q.Owner)}
	e.own = &sub{notify: e.changed}
	e.wait = &sub{notify: e.moved}
	l.entries[q.ID] = e
	return e
}

// wake tells those who wait for news. l.mu is held.
func (e *entry) wake() {
	close(e.news)
	e.news = make(chan struct{})
}

// session is where all is asked for the request: answers come in the order of the
// questions only there.
func (e *entry) session() *zksession.Session {
	if r := e.room.Load(); r != nil {
		return r.Session()
	}
	return e.l.seat.s
}

// node is the path of the request's node, which is known. l.mu is held.
func (e *entry) node() string { return e.path + "/" + e.nodes[len(e.nodes)-1] }

// placed takes the names of the request's nodes. l.mu is held.
func (e *entry) placed(nodes []string, now time.Duration) {
	e.nodes, e.unsure, e.watched, e.queued = nodes, false, false, now
	e.l.seat.subscribe(e.node(), e.own)
}

// displace forgets where the request's nodes are. l.mu is held.
func (e *entry) displace() {
	if len(e.nodes) > 0 {
		e.l.seat.unsubscribe(e.node(), e.own)
		e.nodes = nil
	}
}

// forget removes all that is known of the request. l.mu is held.
func (e *entry) forget() {
	e.unblock()
	e.displace()
	if r := e.room.Load(); r != nil {
		r.Leave()
	}
	if e.l.entries[e.q.ID] == e {
		delete(e.l.entries, e.q.ID)
	}
	if e.over != nil {
		close(e.over)
		e.over = nil
	}
	e.out = true
	e.wake()
}

// block notes for whose node the request waits. l.mu is held.
func (e *entry) block(path string, names []string) {
	e.names = names
	if e.blocked == path {
		return
	}
	e.unblock()
	e.blocked = path
	e.l.seat.subscribe(path, e.wait)
}

// moved is called when the node that the request waits for was changed or
// deleted.
func (e *entry) moved(ev zksession.Event) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	if e.blocked != ev.Path {
		return
	}
	if ev.Deleted {
		e.unblock()
	}
	e.wake()
}

func (e *entry) unblock() {
	if e.blocked != "" {
		e.l.seat.unsubscribe(e.blocked, e.wait)
		e.blocked = ""
	}
}

// shared reports whether it lets others read beside it. l.mu is held.
func (e *entry) shared() bool { return e.q.Mode == lock.Shared || e.rec.Downgraded }
