package zklock

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// A request with a cohort stands for several apps of its sidecar, which answers by itself
// until it hears that somebody else stands behind. The queue shows that, whoever it
// is: each list of the queue that is made anyway watches the children of the lock's node
// as well, so it costs no request where nobody comes. The watch and its event do cost
// something (TellingCosts). When a child has come or gone, the
// line lists again, unless there can be no doubt who it was.

// ear says whether a line will hear of who comes.
type ear uint8

const (
	deaf      ear = iota // the queue is to be listed
	listening            // the children are watched
	resting              // they have changed; the queue is listed soon
)

// pauseForEach is how long a line rests before it lists a queue once more, for each
// request in it. However many sidecars listen to one queue, they list it no
// more often than once in this time, all together.
const pauseForEach = 5 * time.Millisecond

// queueCall is the call that lists the queue.
func (l *line) queueCall(watch bool) *zksession.Call {
	if watch {
		return zksession.WatchChildren(l.path)
	}
	return zksession.Children(l.path)
}

// curious reports whether the queue is to be listed for those with a cohort. d.mu is held.
func (l *line) curious() bool { return l.ear == deaf && len(l.last) > 0 }

// listens notes that the children are watched, by a list since which so many changes were
// heard of. d.mu is held.
func (l *line) listens(changes int) {
	if l.changes == changes {
		l.ear = listening
	}
}

// tellOfOthers takes a list of the queue, and tells those behind whom another lease's request stands
// and must wait. d.mu is held.
func (l *line) tellOfOthers(nodes []node) {
	last, writer := int32(-1), int32(-1) // of the others
	for _, n := range nodes {
		if l.d.spots[n.id] != nil {
			continue
		}
		if last = n.seq; !n.shared {
			writer = n.seq
		}
	}
	l.last = slices.DeleteFunc(l.last, func(s *spot) bool {
		behind := writer > s.seq || last > s.seq && s.mode == lock.Exclusive
		if behind {
			l.contended(s)
		}
		return behind
	})
}

func (l *line) contended(s *spot) {
	l.d.push(leasekit.Push{Kind: leasekit.Contended, Ref: s.Ref})
}

// hush: of that request no news is wanted any more. d.mu is held.
func (l *line) hush(s *spot) {
	l.last = slices.DeleteFunc(l.last, func(o *spot) bool { return o == s })
}

// arrivals is a line as the watcher of the children of its node.
type arrivals line

// changed is called when a child has come or gone.
func (c *arrivals) changed(bool) {
	l := (*line)(c)
	d := l.d
	d.mu.Lock()
	defer d.mu.Unlock()
	l.changes++
	l.ear = deaf
	if l.awaitsPermit() {
		l.poke()
	}
	switch {
	case len(l.last) == 0:
	case l.placed == 1 && l.creating == 0 && l.last[0].held && l.last[0].mode == lock.Exclusive:
		// Nobody was in front or behind, nor is another one of ours.
		l.contended(l.last[0])
		l.last = nil
	default:
		l.ear = resting
		pause := time.Duration(len(l.queue)) * pauseForEach
		d.do(func(ctx context.Context) {
			if !leasekit.Sleep(ctx, pause) {
				return
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			if l.ear == resting { // it was not listed since
				l.ear = deaf
				l.poke()
			}
		})
	}
}

// TellingCosts implements leasekit.CostlyTeller.
func (d *driver) TellingCosts() {}

// Describe implements leasekit.Teller.
func (d *driver) Describe(ctx context.Context, r leasekit.Ref, owner string) error {
	d.mu.Lock()
	s := d.spots[r.ID]
	held := s != nil && s.Resource == r.Resource && s.held
	d.mu.Unlock()
	if !held {
		return lock.ErrNotHolder
	}
	err := insist(ctx, func() error {
		return d.rewrite(ctx, s, func(rec *record) bool {
			rec.Owner = ownerJSON(owner)
			return true
		})
	})
	return d.failed("describe", r.Resource, err)
}
