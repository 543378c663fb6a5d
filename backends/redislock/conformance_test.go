package redislock

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(6)
	goleak.VerifyTestMain(testengine.Main(m),
		// The driver's pool looks once a second whether a server that was down is
		// up again, and sees only then that it was closed meanwhile.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func TestConformance(t *testing.T) {
	t.Run(testengine.Redis.String(), func(t *testing.T) {
		backendtest.Run(t, aloneHarness{newHarness(t, testengine.Redis, testengine.DropData)})
	})
	t.Run(testengine.RedisCluster.String(), func(t *testing.T) {
		backendtest.Run(t, newHarness(t, testengine.RedisCluster, testengine.KeepData))
	})
}

func newHarness(t testing.TB, k *testengine.Kind, restart testengine.Data) *harness {
	return &harness{server: testengine.New(t, k), restart: restart, roads: make(map[lock.Backend]*testengine.Proxy)}
}

// harness gives every backend a road of its own to the server.
type harness struct {
	server  testengine.Server
	restart testengine.Data // what a restart leaves

	mu    sync.Mutex
	roads map[lock.Backend]*testengine.Proxy
}

func (h *harness) Open(t testing.TB) lock.Backend {
	road := testengine.Through(t, h.server)
	b := openAt(t, road.URL()+"?restart-grace=1s")
	h.mu.Lock()
	h.roads[b] = road
	h.mu.Unlock()
	return b
}

func openAt(t testing.TB, url string) *Backend {
	t.Helper()
	b, err := Open(url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *harness) road(b lock.Backend) *testengine.Proxy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roads[b]
}

func (h *harness) TTL() time.Duration            { return time.Second }
func (h *harness) Recheck() time.Duration        { return leasekit.RecheckOf(h.TTL()) }
func (h *harness) Exceptions() map[string]string { return nil }

// direct gives a client of the test's own, past all roads.
func (h *harness) direct(t testing.TB) *Backend {
	b := openAt(t, h.server.URL())
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	b := h.direct(t)
	if err := b.client.Del(context.Background(), b.keys.buckets[b.keys.bucketOf(r)].last).Err(); err != nil {
		t.Fatal(err)
	}
}

// LoseReplies makes the harness a backendtest.Faulter.
func (h *harness) LoseReplies(t testing.TB, b lock.Backend) func() {
	road := h.road(b)
	heal := sync.OnceFunc(func() {
		if err := road.Heal(); err != nil {
			t.Error(err)
		}
		road.Inject(testengine.Sever)
	})
	t.Cleanup(heal)
	road.Inject(testengine.HoldReplies)
	return heal
}

// DropWakeups makes the harness a backendtest.WakeupDropper.
func (h *harness) DropWakeups(t testing.TB, b lock.Backend) func() {
	road := h.road(b)
	restore := sync.OnceFunc(func() {
		if err := road.Heal(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	road.Mute("subscribe")
	return restore
}

// Restart makes the harness a backendtest.Restarter.
func (h *harness) Restart(t testing.TB) { testengine.Restart(t, h.server, h.restart) }

// Commands makes the harness a backendtest.CommandCounter.
func (h *harness) Commands(t testing.TB) int64 {
	ctx := context.Background()
	b := openAt(t, h.server.URL())
	defer func() { _ = b.Close() }()
	var total int64
	count := func(info string, err error) {
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseInt(parseInfo(info)["total_commands_processed"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if _, ok := h.server.(testengine.Noder); ok && len(b.keys.buckets) > 1 {
		for _, n := range testengine.Nodes(t, h.server) {
			one := openAt(t, "redis://"+n.Addr())
			count(one.client.Info(ctx, "stats").Result())
			_ = one.Close()
		}
		return total
	}
	count(b.client.Info(ctx, "stats").Result())
	return total
}
