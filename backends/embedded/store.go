// Package embedded keeps locks in the memory of this process: the store of a
// sidecar that serves one host alone. It is also the reference model of the
// store contract, with which the other stores are compared.
//
// This package has a table of resources, the moments at which leases and graces end, and
// one mutex. Package queue decides who is next, and package leasekit makes a lease of all
// that. Every change hands the resource on to the front of its queue before it unlocks the
// mutex. So a resource is never free while somebody waits for it, and a waiter is woken
// only when it holds the lock. Large changes go in steps: the first of thousands of readers
// is granted at once and the others in steps, and a lease that ends with thousands of holds
// releases them in steps.
package embedded

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// Store is a lock.Backend in memory. Sidecars that share a Store exclude each
// other; what it knows is gone with the process.
type Store struct {
	clock lock.Clock
	wall  func() time.Time

	mu         sync.Mutex
	closed     bool
	number     int64 // of the last fence, of all resources together: a free resource leaves nothing behind
	wallAtZero int64 // the wall clock at the clock's zero, in microseconds since the Unix epoch
	resources  map[lock.Resource]*resource
	spare      *resource   // that is in use no more, for the next one
	listed     []*resource // the same in no order, to walk through them in steps
	leases     map[*lease]struct{}
	endings    endings // of leases, and of graces

	handles map[handle]*entry // of holds that are detached, or were

	records    map[lock.Resource]*record
	recorded   []*record // the same in no order, as listed
	recordEnds endings

	unfinished []*resource // whose front may not be granted yet
	leaving    []*lease    // that are over, and on which something hangs still

	bell    chan struct{} // something ends sooner than all before, or is unfinished
	stop    chan struct{}
	stopped chan struct{}
}

var _ lock.Backend = (*Store)(nil)

// Option changes how New makes a Store.
type Option func(*Store)

// WithClock sets the clock on which leases end; the default is lock.BootTime.
func WithClock(c lock.Clock) Option { return func(s *Store) { s.clock = c } }

// New returns an empty store. Close it when it is no longer needed.
func New(opts ...Option) *Store {
	s := &Store{
		wall:      time.Now,
		resources: make(map[lock.Resource]*resource),
		leases:    make(map[*lease]struct{}),
		handles:   make(map[handle]*entry),
		records:   make(map[lock.Resource]*record),
		bell:      make(chan struct{}, 1),
		stop:      make(chan struct{}),
		stopped:   make(chan struct{}),
	}
	for _, o := range opts {
		o(s)
	}
	alarm := lock.NewAlarm(s.clock)
	if s.clock == nil {
		s.clock = lock.BootTime
	}
	go s.expire(alarm)
	return s
}

// OpenLease implements lock.Backend. A TTL out of bounds is a *lock.InvalidError.
func (s *Store) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	return s.OpenThrough(ctx, o, s.clock, func(d leasekit.Driver) leasekit.Driver { return d })
}

// OpenThrough is OpenLease over a road with faults, for tests: between gets the store's
// side of the lease and gives what takes its place, and clock is that of the sidecar.
// Pushes come with the store locked.
func (s *Store) OpenThrough(ctx context.Context, o lock.LeaseOptions, clock lock.Clock, between func(leasekit.Driver) leasekit.Driver) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("is %s, must be %s to %s", o.TTL, lock.MinTTL, lock.MaxTTL)}
	}
	l := &lease{
		store:          s,
		id:             lock.NewLeaseID(),
		sidecar:        o.Sidecar,
		ttl:            o.TTL,
		push:           func(leasekit.Push) {}, // it has asked for nothing yet
		listening:      make(chan struct{}),
		dropped:        make(chan struct{}),
		unacknowledged: make(map[lock.HoldID]*entry),
		takenAway:      make(map[leasekit.Ref]struct{}),
		forcedOut:      make(map[lock.HoldID]struct{}),
	}
	l.end.over = func(now time.Duration) { s.drop(l, now) }
	opened := clock()
	if err := s.enter(l); err != nil {
		return nil, err
	}
	d := between(l)
	kit := leasekit.Start(ctx, d, leasekit.Options{
		ID: l.id, TTL: o.TTL, Clock: clock, Opened: opened, Unproven: true,
		Local: d == leasekit.Driver(l), // nothing is between
	})
	<-l.listening
	return kit, nil
}

func (s *Store) enter(l *lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err == nil {
		s.leases[l] = struct{}{}
		s.endsAt(&l.end, now+l.ttl)
		s.setWall(now)
	}
	return err
}

// ForceRelease implements lock.Backend.
func (s *Store) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	f, err := s.force(r, id, max(grace, 0))
	if err != nil {
		return fmt.Errorf("force release: %w", err)
	}
	if f == nil {
		return nil
	}
	select {
	case <-f.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("force release: %w: grace is not over: %w", lock.ErrUnavailable, context.Cause(ctx))
	}
}

// force takes out a waiter, a hold that is kept, or one with grace 0, and returns nil; or it begins
// the end of a hold.
//
// Model: force.FORCE, retry.FORCE.
func (s *Store) force(r lock.Resource, id lock.HoldID, grace time.Duration) (*force, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return nil, err
	}
	e := s.resources[r].find(id)
	switch {
	case e == nil:
		return nil, lock.ErrNotHolder
	case e.Value.isKept() && e.Value.keeps(now): // nobody is there to be told
		s.give(e, now)
		return nil, nil //nolint:nilnil // said above
	case e.Value.lease.over:
		return nil, lock.ErrNotHolder
	}
	l := e.Value.lease
	if e.Waiting() { // it learns it when it asks
		l.forcedOut[id] = struct{}{}
		s.remove(e, now)
		l.push(leasekit.Push{Kind: leasekit.Woken, Ref: leasekit.Ref{Resource: r, ID: id}})
		return nil, nil //nolint:nilnil // said above
	}
	f := e.Value.force
	if f == nil || grace < f.grace {
		if f == nil {
			f = &force{gone: make(chan struct{})}
			f.end.over = func(now time.Duration) { s.remove(e, now) }
			e.Value.force = f
		}
		f.grace = grace
		l.unacknowledged[id] = e
		l.push(leasekit.Push{Kind: leasekit.Revoked, Ref: ref(e), Grace: grace})
	}
	if grace == 0 {
		l.takenAway[ref(e)] = struct{}{}
		s.remove(e, now)
		return nil, nil //nolint:nilnil // said above
	}
	return f, nil
}

// Ping implements lock.Backend.
func (s *Store) Ping(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.begin()
	return err
}

// Close implements lock.Backend. Leases that are still open are lost.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true // nothing is kept
	for l := range s.leases {
		s.drop(l, s.clock())
	}
	for _, l := range s.leaving { // nobody else has anything to do here any more
		for l.first != nil {
			s.clear(l, s.clock())
		}
	}
	s.mu.Unlock()
	close(s.stop)
	<-s.stopped
	return nil
}

// begin opens every operation, with the mutex held: what is over by now is
// ended first, so that no decision rests on a dead lease.
func (s *Store) begin() (now time.Duration, err error) {
	if s.closed {
		return 0, fmt.Errorf("%w: the embedded store is closed", lock.ErrUnavailable)
	}
	now = s.clock()
	s.sweep(now)
	return now, nil
}

// setWall notes the wall clock, which costs more to read than the store's. Every
// new lease and every heartbeat does. A pause between the two readings makes it seem
// ahead; the next reading must not let fences fall by that.
func (s *Store) setWall(now time.Duration) {
	at := min(s.wall().UnixMicro(), lastWall) - now.Microseconds()
	if at > s.wallAtZero || at < s.wallAtZero-setBack.Microseconds() {
		s.wallAtZero = at
	}
}

// setBack is how far the wall clock must have gone back to be believed.
const setBack = time.Second

// lastWall is the year 2200. A wall clock behind it is wrong, and would soon leave no
// room for fences.
var lastWall = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()

// nextFence is for a hold that is granted. It is larger than every fence this store has given, whatever the wall
// clock does, and, as long as that goes on, than those before a restart.
//
// Model: queue.FENCE.
func (s *Store) nextFence(e *entry, now time.Duration) lock.Fence {
	s.number = max(s.number+1, s.wallAtZero+now.Microseconds())
	return lock.PermitFence(s.number, e.Slot())
}

// grant notes that e holds from now on.
func (s *Store) grant(e *entry, now time.Duration) {
	v := &e.Value
	v.since, v.fence = now, s.nextFence(e, now)
	if v.minHold > 0 {
		v.until = now + v.minHold
	}
}
