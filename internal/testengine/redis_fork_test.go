package testengine

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func redisOf(t *testing.T, s Server) *redis.Client {
	t.Helper()
	c := newRedisClient(Nodes(t, s)[0].Addr())
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// A fork knows what its origin knew, goes its own way, and is where a proxy leads.
func TestForkRedis(t *testing.T) {
	t.Parallel()
	origin(t, Redis)
	first := New(t, Redis)
	a := redisOf(t, first)
	set := func(c *redis.Client, key string) {
		t.Helper()
		if err := c.Set(within(t, long), key, "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	has := func(c *redis.Client, want int64, keys ...string) {
		t.Helper()
		if n, err := c.Exists(within(t, long), keys...).Result(); err != nil || n != want {
			t.Errorf("%d of the keys %v, %v; want %d", n, keys, err, want)
		}
	}
	set(a, "before")
	fork := ForkRedis(t, first)
	set(a, "after")
	b := redisOf(t, fork)
	has(b, 1, "before", "after")
	set(b, "own")
	has(a, 2, "before", "after", "own")

	road := Through(t, first)
	c := newRedisClient(road.Addr())
	t.Cleanup(func() { _ = c.Close() })
	has(c, 1, "after")
	road.Retarget(Nodes(t, fork)[0].Addr())
	has(c, 1, "after") // on the connection that is open
	road.Inject(Sever)
	_ = c.Ping(within(t, long)) // finds that it is not
	has(c, 1, "own")
	has(c, 0, "after")
}

func TestShiftClockOfRedis(t *testing.T) {
	t.Parallel()
	origin(t, Redis)
	s := New(t, RedisFakeTime)
	c := redisOf(t, s)
	for _, by := range []time.Duration{0, time.Hour, -24 * time.Hour, 0} {
		ShiftClock(t, s, by)
		now, err := c.Time(within(t, long)).Result()
		if err != nil {
			t.Fatal(err)
		}
		if off := time.Until(now) - by; off.Abs() > 5*time.Second {
			t.Errorf("the clock is ahead by %s, want %s", off+by, by)
		}
	}
}
