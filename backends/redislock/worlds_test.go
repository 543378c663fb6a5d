package redislock

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

// This file has the worlds of TestHoldersWhileServersChange in which nobody leads the sidecars: they find the servers themselves.

// failoverTTL is longer than a failover takes, until the sidecars know of it: so leases from before are alive after it, and some
// rely on what the new master does not know.
const failoverTTL = 4 * time.Second

// The master behind Sentinel stands still, or ends. Its replica takes over, with or without what the master knew last. Some
// sidecars are cut off meanwhile, and learn late that there is another master. The old one is back while they are at the new one.
func TestHoldersWhileMastersFail(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	changing(t, 1, func(t testing.TB, seed uint64, n int) {
		s := testengine.New(t, testengine.RedisSentinel)
		c := &failing{newChanges(t, seed, failoverTTL, s), s}
		c.gap = [2]time.Duration{c.ttl / 2, 3 * c.ttl / 2}
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
	switch c.rnd.IntN(6) {
	case 0:
		defer c.cutSome()()
		thaw := testengine.Pause(c, c.master())
		time.Sleep(c.between(0, 2*time.Second))
		thaw()
		return "stood still"
	case 1:
		defer c.cutSome()()
		testengine.FailOver(c, c.s, testengine.KeepData)
		return "a replica that has all took over"
	case 2:
		defer c.cutSome()()
		testengine.FailOver(c, c.s, testengine.DropData)
		return "a replica that has nothing took over"
	default:
		return c.takeOver()
	}
}

// takeOver has the replica take over while the master stands still.
func (c *failing) takeOver() (what string) {
	c.Helper()
	old := c.master()
	var replica testengine.Node
	for _, n := range testengine.Nodes(c, c.s) {
		if n.Addr() != old.Addr() {
			replica = n
		}
	}
	what = "the replica took over while it stood still, without what came last"
	var joins func()
	defer c.stirs(func() { joins = c.lags(replica.Addr()) })()
	time.Sleep(c.between(c.ttl/10, c.ttl/4))
	if c.one(4) {
		what = "a replica that has nothing took over while it stood still"
		r := plain(c, replica.Addr())
		for _, set := range []string{"no", "yes"} {
			if err := r.ConfigSet(c.Context(), "replica-read-only", set).Err(); err != nil {
				c.Fatal(err)
			}
			if set == "no" {
				emptyNode(c, replica)
			}
		}
	}
	back := c.cutSome()
	thaw := testengine.Pause(c, old)
	sentinels, err := parseURL(c.s.URL())
	if err != nil {
		c.Fatal(err)
	}
	sentinel := plain(c, sentinels.addrs[0])
	eventually(c, "the replica has taken over", func() error {
		if isMaster(c, replica) {
			return nil
		}
		return errors.Join(errors.New("not yet"), sentinel.Do(c.Context(), "sentinel", "failover", sentinels.master).Err()) // it may be under way
	})
	joins()
	time.Sleep(c.between(c.ttl/4, 3*c.ttl/4))
	back()
	time.Sleep(c.between(0, c.ttl))
	thaw()
	return what
}

func isMaster(t testing.TB, n testengine.Node) bool {
	b := openAt(t, "redis://"+n.Addr())
	defer func() { _ = b.Close() }()
	text, err := b.client.Info(t.Context(), "replication").Result()
	return err == nil && parseInfo(text)["role"] == "master"
}

func (c *failing) master() (master testengine.Node) {
	c.Helper()
	eventually(c, "there is a master", func() error {
		for _, n := range testengine.Nodes(c, c.s) {
			if isMaster(c, n) {
				master = n
				return nil
			}
		}
		return errors.New("not yet")
	})
	return master
}

// The slots of a Cluster move to other nodes while locks there are held. Nodes stand still, are restarted or emptied, and
// replicas take over without what came last.
func TestHoldersWhileSlotsMove(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	changing(t, 1, func(t testing.TB, seed uint64, n int) {
		s := testengine.New(t, testengine.RedisClusterReplicas)
		c := &moving{newChanges(t, seed, failoverTTL, s), s}
		c.gap = [2]time.Duration{c.ttl / 2, 3 * c.ttl / 2}
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
	if err := c.s.(testengine.Failoverer).Healthy(c.Context()); err != nil {
		c.Fatal(err)
	}
	r := resourceNo(c.rnd.IntN(resources))
	b := openAt(c, c.s.URL())
	defer func() { _ = b.Close() }()
	key, cluster := b.keys.buckets[b.keys.bucketOf(r)].leases, b.client.(*redis.ClusterClient)
	n := c.agree(cluster, key)
	switch c.rnd.IntN(8) {
	case 0:
		defer c.cutSome()()
		thaw := testengine.Pause(c, n)
		time.Sleep(c.between(0, 3*c.ttl/2))
		thaw()
		return "a node stood still"
	case 1:
		defer c.cutSome()()
		testengine.Restart(c, n, testengine.KeepData)
		return "a node was restarted with its data"
	case 2:
		defer c.cutSome()()
		testengine.Restart(c, n, testengine.DropData)
		return "a node was restarted without its data"
	case 3:
		defer c.stirs(func() {})()
		time.Sleep(c.between(0, c.ttl/4))
		back := c.cutSome()
		emptyNode(c, n)
		time.Sleep(c.between(c.ttl/4, 3*c.ttl/4))
		back()
		return "a node was emptied"
	case 4:
		back := c.cutSome()
		moveSlot(c, c.s, b, r, func(string) { time.Sleep(c.between(0, c.ttl/10)) })
		back()
		return fmt.Sprintf("the slot of %q moved", r)
	default:
		return c.takeOver(n)
	}
}

// takeOver has the replica of a node take over.
func (c *moving) takeOver(n testengine.Node) (what string) {
	c.Helper()
	id := plain(c, n.Addr()).Do(c.Context(), "cluster", "myid").Val().(string)
	var replica testengine.Node
	for _, other := range testengine.Nodes(c, c.s) {
		for line := range strings.Lines(plain(c, other.Addr()).ClusterNodes(c.Context()).Val()) { // id host:port@bus flags master …
			if f := strings.Fields(line); strings.Contains(f[2], "myself") && f[3] == id {
				replica = other
			}
		}
	}
	var joins func()
	defer c.stirs(func() { joins = c.lags(replica.Addr()) })()
	time.Sleep(c.between(c.ttl/10, c.ttl/4))
	back := c.cutSome()
	start := testengine.Crash(c, n, testengine.DropData)
	r := plain(c, replica.Addr())
	eventually(c, "the replica has taken over", func() error {
		if isMaster(c, replica) {
			return nil
		}
		return errors.Join(errors.New("not yet"), r.Do(c.Context(), "cluster", "failover", "takeover").Err())
	})
	joins()
	time.Sleep(c.between(c.ttl/4, 3*c.ttl/4))
	back()
	start()
	return "a replica took over without what came last"
}

// agree waits until all nodes agree who has the slot of a key, and gives that one.
func (c *moving) agree(cluster *redis.ClusterClient, key string) (owner testengine.Node) {
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
		for _, n := range testengine.Nodes(c, c.s) {
			if owners[n.Addr()] {
				owner = n
			}
		}
		cluster.ReloadState(c.Context())
		return nil
	})
	return owner
}
