package shards

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(12)
	goleak.VerifyTestMain(testengine.Main(m),
		// The driver's pool of Redis looks once a second whether a server that was down is
		// up again, and sees only then that it was closed meanwhile.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func TestConformance(t *testing.T) {
	t.Run("Embedded", func(t *testing.T) { backendtest.Run(t, newStores(t)) })
	t.Run(testengine.Redis.String(), func(t *testing.T) { backendtest.Run(t, newServers(t)) })
}

func newStores(t *testing.T) *harness {
	var h harness
	for range 3 {
		s := embedded.New()
		h.stores = append(h.stores, s)
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return &h
}

// harness has stores in the process of the test as shards.
type harness struct{ stores []*embedded.Store }

// Open makes it a backendtest.Harness, as the next three do.
func (h *harness) Open(t testing.TB) lock.Backend {
	t.Helper()
	var list []Shard
	for i, s := range h.stores {
		list = append(list, Shard{Name: string(rune('a' + i)), Backend: &visitor{s}})
	}
	b, err := New(list, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *harness) TTL() time.Duration     { return time.Second }
func (h *harness) Recheck() time.Duration { return time.Second }

func (h *harness) Exceptions() map[string]string { return nil }

// Lighter makes it a backendtest.Lighter: the store behind has a run of its own.
func (h *harness) Lighter() bool { return true }

// Quick makes it a backendtest.Quick.
func (h *harness) Quick() bool { return true }

// Patience makes it a backendtest.Impatient.
func (h *harness) Patience(ttl time.Duration) time.Duration { return patienceOf(ttl) }

// LeaseID makes it a backendtest.Namer.
func (h *harness) LeaseID(l lock.Lease, r lock.Resource) lock.LeaseID {
	own := l.(*Lease)
	p, _ := own.has(r, "")
	if p == nil { // it is over there
		return ""
	}
	return p.lease.ID()
}

// visitor leaves the store to the others when it is closed.
type visitor struct{ *embedded.Store }

func (*visitor) Close() error { return nil }
