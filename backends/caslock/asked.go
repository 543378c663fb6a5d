package caslock

import (
	"context"
	"errors"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about requests that were not granted yet, as their lease knows them.

// asked is one of them.
type asked struct {
	resource lock.Resource
	waits    bool // in the queue
	lasts    bool // with a min_hold: a push of its grant is not enough
	busy     bool // it is being asked for: the answer will say more than a push
	open     bool // the last time there was no answer
	// What it is granted has a later version than this. Otherwise the store went back to a backup, and the fence may be one
	// that there was before.
	above int64
}

// asks notes that a request is being asked for.
func (l *lease) asks(q lock.Request) *asked {
	above := l.b.told().revision
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.asked[q.ID]
	if a == nil {
		a = &asked{resource: q.Resource, lasts: q.MinHold > 0, above: above}
		l.asked[q.ID] = a
	}
	a.busy = true
	return a
}

// answered notes what has come of that.
func (l *lease) answered(a *asked, o *op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.busy, a.waits = false, a.waits || o.err == nil && o.queued
	if !errors.Is(o.err, leasekit.ErrNotSent) {
		a.open = errors.Is(o.err, lock.ErrUnavailable)
	}
}

// tooOld tells whether the fence of a grant may be one that there was before, because the store went back while it was asked for.
func (a *asked) tooOld(o *op) bool {
	granted := o.err == nil && !o.queued
	return granted && (o.doubtful || (o.came || a.open) && o.version <= a.above)
}

// takeBack takes such a grant back, of which nobody was told. A push of it may still come. Where ctx ends before, that goes on, and the
// request is as one that had no answer. Whoever asks again then does not get that grant, if it is there still, and given up perhaps.
func (l *lease) takeBack(ctx context.Context, r lock.Resource, a *asked, o *op) error {
	l.mu.Lock()
	a.above = max(a.above, o.version)
	l.mu.Unlock()
	back := &op{kind: opRemove, id: o.id, lease: l.id, unsure: a.open}
	if o.span > 0 {
		back.kind = opDetach // for no time at all, so nothing is kept of it
	}
	if err := l.b.within(ctx, r, back); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.above, a.open, a.waits = o.version, false, false
	return nil
}

// notSent notes that a request was not sent, so the store has of it what it had before. That may be a place in the queue, or, where an
// earlier one had no answer, more: then it is asked for again, or withdrawn.
func (l *lease) notSent(id lock.HoldID, a *asked) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !a.waits && !a.open {
		delete(l.asked, id)
	}
}

// stopWaiting notes that a request waits no more, and is not granted.
func (l *lease) stopWaiting(id lock.HoldID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asked, id)
	delete(l.fresh, id)
}

// grantedByPush notes a hold, if it was asked for and a push is enough to have it. It reports whether it is. Otherwise the lease
// asks, and has the answer.
func (l *lease) grantedByPush(r leasekit.Ref, version int64, fence lock.Fence) bool {
	l.mu.Lock()
	a := l.asked[r.ID]
	enough := a == nil || a.waits && !a.lasts && !a.busy && !a.open && version > a.above
	l.mu.Unlock()
	if a != nil && enough {
		l.granted(r.Resource, r.ID, version, fence)
	}
	return enough // also where the lease has it already, or has given it up
}
