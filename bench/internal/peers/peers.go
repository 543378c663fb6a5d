// Package peers are other ways to a lock in Redis: the Go libraries that people
// use without a sidecar, and the bare scripts that no library can beat.
package peers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

const (
	// expiry of all locks here: the time to live of the sidecar's lease.
	expiry = 10 * time.Second
	// poolSize is enough for all callers: nobody waits for a connection.
	poolSize = 128
)

// Client is the one go-redis client that all peers share, as an application
// would have it: the library's defaults and enough connections.
func Client(url string) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("parse the URL of Redis: %w", err)
	}
	o.PoolSize = poolSize
	return redis.NewClient(o), nil
}

// Redsync is go-redsync/redsync on one pool, as one Redis has. One try: the
// locks are free.
func Redsync(name string, c *redis.Client) measure.Subject {
	rs := redsync.New(goredis.NewPool(c))
	return onOwnKeys(name, func(key string) measure.Pair {
		return func(ctx context.Context) error {
			m := rs.NewMutex(key, redsync.WithExpiry(expiry), redsync.WithTries(1))
			if err := m.LockContext(ctx); err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			if _, err := m.UnlockContext(ctx); err != nil {
				return fmt.Errorf("unlock: %w", err)
			}
			return nil
		}
	})
}

// Redislock is bsm/redislock without retries, which is its default.
func Redislock(name string, c *redis.Client) measure.Subject {
	locker := redislock.New(c)
	return onOwnKeys(name, func(key string) measure.Pair {
		return func(ctx context.Context) error {
			l, err := locker.Obtain(ctx, key, expiry, nil)
			if err != nil {
				return fmt.Errorf("obtain: %w", err)
			}
			if err := l.Release(ctx); err != nil {
				return fmt.Errorf("release: %w", err)
			}
			return nil
		}
	})
}

var (
	//go:embed lock.lua
	lockSource string
	//go:embed unlock.lua
	unlockSource string

	lockScript   = redis.NewScript(lockSource)
	unlockScript = redis.NewScript(unlockSource)
)

var errTaken = errors.New("the script says that the lock is not ours")

// Scripts are the two smallest scripts that make a lock: SET NX PX, and delete
// if it is ours. Two EVALSHA round trips are what a store costs at least.
func Scripts(name string, c *redis.Client) measure.Subject {
	return onOwnKeys(name, func(key string) measure.Pair {
		step := Steps(c, key)
		return func(ctx context.Context) error {
			if err := step(ctx); err != nil {
				return err
			}
			return step(ctx)
		}
	})
}

// Steps takes a lock with the first script and releases it with the second, in
// turn.
func Steps(c *redis.Client, key string) func(context.Context) error {
	keys := []string{key}
	n := 0
	return func(ctx context.Context) error {
		n++
		if n%2 == 1 {
			if err := run(ctx, c, lockScript, keys, n, expiry.Milliseconds()); err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			return nil
		}
		if err := run(ctx, c, unlockScript, keys, n-1); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		return nil
	}
}

// run runs a script that answers 1 when it did what it is for.
func run(ctx context.Context, c *redis.Client, s *redis.Script, keys []string, args ...any) error {
	switch n, err := s.Run(ctx, c, keys, args...).Int(); {
	case err != nil:
		return err
	case n != 1:
		return errTaken
	default:
		return nil
	}
}

// onOwnKeys gives each caller a key of its own.
func onOwnKeys(name string, pair func(key string) measure.Pair) measure.Subject {
	return measure.Subject{Name: name, Open: func(_ context.Context, callers int) ([]measure.Pair, func() error, error) {
		pairs := make([]measure.Pair, callers)
		for i := range pairs {
			pairs[i] = pair("bench:" + name + ":" + strconv.Itoa(i))
		}
		return pairs, func() error { return nil }, nil
	}}
}
