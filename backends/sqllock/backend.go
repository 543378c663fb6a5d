package sqllock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// usualConnections is the size of the pool for the requests of apps.
	usualConnections = 16
	leastConnections = 2 // the self-test needs two at the same time

	// DefaultLogKeep is how long rows of the log are usually kept.
	DefaultLogKeep = 24 * time.Hour
	// usualLog is how many rows the log may have.
	usualLog = 1_000_000
)

// Options are what a Backend is opened with.
type Options struct {
	Migrate        bool          // make the tables where they are not there
	MaxConnections int           // for requests; 0: as usual
	LogKeep        time.Duration // how long rows of the log are kept; 0: no log
	LogRows        int64         // how many it may have, whatever their age; 0: as usual
	FailoverGrace  time.Duration // how long nothing is granted by a server that has taken over; negative: the TTL
	Clock          lock.Clock    // default lock.BootTime
	NoGuards       bool          // a grant has no guard unless its request wants one
	Beside         *Beside       // foreign locks that holds have, too; nil: none
}

// OptionsOf are what a URL says of the engine. What is wrong there is the error of
// u.Options.Err.
func OptionsOf(u storeurl.SQL) Options {
	return Options{
		Migrate: u.Migrate, MaxConnections: u.MaxConnections,
		LogKeep:       u.Options.Duration("log-keep", DefaultLogKeep, 0, 10*365*24*time.Hour),
		FailoverGrace: u.Options.Duration("failover-grace", -1, 0, lock.MaxTTL),
		NoGuards:      !u.Options.Bool("guard", true),
	}
}

// Backend is a database that keeps locks in tables.
type Backend struct {
	d     Dialect
	o     Options
	sql   *statements
	clock lock.Clock
	pool  Pool
	rings Pool // to ring the bells of other sidecars
	known knownNames
	log   *logger
	bells *bells

	patient *leasekit.Gate // to the connections that may wait for a row
	deskMu  sync.Mutex
	desks   map[lock.Resource]*desk

	// commits counts those that were answered, of heartbeats and of leases that are opened.
	commits atomic.Uint64
	// strangers counts how often the heartbeats have moved to what may be another server.
	strangers atomic.Uint64

	mu      sync.Mutex
	checked bool // the tables
	tested  bool // the server
	marked  markSeen
	leases  map[string]*lease // those of this backend, by id
	opening lock.LeaseID      // may be being opened yet, though nobody waits for it
	// trusting is the lease whose heartbeats say which server is asked: the last one.
	trusting *lease
	// answering is the server that has answered them, or the opening of a lease, last.
	answering string

	background context.Context // ends with Close
	stop       context.CancelFunc
	routines   sync.WaitGroup
}

var _ lock.Backend = (*Backend)(nil)

// Open makes a Backend. It does not ask the server anything.
// The error is lock.ErrInvalid.
func Open(d Dialect, o Options) (*Backend, error) {
	if o.Clock == nil {
		o.Clock = lock.BootTime
	}
	if o.LogRows == 0 {
		o.LogRows = usualLog
	}
	size := max(o.MaxConnections, leastConnections)
	if o.MaxConnections == 0 {
		size = usualConnections
	}
	b := &Backend{
		d: d, o: o, sql: newStatements(d.Words()), clock: o.Clock, patient: leasekit.NewGate(max(1, size*3/4)),
		desks: make(map[lock.Resource]*desk), leases: make(map[string]*lease),
	}
	var err error
	if b.pool, err = d.Open(PoolOptions{Size: size, Wait: true, CountLate: true}); err != nil {
		return nil, err
	}
	if b.rings, err = d.Open(PoolOptions{Size: 1}); err != nil {
		return nil, errors.Join(err, b.pool.Close())
	}
	b.background, b.stop = context.WithCancel(context.Background())
	b.log, b.bells = newLogger(b), newBells(b)
	b.routines.Go(func() { b.log.run(b.background) })
	b.routines.Go(func() { b.bells.run(b.background) })
	return b, nil
}

// Ping implements lock.Backend.
func (b *Backend) Ping(ctx context.Context) error {
	if _, err := b.pool.Do(ctx, "ping", Statement{SQL: "SELECT 1"}); err != nil {
		return b.unavailable("ping", err)
	}
	return nil
}

// Close implements lock.Backend.
func (b *Backend) Close() error {
	b.stop()
	b.routines.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	b.log.write(ctx)
	return errors.Join(b.pool.Close(), b.rings.Close())
}

// unavailable makes any error of a request an unknown outcome, with a hint for people.
func (b *Backend) unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w%s", what, lock.ErrUnavailable, err, b.d.Hint(err))
}

// local is the lease of that id, if it is one of this backend.
func (b *Backend) local(id string) *lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leases[id]
}

// retry calls f until its error is none that another try could mend, or ctx ends.
func (b *Backend) retry(ctx context.Context, f func() error) error {
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		err := f()
		if !b.d.Class(err).Again() {
			return err
		}
		if !leasekit.Sleep(ctx, pause) {
			return err
		}
	}
}

// knownNames remembers for some resources that they have a row, and whether
// somebody was in the way of the last request. These are only hints, which spare
// a statement or a trip.
type knownNames struct {
	mu    sync.Mutex
	names map[lock.Resource]bool // busy
}

const maxKnownNames = 20_000

func (k *knownNames) get(r lock.Resource) (known, busy bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	busy, known = k.names[r]
	return known, busy
}

func (k *knownNames) add(r lock.Resource, busy bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names == nil || len(k.names) >= maxKnownNames {
		k.names = make(map[lock.Resource]bool)
	}
	k.names[r] = busy
}
