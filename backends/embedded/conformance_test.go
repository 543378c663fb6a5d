package embedded

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	s := New()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	backendtest.Run(t, &harness{s})
	s.empty(t)
}

// harness shares one Store among sidecars, as if they were in one process. It is
// no WakeupDropper, CommandCounter or Restarter: there are no hints to lose, no
// requests to count, and the store ends with the process.
type harness struct{ store *Store }

var (
	_ backendtest.CounterDeleter = (*harness)(nil)
	_ backendtest.Faulter        = (*harness)(nil)
)

func (h *harness) Open(testing.TB) lock.Backend  { return &visitor{Store: h.store} }
func (h *harness) TTL() time.Duration            { return lock.MinTTL }
func (h *harness) Recheck() time.Duration        { return 0 }
func (h *harness) Exceptions() map[string]string { return nil }

func (h *harness) DeleteCounter(testing.TB, lock.Resource) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	h.store.lastFence = 0
}

func (h *harness) LoseReplies(t testing.TB, b lock.Backend) (heal func()) {
	v := b.(*visitor)
	heal = func() { v.deaf.Store(false) }
	t.Cleanup(heal)
	v.deaf.Store(true)
	return heal
}

// visitor is a sidecar's view of the shared Store. Close leaves the Store to the
// others. A deaf visitor's requests are carried out, but it hears no answer.
type visitor struct {
	*Store
	deaf atomic.Bool
}

func (v *visitor) Close() error { return nil }

func (v *visitor) hear(err error) error {
	if v.deaf.Load() {
		return fmt.Errorf("%w: no answer", lock.ErrUnavailable)
	}
	return err
}

func (v *visitor) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := v.Store.OpenLease(ctx, o)
	if err != nil {
		return nil, err
	}
	return &visitorLease{lease: l.(*lease), v: v}, nil
}

func (v *visitor) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	st, err := v.Store.Get(ctx, r)
	return st, v.hear(err)
}

func (v *visitor) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	all, err := v.Store.List(ctx, prefix, p)
	return all, v.hear(err)
}

func (v *visitor) Ping(ctx context.Context) error { return v.hear(v.Store.Ping(ctx)) }

type visitorLease struct {
	*lease
	v *visitor
}

func (l *visitorLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if !l.v.deaf.Load() {
		return l.lease.Acquire(ctx, q)
	}
	if _, e, _, _ := l.request(ctx, q); e != nil {
		l.store.mu.Lock()
		e.callers-- // it keeps its place, and nobody waits
		l.store.mu.Unlock()
	}
	return lock.Grant{}, l.v.hear(nil)
}

func (l *visitorLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.v.hear(l.lease.Release(ctx, r, id))
}

func (l *visitorLease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.v.hear(l.lease.Downgrade(ctx, r, id))
}

func (l *visitorLease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	news, err := l.lease.Heartbeat(ctx)
	return news, l.v.hear(err)
}

// empty checks that the store has forgotten everything that is over.
func (s *Store) empty(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.resources)+len(s.leases)+len(s.revoked) != 0 {
		t.Errorf("the store has %d resources, %d leases, %d forced holds left", len(s.resources), len(s.leases), len(s.revoked))
	}
}
