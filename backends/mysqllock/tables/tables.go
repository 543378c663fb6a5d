// Package tables keeps locks in tables of MySQL or MariaDB: leases, holds and
// queues are rows, and every change is one short transaction. It is the usual
// strategy of mysqllock. schema/v1.sql describes the tables.
//
// No clock decides who holds. The server's clock may jump, and the clocks of
// sidecars are not one. So a lease ends by observation: its row has a number,
// the beat, which each heartbeat replaces by another. Every sidecar reads the
// beats of all leases now and then and notes, on its own boot-time clock, when
// it had read a beat for the first time. A lease whose beat is the same a TTL
// later has not been renewed for a TTL, whatever any clock says, and is ended by
// deleting its row, provided that the beat is still the same. The holder counts
// its TTL from before it sent the beat, and the observer from after it read it,
// so the holder always knows first. Whatever hangs on a lease without a row does
// not count: whoever meets it clears it away. The server's time is only used for
// fences, which also count up without it, and for ages that people are shown.
package tables

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// usualConnections is the size of the pool for the requests of apps.
	usualConnections = 16
	leastConnections = 2 // the reaper needs one beside its own
	// idleTime is how long a connection may be idle before it is closed here,
	// and serverIdleTime before the server closes it and rolls back what was
	// begun: a sidecar that vanished in a transaction keeps a row locked so long.
	idleTime       = 10 * time.Second
	serverIdleTime = 20 * time.Second

	defaultLogKeep = 7 * 24 * time.Hour
)

// Backend is a database that keeps locks in tables.
type Backend struct {
	cfg     mydb.Config
	sql     *statements
	observe lock.Observe
	clock   lock.Clock
	logKeep time.Duration // 0: no log
	pool    *mydb.Pool
	bells   *mydb.Pool // to ring those of other sidecars
	known   knownNames
	guards  guards

	checkMu sync.Mutex
	checked bool

	mu     sync.Mutex
	leases map[string]*lease // those of this backend, by id

	background context.Context // ends with Close
	stop       context.CancelFunc
	routines   sync.WaitGroup
	ringing    ringing
}

var _ lock.Backend = (*Backend)(nil)

// Open makes a Backend. It does not ask the server anything.
// The error is lock.ErrInvalid.
func Open(cfg mydb.Config, observe lock.Observe) (*Backend, error) {
	b := &Backend{cfg: cfg, observe: observe, clock: lock.BootTime, leases: make(map[string]*lease)}
	b.logKeep = cfg.Options.Duration("log-keep", defaultLogKeep, 0, 10*365*24*time.Hour)
	if err := cfg.Options.Err(); err != nil {
		return nil, err
	}
	if b.observe == nil {
		b.observe = func(string, time.Duration, error) {}
	}
	b.sql = newStatements(&b.cfg, b.logKeep > 0)
	size := cfg.MaxConnections
	if size == 0 {
		size = usualConnections
	}
	var err error
	if b.pool, err = b.newPool(max(size, leastConnections), mydb.ConnectOptions{}); err != nil {
		return nil, err
	}
	if b.bells, err = b.newPool(1, mydb.ConnectOptions{NoWait: true}); err != nil {
		return nil, err
	}
	b.ringing.leases, b.ringing.some = make(map[string]bool), make(chan struct{}, 1)
	b.background, b.stop = context.WithCancel(context.Background())
	b.routines.Go(func() { b.ring(b.background) })
	return b, nil
}

// newPool makes a pool whose connections do not outlive their sidecar for long.
func (b *Backend) newPool(size int, o mydb.ConnectOptions) (*mydb.Pool, error) {
	o.Settings = func(s mydb.Server) []string {
		settings := []string{fmt.Sprintf("wait_timeout=%d", serverIdleTime/time.Second)}
		if s.Dialect == mydb.MariaDB {
			settings = append(settings, "idle_transaction_timeout=5")
		}
		return settings
	}
	c, err := mydb.NewConnector(b.cfg, o)
	if err != nil {
		return nil, err
	}
	p := mydb.NewPool(c, size, b.observe)
	p.DB.SetConnMaxIdleTime(idleTime)
	return p, nil
}

// Ping implements lock.Backend.
func (b *Backend) Ping(ctx context.Context) error { return b.pool.Ping(ctx) }

// Close implements lock.Backend.
func (b *Backend) Close() error {
	b.stop()
	b.routines.Wait()
	return errors.Join(b.pool.Close(), b.bells.Close())
}

// exec sends statements on a connection of the pool. ctx bounds the wait for the
// connection only: a request that is cut short would leave the connection
// useless and the outcome open, and the driver's timeout bounds it anyway.
func (b *Backend) exec(ctx context.Context, command, query string, args ...any) (res mydb.Results, err error) {
	err = b.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
		res, err = b.pool.ExecOn(ctx, conn, command, query, args...)
		return err
	})
	return res, err
}

// query asks for rows on a connection of the pool.
func (b *Backend) query(ctx context.Context, command string, scan func(set int, rows *sql.Rows) error, query string, args ...any) error {
	return b.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
		return b.pool.QueryOn(ctx, conn, command, scan, query, args...)
	})
}

// on calls f with a connection out of the pool, and again with another where the
// connection was found broken before anything was sent on it.
func (b *Backend) on(ctx context.Context, f func(ctx context.Context, conn *sql.Conn) error) error {
	wait, cancel := context.WithTimeout(ctx, 5*b.cfg.Timeout)
	defer cancel()
	for tries := 3; ; tries-- {
		conn, err := b.pool.DB.Conn(wait)
		if err != nil {
			return &notSentError{err}
		}
		err = f(context.WithoutCancel(ctx), conn)
		_ = conn.Close()
		if !mydb.NotSent(err) {
			return err
		}
		if tries == 0 || over(ctx) {
			return &notSentError{err}
		}
	}
}

// over reports whether ctx has ended. A dial that was bounded by a deadline may
// fail a little before the context itself knows.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// cause is why a context that is over has ended.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return context.DeadlineExceeded
}

// notSentError is the error of a request that never left.
type notSentError struct{ err error }

func (e *notSentError) Error() string { return e.err.Error() }
func (e *notSentError) Unwrap() error { return e.err }

// drop ends the transaction on a connection, or the connection itself.
func drop(ctx context.Context, conn *sql.Conn, cause error) {
	if mydb.FromServer(cause) && !mydb.ReadOnly(cause) {
		if _, err := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); err == nil {
			return
		}
	}
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}

// knownNames remembers for some resources that they have a row, and whether
// somebody was in the way of the last request. These are only hints, which spare
// a statement or a round trip.
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

func (k *knownNames) forget(r lock.Resource) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.names, r)
}
