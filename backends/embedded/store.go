// Package embedded keeps locks in the memory of this process: the store of a
// sidecar that serves one host alone. It is also the reference model of the
// store contract, with which the other stores are compared.
//
// All state stands under one mutex, and every change hands the resource on to
// the head of its queue before the mutex is let go. So there is no moment at
// which a resource is free while somebody waits for it, and a waiter is woken
// only when it holds the lock.
package embedded

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Store is a lock.Backend in memory. Sidecars that share a Store exclude each
// other; what it knows is gone with the process.
type Store struct {
	clock lock.Clock

	mu        sync.Mutex
	closed    bool
	lastFence lock.Fence // of all resources together, so that a free resource leaves nothing behind
	resources map[lock.Resource]*resource
	leases    map[*lease]struct{}
	revoked   map[*entry]time.Duration // holds whose release was forced, and when their grace ends
	due       time.Duration            // nothing ends by itself before this moment

	rearm   chan struct{} // due has become earlier
	stop    chan struct{}
	stopped chan struct{}
}

var _ lock.Backend = (*Store)(nil)

// Option changes how New makes a Store.
type Option func(*Store)

// WithClock sets the clock on which leases end; the default is lock.BootTime.
func WithClock(c lock.Clock) Option { return func(s *Store) { s.clock = c } }

// never is the due time when nothing can end by itself.
const never = time.Duration(math.MaxInt64)

// New returns an empty store. Close it when it is no longer needed.
func New(opts ...Option) *Store {
	s := &Store{
		clock:     lock.BootTime,
		resources: make(map[lock.Resource]*resource),
		leases:    make(map[*lease]struct{}),
		revoked:   make(map[*entry]time.Duration),
		due:       never,
		rearm:     make(chan struct{}, 1),
		stop:      make(chan struct{}),
		stopped:   make(chan struct{}),
	}
	for _, o := range opts {
		o(s)
	}
	go s.expire()
	return s
}

// OpenLease implements lock.Backend. A TTL out of bounds is a *lock.InvalidError.
func (s *Store) OpenLease(_ context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("is %s, must be %s to %s", o.TTL, lock.MinTTL, lock.MaxTTL)}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return nil, err
	}
	l := &lease{
		store:    s,
		id:       lock.NewLeaseID(),
		sidecar:  o.Sidecar,
		ttl:      o.TTL,
		deadline: now + o.TTL,
		entries:  make(map[lock.HoldID]*entry),
		events:   make(chan lock.Event, eventBuffer),
		done:     make(chan struct{}),
	}
	s.leases[l] = struct{}{}
	s.dueBy(l.deadline)
	return l, nil
}

// ForceRelease implements lock.Backend. A second call for the same hold can
// make its grace shorter, not longer.
func (s *Store) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	gone, err := s.revoke(r, id, grace)
	if err != nil {
		return fmt.Errorf("force release: %w", err)
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		select {
		case <-gone: // both at once
			return nil
		default:
		}
		return fmt.Errorf("force release: %w: grace is not over: %w", lock.ErrUnavailable, context.Cause(ctx))
	}
}

// revoke begins the end of a hold or waiter. The channel is closed when it is gone.
func (s *Store) revoke(r lock.Resource, id lock.HoldID, grace time.Duration) (<-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return nil, err
	}
	e := s.resources[r].find(id)
	if e == nil {
		return nil, lock.ErrNotHolder
	}
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	gone := e.changed
	if e.state == waiting { // its Acquire says so, there is no event
		s.remove(e)
		return gone, nil
	}
	grace = max(grace, 0)
	if end, again := s.revoked[e]; !again || now+grace < end {
		e.state = revoked
		s.revoked[e] = now + grace
		s.dueBy(now + grace)
		ev := lock.Event{Kind: lock.Revoked, Resource: r, ID: id}
		if grace > 0 {
			ev.Until = now + grace
		}
		e.lease.tell(ev)
	}
	if grace == 0 {
		s.remove(e)
	}
	return gone, nil
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
	for l := range s.leases {
		s.drop(l)
	}
	s.closed = true
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
	if now >= s.due {
		s.sweep(now)
	}
	return now, nil
}

// nextFence is larger than every fence this store has given, and, through the
// wall clock, than those of its predecessors before a restart.
func (s *Store) nextFence() lock.Fence {
	s.lastFence = max(s.lastFence+1, lock.Fence(time.Now().UnixMicro()))
	return s.lastFence
}
