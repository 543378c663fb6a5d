package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// dataVersion names the layout of the data; another one must not share a prefix.
const dataVersion = "1"

// maxRecheck bounds how long a waiter trusts that it will be woken.
const maxRecheck = 3 * time.Second

// lease is one sidecar's session in Redis.
type lease struct {
	b       *Backend
	id      lock.LeaseID
	sidecar string
	ttl     time.Duration
	grace   time.Duration // restart grace
	recheck time.Duration // a waiter asks again at least this often
	events  chan lock.Event

	openMu  sync.Mutex // serialises the opening of buckets
	open    []atomic.Bool
	renewed atomic.Int64 // on the boot-time clock, before the last heartbeat that the store carried out

	compareMu   sync.Mutex
	seenServers int // servers whose memory was compared with ours

	mu      sync.Mutex
	entries map[lock.HoldID]*entry
	resync  chan struct{} // closed and replaced when messages may have been missed

	lost     chan struct{} // closed when the store said so, or by Close
	lostOnce sync.Once

	pastGrace atomic.Int64 // servers.latest for which the restart grace is known to be over

	dead      chan []deadLease   // to the reaper
	stop      context.CancelFunc // ends the goroutines
	routines  sync.WaitGroup
	closeOnce sync.Once

	eventsMu sync.RWMutex
	closed   bool // events is closed
}

var _ lock.Lease = (*lease)(nil)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	l := &lease{
		b: b, id: lock.NewLeaseID(), sidecar: o.Sidecar, ttl: o.TTL, grace: b.cfg.grace,
		recheck: min(maxRecheck, o.TTL/3),
		events:  make(chan lock.Event, 64),
		open:    make([]atomic.Bool, len(b.keys.buckets)),
		entries: make(map[lock.HoldID]*entry),
		resync:  make(chan struct{}), lost: make(chan struct{}), dead: make(chan []deadLease, 1),
	}
	if l.grace < 0 {
		l.grace = o.TTL
	}
	l.renewed.Store(int64(b.servers.clock()))
	l.seenServers = b.servers.seen()
	if left := b.servers.graceLeft(l.grace); left > 0 {
		return nil, fmt.Errorf("open lease: Redis was started lately and may have forgotten locks; they are granted again in %s: %w",
			left.Round(100*time.Millisecond), lock.ErrUnavailable)
	}
	if err := l.openBucket(ctx, 0); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	subscribed := make(chan struct{})
	l.routines.Go(func() { l.listen(run, sync.OnceFunc(func() { close(subscribed) })) })
	l.routines.Go(func() { l.reapDead(run) })
	select { // a grant that is published before we listen would be found late
	case <-subscribed:
	case <-time.After(b.cfg.timeout):
	case <-ctx.Done():
	}
	return l, nil
}

// check makes sure, once, that the store is fit for locks.
func (b *Backend) check(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.checked {
		want := fmt.Sprintf("version=%s buckets=%d", dataVersion, len(b.keys.buckets))
		if err := b.client.SetNX(ctx, b.keys.config, want, 0).Err(); err != nil {
			return unavailable("check store", err)
		}
		got, err := b.client.Get(ctx, b.keys.config).Result()
		if err != nil {
			return unavailable("check store", err)
		}
		if got != want {
			return fmt.Errorf("check store: the keys with prefix %q were laid out by another kind of sidecar (%s, this one needs %s); use another prefix: %w",
				b.keys.prefix, got, want, lock.ErrUnavailable)
		}
		b.checked = true
	}
	if policy := b.servers.evicts(); policy != "" && !b.cfg.allowEviction {
		return fmt.Errorf("check store: Redis would evict locks (maxmemory-policy %s): set noeviction, or add allow-eviction=true to the store's URL: %w",
			policy, lock.ErrUnavailable)
	}
	return nil
}

// openBucket makes the lease known in a bucket, once. Heartbeats renew it there
// from then on. It lives there as long as it does elsewhere: until a TTL after
// the last heartbeat was sent.
func (l *lease) openBucket(ctx context.Context, i int) error {
	if l.open[i].Load() {
		return nil
	}
	l.openMu.Lock()
	defer l.openMu.Unlock()
	if l.open[i].Load() {
		return nil
	}
	left := l.ttl - (l.b.servers.clock() - time.Duration(l.renewed.Load()))
	if left <= 0 { // ask where the lease must be known
		if err := l.beat(ctx); err != nil {
			return err
		}
		left = l.ttl - (l.b.servers.clock() - time.Duration(l.renewed.Load()))
	}
	k := &l.b.keys.buckets[i]
	reply, err := l.b.run(ctx, l.b.client, scriptOpen, []string{k.leases, k.used}, string(l.id), left.Microseconds(), l.b.mayBeEmpty(i, l.ttl))
	if err != nil {
		return unavailable("open lease", err)
	}
	if reply != int64(1) {
		l.b.foundEmpty(i)
		return fmt.Errorf("open lease: Redis has lost its memory of locks; they are granted again within %s: %w", l.ttl, lock.ErrUnavailable)
	}
	l.b.foundFull(i)
	l.open[i].Store(true)
	return nil
}

// ID implements lock.Lease.
func (l *lease) ID() lock.LeaseID { return l.id }

// Events implements lock.Lease.
func (l *lease) Events() <-chan lock.Event { return l.events }

// Heartbeat implements lock.Lease: one request, in a Cluster one a bucket in
// use, sent together.
func (l *lease) Heartbeat(ctx context.Context) ([]lock.Event, error) { return nil, l.beat(ctx) }

func (l *lease) beat(ctx context.Context) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	sent := l.b.servers.clock()
	var calls []call
	for i := range l.open {
		if l.open[i].Load() {
			k := &l.b.keys.buckets[i]
			calls = append(calls, call{keys: []string{k.leases, k.reaper}, args: []any{string(l.id), l.ttl.Microseconds()}, bucket: i})
		}
	}
	if err := l.b.runAll(ctx, scriptHeartbeat, calls); err != nil {
		return unavailable("heartbeat", err)
	}
	var dead []deadLease
	for _, c := range calls {
		ids, ok := c.reply.([]any)
		if !ok {
			l.lose()
			return lock.ErrLeaseLost
		}
		for _, id := range ids {
			if s, ok := id.(string); ok {
				dead = append(dead, deadLease{bucket: c.bucket, id: lock.LeaseID(s)})
			}
		}
	}
	l.renewed.Store(int64(sent))
	if err := l.compareOnce(ctx); err != nil {
		return err
	}
	if len(dead) > 0 {
		select {
		case l.dead <- dead:
		default: // still busy with others; the store will ask again
		}
	}
	return nil
}

// Close implements lock.Lease.
func (l *lease) Close(ctx context.Context) error {
	var err error
	l.closeOnce.Do(func() {
		l.lose()
		l.stop()
		err = l.drop(ctx)
		l.routines.Wait()
		l.eventsMu.Lock()
		close(l.events)
		l.closed = true
		l.eventsMu.Unlock()
	})
	return err
}

// tell sends an event, unless the lease is over.
func (l *lease) tell(e lock.Event) {
	l.eventsMu.RLock()
	defer l.eventsMu.RUnlock()
	if l.closed {
		return
	}
	select {
	case l.events <- e:
	case <-l.lost:
	}
}

// drop releases everything that hangs on the lease, and ends it.
func (l *lease) drop(ctx context.Context) error {
	var errs []error
	for i := range l.open {
		if l.open[i].Load() {
			errs = append(errs, l.dropBucket(ctx, i))
		}
	}
	return errors.Join(errs...)
}

func (l *lease) dropBucket(ctx context.Context, i int) error {
	k := &l.b.keys.buckets[i]
	mine := k.mine + string(l.id)
	for {
		members, err := l.b.client.ZRange(ctx, mine, 0, 255).Result()
		if err != nil {
			return unavailable("close lease", err)
		}
		calls := make([]call, len(members))
		for n, m := range members {
			r, id := parseMember(m)
			calls[n] = call{keys: k.of(r, l.id), args: []any{l.b.keys.channel, string(l.id), string(id), m, "0", "0"}}
		}
		if err := l.b.runAll(ctx, scriptRelease, calls); err != nil {
			return unavailable("close lease", err)
		}
		left, err := l.b.run(ctx, l.b.client, scriptDrop, []string{k.leases, mine}, string(l.id))
		if err != nil {
			return unavailable("close lease", err)
		}
		if left == int64(0) {
			return nil
		}
	}
}

func (l *lease) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

// lose marks the lease as over.
func (l *lease) lose() { l.lostOnce.Do(func() { close(l.lost) }) }
