package embedded

import (
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
}

// harness shares one Store among sidecars, as if they were in one process.
type harness struct{ store *Store }

func (h *harness) Open(testing.TB) lock.Backend  { return &visitor{h.store} }
func (h *harness) TTL() time.Duration            { return lock.MinTTL }
func (h *harness) Recheck() time.Duration        { return 0 }
func (h *harness) Exceptions() map[string]string { return nil }

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(testing.TB, lock.Resource) {
	h.store.mu.Lock()
	defer h.store.mu.Unlock()
	h.store.lastFence = 0
}

// visitor is a sidecar's view of the shared Store: Close leaves the Store to
// the others.
type visitor struct{ *Store }

func (*visitor) Close() error { return nil }
