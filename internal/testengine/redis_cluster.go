package testengine

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

const (
	clusterMasters = 3
	clusterSlots   = 16384
)

func startRedisCluster(ctx context.Context, m machine, ports []int) (Server, error) {
	// The nodes talk to each other on ports of their own. They would default to
	// the client's port + 10000.
	bus, err := freePorts(ctx, len(ports))
	if err != nil {
		return nil, err
	}
	s := &store{m: m, kind: strconv.Itoa(len(ports)) + " masters", ports: ports, gossip: true}
	var all []string
	for i, p := range ports {
		args := redisArgs(m, p, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-port", strconv.Itoa(bus[i]), "--cluster-announce-ip", loopback, "--cluster-node-timeout", "2000")
		s.nodes = append(s.nodes, redisNode(m, fmt.Sprintf("node%d", i), p, args...))
		all = append(all, hostPort(p))
	}
	s.url = "redis+cluster://" + strings.Join(all, ",")

	var g errgroup.Group
	for i, n := range s.nodes {
		g.Go(func() error {
			if err := n.launch(ctx); err != nil {
				return err
			}
			// Different epochs, else the nodes argue about the slots; an even share of them.
			return redisDo(ctx, n.Addr(),
				[]any{"CLUSTER", "SET-CONFIG-EPOCH", i + 1},
				[]any{"CLUSTER", "ADDSLOTSRANGE", clusterSlots * i / len(ports), clusterSlots*(i+1)/len(ports) - 1})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, p := range ports[1:] {
		if err := redisDo(ctx, s.nodes[0].Addr(), []any{"CLUSTER", "MEET", loopback, p, bus[i+1]}); err != nil {
			return nil, err
		}
	}
	for _, n := range s.nodes {
		n.up = func(ctx context.Context) error { return clusterOK(ctx, s.nodes) }
	}
	return s, clusterOK(ctx, s.nodes)
}

// clusterOK waits until every node knows all of them and serves.
func clusterOK(ctx context.Context, nodes []*node) error {
	return poll(ctx, func() error {
		for _, n := range nodes {
			if err := clusterOKAt(ctx, n, len(nodes)); err != nil {
				return err
			}
		}
		return nil
	})
}

func clusterOKAt(ctx context.Context, n *node, nodes int) error {
	c := newRedisClient(n.Addr())
	defer c.Close()
	text, err := c.ClusterInfo(ctx).Result()
	if err != nil {
		return fmt.Errorf("CLUSTER INFO on %s: %w", n.Addr(), err)
	}
	info := fields(text)
	if info["cluster_state"] != "ok" || info["cluster_known_nodes"] != strconv.Itoa(nodes) || info["cluster_size"] != strconv.Itoa(nodes) {
		return fmt.Errorf("the cluster is not complete at %s: state %s, %s nodes, %s with slots",
			n.Addr(), info["cluster_state"], info["cluster_known_nodes"], info["cluster_size"])
	}
	return nil
}
