package stores

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

const (
	// redisExpiry of all locks here: the time to live of the sidecar's lease.
	redisExpiry = 10 * time.Second
	// redisPool is enough for all callers: nobody waits for a connection.
	redisPool = 128
)

// redisStore is one Redis.
type redisStore struct {
	url    string
	client *redis.Client
	infos  atomic.Int64 // how often it has asked for INFO
}

var _ measure.Store = (*redisStore)(nil)

// RedisWords for tables.
var RedisWords = measure.Words{
	Name: "Redis", Steps: "commands", Memory: "in Redis", Renewal: "heartbeat",
	Notified: "EVALSHA that publishes, to its subscriber", Answered: "EVALSHA, round trip",
}

// Names of the subjects.
const (
	Redsync     = "go-redsync/redsync"
	Redislock   = "bsm/redislock"
	Rueidislock = "redis/rueidis, rueidislock"
	Scripts     = "2 × EVALSHA"
)

// QuietRedis keeps go-redis from writing to standard error, from where testengine
// uses it as well: a server is looked at before it is up.
func QuietRedis() { logging.Disable() }

// ConnectRedis makes the one client that all peers share.
func ConnectRedis(_ context.Context, address string) (measure.Store, error) {
	c, err := redisClient(address)
	if err != nil {
		return nil, err
	}
	forSidecars, err := withoutGrace(address)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &redisStore{url: forSidecars, client: c}, nil
}

// withoutGrace spares the sidecar the time for which it grants nothing on a Redis
// that was started a moment ago: that one was not restarted but is new.
func withoutGrace(store string) (string, error) {
	u, err := url.Parse(store)
	if err != nil {
		return "", fmt.Errorf("parse the URL of the store: %w", err)
	}
	q := u.Query()
	q.Set("restart-grace", "0s")
	u.RawQuery = q.Encode()
	return u.String(), nil
}

// URL implements measure.Store.
func (s *redisStore) URL() string { return s.url }

// Close implements measure.Store.
func (s *redisStore) Close() error { return s.client.Close() }

// Subjects implements measure.Store.
func (s *redisStore) Subjects() []measure.Subject {
	return []measure.Subject{withRedsync(s.client), withRedislock(s.client), s.withRueidislock(), withScripts(s.client)}
}

// redisClient is a go-redis client as an application would have it: the library's
// defaults and enough connections.
func redisClient(address string) (*redis.Client, error) {
	o, err := redis.ParseURL(address)
	if err != nil {
		return nil, fmt.Errorf("parse the URL of Redis: %w", err)
	}
	o.PoolSize = redisPool
	return redis.NewClient(o), nil
}

// withRedsync is go-redsync/redsync on one pool, as one Redis has. One try: the
// locks are free.
func withRedsync(c *redis.Client) measure.Subject {
	rs := redsync.New(goredis.NewPool(c))
	return onOwnKeys(Redsync, func(key string) measure.Pair {
		return func(ctx context.Context) error {
			m := rs.NewMutex(key, redsync.WithExpiry(redisExpiry), redsync.WithTries(1))
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

var _ measure.Polling = (*redisStore)(nil)

// Poller implements measure.Polling: redsync with its own delays, 50 to 250 ms, and as
// many tries as it takes.
func (s *redisStore) Poller(key string) (string, measure.Take) {
	rs := redsync.New(goredis.NewPool(s.client))
	return Redsync, func(ctx context.Context) (func(context.Context) error, error) {
		m := rs.NewMutex(key, redsync.WithExpiry(redisExpiry), redsync.WithTries(math.MaxInt))
		if err := m.LockContext(ctx); err != nil {
			return nil, fmt.Errorf("lock: %w", err)
		}
		return func(ctx context.Context) error {
			if _, err := m.UnlockContext(ctx); err != nil {
				return fmt.Errorf("unlock: %w", err)
			}
			return nil
		}, nil
	}
}

// withRedislock is bsm/redislock without retries, which is its default.
func withRedislock(c *redis.Client) measure.Subject {
	locker := redislock.New(c)
	return onOwnKeys(Redislock, func(key string) measure.Pair {
		return func(ctx context.Context) error {
			l, err := locker.Obtain(ctx, key, redisExpiry, nil)
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
	//go:embed redis_lock.lua
	lockSource string
	//go:embed redis_unlock.lua
	unlockSource string

	lockScript   = redis.NewScript(lockSource)
	unlockScript = redis.NewScript(unlockSource)
)

var errTaken = errors.New("the script says that the lock is not ours")

// withScripts are the two smallest scripts that make a lock: SET NX PX, and delete
// if it is ours. Two EVALSHA round trips are what a store costs at least.
func withScripts(c *redis.Client) measure.Subject {
	return onOwnKeys(Scripts, func(key string) measure.Pair {
		step := steps(c, key)
		return func(ctx context.Context) error {
			if err := step(ctx); err != nil {
				return err
			}
			return step(ctx)
		}
	})
}

// steps takes a lock with the first script and releases it with the second, in
// turn.
func steps(c *redis.Client, key string) func(context.Context) error {
	keys := []string{key}
	n := 0
	return func(ctx context.Context) error {
		n++
		if n%2 == 1 {
			if err := runScript(ctx, c, lockScript, keys, n, redisExpiry.Milliseconds()); err != nil {
				return fmt.Errorf("lock: %w", err)
			}
			return nil
		}
		if err := runScript(ctx, c, unlockScript, keys, n-1); err != nil {
			return fmt.Errorf("unlock: %w", err)
		}
		return nil
	}
}

// runScript runs a script that answers 1 when it did what it is for.
func runScript(ctx context.Context, c *redis.Client, s *redis.Script, keys []string, args ...any) error {
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
	return measure.Each(name, func(caller int) measure.Pair { return pair("bench:" + name + ":" + strconv.Itoa(caller)) })
}
