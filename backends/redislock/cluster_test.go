package redislock

import (
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A node on which the lease has nothing may fail. Issue 9, 3.4.
func TestNodeWithoutHoldsMayFail(t *testing.T) { again(t, testNodeWithoutHoldsMayFail) }

func testNodeWithoutHoldsMayFail(t testing.TB) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+noGrace+"&timeout=300ms", 5*time.Minute)
	cluster := b.client.(*redis.ClusterClient)
	owner := func(r lock.Resource) string {
		c, err := cluster.MasterForKey(t.Context(), b.keys.buckets[b.keys.bucketOf(r)].leases)
		if err != nil {
			t.Fatal(err)
		}
		return c.Options().Addr
	}
	g := hold(t, l, "kept")
	var addr string
	for i := range 40 { // somewhere else as well
		r := lock.Resource(fmt.Sprintf("used-%d", i))
		used := hold(t, l, r)
		if err := release(t.Context(), l, r, used.ID); err != nil {
			t.Fatal(err)
		}
		if at := owner(r); at != owner("kept") {
			addr = at
		}
	}
	for range 2 {
		eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	}
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() == addr {
			testengine.Crash(t, n, testengine.DropData)
		}
	}
	eventually(t, "the lease lives without that node", func() error { return beat(t.Context(), l) })
	if err := l.Release(t.Context(), "kept", g.ID); err != nil {
		t.Errorf("Release: %v", err)
	}
}

// replicaOf starts a replica of a node of a Cluster, and gives a client of it.
func replicaOf(t testing.TB, s testengine.Server, of testengine.Node) *redis.Client {
	t.Helper()
	master := plain(t, of.Addr())
	ports := make([]string, 2)
	for i := range ports {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, ports[i], _ = net.SplitHostPort(ln.Addr().String())
		_ = ln.Close()
	}
	cmd := exec.Command("redis-server", "--port", ports[0], "--cluster-port", ports[1], "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir(),
		"--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0", "--cluster-announce-ip", "127.0.0.1")
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	replica := plain(t, "127.0.0.1:"+ports[0])
	host, port, _ := net.SplitHostPort(of.Addr())
	id := master.Do(t.Context(), "cluster", "myid").Val().(string)
	nodes := master.ClusterNodes(t.Context()).Val()
	bus := ""
	for line := range strings.Lines(nodes) { // id host:port@bus[,name] flags …
		if strings.HasPrefix(line, id) {
			_, bus, _ = strings.Cut(strings.Fields(line)[1], "@")
			bus, _, _ = strings.Cut(bus, ",")
		}
	}
	eventually(t, "the replica has met the others", func() error { return replica.Do(t.Context(), "cluster", "meet", host, port, bus).Err() })
	eventually(t, "the replica knows its master", func() error { return replica.Do(t.Context(), "cluster", "replicate", id).Err() })
	eventually(t, "the replica is up to date", func() error {
		text, err := replica.Info(t.Context(), "replication").Result()
		if err == nil && parseInfo(text)["master_link_status"] != "up" {
			err = errors.New("the link is not up")
		}
		return err
	})
	eventually(t, "the replica knows who has which slots", func() error { // it takes over only those
		text, err := replica.ClusterInfo(t.Context()).Result()
		if err == nil && parseInfo(text)["cluster_state"] != "ok" {
			err = errors.New("the Cluster is not complete")
		}
		return err
	})
	for _, n := range testengine.Nodes(t, s) {
		c := plain(t, n.Addr())
		eventually(t, n.Addr()+" knows the replica", func() error { // it would not vote for it
			text, err := c.ClusterNodes(t.Context()).Result()
			if err == nil && !strings.Contains(text, "slave "+id) {
				err = errors.New("it is not in its list")
			}
			return err
		})
	}
	return replica
}

// A Cluster's replica that takes over is found within seconds, and its memory is
// compared, although it was a member of the Cluster before. Issue 9, 3.2 and 3.4.
func TestClusterFailover(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	again(t, testClusterFailover)
}

func testClusterFailover(t testing.TB) {
	s := testengine.New(t, testengine.RedisCluster)
	b, l := sidecar(t, s.URL()+"?restart-grace=10s&timeout=500ms", 5*time.Minute)
	g := hold(t, l, "r")
	owner, err := b.client.(*redis.ClusterClient).MasterForKey(t.Context(), b.keys.buckets[b.keys.bucketOf("r")].leases)
	if err != nil {
		t.Fatal(err)
	}
	var replica *redis.Client
	for _, n := range testengine.Nodes(t, s) {
		if n.Addr() == owner.Options().Addr {
			replica = replicaOf(t, s, n)
			if err := n.Crash(t.Context(), testengine.DropData); err != nil {
				t.Fatal(err)
			}
		}
	}
	crashed := time.Now()
	eventually(t, "the replica has taken over", func() error {
		if text, err := replica.Info(t.Context(), "replication").Result(); err != nil || parseInfo(text)["role"] != "master" {
			return errors.Join(errors.New("it has not"), err)
		}
		return nil
	})
	took := time.Now()
	eventually(t, "the lease lives on the replica", func() error { return beat(t.Context(), l) })
	t.Logf("first good heartbeat %s after the crash, %s after the replica has taken over", time.Since(crashed), time.Since(took))
	if late := time.Since(took); late > 25*time.Second { // the client reloads its map of the Cluster every minute if nobody tells it to
		t.Fatal(backendtest.Busy(fmt.Errorf("the replica is found %s after it has taken over", late)))
	}
	i := b.keys.bucketOf("r")
	if left, _ := b.pasts[i].left(10*time.Second, b.clock()); left <= 0 {
		t.Error("no grace after the failover")
	}
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Errorf("Release of a hold that the replica knows: %v", err)
	}
	eventually(t, "it is granted again", func() error {
		if err := beat(t.Context(), l); err != nil {
			return err
		}
		_, err := try(t, l, "r")
		return err
	})
}
