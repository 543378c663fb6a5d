package caslock

import (
	"flag"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
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

// TestConformance runs the suite on the least that a Store can be. So what fails on a real
// server and not here is the server's, or the way to it.
func TestConformance(t *testing.T) {
	backendtest.Run(t, &harness{m: newMemory(), roads: make(map[lock.Backend]*road)})
}

type harness struct {
	m     *memory
	mu    sync.Mutex
	roads map[lock.Backend]*road
}

var _ interface {
	backendtest.CounterDeleter
	backendtest.Faulter
	backendtest.WakeupDropper
	backendtest.Insider
	backendtest.Lighter
} = (*harness)(nil)

func (h *harness) Open(testing.TB) lock.Backend {
	r := &road{m: h.m}
	b := Open(r, Options{Timeout: time.Second})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.roads[b] = r
	return b
}

func (h *harness) TTL() time.Duration            { return time.Second }
func (h *harness) Recheck() time.Duration        { return time.Second }
func (h *harness) Exceptions() map[string]string { return nil }

// Lighter makes the harness a backendtest.Lighter: a batch is full with a tenth as well.
func (h *harness) Lighter() bool { return true }

func (h *harness) road(b lock.Backend) *road {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roads[b]
}

func (h *harness) DeleteCounter(testing.TB, lock.Resource) {
	// On a real store so many changes take longer: a revision has room for 32 µs.
	time.Sleep(100 * time.Millisecond)
	h.m.do(Txn{Then: []Write{{Key: baseKey, Delete: true}}})
}

func (h *harness) LoseReplies(t testing.TB, b lock.Backend) func() {
	r, deaf := h.road(b), make(chan struct{})
	heal := sync.OnceFunc(func() {
		r.mu.Lock()
		r.deaf = nil
		r.mu.Unlock()
		close(deaf)
	})
	t.Cleanup(heal)
	r.mu.Lock()
	r.deaf = deaf
	r.mu.Unlock()
	return heal
}

func (h *harness) DropWakeups(t testing.TB, b lock.Backend) func() {
	r := h.road(b)
	set := func(muted bool) {
		r.mu.Lock()
		r.muted = muted
		r.mu.Unlock()
	}
	t.Cleanup(func() { set(false) })
	set(true)
	return func() { set(false) }
}

func (h *harness) Leftovers(_ testing.TB, prefix string) (left []string) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	for _, k := range h.m.keys {
		if strings.Contains(k, prefix) {
			left = append(left, k)
		}
	}
	return left
}
