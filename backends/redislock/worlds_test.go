package redislock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// This file has the worlds of TestHoldersWhileServersChange in which nobody leads the sidecars: they find the servers themselves.

// The master behind Sentinel stands still, or ends. Its replica takes over, with or without what the master knew last, and the old
// master is back while the sidecars are at the new one.
func TestHoldersWhileMastersFail(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	changing(t, 1, func(t testing.TB, seed uint64, n int) {
		s := testengine.New(t, testengine.RedisSentinel)
		c := &failing{newChanges(t, seed, 3*time.Second, s), s}
		c.gap = [2]time.Duration{c.ttl / 2, 2 * c.ttl}
		c.run(n, c.change)
		c.leavesNothing(s)
	})
}

type failing struct {
	*changes
	s testengine.Server
}

func (c *failing) change(int) (what string) {
	c.Helper()
	f := c.s.(testengine.Failoverer)
	if err := f.Healthy(c.Context()); err != nil {
		c.Fatal(err)
	}
	defer c.heal(c.all...)
	for _, w := range c.all {
		if c.one(3) {
			w.road.Inject(testengine.HoldReplies)
			defer w.road.Inject(testengine.Sever)
		}
	}
	switch c.rnd.IntN(6) {
	case 0:
		thaw := testengine.Pause(c, c.master())
		time.Sleep(c.between(0, 2*time.Second))
		thaw()
		return "stood still"
	case 1:
		testengine.FailOver(c, c.s, testengine.KeepData)
		return "a replica that has all took over"
	case 2:
		testengine.FailOver(c, c.s, testengine.DropData)
		return "a replica that has nothing took over"
	default:
		old := c.master()
		thaw := testengine.Pause(c, old)
		eventually(c, "the replica has taken over", func() error {
			for _, n := range testengine.Nodes(c, c.s) {
				if n.Addr() != old.Addr() && c.isMaster(n) {
					return nil
				}
			}
			return errors.New("not yet")
		})
		time.Sleep(c.between(0, c.ttl))
		thaw()
		return "the replica took over while it stood still"
	}
}

func (c *failing) isMaster(n testengine.Node) bool {
	b := openAt(c, "redis://"+n.Addr())
	defer func() { _ = b.Close() }()
	text, err := b.client.Info(c.Context(), "replication").Result()
	return err == nil && parseInfo(text)["role"] == "master"
}

func (c *failing) master() (master testengine.Node) {
	c.Helper()
	eventually(c, "there is a master", func() error {
		for _, n := range testengine.Nodes(c, c.s) {
			if c.isMaster(n) {
				master = n
				return nil
			}
		}
		return errors.New("not yet")
	})
	return master
}

// The slots of a Cluster move to other nodes while locks there are held, and nodes stand still or are restarted.
func TestHoldersWhileSlotsMove(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	changing(t, 3, func(t testing.TB, seed uint64, n int) {
		s := testengine.New(t, testengine.RedisCluster)
		c := &moving{newChanges(t, seed, time.Second, s), s}
		c.run(n, c.change)
		c.leavesNothing(s)
	})
}

type moving struct {
	*changes
	s testengine.Server
}

func (c *moving) change(int) (what string) {
	c.Helper()
	nodes := testengine.Nodes(c, c.s)
	n := nodes[c.rnd.IntN(len(nodes))]
	defer c.heal(c.all...)
	for _, w := range c.all {
		if c.one(4) {
			w.road.Inject(testengine.HoldReplies)
			defer w.road.Inject(testengine.Sever)
		}
	}
	switch c.rnd.IntN(6) {
	case 0:
		thaw := testengine.Pause(c, n)
		time.Sleep(c.between(0, 3*c.ttl/2))
		thaw()
		return "a node stood still"
	case 1:
		testengine.Restart(c, n, testengine.KeepData)
		return "a node was restarted with its data"
	case 2:
		testengine.Restart(c, n, testengine.DropData)
		return "a node was restarted without its data"
	default:
		r := resourceNo(c.rnd.IntN(resources))
		b := openAt(c, c.s.URL())
		defer func() { _ = b.Close() }()
		c.agree(b.client.(*redis.ClusterClient), b.keys.buckets[b.keys.bucketOf(r)].leases)
		moveSlot(c, c.s, b, r, func(string) { time.Sleep(c.between(0, c.ttl/10)) })
		return fmt.Sprintf("the slot of %q moved", r)
	}
}

// agree waits until all nodes agree who has the slot of a key.
func (c *moving) agree(cluster *redis.ClusterClient, key string) {
	c.Helper()
	slot, err := cluster.ClusterKeySlot(c.Context(), key).Result()
	if err != nil {
		c.Fatal(err)
	}
	eventually(c, "the nodes agree", func() error {
		owners := make(map[string]bool)
		for _, n := range testengine.Nodes(c, c.s) {
			all, err := plain(c, n.Addr()).ClusterSlots(c.Context()).Result() //nolint:staticcheck // Redis 6 has no CLUSTER SHARDS
			if err != nil {
				return err
			}
			for _, s := range all {
				if s.Start <= int(slot) && int(slot) <= s.End {
					owners[s.Nodes[0].Addr] = true
				}
			}
		}
		if len(owners) != 1 {
			return fmt.Errorf("owners: %v", owners)
		}
		cluster.ReloadState(c.Context())
		return nil
	})
}
