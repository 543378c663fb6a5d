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
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/lock"
)

// dataVersion names the layout of the data; another one must not share a prefix.
const dataVersion = "3"

// Backend is a Redis that keeps locks.
type Backend struct {
	cfg      config
	clock    lock.Clock
	observe  lock.Observe
	client   redis.UniversalClient
	sender   sender
	batchers []*batcher // for the requests of apps, one a bucket
	keys     keyspace
	pasts    []past // one a bucket
	only     *road  // where there is no Cluster

	checked atomic.Bool // the layout of the data is this sidecar's
	foreign atomic.Bool // it is another kind of sidecar's

	mu    sync.Mutex
	grace time.Duration    // the longest of its leases, see past
	roads map[string]*road // by address; of all but a Cluster there is one
}

var _ lock.Backend = (*Backend)(nil)

// Open makes a Backend for a URL, see docs/settings.md for its form. It does not
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
	b := &Backend{
		cfg: cfg, clock: lock.BootTime, observe: observe,
		keys: newKeyspace(cfg.prefix, cfg.buckets), pasts: make([]past, cfg.buckets), roads: make(map[string]*road),
	}
	b.client = cfg.connect(b.to)
	b.sender = sender{client: b.client, replicas: cfg.replicas, patience: cfg.timeout / 2}
	b.batchers = make([]*batcher, cfg.buckets)
	for i := range b.batchers {
		b.batchers[i] = newBatcher(b.sender, cfg.timeout)
	}
	return b, nil
}

// to gives the road to an address, always the same one.
func (b *Backend) to(addr string, dial dialer) *road {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.roads[addr]
	if r == nil {
		r = newRoad(dial)
		b.roads[addr] = r
		b.only = r
	}
	return r
}

// errLayout: the keys with this prefix are laid out in another way.
var errLayout = fmt.Errorf("they were laid out by another kind of sidecar: %w", lock.ErrUnavailable)

// check makes sure, once for each lease, that the data is laid out as this sidecar needs it.
//
//	errLayout: it is not.
//	lock.ErrUnavailable alone: the server that knows it does not answer.
func (b *Backend) check(ctx context.Context) error {
	if b.checked.Load() {
		return nil
	}
	want := fmt.Sprintf("version=%s buckets=%d", dataVersion, len(b.keys.buckets))
	got, err := b.client.Get(ctx, b.keys.config).Result()
	if errors.Is(err, redis.Nil) {
		if err := b.client.SetNX(ctx, b.keys.config, want, 0).Err(); err != nil {
			return unavailable("check store", err)
		}
		got, err = b.client.Get(ctx, b.keys.config).Result()
	}
	if err != nil {
		return unavailable("check store", err)
	}
	b.checked.Store(got == want)
	b.foreign.Store(got != want)
	if got != want {
		return fmt.Errorf("check store: use another prefix than %q for the keys (%s, this sidecar needs %s): %w", b.keys.prefix, got, want, errLayout)
	}
	return nil
}

// checkEviction makes sure that no server that was spoken to would throw locks away.
func (b *Backend) checkEviction() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.roads {
		if policy := r.evicts(); policy != "" && !b.cfg.allowEviction {
			return fmt.Errorf("check store: Redis would evict locks (maxmemory-policy %s): set noeviction, or add allow-eviction=true to the store's URL: %w",
				policy, lock.ErrUnavailable)
		}
	}
	return nil
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
	for _, batcher := range b.batchers {
		batcher.sending.Wait()
	}
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
