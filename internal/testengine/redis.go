package testengine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

func startRedis(ctx context.Context, m machine, ports []int) (Server, error) {
	n := redisNode(m, "redis", ports[0], redisArgs(m, ports[0])...)
	if err := n.Start(ctx); err != nil {
		return nil, err
	}
	return &store{m: m, kind: "one server", url: "redis://" + n.Addr(), nodes: []*node{n}, ports: ports, gossip: true}, nil
}

// redisNode is a node that is always started in the same way.
func redisNode(m machine, dir string, port int, args ...string) *node {
	return &node{
		m: m, dir: dir, port: port, program: redisServer{},
		argv: func(context.Context) ([]string, error) { return args, nil },
	}
}

// redisArgs are the arguments that all our servers share. Nothing is written
// to disk unasked: see keep.
func redisArgs(m machine, port int, more ...string) []string {
	args := []string{
		"redis-server", "--port", strconv.Itoa(port), "--bind", m.bind(), "--protected-mode", "no",
		"--save", "", "--appendonly", "no", "--dir", ".",
	}
	return append(args, more...)
}

// redisServer is the program.
type redisServer struct{}

func (redisServer) String() string { return "redis-server" }

// ready implements program: the data is loaded too.
func (redisServer) ready(ctx context.Context, n *node) (string, error) {
	info, err := redisInfo(ctx, n.Addr(), "everything")
	switch {
	case err != nil:
		return "", err
	case info["process_id"] != strconv.Itoa(n.proc.pid()):
		return "", stop(errPortTaken)
	case info["loading"] == "1":
		return "", errors.New("it is loading its data")
	}
	return info["redis_version"], nil
}

// keep implements program. Writes are held back while the data is saved, so the
// file has everything that was ever acknowledged, and servers need not write to
// disk all the time.
func (redisServer) keep(ctx context.Context, n *node) error {
	return redisDo(ctx, n.Addr(), []any{"CLIENT", "PAUSE", time.Minute.Milliseconds(), "WRITE"}, []any{"SAVE"})
}

// drop implements program.
func (redisServer) drop(ctx context.Context, n *node) error {
	_, err := n.m.sh(ctx, "rm -f "+quote(n.dir+"/dump.rdb"))
	return err
}

// quietRedis keeps go-redis from writing to standard error that a server does
// not answer yet: that is asked for again and again while it starts.
var quietRedis = sync.OnceFunc(func() { redis.SetLogger(nowhere{}) })

type nowhere struct{}

func (nowhere) Printf(context.Context, string, ...any) {}

// newRedisClient makes a client for one question: no pool to speak of, no retries.
func newRedisClient(addr string) *redis.Client {
	quietRedis()
	return redis.NewClient(&redis.Options{
		Addr: addr, Protocol: 2, PoolSize: 1, MaxRetries: -1, DisableIdentity: true,
		ContextTimeoutEnabled: true, DialTimeout: time.Second, ReadTimeout: 5 * time.Second,
		DialerRetries:            1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// redisDo runs commands on one connection.
func redisDo(ctx context.Context, addr string, commands ...[]any) error {
	c := newRedisClient(addr)
	defer c.Close()
	for _, args := range commands {
		if err := c.Do(ctx, args...).Err(); err != nil {
			return fmt.Errorf("%v %v on %s: %w", args[0], args[1:], addr, err)
		}
	}
	return nil
}

// redisInfo is what INFO tells, by name.
func redisInfo(ctx context.Context, addr, section string) (map[string]string, error) {
	c := newRedisClient(addr)
	defer c.Close()
	text, err := c.Info(ctx, section).Result()
	if err != nil {
		return nil, fmt.Errorf("INFO on %s: %w", addr, err)
	}
	return fields(text), nil
}

// fields takes apart lines of the form name:value.
func fields(text string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[name] = value
		}
	}
	return m
}
