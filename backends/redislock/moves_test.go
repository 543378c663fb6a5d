package redislock

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// While the keys of a bucket move to another node one by one, the lease lives.
// Issue 9, 3.9.
func TestSlotMoves(t *testing.T) { again(t, testSlotMoves) }

func testSlotMoves(t testing.TB) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	g := hold(t, l, "moves")
	ctx := t.Context()
	moveSlot(t, s, b, "moves", func(key string) {
		eventually(t, fmt.Sprintf("a heartbeat is good when %q has moved", key), func() error { return beat(ctx, l) })
	})
	eventually(t, "the lease lives at the other node", func() error { return beat(ctx, l) })
	eventually(t, "the hold is released there", func() error { return l.Release(ctx, "moves", g.ID) })
	eventually(t, "it is granted there", func() error {
		if err := beat(ctx, l); err != nil {
			return err
		}
		_, err := try(t, l, "moves")
		return err
	})
}

// So it does while a hold there is forced, which the store can be told only later
// that the holder knows.
func TestForcedHoldWhileSlotMoves(t *testing.T) { again(t, testForcedHoldWhileSlotMoves) }

func testForcedHoldWhileSlotMoves(t testing.TB) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace, 5*time.Minute)
	g := hold(t, l, "moves")
	forceInVain(t, b, g, 500*time.Millisecond, time.Minute)
	moveSlot(t, s, b, "moves", func(key string) {
		eventually(t, fmt.Sprintf("a heartbeat is good when %q has moved", key), func() error { return beat(t.Context(), l) })
	})
	eventually(t, "the revocation is acknowledged", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		n, err := b.client.ZCard(t.Context(), b.keys.buckets[b.keys.bucketOf("moves")].revoked+string(l.ID())).Result()
		if err == nil && n != 0 {
			err = errors.New("not yet")
		}
		return err
	})
}

// moveSlot moves the keys of a resource's bucket to another node, and calls each
// after every one of them.
func moveSlot(t testing.TB, s testengine.Server, b *Backend, r lock.Resource, each func(key string)) {
	t.Helper()
	ctx := t.Context()
	cluster := b.client.(*redis.ClusterClient)
	k := b.keys.buckets[b.keys.bucketOf(r)]
	slotNo, err := cluster.ClusterKeySlot(ctx, k.leases).Result()
	if err != nil {
		t.Fatal(err)
	}
	from, err := cluster.MasterForKey(ctx, k.leases)
	if err != nil {
		t.Fatal(err)
	}
	var to *redis.Client
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() != from.Options().Addr && isMaster(t, n) {
			to = plain(t, n.Addr())
		}
	}
	do := func(c *redis.Client, args ...any) {
		t.Helper()
		if err := c.Do(ctx, args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	id := func(c *redis.Client) string { return c.Do(ctx, "cluster", "myid").Val().(string) }
	do(to, "cluster", "setslot", slotNo, "importing", id(from))
	do(from, "cluster", "setslot", slotNo, "migrating", id(to))
	for {
		keys, err := from.ClusterGetKeysInSlot(ctx, int(slotNo), 1).Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		host, port, _ := net.SplitHostPort(to.Options().Addr)
		do(from, "migrate", host, port, keys[0], 0, 5000)
		each(keys[0])
	}
	for _, c := range []*redis.Client{to, from} {
		do(c, "cluster", "setslot", slotNo, "node", id(to))
	}
}
