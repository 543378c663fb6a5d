package redislock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

var (
	_ backendtest.Insider      = (*harness)(nil)
	_ backendtest.Slower       = (*harness)(nil)
	_ backendtest.Failoverer   = clusterHarness{}
	_ backendtest.Switcher     = aloneHarness{}
	_ backendtest.Quick        = aloneHarness{}
	_ backendtest.ClockShifter = aloneHarness{}
)

// forgets is the longest time after which Redis forgets by itself what Leftovers
// leaves out.
const forgets = lock.MaxTTL + time.Minute

// Leftovers makes the harness a backendtest.Insider. It knows nothing of the
// layout of the data: it looks for the prefix in all keys, and in the members of
// all that has members.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	b := openAt(t, h.Server.URL())
	defer func() { _ = b.Close() }()
	ctx := context.Background()
	var mu sync.Mutex
	look := func(ctx context.Context, c *redis.Client) error {
		found, err := leftoversOn(ctx, c, prefix)
		mu.Lock()
		defer mu.Unlock()
		left = append(left, found...)
		return err
	}
	if err := onMasters(ctx, b.client, look); err != nil {
		left = append(left, "what nobody can see: "+err.Error())
	}
	return left
}

func leftoversOn(ctx context.Context, c *redis.Client, prefix string) (left []string, err error) {
	keys := c.Scan(ctx, 0, "*", 1000).Iterator()
	var named, sets []string
	for keys.Next(ctx) {
		if key := keys.Val(); strings.Contains(key, prefix) {
			named = append(named, key)
		} else {
			sets = append(sets, key)
		}
	}
	if err := keys.Err(); err != nil {
		return nil, err
	}
	lives, kinds := make([]*redis.DurationCmd, len(named)), make([]*redis.StatusCmd, len(sets))
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range named {
			lives[i] = p.PTTL(ctx, key)
		}
		for i, key := range sets {
			kinds[i] = p.Type(ctx, key)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for i, key := range named {
		if life := lives[i].Val(); life < 0 && life != -2 || life > forgets { // it is not gone by now and stays
			left = append(left, "key "+key)
		}
	}
	first := make([]*redis.ScanCmd, len(sets))
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range sets {
			first[i] = scan(ctx, p, kinds[i].Val(), key, 0, prefix)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for i, key := range sets {
		for page := first[i]; page != nil; {
			members, cursor, err := page.Result()
			if err != nil {
				return nil, err
			}
			for _, m := range members {
				if strings.Contains(m, prefix) {
					left = append(left, fmt.Sprintf("member %q of %s", m, key))
				}
			}
			page = nil
			if cursor != 0 {
				page = scan(ctx, c, kinds[i].Val(), key, cursor, prefix)
			}
		}
	}
	return left, nil
}

// scan reads members with the prefix of what has members, and nothing of what has none.
func scan(ctx context.Context, c redis.Cmdable, kind, key string, cursor uint64, prefix string) *redis.ScanCmd {
	switch pattern := "*" + prefix + "*"; kind {
	case "zset":
		return c.ZScan(ctx, key, cursor, pattern, 1000)
	case "set":
		return c.SScan(ctx, key, cursor, pattern, 1000)
	case "hash":
		return c.HScan(ctx, key, cursor, pattern, 1000)
	}
	return nil
}

// clusterHarness is for a Cluster with replicas.
type clusterHarness struct{ *harness }

// FailOver makes the harness a backendtest.Failoverer. All masters end at once.
func (h clusterHarness) FailOver(t testing.TB, hasAll bool) {
	knows := testengine.DropData
	if hasAll {
		knows = testengine.KeepData
	}
	testengine.FailOver(t, h.Server, knows)
}

// aloneHarness is for one Redis.
type aloneHarness struct{ *harness }

// Quick makes the harness a backendtest.Quick.
func (h aloneHarness) Quick() bool { return true }

// Fork makes the harness a backendtest.Switcher.
func (h aloneHarness) Fork(t testing.TB) func(toFork bool, bs ...lock.Backend) {
	return h.Lead(t, testengine.ForkRedis(t, h.Server))
}

// Freeze makes the harness a backendtest.Freezer.
func (h aloneHarness) Freeze(t testing.TB) func() { return testengine.Pause(t, h.Server) }

// OwnClock makes the harness a backendtest.ClockShifter.
func (h aloneHarness) OwnClock(t testing.TB) (backendtest.Harness, func(by time.Duration)) {
	own := newHarness(t, testengine.RedisFakeTime, testengine.KeepData)
	return aloneHarness{own}, func(by time.Duration) { testengine.ShiftClock(t, own.Server, by) }
}
