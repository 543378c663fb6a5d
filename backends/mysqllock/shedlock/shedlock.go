// Package shedlock has each hold also be one in the table of ShedLock, so that Java
// services that use ShedLock with usingDbTime and apps behind a sidecar exclude each
// other.
//
// The engine (package sqllock) decides among sidecars: queue, fences, leases, guards.
// What it has granted is taken in ShedLock's table, too, by ShedLock's rules: a lock is
// a row, free when lock_until is not after the server's time; who takes it sets
// lock_until, locked_at and locked_by by one conditional update; unlocking sets
// lock_until to a time that is over. So towards Java everything depends on the server's
// clock, as it does with ShedLock alone. The heartbeat moves lock_until of all holds
// ahead. There is nobody to wake who waits for Java: it asks, often at first and less
// often later.
//
// lock_until and locked_at are TIMESTAMP columns in which ShedLock keeps UTC: what
// that means depends on the time zone of the session, which must be the same for
// all. It is the server's own, as with Java's drivers, unless the URL says
// otherwise by the option time-zone. In a zone with summer time the server
// refuses times of the hour that is left out; then nobody can lock for that hour.
package shedlock

import (
	_ "embed" // the schema
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// usualTable is ShedLock's table unless the URL says otherwise.
	usualTable = "shedlock"
	// connections are those of a lease, for requests to ShedLock's table.
	connections = 16
	// recheck is how often the table is asked for what Java holds, at least.
	recheck = 50 * time.Millisecond
	// maxName is the longest name in characters that fits ShedLock's table.
	maxName = 64
)

//go:embed schema.sql
var schema string

// Schema is the text that makes ShedLock's table, under its usual name.
func Schema() string { return schemaOf("`" + usualTable + "`") }

func schemaOf(table string) string { return strings.ReplaceAll(schema, "{shedlock}", table) }

// Backend is an engine with ShedLock's table beside.
type Backend struct {
	*sqllock.Backend
	d    *mysql.Dialect
	pool sqllock.Pool // to look at ShedLock's table
	sql  *statements
	zone string // a setting of all sessions
	size int    // of the pool of a lease
}

// Open makes a Backend. It does not ask the server anything. The error is
// lock.ErrInvalid. observe may be nil.
//
// Its own options are table, the name of ShedLock's table, and time-zone, that of
// the sessions of the services that share it.
func Open(cfg mysql.Config, observe lock.Observe) (*Backend, error) {
	o, opt := sqllock.OptionsOf(cfg.SQL), cfg.Options
	table := opt.String("table", usualTable)
	if !storeurl.IsPlain(table, "_$", 64) {
		opt.Refuse("table", "must have 1 to 64 letters, digits, _ and $")
	}
	zone := "@@GLOBAL.time_zone"
	if opt.Has("time-zone") {
		name := opt.String("time-zone", "")
		if !storeurl.IsPlain(name, "_+:/-", 64) {
			opt.Refuse("time-zone", "must be the name of a time zone that the server knows, or an offset such as +00:00")
		}
		zone = "'" + name + "'"
	}
	if err := opt.Err(); err != nil {
		return nil, err
	}
	table = "`" + cfg.Database + "`.`" + table + "`"
	b := &Backend{d: mysql.New(cfg, observe), sql: newStatements(table), zone: "time_zone=" + zone, size: connections}
	if o.MaxConnections > 0 {
		b.size = o.MaxConnections
	}
	var err error
	if b.pool, err = b.connect(1); err != nil {
		return nil, err
	}
	o.Beside = &sqllock.Beside{
		Look:    b.sql.look,
		Tables:  schemaOf(table),
		Recheck: recheck,
		Open:    b.open,
	}
	if b.Backend, err = sqllock.Open(b.d, o); err != nil {
		_ = b.pool.Close()
		return nil, err
	}
	return b, nil
}

func (b *Backend) connect(size int) (sqllock.Pool, error) {
	return b.d.Open(sqllock.PoolOptions{Size: size, Wait: true, Settings: []string{b.zone}})
}

// open makes what a lease has in ShedLock's table.
func (b *Backend) open(o lock.LeaseOptions, server string, ev sqllock.Events) (sqllock.Foreign, error) {
	pool, err := b.connect(b.size)
	if err != nil {
		return nil, err
	}
	beats, err := b.connect(1)
	if err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	f := &foreign{
		b: b, pool: pool, beats: beats, now: ev.Now, ttl: o.TTL, label: ascii(o.Sidecar),
		known: make(map[lock.Resource]struct{}), holds: make(map[lock.HoldID]time.Duration),
	}
	f.trust(server)
	return f, nil
}

// Close implements lock.Backend.
func (b *Backend) Close() error {
	err := b.pool.Close()
	if err2 := b.Backend.Close(); err == nil {
		err = err2
	}
	return err
}

// ascii is a name that fits any character set, cut to leave room for an id.
func ascii(name string) string {
	name = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return name[:min(len(name), 180)]
}

// check refuses requests for what ShedLock's table cannot hold.
func check(q lock.Request) error {
	if q.Mode.Limit() > 0 {
		return leasekit.NoPermits("ShedLock's locks are exclusive")
	}
	if q.Mode != lock.Exclusive {
		return fmt.Errorf("ShedLock has no shared locks: %w", lock.ErrUnsupported)
	}
	if n := utf8.RuneCountInString(string(q.Resource)); n > maxName {
		return &lock.InvalidError{Field: "resource", Problem: fmt.Sprintf("is %d characters long, ShedLock's table takes %d", n, maxName)}
	}
	return nil
}
