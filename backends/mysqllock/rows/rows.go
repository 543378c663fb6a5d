// Package rows keeps locks as row locks of MySQL or MariaDB.
//
// A hold is an open transaction that has SELECT … FOR UPDATE, or a shared row
// lock, on the row of the resource. The database itself decides who is next, and
// the connection is the lease: when it is cut, the transaction is rolled back
// and the lock is free at once. Apps that lock the same rows without a sidecar
// are kept out too, and keep out.
//
// Each hold and each waiter has a connection of its own (a link), and the lease
// has one. The server ends a link that was silent for the TTL (wait_timeout),
// so that a machine that vanished leaves nothing; a sidecar that ended leaves
// nothing anyway. A link that the server ends is noticed at once by the end of
// its socket. What cannot be kept in a transaction that never commits is in
// tables beside, written through other connections: the fences, and who holds
// and who waits, for people.
//
// Each link has a named lock of the server (GET_LOCK) with a random name, its
// token. The server frees it after it has rolled back the transaction of a
// connection that ends, so a token that nobody has tells that a link, and all it
// had locked, is gone: also from another sidecar, without a privilege, and when
// numbers of connections are used again after a restart. KILL is sent only to
// the connection that has the token.
//
// The guard of a grant (lock.Guard) looks at the fence: whoever writes next takes
// a new one first, and so waits for the app's transaction.
//
// What this way of locking cannot do: serve waiters in the order in which they
// came (InnoDB has its own, and a wait begins anew every few seconds), downgrade
// a hold, renew many holds with one request, hold more locks than there may be
// connections, and keep a hold over the loss of its connection. It needs one
// primary server: row locks are not replicated, nor seen by the other nodes of
// a Galera cluster.
package rows

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// usualConnections is how many a backend opens unless the URL says otherwise.
	usualConnections = 64
	// viewConnections are those for Get, List, ForceRelease and Ping.
	viewConnections = 2
	// sideConnections are those of a lease for what is written beside row locks.
	sideConnections = 6
	// rowWait is how long a statement of the side connections may wait for a row.
	rowWait = time.Second
)

// Backend is a MySQL or MariaDB that keeps locks.
type Backend struct {
	cfg     mydb.Config
	grace   time.Duration // restart grace; negative: the lease's TTL
	observe lock.Observe
	pool    *mydb.Pool
	sql     statements
	links   atomic.Int64 // open, of all leases

	mu    sync.Mutex
	ready bool // the tables are there
}

var _ lock.Backend = (*Backend)(nil)

// Open makes a Backend. It does not ask the server anything. The error is
// lock.ErrInvalid. observe may be nil.
//
// Its own option is restart-grace: how long after the start of the server no
// lease is opened, because row locks from before are forgotten, and their
// holders may not know yet. It is the TTL of the lease unless given.
func Open(cfg mydb.Config, observe lock.Observe) (*Backend, error) {
	grace := time.Duration(-1)
	if cfg.Options.Has("restart-grace") {
		grace = cfg.Options.Duration("restart-grace", 0, 0, lock.MaxTTL)
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = usualConnections
	}
	if least := viewConnections + sideConnections + 2; cfg.MaxConnections < least {
		cfg.Options.Refuse("max-connections", fmt.Sprintf("must be at least %d with strategy=row", least))
	}
	if err := cfg.Options.Err(); err != nil {
		return nil, err
	}
	connector, err := mydb.NewConnector(cfg, mydb.ConnectOptions{})
	if err != nil {
		return nil, err
	}
	if observe == nil {
		observe = func(string, time.Duration, error) {}
	}
	return &Backend{
		cfg: cfg, grace: grace, observe: observe, sql: newStatements(&cfg),
		pool: mydb.NewPool(connector, viewConnections, observe),
	}, nil
}

// Ping implements lock.Backend.
func (b *Backend) Ping(ctx context.Context) error { return b.pool.Ping(ctx) }

// Close implements lock.Backend.
func (b *Backend) Close() error { return b.pool.Close() }

// takeSlot counts one more link, if there may be one.
func (b *Backend) takeSlot() error {
	most := int64(b.cfg.MaxConnections - viewConnections - sideConnections)
	if b.links.Add(1) > most {
		b.links.Add(-1)
		return fmt.Errorf("all %d connections for locks are in use: with strategy=row each lock that is held or waited for needs one (max-connections=%d): %w",
			most, b.cfg.MaxConnections, lock.ErrUnavailable)
	}
	return nil
}

// patience bounds a request through a pool, with the wait for a connection of it.
func (b *Backend) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), b.cfg.Timeout+rowWait)
}
