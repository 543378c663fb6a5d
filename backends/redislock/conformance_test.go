package redislock

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(12)
	goleak.VerifyTestMain(testengine.Main(m),
		// The driver's pool looks once a second whether a server that was down is
		// up again, and sees only then that it was closed meanwhile.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func TestConformance(t *testing.T) {
	t.Run(testengine.Redis.String(), func(t *testing.T) {
		backendtest.Run(t, aloneHarness{newHarness(t, testengine.Redis, testengine.DropData)})
	})
	t.Run(testengine.RedisClusterReplicas.String(), func(t *testing.T) {
		h := clusterHarness{newHarness(t, testengine.RedisClusterReplicas, testengine.KeepData)}
		h.Light = true
		h.grants(t)
		backendtest.Run(t, h)
	})
}

// grants waits until every bucket of a new store grants locks: a lease is opened as soon as
// one of them does.
func (h *harness) grants(t testing.TB) {
	b := openAt(t, h.Server.URL()+"?restart-grace=1s")
	defer func() { _ = b.Close() }()
	eventually(t, "every bucket grants locks", func() error {
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute, Sidecar: "first"})
		if err != nil {
			return err
		}
		defer func() { _ = l.Close(t.Context()) }()
		for i := range b.pasts {
			p := &b.pasts[i]
			if left, seen := p.left(b.cfg.grace, b.clock()); seen == 0 || left > 0 {
				return fmt.Errorf("bucket %d grants locks in %s", i, left)
			}
		}
		return nil
	})
}

type harness struct {
	*served.Store
	restart testengine.Data // what a restart leaves
}

func newHarness(t testing.TB, k *testengine.Kind, restart testengine.Data) *harness {
	return &harness{restart: restart, Store: &served.Store{Server: testengine.New(t, k), Wakeups: "subscribe", OpenAt: func(t testing.TB, url string) lock.Backend {
		return openAt(t, url+"?timeout=3s&restart-grace=1s") // other tests use the machine too
	}}}
}

func openAt(t testing.TB, url string) *Backend {
	t.Helper()
	b, err := Open(patient(url), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Recheck is the least that the contract allows.
func (h *harness) Recheck() time.Duration { return leasekit.RecheckOf(h.TTL()) }

// direct gives a client of the test's own, past all roads.
func (h *harness) direct(t testing.TB) *Backend {
	b := openAt(t, h.Server.URL())
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

// Restart makes the harness a backendtest.Restarter.
func (h *harness) Restart(t testing.TB) { testengine.Restart(t, h.Server, h.restart) }

// Forgets says whether a restart leaves nothing.
func (h *harness) Forgets() bool { return h.restart == testengine.DropData }

// Commands makes the harness a backendtest.CommandCounter. Replicas do again what their masters
// have done.
func (h *harness) Commands(t testing.TB) int64 {
	b := openAt(t, h.Server.URL())
	defer func() { _ = b.Close() }()
	var total atomic.Int64
	if err := onMasters(t.Context(), b.client, func(ctx context.Context, c *redis.Client) error {
		info, err := c.Info(ctx, "stats").Result()
		if err != nil {
			return err
		}
		n, err := strconv.ParseInt(parseInfo(info)["total_commands_processed"], 10, 64)
		total.Add(n)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return total.Load()
}

// onMasters does something on every server that is no replica, in a Cluster at the same time.
func onMasters(ctx context.Context, client redis.UniversalClient, do func(context.Context, *redis.Client) error) error {
	if c, ok := client.(*redis.ClusterClient); ok {
		return c.ForEachMaster(ctx, do)
	}
	return do(ctx, client.(*redis.Client))
}
