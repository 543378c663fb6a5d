package embedded

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// lease implements lock.Lease. Its fields stand under the store's mutex.
type lease struct {
	store   *Store
	id      lock.LeaseID
	sidecar string
	ttl     time.Duration

	deadline time.Duration // on the store's clock; the lease is over at this moment
	over     bool          // expired, closed, or the store was closed
	entries  map[lock.HoldID]*entry

	closed  bool // by Close
	events  chan lock.Event
	pending []lock.Event // what found events full
	pump    sync.WaitGroup
	done    chan struct{} // closed by Close
}

var _ lock.Lease = (*lease)(nil)

// ID implements lock.Lease.
func (l *lease) ID() lock.LeaseID { return l.id }

// Acquire implements lock.Lease. Calls at the same time with the same ID share
// one hold or one place, which is given up when the last of them gives up. An
// ID that is in use for another resource or mode is a *lock.InvalidError.
func (l *lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	g, e, changed, err := l.request(ctx, q)
	if e == nil {
		return g, err
	}
	select {
	case <-changed:
	case <-ctx.Done():
	}
	return l.settle(ctx, e)
}

// request grants q, refuses it, or gives it a place in the queue: then the
// entry is not nil, and the channel is closed when it stops waiting.
func (l *lease) request(ctx context.Context, q lock.Request) (lock.Grant, *entry, <-chan struct{}, error) {
	if q.ID == "" {
		return lock.Grant{}, nil, nil, &lock.InvalidError{Field: "id", Problem: "must not be empty"}
	}
	if !q.Mode.Valid() {
		return lock.Grant{}, nil, nil, &lock.InvalidError{Field: "mode", Problem: "is not a mode"}
	}
	s := l.store
	s.mu.Lock()
	now, err := l.begin()
	if err != nil {
		s.mu.Unlock()
		return lock.Grant{}, nil, nil, fmt.Errorf("acquire lock: %w", err)
	}
	e := l.entries[q.ID]
	switch {
	case e == nil: // the usual case: not a retry
	case e.resource.name != q.Resource || e.mode != q.Mode:
		s.mu.Unlock()
		return lock.Grant{}, nil, nil, &lock.InvalidError{Field: "id", Problem: "is in use for another resource or mode"}
	case e.state == revoked:
		s.mu.Unlock()
		return lock.Grant{}, nil, nil, fmt.Errorf("acquire lock: %w", lock.ErrNotHolder)
	case e.state == held:
		g := e.grant()
		s.mu.Unlock()
		return g, nil, nil, nil
	}

	r := s.resources[q.Resource]
	cause := context.Cause(ctx)
	if cause == nil && q.Try && (e != nil || r != nil && !r.free(q.Mode)) {
		cause = lock.ErrHeld
	}
	if cause != nil {
		held := r.brief(q.Resource, now)
		s.mu.Unlock()
		return lock.Grant{}, nil, nil, &lock.HeldError{Cause: cause, Status: held.status()}
	}

	if e == nil {
		if r == nil {
			r = &resource{name: q.Resource}
			s.resources[q.Resource] = r
		}
		e = &entry{id: q.ID, resource: r, lease: l, owner: q.Owner, mode: q.Mode}
		l.entries[q.ID] = e
		if r.free(q.Mode) {
			s.hold(e, now)
			g := e.grant()
			s.mu.Unlock()
			return g, nil, nil, nil
		}
		e.since = now
		e.changed = make(chan struct{})
		r.waiters.push(e)
	}
	e.callers++
	changed := e.changed
	s.mu.Unlock()
	return lock.Grant{}, e, changed, nil
}

// free tells whether a new request can be granted at once: who comes now stands
// behind everybody who waits.
func (r *resource) free(m lock.Mode) bool { return r.waiters.first == nil && r.admits(m) }

// settle ends one caller's wait: with the grant if that came first, else with
// the reason why there is none.
func (l *lease) settle(ctx context.Context, e *entry) (lock.Grant, error) {
	s := l.store
	s.mu.Lock()
	e.callers--
	switch e.state {
	case held:
		g := e.grant()
		s.mu.Unlock()
		return g, nil
	case revoked: // before anybody was told of the grant: there is nothing to be graceful about
		s.remove(e)
		s.mu.Unlock()
		return lock.Grant{}, fmt.Errorf("acquire lock: %w", lock.ErrNotHolder)
	case gone:
		err := lock.ErrNotHolder
		if l.over {
			err = lock.ErrLeaseLost
		}
		s.mu.Unlock()
		return lock.Grant{}, fmt.Errorf("acquire lock: %w", err)
	}
	held := e.resource.brief(e.resource.name, s.clock())
	err := &lock.HeldError{Cause: context.Cause(ctx), Position: e.position()}
	if e.callers == 0 {
		s.remove(e)
	}
	s.mu.Unlock()
	err.Status = held.status()
	return lock.Grant{}, err
}

// Release implements lock.Lease.
func (l *lease) Release(_ context.Context, r lock.Resource, id lock.HoldID) error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	e, err := l.entry(r, id)
	if err != nil {
		return fmt.Errorf("release lock: %w", err)
	}
	l.store.remove(e)
	return nil
}

// Downgrade implements lock.Lease.
func (l *lease) Downgrade(_ context.Context, r lock.Resource, id lock.HoldID) error {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	e, err := l.entry(r, id)
	if err == nil && e.state != held {
		err = lock.ErrNotHolder
	}
	if err != nil {
		return fmt.Errorf("downgrade lock: %w", err)
	}
	e.mode = lock.Shared
	l.store.promote(e.resource)
	return nil
}

// Heartbeat implements lock.Lease.
func (l *lease) Heartbeat(context.Context) ([]lock.Event, error) {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	now, err := l.begin()
	if err != nil {
		return nil, fmt.Errorf("renew lease: %w", err)
	}
	l.deadline = now + l.ttl
	return nil, nil
}

// Events implements lock.Lease.
func (l *lease) Events() <-chan lock.Event { return l.events }

// Close implements lock.Lease. Events that were not read yet are dropped.
func (l *lease) Close(context.Context) error {
	s := l.store
	s.mu.Lock()
	if l.closed {
		s.mu.Unlock()
		return fmt.Errorf("close lease: %w", lock.ErrLeaseLost)
	}
	l.closed = true
	s.drop(l)
	s.mu.Unlock()
	close(l.done)
	l.pump.Wait()
	close(l.events)
	return nil
}

// begin opens every operation on the lease, with the mutex held.
func (l *lease) begin() (now time.Duration, err error) {
	now, err = l.store.begin()
	if l.over {
		return 0, lock.ErrLeaseLost
	}
	return now, err
}

// entry returns the lease's own hold or waiter on r.
func (l *lease) entry(r lock.Resource, id lock.HoldID) (*entry, error) {
	if _, err := l.begin(); err != nil {
		return nil, err
	}
	e := l.entries[id]
	if e == nil || e.resource.name != r {
		return nil, lock.ErrNotHolder
	}
	return e, nil
}

// drop ends a lease with everything on it. All its entries go before anything
// is handed on, so that no waiter of the lease is granted on the way out.
func (s *Store) drop(l *lease) {
	if l.over {
		return
	}
	l.over = true
	delete(s.leases, l)
	entries := l.entries
	l.entries = nil
	for _, e := range entries {
		s.unlink(e)
	}
	for _, e := range entries {
		s.promote(e.resource)
	}
}
