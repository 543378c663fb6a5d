package zklock

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
)

// This file is about a request's own node: what others do to it, and what is
// written into it.

// watchCall reads the request's node and watches it. l.mu is held.
func (e *entry) watchCall() *zksession.Call {
	e.watched = true
	c := zksession.Watch(e.node())
	path := e.node()
	c.Then = func(c *zksession.Call) { e.read(path, c) }
	return c
}

// read takes what is in the request's node.
func (e *entry) read(path string, c *zksession.Call) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(e.nodes) == 0 || e.node() != path {
		return
	}
	switch {
	case errors.Is(c.Err, zksession.ErrNoNode):
		e.missed()
	case c.Err != nil:
		e.watched = false
		l.unwatched.Store(true)
	default:
		e.saw(c.Data, c.Stat)
	}
}

// saw takes the data of the request's node. l.mu is held.
func (e *entry) saw(data []byte, stat zksession.Stat) {
	if stat.Version < e.version {
		return // an older answer
	}
	rec, ours := decodeRecord(data)
	if !ours {
		return // somebody has written into it; what is in its name counts
	}
	e.rec, e.version = rec, stat.Version
	if grace, revoked := rec.grace(); revoked && e.held {
		e.revoke(grace)
	}
}

// changed is called when the request's node was changed or deleted.
func (e *entry) changed(ev zksession.Event) {
	l := e.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(e.nodes) == 0 || e.node() != ev.Path {
		return
	}
	if ev.Deleted {
		e.missed()
		return
	}
	e.watched = false
	l.doLocked(func(ctx context.Context) { l.watchAll(ctx, e) })
}

// missed takes the news that the request's node is gone. l.mu is held.
//
// Either somebody has deleted it, or the session is over, which a connection
// tells later than that its nodes are gone: that has to be found out first.
func (e *entry) missed() {
	l := e.l
	if e.out || l.isLost() {
		return // it was us, and the release has an answer of its own
	}
	if l.missing = append(l.missing, e); len(l.missing) == 1 {
		l.doLocked(l.explain)
	}
}

// explain finds out why nodes are gone. The leader refuses a write of a session
// that is over.
func (l *lease) explain(ctx context.Context) {
	err := l.seat.all.Beat(ctx, l.seat.beat)
	l.mu.Lock()
	defer l.mu.Unlock()
	missing := l.missing
	l.missing = nil
	if errors.Is(err, zksession.ErrExpired) {
		l.lose()
	}
	for _, e := range missing {
		switch {
		case l.isLost() || e.out:
		case err != nil: // with the next connection or heartbeat, it is missed again
			e.watched = false
			l.unwatched.Store(true)
		default:
			e.deleted()
		}
	}
}

// rewatch watches all nodes of ours that are not.
func (l *lease) rewatch(ctx context.Context) {
	l.mu.Lock()
	var all []*entry
	for _, e := range l.entries {
		if len(e.nodes) > 0 && !e.watched {
			all = append(all, e)
		}
	}
	l.mu.Unlock()
	l.watchAll(ctx, all...)
}

// watchAll watches the nodes of these requests, if they are not watched.
func (l *lease) watchAll(ctx context.Context, all ...*entry) {
	calls := make(map[*zksession.Session][]*zksession.Call)
	l.mu.Lock()
	for _, e := range all {
		if len(e.nodes) > 0 && !e.watched {
			calls[e.session()] = append(calls[e.session()], e.watchCall())
		}
	}
	l.mu.Unlock()
	for s, some := range calls {
		_ = s.Go(ctx, some...) // each knows itself what to do then
	}
}

// What a hold is worth only when it lasts: most are released before.
const (
	// watchAfter is when its node is watched, so that its holder is told of a
	// forced release. What has happened until then is told when the watch is set.
	watchAfter = 10 * time.Millisecond
	// noteAfter is when it is written into the node how long it was waited for, so
	// that others can tell since when it has been held, and how long that must be.
	noteAfter = 100 * time.Millisecond
)

// later are holds in the order in which they are due.
type later []dueHold

type dueHold struct {
	e  *entry
	at time.Duration
}

// take removes what is due and still held. l.mu is held.
func (q *later) take(now time.Duration) []*entry {
	var all []*entry
	for len(*q) > 0 && (*q)[0].at <= now {
		if e := (*q)[0].e; e.held && !e.out {
			all = append(all, e)
		}
		(*q)[0] = dueHold{}
		*q = (*q)[1:]
	}
	return all
}

// lasts has done what a hold is worth that lasts. l.mu is held.
func (l *lease) lasts(e *entry, now time.Duration) {
	idle := len(l.toWatch) == 0
	if !e.watched {
		l.toWatch = append(l.toWatch, dueHold{e, now + watchAfter})
	}
	if now-e.queued >= noteAfter {
		l.toNote = append(l.toNote, dueHold{e, now + noteAfter})
	}
	if idle {
		signal(l.lasting)
	}
}

// care watches nodes and writes notes until ctx ends.
func (l *lease) care(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		now := l.b.clock()
		var notes []*zksession.Call
		l.mu.Lock()
		watch := l.toWatch.take(now)
		for _, e := range l.toNote.take(now) {
			notes = append(notes, e.noteCall())
		}
		pause := time.Hour
		for _, q := range []later{l.toWatch, l.toNote} {
			if len(q) > 0 {
				pause = min(pause, q[0].at-now)
			}
		}
		l.mu.Unlock()
		l.watchAll(ctx, watch...)
		if len(notes) > 0 && !l.seat.overdue() {
			_ = l.seat.s.Go(ctx, notes...) // a note that is not written is not missed
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-l.lasting:
		case <-ctx.Done():
			return
		}
	}
}

// noteCall writes how long the request waited. When somebody else has written
// meanwhile it does nothing. l.mu is held.
func (e *entry) noteCall() *zksession.Call {
	rec := e.rec
	rec.Waited = (e.granted - e.queued).Milliseconds()
	return zksession.Set(e.node(), rec.encode(), e.version)
}
