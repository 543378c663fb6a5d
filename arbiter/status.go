package arbiter

import (
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// explain puts those in the place of a cohort who have it, or wait in it.
func (l *Lease) explain(st *lock.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.lines[st.Resource]
	if len(line) == 0 {
		return
	}
	var holders, waiters []lock.Holding
	for _, h := range st.Holders {
		c := l.stores[h.ID]
		if c == nil {
			holders = append(holders, h)
			continue
		}
		switch {
		case c.state == parked, c.state == leaving && len(c.holders) == 0:
			h.Parked, h.Owner, h.Age = true, lock.Owner{}, l.now()-c.since
			holders = append(holders, h)
		case c.state == asking: // the grant is on the way
			holders = append(holders, h)
		}
		for _, m := range c.holders {
			own := l.holding(m)
			own.Revoked = h.Revoked || m.force != nil
			holders = append(holders, own)
		}
		if c.state != asking {
			waiters = append(waiters, l.waiting(c)...)
		}
	}
	for _, h := range st.Waiters {
		if c := l.stores[h.ID]; c != nil && len(c.queue) > 0 {
			waiters = append(waiters, l.waiting(c)...)
			continue
		}
		waiters = append(waiters, h)
	}
	st.Holders, st.Waiters = holders, waiters
}

func (l *Lease) holding(m *member) lock.Holding {
	return lock.Holding{
		ID: m.id, Mode: m.mode, Fence: m.fence, Age: l.now() - m.since, Lease: l.inner.ID(), Sidecar: l.o.Sidecar,
		Owner: lock.DecodeOwner(m.owner), Cohort: true,
	}
}

func (l *Lease) waiting(c *cohort) []lock.Holding {
	var all []lock.Holding
	for _, m := range c.queue {
		h := l.holding(m)
		h.Fence = 0
		all = append(all, h)
	}
	return all
}

// shownAfter is for how long an app must have had a hold, or a hold must have been parked,
// before the store is told.
const shownAfter = 100 * time.Millisecond

// nobody and unsureWho are what the store was told of who has a hold, beside an id.
const (
	nobody    lock.HoldID = "-" // it is parked
	unsureWho lock.HoldID = "?" // there was no answer
)

// introduce tells the store in a moment who has a hold, if it does not know.
func (l *Lease) introduce(c *cohort) {
	if c.intro == nil && l.unshown(c) {
		c.intro = time.AfterFunc(shownAfter, func() { l.show(c) })
	}
}

// unshown tells whether the store takes another for the holder.
func (l *Lease) unshown(c *cohort) bool {
	switch {
	case c.state == parked:
		return c.shown != nobody
	case c.state != holding || len(c.holders) == 0 || l.closing:
		return false
	}
	id := c.shown
	if id == "" {
		id = c.id
	}
	return !slices.ContainsFunc(c.holders, func(m *member) bool { return m.id == id })
}

// show tells the store who has a hold, when that has lasted. There is one who does at a
// time, so that what is told last is true.
//
//nolint:contextcheck,nolintlint // it has the lease's ctx; contextcheck reads this, and nolintlint does not see it
func (l *Lease) show(c *cohort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.unshown(c) || l.isLost() {
		c.intro = nil
		return
	}
	o, since, id := lock.Owner{Turn: &lock.Turn{Later: c.since - c.granted}}, c.since, nobody
	if c.state == holding {
		m := c.holders[0]
		o, since, id = lock.DecodeOwner(m.owner), m.since, m.id
		o.Turn = &lock.Turn{LockID: m.id, Fences: m.fence - c.fence, Later: m.since - c.granted}
	}
	if left := since + shownAfter - l.now(); left > 0 {
		c.intro = time.AfterFunc(left, func() { l.show(c) })
		return
	}
	c.shown = id
	l.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(l.ctx, askTime)
		err := l.tells.Describe(ctx, c.resource, c.id, o.Encode())
		cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		c.intro = nil
		if unknown(err) { // until it is known, people see who had it before
			c.shown = unsureWho
			c.intro = time.AfterFunc(maxPause, func() { l.show(c) })
			return
		}
		l.introduce(c)
	})
}

// force says how a member is forced; nil: there is none of that id.
func (l *Lease) force(r lock.Resource, id lock.HoldID, grace time.Duration) *forced {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil || m.resource != r || m.err != nil {
		switch c := l.stores[id]; {
		case c == nil:
			return nil
		case c.state != asking && len(c.holders) == 0: // it is parked
			return &forced{inStore: id}
		default: // who had it first has it no more
			return &forced{err: lock.ErrNotHolder}
		}
	}
	c := m.cohort
	switch {
	case m.state == asking && (c.state != asking || c.leader != m && len(c.queue) > 1):
		l.oust(m)
		return &forced{}
	case m.state == holding && len(c.holders)+len(c.queue) > 1: // it means nobody else
		return l.forceOne(c, m, grace)
	case m.state == holding:
		c.closed = true
	default:
		c.victim = m
	}
	return &forced{inStore: c.id}
}

// forceOne takes the hold from one of several readers, or from who has it in front of others.
func (l *Lease) forceOne(c *cohort, m *member, grace time.Duration) *forced {
	c.closed = true
	if m.gone == nil {
		m.gone = make(chan struct{})
	}
	gone := m.gone
	if (m.force == nil || grace < *m.force) && !l.closing {
		m.force = &grace
		e := lock.Event{Kind: lock.Revoked, Resource: c.resource, ID: m.id}
		if grace > 0 {
			e.Until = l.now() + grace
		}
		l.tasks.Go(func() { l.outlast(m, e, grace, gone) })
	}
	return &forced{gone: gone}
}

// outlast tells that a hold is forced, and ends it when the grace is over.
func (l *Lease) outlast(m *member, e lock.Event, grace time.Duration, gone chan struct{}) {
	select {
	case l.events <- e:
	case <-l.lost:
		return
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-gone:
		return
	case <-l.lost:
		return
	case <-t.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := m.cohort
	if l.members[m.id] != m || m.state != holding {
		return
	}
	if len(c.holders) > 1 || l.handOn(c) {
		l.out(m)
		l.introduce(c)
		return
	}
	m.gone = nil // not before the store has let it go
	l.out(m)
	over := l.over(c)
	l.leave(c)
	l.mu.Unlock()
	select {
	case <-over:
	case <-l.lost:
	}
	close(gone)
	l.mu.Lock()
}
