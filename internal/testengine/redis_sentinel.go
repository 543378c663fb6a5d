package testengine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	sentinels  = 3
	masterName = "mymaster"
)

// sentinelStore is a master and its replica, watched by sentinels. Crash and
// Pause treat the two that keep data; the sentinels stay.
type sentinelStore struct {
	*store
	watchers []*node
}

var _ Failoverer = (*sentinelStore)(nil)

func startRedisSentinel(ctx context.Context, m machine, ports []int) (Server, error) {
	s := &sentinelStore{store: &store{m: m, kind: strconv.Itoa(sentinels) + " sentinels, master and replica", ports: ports, gossip: true}}
	watchPorts, dataPorts := ports[:sentinels], ports[sentinels:]
	var all []string
	for i, p := range watchPorts {
		s.watchers = append(s.watchers, redisNode(m, fmt.Sprintf("sentinel%d", i), p, "redis-server", "sentinel.conf", "--sentinel"))
		all = append(all, hostPort(p))
	}
	s.url = "redis+sentinel://" + strings.Join(all, ",") + "/" + masterName
	for i, p := range dataPorts {
		s.nodes = append(s.nodes, &node{
			m: m, dir: fmt.Sprintf("node%d", i), port: p, program: redisServer{},
			argv: func(ctx context.Context) ([]string, error) { return s.dataArgs(ctx, p) },
		})
	}
	// They are given each other beforehand: to find each other through the
	// master would take them seconds.
	ids := make([]string, sentinels)
	for i := range ids {
		id := make([]byte, 20)
		_, _ = rand.Read(id) // never fails
		ids[i] = hex.EncodeToString(id)
	}

	// The master answers as one before the replica asks it: later the replica
	// would try again only after a second.
	if err := launchAs(ctx, s.nodes[0], redisArgs(m, dataPorts[0], "--repl-diskless-sync-delay", "0")); err != nil {
		return nil, err
	}
	var g errgroup.Group
	g.Go(func() error { return launchAs(ctx, s.nodes[1], replicaArgs(m, dataPorts[1], dataPorts[0])) })
	for i, w := range s.watchers {
		g.Go(func() error {
			conf := sentinelConf(m, i, ids, watchPorts, dataPorts)
			if _, err := m.sh(ctx, fmt.Sprintf("mkdir -p %[1]s && printf %%s %[2]s >%[1]s/sentinel.conf", w.dir, quote(conf))); err != nil {
				return err
			}
			if err := w.launch(ctx); err != nil {
				return err
			}
			// By default they look at the nodes every 10 s, and tests wait for
			// what they see.
			return redisDo(ctx, w.Addr(), []any{"SENTINEL", "DEBUG", "INFO-PERIOD", "200", "PUBLISH-PERIOD", "500"})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, n := range s.nodes {
		n.up = s.Healthy
	}
	return s, s.Healthy(ctx)
}

func sentinelConf(m machine, self int, ids []string, watchPorts, dataPorts []int) string {
	var b strings.Builder
	for _, line := range []string{
		fmt.Sprintf("port %d", watchPorts[self]),
		"bind " + m.bind(),
		"protected-mode no",
		"dir .",
		"sentinel myid " + ids[self],
		"sentinel announce-ip " + loopback,
		fmt.Sprintf("sentinel monitor %s %s %d %d", masterName, loopback, dataPorts[0], sentinels/2+1),
		fmt.Sprintf("sentinel down-after-milliseconds %s 1000", masterName),
		// An attempt that got nowhere is tried again after twice this time.
		fmt.Sprintf("sentinel failover-timeout %s 3000", masterName),
		fmt.Sprintf("sentinel known-replica %s %s %d", masterName, loopback, dataPorts[1]),
	} {
		b.WriteString(line + "\n")
	}
	for i, id := range ids {
		if i != self {
			fmt.Fprintf(&b, "sentinel known-sentinel %s %s %d %s\n", masterName, loopback, watchPorts[i], id)
		}
	}
	return b.String()
}

func replicaArgs(m machine, port, master int) []string {
	return redisArgs(m, port, "--repl-diskless-sync-delay", "0",
		"--replica-announce-ip", loopback, "--replicaof", fmt.Sprintf("%s %d", loopback, master))
}

// launchAs starts a node when there are no sentinels yet to ask for its part.
func launchAs(ctx context.Context, n *node, argv []string) error {
	later := n.argv
	n.argv = func(context.Context) ([]string, error) { return argv, nil }
	defer func() { n.argv = later }()
	return n.launch(ctx)
}

// dataArgs starts a node as what the sentinels take it for.
func (s *sentinelStore) dataArgs(ctx context.Context, port int) ([]string, error) {
	master, err := s.master(ctx)
	if err != nil {
		return nil, err
	}
	if master.port == port {
		return redisArgs(s.m, port, "--repl-diskless-sync-delay", "0", "--replica-announce-ip", loopback), nil
	}
	return replicaArgs(s.m, port, master.port), nil
}

// master is the node that all sentinels take for the master.
func (s *sentinelStore) master(ctx context.Context) (*node, error) {
	var master *node
	for _, w := range s.watchers {
		c := newRedisClient(w.Addr())
		addr, err := c.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterName).StringSlice()
		_ = c.Close() // nothing is left to be flushed
		if err != nil {
			return nil, fmt.Errorf("ask the sentinel %s: %w", w.Addr(), err)
		}
		i := slices.IndexFunc(s.nodes, func(n *node) bool {
			return len(addr) == 2 && strconv.Itoa(n.port) == addr[1]
		})
		if i < 0 || (master != nil && master != s.nodes[i]) {
			return nil, fmt.Errorf("the sentinels do not agree on the master: %v", addr)
		}
		master = s.nodes[i]
	}
	return master, nil
}

// roles are the two nodes by their part.
func (s *sentinelStore) roles(ctx context.Context) (master, replica *node, err error) {
	master, err = s.master(ctx)
	if err != nil {
		return nil, nil, err
	}
	if s.nodes[0] == master {
		return master, s.nodes[1], nil
	}
	return master, s.nodes[0], nil
}

// Healthy implements Failoverer.
func (s *sentinelStore) Healthy(ctx context.Context) error {
	return poll(ctx, func() error {
		master, replica, err := s.roles(ctx)
		if err != nil {
			return err
		}
		m, err := redisInfo(ctx, master.Addr(), "replication")
		if err != nil {
			return err
		}
		r, err := redisInfo(ctx, replica.Addr(), "replication")
		if err != nil {
			return err
		}
		if m["role"] != "master" || r["role"] != "slave" || r["master_port"] != strconv.Itoa(master.port) || r["master_link_status"] != "up" {
			return fmt.Errorf("%s is %s, %s is %s with its link to %s %s", master.Addr(), m["role"],
				replica.Addr(), r["role"], r["master_port"], r["master_link_status"])
		}
		for _, w := range s.watchers {
			if err := sees(ctx, w); err != nil {
				return err
			}
		}
		return nil
	})
}

// sees is nil when the sentinel n finds all others and nothing wrong.
func sees(ctx context.Context, n *node) error {
	c := newRedisClient(n.Addr())
	defer c.Close()
	if err := c.Do(ctx, "SENTINEL", "CKQUORUM", masterName).Err(); err != nil {
		return fmt.Errorf("ask the sentinel %s: %w", n.Addr(), err)
	}
	m, err := c.Do(ctx, "SENTINEL", "MASTER", masterName).StringSlice()
	if err != nil {
		return fmt.Errorf("ask the sentinel %s: %w", n.Addr(), err)
	}
	replicas, err := c.Do(ctx, "SENTINEL", "REPLICAS", masterName).Slice()
	if err != nil {
		return fmt.Errorf("ask the sentinel %s: %w", n.Addr(), err)
	}
	state := pairs(m)
	if len(replicas) != 1 || state["flags"] != "master" || state["num-other-sentinels"] != strconv.Itoa(sentinels-1) {
		return fmt.Errorf("the sentinel %s sees a %s, %d replicas and %s other sentinels",
			n.Addr(), state["flags"], len(replicas), state["num-other-sentinels"])
	}
	words, _ := replicas[0].([]any)
	replica := pairs(words)
	if replica["flags"] != "slave" || replica["master-link-status"] != "ok" {
		return fmt.Errorf("the sentinel %s sees a replica that is %s with its link %s", n.Addr(), replica["flags"], replica["master-link-status"])
	}
	return nil
}

// pairs makes a map of name, value, name, value…
func pairs[T any](words []T) map[string]string {
	m := map[string]string{}
	for i := 0; i+1 < len(words); i += 2 {
		m[fmt.Sprint(words[i])] = fmt.Sprint(words[i+1])
	}
	return m
}

// Crash implements Crasher. The sentinels may promote the replica when both are
// back, so to keep the data it must be at both.
func (s *sentinelStore) Crash(ctx context.Context, d Data) error {
	if d == KeepData {
		master, replica, err := s.roles(ctx)
		if err == nil {
			err = level(ctx, master, replica)
		}
		if err != nil {
			return fmt.Errorf("bring the replica up to date before the crash: %w", err)
		}
	}
	return s.store.Crash(ctx, d)
}

// Start implements Crasher. One after the other, for a replica whose master does
// not answer yet asks again only after a second.
func (s *sentinelStore) Start(ctx context.Context) error {
	if err := s.each(func(n *node) error { return n.launch(ctx) }); err != nil {
		return err
	}
	return s.store.Start(ctx)
}

// FailOver implements Failoverer.
func (s *sentinelStore) FailOver(ctx context.Context, d Data) error {
	if err := s.Healthy(ctx); err != nil {
		return fmt.Errorf("wait for a replica that could take over: %w", err)
	}
	master, replica, err := s.roles(ctx)
	if err != nil {
		return err
	}
	if d == KeepData {
		err = level(ctx, master, replica)
	} else {
		err = forget(ctx, replica)
	}
	if err != nil {
		return fmt.Errorf("prepare the failover: %w", err)
	}
	if err := master.Crash(ctx, DropData); err != nil {
		return err
	}
	if err := poll(ctx, func() error {
		m, err := s.master(ctx)
		if err != nil {
			return err
		}
		if m != replica {
			return errors.New("the sentinels have not promoted the replica")
		}
		info, err := redisInfo(ctx, replica.Addr(), "replication")
		if err != nil {
			return err
		}
		if info["role"] != "master" {
			return fmt.Errorf("%s is %s", replica.Addr(), info["role"])
		}
		return nil
	}); err != nil {
		return fmt.Errorf("wait for the promotion: %w", err)
	}
	return master.launch(ctx)
}

// level stops writes at the master and waits until the replica has them all.
func level(ctx context.Context, master, replica *node) error {
	if err := redisDo(ctx, master.Addr(), []any{"CLIENT", "PAUSE", time.Minute.Milliseconds(), "WRITE"}); err != nil {
		return err
	}
	return poll(ctx, func() error {
		m, err := redisInfo(ctx, master.Addr(), "replication")
		if err != nil {
			return err
		}
		r, err := redisInfo(ctx, replica.Addr(), "replication")
		if err != nil {
			return err
		}
		if m["master_repl_offset"] != r["slave_repl_offset"] {
			return fmt.Errorf("the replica is at %s of %s", r["slave_repl_offset"], m["master_repl_offset"])
		}
		return nil
	})
}

// forget makes a replica lack everything: one that lags behind, taken to the extreme.
func forget(ctx context.Context, replica *node) error {
	return redisDo(ctx, replica.Addr(), []any{"CONFIG", "SET", "replica-read-only", "no"}, []any{"FLUSHALL"})
}
