package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about what a lease does when the release of a hold is forced.

// revoke takes the news that the release is forced: the holder is told first, then
// it is written into the node that its sidecar knows. The grace counts from now.
// l.mu is held.
func (e *entry) revoke(grace time.Duration) {
	l := e.l
	until := l.b.clock() + grace
	if e.revoked != 0 && until >= e.revoked {
		return // known already
	}
	e.revoked = until
	l.tell(e.revocation())
	if e.over == nil {
		e.over = make(chan struct{})
	}
	over := e.over
	l.doLocked(func(ctx context.Context) {
		l.routines.Go(func() { e.endRevoked(ctx, until, over) })
	})
}

// revocation tells of the forced release. l.mu is held.
func (e *entry) revocation() lock.Event {
	return lock.Event{Kind: lock.Revoked, Resource: e.q.Resource, ID: e.q.ID, Until: e.revoked}
}

// retryKnown is when an acknowledgement that failed is tried again.
const retryKnown = 100 * time.Millisecond

// endRevoked writes that the sidecar knows of the forced release, and deletes the
// request's nodes when its grace is over, whether or not whoever forced it is still
// there.
func (e *entry) endRevoked(ctx context.Context, until time.Duration, over <-chan struct{}) {
	l := e.l
	t := time.NewTimer(0)
	defer t.Stop()
	for known, ours := false, false; ; {
		select {
		case <-t.C:
		case <-over:
			return
		case <-ctx.Done():
			return
		}
		now := l.b.clock()
		switch {
		case l.seat.overdue():
			t.Reset(retryKnown)
		case now >= until:
			l.mu.Lock()
			var releasing bool
			ours, releasing = ours || !e.out, e.out && !e.unheard
			l.mu.Unlock()
			if !releasing && e.endedRevoked(ctx, ours) {
				return
			}
			t.Reset(l.recheck)
		default:
			if !known {
				known = e.acknowledge(ctx)
			}
			pause := until - now
			if !known {
				pause = min(pause, retryKnown)
			}
			t.Reset(pause)
		}
	}
}

// endedRevoked ends a hold whose grace is over. The next heartbeat tells of it, also
// where no event was read, unless the holder has begun to release it before.
func (e *entry) endedRevoked(ctx context.Context, ours bool) bool {
	if _, err := e.release(ctx); err != nil {
		return false
	}
	if ours {
		e.l.mu.Lock()
		defer e.l.mu.Unlock()
		e.l.ended = append(e.l.ended, e.revocation())
	}
	return true
}

// acknowledge writes into the request's node that its sidecar knows of the forced
// release. It reports whether that is written, or the node is gone.
func (e *entry) acknowledge(ctx context.Context) bool {
	l := e.l
	l.mu.Lock()
	rec := e.rec
	if len(e.nodes) == 0 || rec.acknowledged() {
		l.mu.Unlock()
		return true
	}
	rec.Known = rec.Revoked
	node, version := e.node(), e.version
	l.mu.Unlock()
	set, get := zksession.Set(node, rec.encode(), version), zksession.Get(node)
	if e.session().Do(ctx, set) != nil {
		return false
	}
	if set.Err == nil || errors.Is(set.Err, zksession.ErrNoNode) {
		return true // the watch, or the next read, tells what is in it now
	}
	if e.session().Do(ctx, get) == nil && get.Err == nil { // somebody has written another mark
		l.mu.Lock()
		e.saw(get.Data, get.Stat)
		l.mu.Unlock()
	}
	return false
}

// deleted takes the news that somebody has deleted the request's node. l.mu is
// held. ZooKeeper does not lose nodes, so it is somebody who wants to end the
// hold: that is a forced release without any grace, or the end of one with it.
func (e *entry) deleted() {
	l := e.l
	if e.held && (e.revoked == 0 || l.b.clock() < e.revoked) {
		ev := lock.Event{Kind: lock.Revoked, Resource: e.q.Resource, ID: e.q.ID}
		l.tell(ev)
		l.ended = append(l.ended, ev)
	} else if e.held {
		l.ended = append(l.ended, e.revocation())
	}
	e.forget()
}

// review reads the nodes of all holds, whatever the watches have told: somebody
// has written to the node of the lease, as who forces a release does.
//
// The heartbeat before was written after that, so the server that is asked knows
// what was written before, and the session lives: a node that is not there was
// deleted.
func (l *lease) review(ctx context.Context) error {
	var holds []*entry
	var calls []*zksession.Call
	var paths []string
	l.mu.Lock()
	for _, e := range l.entries {
		if e.held && !e.out && len(e.nodes) > 0 {
			holds, paths = append(holds, e), append(paths, e.node())
			calls = append(calls, zksession.Get(e.node()))
		}
	}
	l.mu.Unlock()
	if err := doAll(ctx, l.seat, calls); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range holds {
		switch c := calls[i]; {
		case e.out || len(e.nodes) == 0 || e.node() != paths[i]:
		case errors.Is(c.Err, zksession.ErrNoNode):
			e.deleted()
		case c.Err == nil:
			e.saw(c.Data, c.Stat)
		}
	}
	return nil
}

// report is the news that a heartbeat brings: the holds whose release is forced,
// and those that have ended since the last one.
func (l *lease) report() []lock.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	news := l.ended
	l.ended = nil
	for _, e := range l.entries {
		if e.held && !e.out && e.revoked != 0 {
			news = append(news, e.revocation())
		}
	}
	return news
}
