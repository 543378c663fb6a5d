package redislock

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestThereAndBack: a node that was a replica for a moment is the same process over
// the same connections, and may have forgotten what its successor did not know. It
// grants nothing before a heartbeat has met it. The lease sends none here by itself.
func TestThereAndBack(t *testing.T) { again(t, testThereAndBack) }

func testThereAndBack(t testing.TB) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+"?restart-grace=1s&timeout=500ms", 5*time.Minute)
	g := hold(t, l, "r")
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	owner, err := b.client.(*redis.ClusterClient).MasterForKey(t.Context(), b.keys.buckets[b.keys.bucketOf("r")].leases)
	if err != nil {
		t.Fatal(err)
	}
	var a *redis.Client
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() == owner.Options().Addr {
			replicaOf(t, s, n)
			a = plain(t, n.Addr())
		}
	}
	replica := plain(t, "127.0.0.1:"+slavePort(parseInfo(a.Info(t.Context(), "replication").Val())["slave0"]))
	takeOver(t, replica, a)
	takeOver(t, a, replica)

	try := exclusive("r")
	try.Try = true
	for range 5 {
		if g, err := l.Acquire(t.Context(), try); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("a try at a server in another term: %v, %v; want that it is unavailable", g, err)
		}
	}
	eventually(t, "the server is trusted again", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		_, err := l.Acquire(t.Context(), try) // the same request finds what it was granted
		return err
	})
}

func slavePort(info string) string {
	for field := range strings.SplitSeq(info, ",") {
		if port, ok := strings.CutPrefix(field, "port="); ok {
			return port
		}
	}
	return ""
}

// takeOver makes a replica the master, and returns when the old one is its replica.
func takeOver(t testing.TB, next, old *redis.Client) {
	t.Helper()
	eventually(t, "the replica has taken over", func() error {
		if err := next.Do(t.Context(), "cluster", "failover", "takeover").Err(); err != nil && !strings.Contains(err.Error(), "to a replica") {
			return err
		}
		info := parseInfo(old.Info(t.Context(), "replication").Val())
		if info["role"] != "slave" || info["master_link_status"] != "up" {
			return errors.New("the old master is " + info["role"])
		}
		return nil
	})
}
