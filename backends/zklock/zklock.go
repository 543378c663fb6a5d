// Package zklock keeps locks in ZooKeeper.
//
// A request for a lock is an ephemeral sequential node below the node of its
// resource. Those nodes are the queue, in the order of their numbers: an
// exclusive request waits for the node before it, a shared one for the nearest
// exclusive node before it, so that a release wakes only those whose turn it is.
// A lease is a set of sessions of ZooKeeper: when they end, all their nodes are gone.
//
// tree.go says where the nodes are, nodes.go how they are called and who waits
// for whom, record.go what is in them, line.go when a request is granted, fence.go
// what its fence is, permits.go how a permit gets its slot, and cohort.go how its sidecar hears that somebody stands behind it. Package leasekit makes a lease of the driver here; package
// zksession keeps sessions.
package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// Backend is a ZooKeeper that keeps locks.
type Backend struct {
	cfg     config
	tree    tree
	observe lock.Observe
	clock   lock.Clock
	wall    func() time.Time

	maxSeq     int32 // see maxSeq
	shortQueue int   // see shortQueue
	recheckOf  func(ttl time.Duration) time.Duration
	sweepEvery time.Duration // see sweepEvery
	sweepLooks int           // see sweepLooks
	maxLefts   int           // see maxLefts

	guestTimeout time.Duration // see guestTimeout

	mu      sync.Mutex
	drivers []*driver           // oldest first
	known   map[string]struct{} // paths of locks that were there recently

	forcing chan struct{} // forced releases that are being written

	guestTurn chan struct{} // has room for one, who may use what follows
	guest     *leaseNode    // for when there is no lease; nil: not open
}

var _ lock.Backend = (*Backend)(nil)

// Open makes a Backend for a URL, see docs/stores/zookeeper.md for its form. It
// does not ask the store anything, so a store that is down is no error here.
// The error is lock.ErrInvalid. observe may be nil.
func Open(rawURL string, observe lock.Observe) (*Backend, error) {
	cfg, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return &Backend{
		cfg: cfg, tree: cfg.tree(), observe: observe, clock: lock.BootTime, wall: time.Now, maxSeq: maxSeq, shortQueue: shortQueue, recheckOf: leasekit.RecheckOf, sweepEvery: sweepEvery, sweepLooks: sweepLooks, maxLefts: maxLefts, guestTimeout: guestTimeout,
		known: make(map[string]struct{}), forcing: make(chan struct{}, maxForcing), guestTurn: make(chan struct{}, 1),
	}, nil
}

// guestTimeout is how long the session without a lease lives when nothing is asked for. Nothing
// hangs on it.
const guestTimeout = 10 * time.Second

// askThrough gives a session to ask through: that of a lease that lives, else one that
// the backend opens for itself. A lease that is overdue is not asked, because
// every request would keep it alive.
func (b *Backend) askThrough(ctx context.Context) (*leaseNode, error) {
	b.mu.Lock()
	for _, d := range b.drivers {
		if d.set.Err() == nil && d.leaseNode.s.Err() == nil && !d.set.Overdue() {
			b.mu.Unlock()
			return d.leaseNode, nil
		}
	}
	b.mu.Unlock()

	select {
	case b.guestTurn <- struct{}{}:
		defer func() { <-b.guestTurn }()
	case <-ctx.Done():
		return nil, unavailable("open session", context.Cause(ctx))
	}
	if b.guest != nil && b.guest.s.Fresh() {
		return b.guest, nil
	}
	_ = b.closeGuest(ctx) // what it does not reach ends by its timeout
	t := b.newLeaseNode(lock.NewLeaseID(), leaseRecord{})
	cfg := t.config()
	cfg.SessionTimeout = b.guestTimeout
	s, err := zksession.Open(ctx, cfg)
	if err != nil {
		return nil, unavailable("open session", err)
	}
	if err := t.take(ctx, s); err != nil {
		ctx, cancel := b.afterwards(ctx)
		defer cancel()
		return nil, errors.Join(err, s.Close(ctx))
	}
	b.guest = t
	return t, nil
}

// ask carries out what may be repeated: again where answers are lost, and through another session where that
// one has ended, as it may have before this call.
func (b *Backend) ask(ctx context.Context, do func(*leaseNode) error) error {
	for tries := 1; ; tries++ {
		t, err := b.askThrough(ctx)
		if err != nil {
			return err
		}
		err = insist(ctx, func() error { return do(t) })
		if !errors.Is(err, zksession.ErrExpired) && !errors.Is(err, zksession.ErrClosed) || tries == maxLost || ctx.Err() != nil {
			return err
		}
	}
}

// afterwards bounds what is tidied up for a call after its end.
func (b *Backend) afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), b.cfg.timeout)
}

func (b *Backend) closeGuest(ctx context.Context) error {
	if b.guest == nil {
		return nil
	}
	err := b.guest.s.Close(ctx)
	b.guest = nil
	return err
}

// Ping implements lock.Backend.
func (b *Backend) Ping(ctx context.Context) error {
	return unavailable("ping ZooKeeper", b.ask(ctx, func(t *leaseNode) error { return t.s.Do(ctx, zksession.Get(t.path)) }))
}

// Close implements lock.Backend.
func (b *Backend) Close() error {
	b.guestTurn <- struct{}{}
	defer func() { <-b.guestTurn }()
	ctx, cancel := b.afterwards(context.Background())
	defer cancel()
	// The session of a backend that could not say good-bye ends by itself.
	if err := b.closeGuest(ctx); err != nil && !errors.Is(err, zksession.ErrNotSent) && !errors.Is(err, zksession.ErrLost) {
		return fmt.Errorf("close ZooKeeper session: %w", err)
	}
	return nil
}

// maxKnown bounds what is remembered of paths.
const maxKnown = 10_000

// isKnown says whether the node of a lock was there recently. It may be gone.
func (b *Backend) isKnown(path string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.known[path]
	return ok
}

// setKnown remembers, or forgets, that the node of a lock is there.
func (b *Backend) setKnown(path string, there bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !there {
		delete(b.known, path)
		return
	}
	if len(b.known) >= maxKnown {
		clear(b.known)
	}
	b.known[path] = struct{}{}
}

// unavailable makes an error of the driver an unknown outcome. One that is that already stays as it is.
func unavailable(what string, err error) error {
	if err == nil || errors.Is(err, lock.ErrUnavailable) {
		return err
	}
	hint := ""
	if errors.Is(err, zksession.ErrNoAuth) {
		hint = " (the user in the store's URL may not do that)"
	}
	return fmt.Errorf("%s: %w: %w%s", what, lock.ErrUnavailable, err, hint)
}
