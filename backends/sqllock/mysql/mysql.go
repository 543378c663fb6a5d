// Package mysql is the dialect of MySQL and MariaDB. It asks the server which of the two
// it is.
package mysql

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

// Dialect is a database of MySQL or MariaDB.
type Dialect struct {
	cfg     Config
	observe lock.Observe
	kind    atomic.Pointer[product] // of the server that answered last
}

var _ sqllock.Dialect = (*Dialect)(nil)

// New makes the dialect for what a URL says. observe may be nil.
func New(cfg Config, observe lock.Observe) *Dialect {
	if observe == nil {
		observe = func(string, time.Duration, error) {}
	}
	return &Dialect{cfg: cfg, observe: observe}
}

// serverVariable is which server answers: each connection has asked it at its beginning.
const serverVariable = "@locksidecar_server"

// Words implements sqllock.Dialect.
func (d *Dialect) Words() sqllock.Words {
	return sqllock.Words{
		Store:    "mysql",
		Version:  3,
		Table:    d.cfg.Table,
		Now:      "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", // whatever the session's time zone is
		Server:   serverVariable,
		ReadOnly: "@@global.read_only",
		Unhex:    "UNHEX(?)",
		Schema: []string{
			"{before}", "",
			"{id}", "VARBINARY(64)", "{name}", "VARBINARY(512)", "{label}", "VARBINARY(255)", "{owner}", "MEDIUMBLOB",
			"{byfence}", ",\n  UNIQUE guard (fence, name)", "{bysince}", ",\n  UNIQUE guard (since, name, id)",
			"{small}", "SMALLINT", "{number}", "BIGINT NOT NULL AUTO_INCREMENT",
			"{rewritten}", "ENGINE=InnoDB", "{passing}", "ENGINE=InnoDB", "{lasting}", "ENGINE=InnoDB",
		},
		Join:      func(a, b string) string { return "CONCAT(" + a + ", " + b + ")" },
		Gaps:      true, // gap locks of InnoDB
		LateReads: true, // InnoDB makes a read view with the first read that needs one
		// Without AUTO_INCREMENT in the table the answer has what LAST_INSERT_ID was given.
		InsertNew: func(into string) string { return "INSERT IGNORE INTO " + into },
		Returning: func(expr, _ string) (value, tail string) { return "LAST_INSERT_ID(" + expr + ")", "" },
	}
}

// Kind implements sqllock.Dialect.
func (d *Dialect) Kind() string {
	if k := d.kind.Load(); k != nil {
		return string(*k)
	}
	return ""
}

const (
	// serverIdleTime is how many seconds a connection may be idle before the server closes
	// it and rolls back an open transaction: a sidecar that vanished in one keeps a row
	// locked so long.
	serverIdleTime = 20
	// idleTransaction is the same for a transaction, where the server has a time for that.
	idleTransaction = 5
	// The bell's connection sleeps so long at a time, in seconds, and so long the
	// server may keep it after the sidecar is gone.
	bellSleep = 60
)

// bellName is the named lock of a lease: at most 64 characters, and not of one
// database, as named locks are the server's.
func bellName(id lock.LeaseID) string { return "locksidecar:" + string(id) }

// Listen implements sqllock.Dialect. Each lease has a connection that sleeps in the
// server and holds a named lock, and KILL QUERY wakes it. The named lock tells which
// connection it is, so a stranger's is never killed. Where there is none (named locks
// are refused on some clusters, KILL QUERY needs the same account), there is no bell.
func (d *Dialect) Listen(ctx context.Context, id lock.LeaseID, server string, rang func()) error {
	c, err := d.connector(sqllock.PoolOptions{
		Lasting: 2 * bellSleep, Long: bellSleep, Settings: []string{"long_query_time=3600"}, // a sleeper is no slow query
	})
	if err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, 5*d.cfg.Timeout)
	defer cancel()
	l, err := c.Open(limit, server)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // and with it goes the named lock
	start := time.Now()
	res, err := l.Send(limit, []sqllock.Statement{{SQL: "SELECT GET_LOCK(?, 0)", Args: []any{bellName(id)}}})
	d.observe("listen", time.Since(start), err)
	switch {
	case Code(err) != 0 && !Interrupted(err):
		return fmt.Errorf("%w: %w", sqllock.ErrNoBells, err)
	case err != nil:
		return err
	case res[0].Rows[0].Int(0) != 1:
		return errNotFree
	}
	for {
		rang() // it may have rung before
		_, err := l.Send(ctx, []sqllock.Statement{{SQL: fmt.Sprintf("SELECT SLEEP(%d)", bellSleep)}})
		if err != nil && !Interrupted(err) || ctx.Err() != nil {
			return err
		}
	}
}

var errNotFree = errors.New("the server still has the last connection")

// Ring implements sqllock.Dialect.
func (d *Dialect) Ring(ctx context.Context, p sqllock.Pool, ids []lock.LeaseID) error {
	var first error
	for _, id := range ids { // it fails where there is no bell
		if _, err := p.Do(ctx, "ring", sqllock.Statement{SQL: "SET @locksidecar=IS_USED_LOCK(?); KILL QUERY @locksidecar", Args: []any{bellName(id)}}); err != nil && first == nil && Code(err) == 0 {
			first = err
		}
	}
	return first
}
