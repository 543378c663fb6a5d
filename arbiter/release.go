package arbiter

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Release implements lock.Lease.
func (l *Lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	l.mu.Lock()
	m, err := l.own(r, id)
	if m == nil {
		l.mu.Unlock()
		if err != nil {
			return fmt.Errorf("release %q: %w", string(r), err)
		}
		err = l.inner.Release(ctx, r, id)
		l.answered(id, err)
		return err
	}
	defer l.mu.Unlock()
	c := m.cohort
	switch {
	case m.err != nil: // it was forced out, and nobody has told it
		l.out(m)
		return fmt.Errorf("release %q: %w", string(r), lock.ErrNotHolder)
	case m.state == asking:
		if c.state == asking && c.leader == nil && len(c.queue) == 1 {
			break
		}
		l.out(m)
		c.promote()
		return nil
	case m.state == holding:
		if len(c.holders) > 1 || l.handOn(c) || l.park(c) {
			l.out(m)
			l.introduce(c)
			return nil
		}
	}
	return l.release(ctx, m)
}

// own is the member of an id; nil with an error: there is none, and the store has
// something else under that id.
func (l *Lease) own(r lock.Resource, id lock.HoldID) (*member, error) {
	m := l.members[id]
	switch {
	case m != nil && m.resource != r, m == nil && l.stores[id] != nil:
		return nil, lock.ErrNotHolder
	default:
		return m, nil
	}
}

// release releases the hold, or the place, of m's cohort in the store. m is the last who
// has to do with it. l.mu is held.
func (l *Lease) release(ctx context.Context, m *member) error {
	c := m.cohort
	m.state = leaving
	l.left(c)
	l.mu.Unlock()
	err := l.inner.Release(ctx, c.resource, c.id)
	l.mu.Lock()
	if unknown(err) {
		return err
	}
	l.out(m)
	l.gone(c)
	if errors.Is(err, lock.ErrLeaseLost) {
		l.lose()
	}
	return err
}

// left notes that the store is asked to hand on.
func (l *Lease) left(c *cohort) {
	if c.state == leaving {
		return
	}
	if c.behind != 0 {
		l.b.o.Yielded(l.now() - c.behind)
	}
	l.recent.add(string(c.resource), l.at) // a little earlier is good enough
	c.state, c.closed = leaving, true
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// handOn gives a hold to the next member, if one waits. The one before it is a
// holder still.
func (l *Lease) handOn(c *cohort) bool {
	if len(c.queue) == 0 {
		return false
	}
	l.now()
	l.next(c)
	return true
}

// maxParked bounds the holds that are parked on one lease.
const maxParked = 1024

// park keeps a hold for who comes next.
func (l *Lease) park(c *cohort) bool {
	if l.b.o.Park == 0 || !c.returned {
		return false
	}
	now := l.now()
	if l.idle >= maxParked || l.closing || l.last(c.resource) != c ||
		c.closed || now-c.granted >= l.age {
		return false
	}
	c.state, c.since = parked, now
	if !l.takes(c, c.mode, now) {
		c.state = holding
		return false
	}
	l.idle++
	l.b.parked.Add(1)
	if c.timer == nil { // one that still runs sees that it is early
		c.timer = time.AfterFunc(l.b.o.Park, func() { l.unused(c) })
	}
	return true
}

// unpark ends the parking of a hold, if it is parked.
func (l *Lease) unpark(c *cohort) {
	if c.state == parked {
		c.state = holding
		l.idle--
		l.b.parked.Add(-1)
	}
}

// unused releases a hold that was parked for long enough.
func (l *Lease) unused(c *cohort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.timer = nil
	if c.state != parked || l.closing {
		return
	}
	if left := c.since + l.b.o.Park - l.now(); left > 0 {
		c.timer = time.AfterFunc(left, func() { l.unused(c) })
		return
	}
	l.leave(c)
}

// The pauses between attempts to release what nobody has.
const (
	minPause = 20 * time.Millisecond
	maxPause = time.Second
	// leaveTime bounds one attempt.
	leaveTime = 5 * time.Second
)

// leave releases a hold that nobody has, in the background, until the store has answered or
// the lease is over. l.mu is held.
//
//nolint:contextcheck,nolintlint // it has the lease's; contextcheck reads this, and nolintlint does not see it
func (l *Lease) leave(c *cohort) {
	if c.state != parked {
		c.since = l.now() // nobody has it from here on
	}
	l.unpark(c)
	l.left(c)
	if l.closing {
		return // the lease ends with all that hangs on it
	}
	life := l.ctx
	if c.behind != 0 { // somebody waits for it: it does not take turns with what nobody needs
		life = context.WithValue(life, lock.FromKey{}, c.id)
	}
	l.tasks.Go(func() {
		for tries := 0; ; tries++ {
			ctx, cancel := context.WithTimeout(life, leaveTime)
			err := l.inner.Release(ctx, c.resource, c.id)
			cancel()
			if errors.Is(err, lock.ErrLeaseLost) {
				l.lose()
			}
			if !unknown(err) || !l.pause(tries) {
				break
			}
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.gone(c)
	})
}

// pause reports false when the lease is over.
func (l *Lease) pause(tries int) bool {
	d := min(minPause<<min(tries, 20), maxPause)
	t := time.NewTimer(d/2 + rand.N(d/2)) //nolint:gosec // spreads retries, no secret
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.lost:
		return false
	}
}

// Downgrade implements lock.Lease. Who waits here for the hold asks the store: behind
// a shared hold nobody here is granted an exclusive one.
func (l *Lease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	l.mu.Lock()
	m, err := l.own(r, id)
	if m == nil && err == nil {
		l.mu.Unlock()
		return l.inner.Downgrade(ctx, r, id)
	}
	defer l.mu.Unlock()
	if m == nil || m.state != holding {
		return fmt.Errorf("downgrade %q: %w", string(r), lock.ErrNotHolder)
	}
	c := m.cohort
	if m.mode == lock.Shared && !c.unsure {
		return nil
	}
	c.closed, c.unsure = true, true
	c.mode, m.mode = lock.Shared, lock.Shared
	l.reroute(c)
	l.mu.Unlock()
	err = l.inner.Downgrade(ctx, r, c.id)
	l.mu.Lock()
	switch {
	case err == nil:
		c.unsure = false
	case errors.Is(err, lock.ErrLeaseLost):
		l.lose()
	case errors.Is(err, lock.ErrNotHolder):
		l.out(m)
		l.gone(c)
	}
	return err
}
