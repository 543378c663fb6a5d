package testengine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

// cluster is a Redis Cluster. Its nodes are the masters and then, if it has replicas, one
// for each of them in the same order; later a replica may have taken over.
type cluster struct{ *store }

func startRedisCluster(ctx context.Context, m machine, ports []int) (Server, error) {
	// Tests of what a Cluster does by itself wait for it: soon.
	return startCluster(ctx, m, ports, 2*time.Second)
}

func startCluster(ctx context.Context, m machine, ports []int, nodeTimeout time.Duration) (cluster, error) {
	// The nodes talk to each other on ports of their own. They would default to
	// the client's port + 10000.
	bus, err := freePorts(ctx, len(ports))
	if err != nil {
		return cluster{}, err
	}
	kind := strconv.Itoa(clusterMasters) + " masters"
	if len(ports) > clusterMasters {
		kind += " with a replica each"
	}
	s := cluster{&store{m: m, kind: kind, ports: ports, gossip: true}}
	var all []string
	for i, p := range ports {
		args := redisArgs(m, p, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--repl-diskless-sync-delay", "0",
			"--cluster-port", strconv.Itoa(bus[i]), "--cluster-announce-ip", loopback,
			"--cluster-node-timeout", strconv.FormatInt(nodeTimeout.Milliseconds(), 10))
		s.nodes = append(s.nodes, redisNode(m, fmt.Sprintf("node%d", i), p, args...))
		all = append(all, hostPort(p))
	}
	s.url = "redis+cluster://" + strings.Join(all, ",")

	var g errgroup.Group
	for i, n := range s.nodes {
		g.Go(func() error {
			if err := n.launch(ctx); err != nil || i >= clusterMasters {
				return err
			}
			// Different epochs, else the nodes argue about the slots; an even share of them.
			return redisDo(ctx, n.Addr(),
				[]any{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
				[]any{"CLUSTER", "ADDSLOTSRANGE", clusterSlots * i / clusterMasters, clusterSlots*(i+1)/clusterMasters - 1})
		})
	}
	if err := g.Wait(); err != nil {
		return cluster{}, err
	}
	for i, p := range ports[1:] {
		if err := redisDo(ctx, s.nodes[0].Addr(), []any{"CLUSTER", "MEET", loopback, p, bus[i+1]}); err != nil {
			return cluster{}, err
		}
	}
	for i, n := range s.nodes[clusterMasters:] {
		g.Go(func() error { return follow(ctx, n, s.nodes[i]) })
	}
	if err := g.Wait(); err != nil {
		return cluster{}, err
	}
	for _, n := range s.nodes {
		n.up = s.complete
	}
	return s, s.complete(ctx)
}

// follow makes a node the replica of a master, as soon as it knows it.
func follow(ctx context.Context, n, master *node) error {
	c := newRedisClient(master.Addr())
	defer c.Close()
	id, err := c.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return fmt.Errorf("CLUSTER MYID on %s: %w", master.Addr(), err)
	}
	return poll(ctx, func() error { return redisDo(ctx, n.Addr(), []any{"CLUSTER", "REPLICATE", id}) })
}

// complete waits until every node knows all of them and serves, and replicas are there
// that could take over.
func (s cluster) complete(ctx context.Context) error {
	return poll(ctx, func() error {
		for _, n := range s.nodes {
			if err := s.completeAt(ctx, n); err != nil {
				return err
			}
		}
		_, err := s.replicas(ctx)
		return err
	})
}

func (s cluster) completeAt(ctx context.Context, n *node) error {
	c := newRedisClient(n.Addr())
	defer c.Close()
	text, err := c.ClusterInfo(ctx).Result()
	if err != nil {
		return fmt.Errorf("CLUSTER INFO on %s: %w", n.Addr(), err)
	}
	info := fields(text)
	if info["cluster_state"] != "ok" || info["cluster_known_nodes"] != strconv.Itoa(len(s.nodes)) || info["cluster_size"] != strconv.Itoa(clusterMasters) {
		return fmt.Errorf("the cluster is not complete at %s: state %s, %s nodes, %s with slots",
			n.Addr(), info["cluster_state"], info["cluster_known_nodes"], info["cluster_size"])
	}
	return nil
}

// replicas is the replica of each master. It is an error when one is not linked to its
// master, or a master has none.
func (s cluster) replicas(ctx context.Context) (map[*node]*node, error) {
	replicaOf := make(map[*node]*node)
	for _, n := range s.nodes {
		info, err := redisInfo(ctx, n.Addr(), "replication")
		if err != nil {
			return nil, err
		}
		if info["role"] != "slave" {
			continue
		}
		if info["master_link_status"] != "up" {
			return nil, fmt.Errorf("the link of %s to its master is %s", n.Addr(), info["master_link_status"])
		}
		for _, m := range s.nodes {
			if strconv.Itoa(m.port) == info["master_port"] {
				replicaOf[m] = n
			}
		}
	}
	if len(replicaOf) != len(s.nodes)-clusterMasters {
		return nil, fmt.Errorf("%d masters have a replica", len(replicaOf))
	}
	return replicaOf, nil
}

// replicatedCluster is a Cluster whose masters have replicas.
type replicatedCluster struct{ cluster }

var _ Failoverer = replicatedCluster{}

func startReplicatedCluster(ctx context.Context, m machine, ports []int) (Server, error) {
	// On a busy machine no replica takes over unasked.
	c, err := startCluster(ctx, m, ports, 15*time.Second)
	if err != nil {
		return nil, err
	}
	return replicatedCluster{c}, nil
}

// Healthy implements Failoverer.
func (s replicatedCluster) Healthy(ctx context.Context) error { return s.complete(ctx) }

// Crash implements Crasher. To keep the data, the replicas must have all of it: they may
// take over when they are back.
func (s replicatedCluster) Crash(ctx context.Context, d Data) error {
	if d == KeepData {
		replicas, err := s.replicas(ctx)
		for master, replica := range replicas {
			err = errors.Join(err, level(ctx, master, replica))
		}
		if err != nil {
			return fmt.Errorf("bring the replicas up to date before the crash: %w", err)
		}
	}
	return s.store.Crash(ctx, d)
}

// FailOver implements Failoverer: all masters end at once. The replicas take over because
// they are told to, which spares the time after which a Cluster would see to it.
func (s replicatedCluster) FailOver(ctx context.Context, d Data) error {
	if err := s.Healthy(ctx); err != nil {
		return fmt.Errorf("wait for replicas that could take over: %w", err)
	}
	replicas, err := s.replicas(ctx)
	if err != nil {
		return err
	}
	for master, replica := range replicas {
		if d == KeepData {
			err = level(ctx, master, replica)
		} else {
			err = forget(ctx, replica)
		}
		if err != nil {
			return fmt.Errorf("prepare the failover: %w", err)
		}
	}
	for master := range replicas {
		if err := master.Crash(ctx, DropData); err != nil {
			return err
		}
	}
	for _, replica := range replicas {
		if err := redisDo(ctx, replica.Addr(), []any{"CLUSTER", "FAILOVER", "TAKEOVER"}); err != nil {
			return err
		}
	}
	for _, replica := range replicas {
		if err := poll(ctx, func() error { return s.completeAt(ctx, replica) }); err != nil {
			return fmt.Errorf("wait for the promotion: %w", err)
		}
	}
	var g errgroup.Group
	for master := range replicas {
		g.Go(func() error { return master.launch(ctx) })
	}
	return g.Wait()
}
