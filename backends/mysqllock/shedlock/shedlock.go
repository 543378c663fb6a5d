// Package shedlock keeps exclusive locks in the table of ShedLock, so that Java
// services that use ShedLock with usingDbTime and apps behind a sidecar exclude
// each other.
//
// ShedLock's rules are kept: a lock is a row, free when lock_until is not after
// the server's time; who takes it sets lock_until, locked_at and locked_by by one
// conditional update; unlocking sets lock_until to a time that is over. So
// everything depends on the server's clock, as it does with ShedLock alone: when
// that jumps ahead, locks end early. The heartbeat moves lock_until of all holds of
// a lease ahead.
//
// What ShedLock's table has no place for is in tables beside, which only
// sidecars read: leases, fences, owners, and a queue, so that sidecars are served
// in the order in which they came. ShedLock knows nothing of it and takes what is
// free. There is nobody to wake a waiter either: each lease asks for all of its
// waiters with one statement, often at first and less often later.
//
// lock_until and locked_at are TIMESTAMP columns in which ShedLock keeps UTC: what
// that means depends on the time zone of the session, which must be the same for
// all. It is the server's own, as with Java's drivers, unless the URL says
// otherwise by the option time-zone. In a zone with summer time the server
// refuses times of the hour that is left out; then nobody can lock for that hour.
package shedlock

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// usualTable is ShedLock's table unless the URL says otherwise.
	usualTable = "shedlock"
	// usualConnections is how many a backend opens for requests unless the URL
	// says otherwise; each lease has two more, one of them for its heartbeat.
	usualConnections = 8
	// maxName is the longest name in characters that fits ShedLock's table.
	maxName = 64
	// maxKnown bounds the memory of names that have a row.
	maxKnown = 100_000
	// rowWait is how long a statement may wait for a row.
	rowWait = time.Second
)

// Backend is a table of ShedLock.
type Backend struct {
	cfg     mydb.Config
	table   string // with its database
	zone    string // for SET SESSION
	observe lock.Observe
	pool    *mydb.Pool
	sql     statements

	mu    sync.Mutex
	ready bool                       // the tables are there
	known map[lock.Resource]struct{} // names that have a row
}

var _ lock.Backend = (*Backend)(nil)

var (
	plainTable = regexp.MustCompile(`^[A-Za-z0-9_$]{1,64}$`)
	plainZone  = regexp.MustCompile(`^[A-Za-z0-9_+:/-]{1,64}$`)
)

// Open makes a Backend. It does not ask the server anything. The error is
// lock.ErrInvalid. observe may be nil.
//
// Its own options are table, the name of ShedLock's table, and time-zone, that of
// the sessions of the services that share it.
func Open(cfg mydb.Config, observe lock.Observe) (*Backend, error) {
	o := cfg.Options
	table := o.String("table", usualTable)
	if !plainTable.MatchString(table) {
		o.Refuse("table", "must have 1 to 64 letters, digits, _ and $")
	}
	zone := "@@GLOBAL.time_zone"
	if o.Has("time-zone") {
		name := o.String("time-zone", "")
		if !plainZone.MatchString(name) {
			o.Refuse("time-zone", "must be the name of a time zone that the server knows, or an offset such as +00:00")
		}
		zone = "'" + name + "'"
	}
	if err := o.Err(); err != nil {
		return nil, err
	}
	if cfg.MaxConnections == 0 {
		cfg.MaxConnections = usualConnections
	}
	b := &Backend{cfg: cfg, table: "`" + cfg.Database + "`.`" + table + "`", zone: zone, observe: observe, known: make(map[lock.Resource]struct{})}
	b.sql = newStatements(b.name)
	var err error
	b.pool, err = b.connect(cfg.MaxConnections)
	return b, err
}

// connect makes a pool.
func (b *Backend) connect(size int) (*mydb.Pool, error) {
	c, err := mydb.NewConnector(b.cfg, mydb.ConnectOptions{
		Settings: func(mydb.Server) []string { return []string{"time_zone=" + b.zone} },
	})
	if err != nil {
		return nil, err
	}
	return mydb.NewPool(c, size, b.observe), nil
}

// name is the name of a table in statements.
func (b *Backend) name(table string) string {
	if table == usualTable {
		return b.table
	}
	return b.cfg.Table(table)
}

// Ping implements lock.Backend.
func (b *Backend) Ping(ctx context.Context) error { return b.pool.Ping(ctx) }

// Close implements lock.Backend.
func (b *Backend) Close() error { return b.pool.Close() }

// patience bounds a request, with the wait for a connection. Requests are not
// cut short when their caller has enough: that leaves the outcome open, and the
// connection useless.
func (b *Backend) patience(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), b.cfg.Timeout+rowWait)
}

// hasRow reports whether a name is known to have a row in ShedLock's table.
func (b *Backend) hasRow(r lock.Resource) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.known[r]
	return ok
}

func (b *Backend) gotRow(r lock.Resource) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) >= maxKnown {
		clear(b.known)
	}
	b.known[r] = struct{}{}
}

// check refuses requests for what ShedLock's table cannot hold.
func check(q lock.Request) error {
	if q.Mode != lock.Exclusive {
		return fmt.Errorf("acquire %q: ShedLock has no shared locks: %w", string(q.Resource), lock.ErrUnsupported)
	}
	if n := utf8.RuneCountInString(string(q.Resource)); n > maxName {
		return &lock.InvalidError{Field: "resource", Problem: fmt.Sprintf("is %d characters long, ShedLock's table takes %d", n, maxName)}
	}
	return nil
}
