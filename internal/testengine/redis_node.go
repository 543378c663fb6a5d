package testengine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// redisNode is one redis-server process.
type redisNode struct {
	m    machine
	dir  string
	port int
	argv func(ctx context.Context) ([]string, error) // how to start it now
	up   func(ctx context.Context) error             // more to wait for when it answers; may be nil

	mu      sync.Mutex
	proc    process // nil: not running
	version string
}

// redisArgs are the arguments that all our servers share. Nothing is written
// to disk unasked: see Crash.
func redisArgs(m machine, port int, more ...string) []string {
	args := []string{
		"redis-server", "--port", strconv.Itoa(port), "--bind", m.bind(), "--protected-mode", "no",
		"--save", "", "--appendonly", "no", "--dir", ".",
	}
	return append(args, more...)
}

func (n *redisNode) Addr() string { return hostPort(n.port) }

func (n *redisNode) Origin() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return fmt.Sprintf("redis-server %s %s", n.version, n.m)
}

// Start implements Crasher.
func (n *redisNode) Start(ctx context.Context) error {
	if err := n.launch(ctx); err != nil || n.up == nil {
		return err
	}
	return n.up(ctx)
}

// launch starts the process and waits until it answers, unless it runs.
func (n *redisNode) launch(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc != nil {
		return nil
	}
	argv, err := n.argv(ctx)
	if err != nil {
		return err
	}
	p, err := n.m.start(ctx, n.dir, argv...)
	if err != nil {
		return err
	}
	n.proc = p
	if err := n.answers(ctx); err != nil {
		log, _ := n.m.sh(ctx, "tail -n 20 "+quote(n.dir+"/log")) // only to explain err
		if strings.Contains(log, "Address already in use") {
			err = fmt.Errorf("%w: %w", errPortTaken, err)
		}
		return fmt.Errorf("start redis-server on %s: %w\n%s", n.Addr(), err, log)
	}
	return nil
}

// answers waits until the process, and not somebody else on its port, answers
// and has loaded its data.
func (n *redisNode) answers(ctx context.Context) error {
	return poll(ctx, func() error {
		info, err := redisInfo(ctx, n.Addr(), "everything")
		if err != nil {
			if alive, aliveErr := n.proc.alive(ctx); aliveErr == nil && !alive {
				return stop(errors.New("it has ended"))
			}
			return err
		}
		if info["process_id"] != strconv.Itoa(n.proc.pid()) {
			return stop(errPortTaken)
		}
		if info["loading"] == "1" {
			return errors.New("it is loading its data")
		}
		n.version = info["redis_version"]
		return nil
	})
}

// Pause implements Pauser.
func (n *redisNode) Pause(ctx context.Context) error { return n.signal(ctx, syscall.SIGSTOP) }

// Resume implements Pauser.
func (n *redisNode) Resume(ctx context.Context) error { return n.signal(ctx, syscall.SIGCONT) }

func (n *redisNode) signal(ctx context.Context, s syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return nil
	}
	return n.proc.signal(ctx, s)
}

// Crash implements Crasher. For KeepData writes are held back while the data is
// saved, so the file has everything that was ever acknowledged, and servers
// need not write to disk all the time.
func (n *redisNode) Crash(ctx context.Context, d Data) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.proc == nil {
		return nil
	}
	if d == KeepData {
		if err := redisDo(ctx, n.Addr(), []any{"CLIENT", "PAUSE", time.Minute.Milliseconds(), "WRITE"}, []any{"SAVE"}); err != nil {
			return fmt.Errorf("save the data before the crash: %w", err)
		}
	}
	if err := n.proc.kill(ctx); err != nil {
		return err
	}
	n.proc = nil
	if d == DropData {
		if _, err := n.m.sh(ctx, "rm -f "+quote(n.dir+"/dump.rdb")); err != nil {
			return err
		}
	}
	return nil
}

// newRedisClient makes a client for one question: no pool to speak of, no retries.
func newRedisClient(addr string) *redis.Client {
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
