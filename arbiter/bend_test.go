package arbiter

import (
	"context"
	"errors"
	"sync"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// bend stands between a side and the store's lease, and has the last word about what is
// answered.
type bend struct {
	lock.Lease

	mu         sync.Mutex
	cut        bool // releases do not reach the store
	released   int
	release    func(ctx context.Context, err error) error
	downgraded int
	downgrade  func(err error) error
	heartbeat  func() ([]lock.Event, error)
	closed     error // what Close says
}

func (s *side) bend() *bend {
	synctest.Wait()
	b := &bend{Lease: s.way.Lease}
	s.way.Lease = b
	return b
}

func (b *bend) TellsContended() bool { return true }

func (b *bend) TellingCosts() bool { return false }

func (b *bend) Guards(lock.Request) bool { return false }

func (b *bend) Describe(ctx context.Context, r lock.Resource, id lock.HoldID, owner string) error {
	return b.Lease.(lock.Contender).Describe(ctx, r, id, owner)
}

func (b *bend) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	b.mu.Lock()
	b.released++
	bent, cut := b.release, b.cut
	b.mu.Unlock()
	if cut {
		return lock.ErrUnavailable
	}
	err := b.Lease.Release(ctx, r, id)
	if bent != nil {
		err = bent(ctx, err)
	}
	return err
}

// releases bends the releases from here on, and gives how many there were.
func (b *bend) releases(bent func(ctx context.Context, err error) error) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release = bent
	return b.released
}

func (b *bend) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	b.downgraded++
	err := b.Lease.Downgrade(ctx, r, id)
	if b.downgrade != nil {
		err = b.downgrade(err)
	}
	return err
}

func (b *bend) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	if b.heartbeat != nil {
		return b.heartbeat()
	}
	return b.Lease.Heartbeat(ctx)
}

func (b *bend) Close(ctx context.Context) error {
	return errors.Join(b.Lease.Close(ctx), b.closed)
}

// lives lets time go by in which the lease is renewed.
func (s *side) lives(d time.Duration) {
	s.h.Helper()
	for end := s.h.clock() + d; s.h.clock() < end; time.Sleep(min(time.Second, end-s.h.clock())) {
		if _, err := s.Heartbeat(s.h.Context()); err != nil {
			s.h.Fatal(err)
		}
	}
	synctest.Wait()
}

func silent(context.Context, error) error { return lock.ErrUnavailable }

// forgets checks that a side keeps nothing of what is over.
func (s *side) forgets() {
	s.h.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.members)+len(s.stores)+len(s.lines)+len(s.unsure)+len(s.direct)+s.idle != 0 {
		s.h.Errorf("kept: %d members, %d cohorts, %d resources, %d without an answer, %d parked",
			len(s.members), len(s.stores), len(s.lines), len(s.unsure), s.idle)
	}
}
