package embedded

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	// Most tests wait most of the time, and go test runs no more of them side by
	// side than there are processors.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(max(8, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

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
// no CommandCounter or Restarter: there are no requests to count, and the store
// ends with the process.
type harness struct{ store *Store }

var (
	_ backendtest.CounterDeleter = (*harness)(nil)
	_ backendtest.Faulter        = (*harness)(nil)
	_ backendtest.WakeupDropper  = (*harness)(nil)
	_ backendtest.Quick          = (*harness)(nil)
)

func (h *harness) Open(testing.TB) lock.Backend { return &visitor{Store: h.store} }
func (h *harness) TTL() time.Duration           { return lock.MinTTL }
func (h *harness) Recheck() time.Duration       { return 4 * time.Second } // leasekit's, where wake-ups are dropped

// Quick makes the harness a backendtest.Quick.
func (h *harness) Quick() bool { return true }

// noSilence is why the tests of a holder that hears nothing are left out.
const noSilence = "the store is in the sidecar's own process: what the harness hides from a sidecar, its driver knows"

func (h *harness) Exceptions() map[string]string {
	return map[string]string{"ForceInSilence": noSilence, "ForcerGone": noSilence, "ForceInLastSilence": noSilence}
}

func (h *harness) DeleteCounter(testing.TB, lock.Resource) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	h.store.number = 0
}

func (h *harness) LoseReplies(t testing.TB, b lock.Backend) (heal func()) {
	return set(t, &b.(*visitor).deaf)
}

func (h *harness) DropWakeups(t testing.TB, b lock.Backend) (restore func()) {
	return set(t, &b.(*visitor).asleep)
}

func set(t testing.TB, fault *atomic.Bool) (heal func()) {
	heal = func() { fault.Store(false) }
	t.Cleanup(heal)
	fault.Store(true)
	return heal
}

// visitor is a sidecar's view of the shared Store. Close leaves the Store to the
// others. A deaf visitor's requests are carried out, but it hears no answer; one
// that is asleep gets no push.
type visitor struct {
	*Store
	deaf, asleep atomic.Bool
}

func (v *visitor) Close() error { return nil }

func (v *visitor) hear(err error) error {
	if v.deaf.Load() {
		return fmt.Errorf("%w: no answer", lock.ErrUnavailable)
	}
	return err
}

func (v *visitor) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	return v.OpenThrough(ctx, o, v.clock, func(d leasekit.Driver) leasekit.Driver { return &way{Driver: d, v: v} })
}

func (v *visitor) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	st, err := v.Store.Get(ctx, r)
	return st, v.hear(err)
}

func (v *visitor) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	all, err := v.Store.List(ctx, prefix, p)
	return all, v.hear(err)
}

func (v *visitor) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (lock.Detached, error) {
	d, err := v.Store.SetHandle(ctx, r, key, ttl)
	return d, v.hear(err)
}

func (v *visitor) ReadRecord(ctx context.Context, r lock.Resource) (lock.Record, error) {
	rec, err := v.Store.ReadRecord(ctx, r)
	return rec, v.hear(err)
}

func (v *visitor) WriteRecord(ctx context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	return v.hear(v.Store.WriteRecord(ctx, r, after, next, keep))
}

func (v *visitor) DeleteRecord(ctx context.Context, r lock.Resource, after string) error {
	return v.hear(v.Store.DeleteRecord(ctx, r, after))
}

func (v *visitor) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	all, err := v.Store.ListRecords(ctx, prefix, p)
	return all, v.hear(err)
}

func (v *visitor) Ping(ctx context.Context) error { return v.hear(v.Store.Ping(ctx)) }

// way is what stands between a visitor's lease and the store.
type way struct {
	leasekit.Driver
	v *visitor
}

func (w *way) Ask(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	a, err := w.Driver.Ask(ctx, q)
	return a, w.v.hear(err)
}

func (w *way) Withdraw(ctx context.Context, d leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	found, err := w.Driver.Withdraw(ctx, d)
	return found, w.v.hear(err)
}

func (w *way) Downgrade(ctx context.Context, r leasekit.Ref) error {
	return w.v.hear(w.Driver.Downgrade(ctx, r))
}

func (w *way) Describe(ctx context.Context, r leasekit.Ref, owner string) error {
	return w.v.hear(w.Driver.(leasekit.Teller).Describe(ctx, r, owner))
}

func (w *way) Detaches() error { return w.Driver.(leasekit.Detacher).Detaches() }

func (w *way) Detach(ctx context.Context, q leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (leasekit.Withdrawn, error) {
	got, err := w.Driver.(leasekit.Detacher).Detach(ctx, q, key, ttl)
	return got, w.v.hear(err)
}

func (w *way) KeepsMinHold() error { return w.Driver.(leasekit.Keeper).KeepsMinHold() }

func (w *way) Renew(ctx context.Context, acks []leasekit.Revocation) (leasekit.Renewal, error) {
	a, err := w.Driver.Renew(ctx, acks)
	return a, w.v.hear(err)
}

func (w *way) Held(ctx context.Context, each func(leasekit.Ref)) error {
	return w.v.hear(w.Driver.Held(ctx, each))
}

func (w *way) Listen(ctx context.Context, push func(leasekit.Push)) {
	w.Driver.Listen(ctx, func(p leasekit.Push) {
		if !w.v.asleep.Load() {
			push(p)
		}
	})
}

// empty checks that the store has forgotten everything that is over.
func (s *Store) empty(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := []int{len(s.resources), len(s.listed), len(s.leases), len(s.endings)}; !slices.Equal(n, make([]int, 4)) {
		t.Errorf("the store has %d resources, %d listed, %d leases, %d endings left", n[0], n[1], n[2], n[3])
	}
	if n := []int{len(s.records), len(s.recorded), len(s.recordEnds)}; !slices.Equal(n, make([]int, 3)) {
		t.Errorf("the store has %d records, %d listed, %d of their endings left", n[0], n[1], n[2])
	}
}
