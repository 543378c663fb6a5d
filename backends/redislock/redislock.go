// Package redislock keeps locks in Redis: alone, behind Sentinel, or in a
// Redis Cluster.
//
// Every decision is made by a Lua script inside the server, on the server's
// time. A lease is a score in a sorted set (lease -> expiry); a hold is valid
// as long as its lease is, so a heartbeat renews any number of holds. Each
// resource has a hash of holders and a queue; a release hands the resource to
// the head of the queue in the same script and publishes the grant on the
// channel of the waiter's lease. lua/lib.lua describes the data.
//
// Keys are spread over buckets, one on a single server and 64 in a Cluster. All
// keys of a bucket have the same hash tag, so each script runs in one slot.
package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/lock"
)

// Backend is a Redis that keeps locks.
type Backend struct {
	cfg     config
	observe lock.Observe
	client  redis.UniversalClient
	lines   []line // for the requests of apps, one a bucket
	keys    keyspace
	servers *servers

	mu      sync.Mutex
	checked bool // the store was found fit for locks
	memory  []bucketMemory
}

var _ lock.Backend = (*Backend)(nil)

// Open makes a Backend for a URL, see docs/operations.md for its form. It does not
// ask the store anything, so a store that is down is no error here.
// The error is lock.ErrInvalid. observe may be nil.
func Open(url string, observe lock.Observe) (*Backend, error) {
	cfg, err := parseURL(url)
	if err != nil {
		return nil, err
	}
	quietDriver()
	if observe == nil {
		observe = func(string, time.Duration, error) {}
	}
	b := &Backend{cfg: cfg, observe: observe, keys: newKeyspace(cfg.prefix, cfg.buckets), memory: make([]bucketMemory, cfg.buckets)}
	b.servers = newServers(lock.BootTime)
	b.client = cfg.connect(b.servers.connected)
	b.lines = make([]line, cfg.buckets)
	for i := range b.lines {
		b.lines[i].client = b.client
	}
	return b, nil
}

// Ping implements lock.Backend.
func (b *Backend) Ping(ctx context.Context) error {
	start := time.Now()
	err := b.client.Ping(ctx).Err()
	b.observe("ping", time.Since(start), err)
	if err != nil {
		return unavailable("ping Redis", err)
	}
	return nil
}

// Close implements lock.Backend.
func (b *Backend) Close() error {
	if err := b.client.Close(); err != nil && !errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("close Redis client: %w", err)
	}
	return nil
}

// quietDriver keeps go-redis from writing to standard error by itself: every
// failure reaches a caller, who knows what it means.
var quietDriver = sync.OnceFunc(func() { redis.SetLogger(nowhere{}) })

type nowhere struct{}

func (nowhere) Printf(context.Context, string, ...any) {}

// unavailable makes any error of the driver an unknown outcome.
func unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, lock.ErrUnavailable, err)
}
