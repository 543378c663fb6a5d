package arbiter

import (
	"context"
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
			h.Parked, h.Owner = true, lock.Owner{}
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

// shownAfter is for how long an app must have had a hold before the store is told.
const shownAfter = 100 * time.Millisecond

// introduce tells the store in a moment who has a hold, if it does not know.
func (l *Lease) introduce(c *cohort) {
	if c.intro == nil && len(c.holders) > 0 && l.unshown(c) {
		c.intro = time.AfterFunc(shownAfter, func() { l.show(c) })
	}
}

// unshown tells whether the store takes another for the holder.
func (l *Lease) unshown(c *cohort) bool {
	id := c.shown
	if id == "" {
		id = c.id
	}
	for _, m := range c.holders {
		if m.id == id {
			return false
		}
	}
	return true
}

// show tells the store who has a hold, when that has lasted.
//
//nolint:contextcheck,nolintlint // it has the lease's ctx; contextcheck reads this, and nolintlint does not see it
func (l *Lease) show(c *cohort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.intro = nil
	if c.state != holding || l.closing || len(c.holders) == 0 || !l.unshown(c) {
		return
	}
	m := c.holders[0]
	if left := m.since + shownAfter - l.now(); left > 0 {
		c.intro = time.AfterFunc(left, func() { l.show(c) })
		return
	}
	c.shown = m.id
	o := lock.DecodeOwner(m.owner)
	o.LockID = m.id
	l.tasks.Go(func() { // when it fails, people see who had it before
		ctx, cancel := context.WithTimeout(l.ctx, askTime)
		defer cancel()
		_ = l.tells.Describe(ctx, c.resource, c.id, o.Encode())
	})
}

// force says how a member is forced; nil: there is none of that id.
func (l *Lease) force(r lock.Resource, id lock.HoldID, grace time.Duration) *forced {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[id]
	if m == nil || m.resource != r || m.err != nil {
		if c := l.stores[id]; c != nil && c.state != parked { // who had it first has it no more
			return &forced{err: lock.ErrNotHolder}
		}
		return nil
	}
	c := m.cohort
	switch {
	case m.state == asking && (c.state != asking || c.leader != m && len(c.queue) > 1):
		l.oust(m)
		return &forced{}
	case m.state == holding && len(c.holders) > 1:
		return l.forceOne(c, m, grace)
	default:
		c.victim = m
		return &forced{inStore: c.id}
	}
}

// forceOne takes the hold from one of several readers.
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
func (l *Lease) outlast(m *member, e lock.Event, grace time.Duration, gone <-chan struct{}) {
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
	if c := m.cohort; l.members[m.id] == m && m.state == holding {
		if l.out(m); len(c.holders) == 0 {
			l.leave(c)
		}
	}
}
