package arbiter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// askTime bounds how long it takes to learn who was in the way.
const askTime = time.Second

// Acquire implements lock.Lease.
func (l *Lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if q.Bell != nil { // Await would do the same, and take stack for as long as the store is silent
		return l.acquire(ctx, q)
	}
	return lock.Await(ctx, q, l.acquire)
}

// acquire is Acquire of a request with a Bell.
func (l *Lease) acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	l.mu.Lock()
	if _, waits := l.direct[q.ID]; waits {
		l.mu.Unlock()
		return l.askAlone(ctx, q)
	}
	m := l.members[q.ID]
	if m == nil || !m.present { // it does not wait
		var err error
		m, err = l.enter(&q)
		switch {
		case err != nil:
			l.mu.Unlock()
			return lock.Grant{}, fmt.Errorf("acquire %q: %w", string(q.Resource), err)
		case m == nil:
			return l.alone(ctx, q)
		}
		m.present = true
	}
	g, err := l.await(ctx, m, q.Bell)
	m.present = errors.Is(err, lock.ErrWaiting)
	l.mu.Unlock()
	return g, err
}

// enter makes a request the member of a cohort; nil: it goes to the store by itself.
func (l *Lease) enter(q *lock.Request) (*member, error) {
	if l.isLost() {
		return nil, lock.ErrLeaseLost
	}
	if m := l.members[q.ID]; m != nil { // it is asked for again
		if m.resource != q.Resource || m.mode != q.Mode {
			return nil, &lock.InvalidError{Field: "id", Problem: "is in use for another resource or mode"}
		}
		return m, nil
	}
	if l.stores[q.ID] != nil {
		return nil, lock.ErrNotHolder // it was given up, and others have what it asked for
	}
	if _, unsure := l.unsure[q.ID]; unsure {
		return nil, nil //nolint:nilnil // said above
	}
	now := l.now()
	c := l.last(q.Resource)
	alone := q.Direct || q.Mode.Limit() > 0 || q.MinHold > 0 || q.Detachable || q.Handle != "" || l.tells.Guards(*q)
	joins := c != nil && !alone && l.takes(c, q.Mode, now)
	switch free := joins && (c.state == parked || c.state == holding && c.mode == lock.Shared); {
	case alone, q.Try && c != nil && !free:
		return nil, nil //nolint:nilnil // said above
	case !joins:
		if c != nil && c.state == parked {
			l.leave(c)
		}
		c = l.newCohort(q.ID, &member{id: q.ID, resource: q.Resource, mode: q.Mode, owner: q.Owner}, len(l.lines[q.Resource]))
		c.try, c.returned = q.Try, l.recent.has(string(q.Resource), now)
		c.single = l.costly && !c.returned && len(l.lines[q.Resource]) == 1
		c.closed = c.single
	}
	m := new(member)
	if c.id == q.ID {
		m = &c.one
	}
	*m = member{id: q.ID, resource: q.Resource, mode: q.Mode, owner: q.Owner, cohort: c, state: asking, nested: q.Nested, since: now}
	l.members[m.id] = m
	switch {
	case c.state == parked:
		l.unpark(c)
		c.state, c.returned = holding, true
		l.give(c, m)
	case c.state == holding && c.mode == lock.Shared:
		l.give(c, m)
	default:
		c.queue = append(c.queue, m)
	}
	return m, nil
}

// await gives m the hold, if it has it or can have it, or says that its wait is over. l.mu is held.
//
//	lock.ErrWaiting: it waits. Its bell rings when it may look again.
func (l *Lease) await(ctx context.Context, m *member, bell lock.Bell) (lock.Grant, error) {
	l.awake(m)
	for {
		c := m.cohort
		switch {
		case c.leader == m: // its request waits in the store
			if err := l.lead(ctx, m, bell); err != nil {
				return lock.Grant{}, err
			}
		case m.state == holding:
			return m.grant(), nil
		case m.state == leaving:
			if err := l.release(ctx, m); err != nil {
				return lock.Grant{}, err
			}
			return lock.Grant{}, lock.ErrNotHolder
		case m.err != nil:
			delete(l.members, m.id)
			return lock.Grant{}, m.err
		case l.isLost():
			l.out(m)
			return lock.Grant{}, lock.ErrLeaseLost
		case c.state == asking && c.leader == nil:
			if err := l.lead(ctx, m, bell); err != nil {
				return lock.Grant{}, err
			}
		case ctx.Err() != nil:
			return lock.Grant{}, l.part(ctx, m)
		default:
			m.rest = &rest{bell: bell}
			if m.nested && c.hidden(m) {
				m.rest.late = time.AfterFunc(m.since+apartAfter-l.now(), func() {
					l.mu.Lock()
					defer l.mu.Unlock()
					m.wake()
				})
			}
			return lock.Grant{}, lock.ErrWaiting
		}
	}
}

// awake notes that a member waits no more, and lets it ask the store for itself where it
// has waited for too long. l.mu is held.
func (l *Lease) awake(m *member) {
	r := m.rest
	if m.rest = nil; r == nil || r.late == nil {
		return
	}
	r.late.Stop()
	if m.state == asking && m.err == nil && m.cohort.hidden(m) && l.now()-m.since >= apartAfter {
		l.separate(m)
	}
}

// part ends the wait of a member that does not ask the store itself, and says who
// was in the way. l.mu is held.
func (l *Lease) part(ctx context.Context, m *member) error {
	held := &lock.HeldError{Cause: context.Cause(ctx), Status: lock.Status{Resource: m.resource}}
	c := m.cohort
	for i, o := range c.queue {
		if o == m {
			held.Position = i + 1
		}
	}
	for _, h := range c.holders {
		held.Status.Holders = append(held.Status.Holders, l.holding(h))
	}
	l.out(m)
	c.promote()
	if len(c.holders) == 0 {
		l.mu.Unlock()
		lock.Blocking(ctx)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(askTime, l.o.TTL/3))
		if st, err := l.b.Backend.Get(limit, m.resource); err == nil {
			held.Position += max(0, slices.IndexFunc(st.Waiters, func(h lock.Holding) bool { return h.ID == c.id }))
			l.b.explain(&st)
			held.Status.Holders = st.Holders
		}
		cancel()
		l.mu.Lock()
	}
	return held
}

// lead asks the store for m's cohort. nil: look again. l.mu is held.
//
//	lock.ErrWaiting: it waits in the store, and is asked for by lead until it does not. The bell is rung.
func (l *Lease) lead(ctx context.Context, m *member, bell lock.Bell) error {
	c := m.cohort
	c.leader = m
	q := lock.Request{ID: c.id, Resource: c.resource, Mode: c.mode, Owner: c.owner, Try: c.try, Guard: lock.WithoutGuard, Bell: bell}
	if !c.single {
		q.Cohort = c
	}
	l.mu.Unlock()
	g, err := l.ask(ctx, q)
	l.mu.Lock()
	if errors.Is(err, lock.ErrWaiting) {
		return err
	}
	c.leader = nil
	switch {
	case err == nil && c.early == nil:
		l.granted(c, g)
		return nil
	case err == nil: // taken away before anybody here was told of it
		if l.leave(c); c.early.Kind == lock.Revoked {
			l.expel(c)
		}
		l.reroute(c)
		return nil
	case unknown(err) && ctx.Err() != nil && len(c.queue) > 1: // it stays for the others
		return l.part(ctx, m)
	case unknown(err):
		m.present = false
		c.promote()
		return err
	case errors.Is(err, lock.ErrLeaseLost):
		l.lose()
		l.out(m)
		return err
	case errors.Is(err, lock.ErrNotHolder):
		l.expel(c)
		l.reroute(c)
		l.gone(c)
		return nil
	default:
		l.out(m)
		l.reroute(c)
		l.gone(c)
		return err
	}
}

// expel takes the one out whom a forced release means, if it is there still.
func (l *Lease) expel(c *cohort) {
	for _, m := range c.queue {
		if m == c.victim || c.victim == nil && m.id == c.face {
			l.oust(m)
			return
		}
	}
}

// oust ends the wait of a member by force. It is told when it is there.
func (l *Lease) oust(m *member) {
	l.out(m)
	l.members[m.id] = m
	m.err = lock.ErrNotHolder
	m.wake()
}

// granted is the store's grant for a cohort. l.mu is held.
func (l *Lease) granted(c *cohort, g lock.Grant) {
	c.state, c.fence, c.granted = holding, g.Fence, l.now()
	l.next(c)
}

// ask asks the store.
func (l *Lease) ask(ctx context.Context, q lock.Request) (lock.Grant, error) {
	g, err := l.inner.Acquire(ctx, q)
	for n := 0; n < 2 && errors.Is(err, lock.ErrLimit) && l.makeRoom(ctx); n++ {
		g, err = l.inner.Acquire(ctx, q)
	}
	var held *lock.HeldError
	if errors.As(err, &held) {
		l.b.explain(&held.Status)
	}
	return g, err
}

// makeRoom releases what nobody has, and tells whether there was any. A store that does not
// answer is not waited for long.
func (l *Lease) makeRoom(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	l.mu.Lock()
	var overs []<-chan struct{}
	for _, c := range l.stores {
		if c.state == parked {
			l.leave(c)
		}
		if c.state == leaving && len(c.holders) == 0 {
			overs = append(overs, l.over(c))
		}
	}
	l.mu.Unlock()
	if len(overs) > 0 {
		lock.Blocking(ctx)
	}
	for _, over := range overs {
		select {
		case <-over:
		case <-l.lost:
		case <-ctx.Done():
		}
	}
	return len(overs) > 0
}

// alone asks the store for one app alone. l.mu is held, and not any more when it
// returns.
func (l *Lease) alone(ctx context.Context, q lock.Request) (lock.Grant, error) {
	var over <-chan struct{}
	if c := l.last(q.Resource); c != nil {
		if !q.Try {
			c.closed = true
		}
		if c.state == parked {
			l.leave(c)
		}
		if q.Try && c.state == leaving { // else the try would find what nobody has
			over = l.over(c)
		}
	}
	l.mu.Unlock()
	if over != nil {
		lock.Blocking(ctx)
		select {
		case <-over:
		case <-l.lost:
		case <-ctx.Done():
		}
	}
	return l.askAlone(ctx, q)
}

// askAlone asks the store for one app alone, or asks on.
func (l *Lease) askAlone(ctx context.Context, q lock.Request) (lock.Grant, error) {
	g, err := l.ask(ctx, q)
	l.answered(q.ID, err)
	return g, err
}

// answered notes whether a request that goes to the store by itself waits there, and whether the store
// may have more for its id than is known.
func (l *Lease) answered(id lock.HoldID, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, lock.ErrWaiting) {
		l.direct[id] = struct{}{}
		return
	}
	delete(l.direct, id)
	if unknown(err) {
		l.unsure[id] = struct{}{}
	} else {
		delete(l.unsure, id)
	}
}
