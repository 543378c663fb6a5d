package caslock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// Options are what a Backend is opened with.
type Options struct {
	Timeout time.Duration // of one request
	Observe lock.Observe  // may be nil
	Clock   lock.Clock    // default lock.BootTime
}

// Backend is a store that keeps locks.
type Backend struct {
	store Store
	o     Options
	clock lock.Clock
	wall  func() time.Time // for people, and for the end of records

	turns  chan struct{} // has a value for each that is taken
	deskMu sync.Mutex
	desks  map[lock.Resource]*desk

	mu       sync.Mutex
	leases   map[string]*lease // those of this backend
	sweeping map[string]bool   // leases that are over, and are being swept, or wait for it:
	toSweep  []string
	sweepers int // who sweep
	history  history
	base     struct{ value, version int64 } // where fences begin, and the version of that; 0: not known
	taken    map[lock.Resource]bool         // that others have, as far as it is known
	hand     tick                           // the store's clock, as far as it is known
	alone    bool                           // there was no other lease when the last one was opened
	lapses   *leasekit.Due[lapse]           // what is kept, and whose time is counted here; nil: nothing was
	lapsing  map[lapse]int64                // the generations of these

	background context.Context // ends with Close
	stop       context.CancelFunc
	routines   sync.WaitGroup
}

var _ lock.Backend = (*Backend)(nil)

// Open makes a Backend, to which the store belongs from now on. It does not ask the store
// anything.
func Open(s Store, o Options) *Backend {
	if o.Clock == nil {
		o.Clock = lock.BootTime
	}
	b := &Backend{
		store: s, o: o, clock: o.Clock, wall: time.Now, desks: make(map[lock.Resource]*desk),
		leases: make(map[string]*lease), taken: make(map[lock.Resource]bool), sweeping: make(map[string]bool), turns: make(chan struct{}, turns),
	}
	b.background, b.stop = context.WithCancel(context.Background())
	return b
}

// do sends one request.
func (b *Backend) do(ctx context.Context, command string, t Txn) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, b.o.Timeout, ErrNoAnswer)
	defer cancel()
	before := b.told()
	began := b.clock()
	r, err := b.store.Do(ctx, t)
	switch {
	case err == nil:
		b.tells(before, r)
	case len(t.Then) > 0:
		b.unanswered()
	}
	if b.o.Observe != nil {
		b.o.Observe(command, b.clock()-began, err)
	}
	return r, err
}

// unavailable makes any error of a request an unknown outcome, with a hint for people.
func (b *Backend) unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w%s", what, lock.ErrUnavailable, err, b.store.Hint(err))
}

// Ping implements lock.Backend.
func (b *Backend) Ping(ctx context.Context) error {
	if _, err := b.do(ctx, "ping", Txn{Read: []Range{{Key: baseKey}}}); err != nil {
		return b.unavailable("ping", err)
	}
	return nil
}

// Close implements lock.Backend.
func (b *Backend) Close() error {
	b.stop()
	b.routines.Wait()
	return b.store.Close()
}
