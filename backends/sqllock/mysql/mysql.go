// Package mysql is the dialect of MySQL and MariaDB. It asks the server which of the two
// it is.
package mysql

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

//go:embed schema.sql
var schema string

// Dialect is a database of MySQL or MariaDB.
type Dialect struct {
	cfg     mydb.Config
	observe lock.Observe
	kind    atomic.Pointer[mydb.Dialect] // of the server that answered last
	opened  atomic.Int64                 // connections so far
}

var _ sqllock.Dialect = (*Dialect)(nil)

// New makes the dialect for what a URL says. observe may be nil.
func New(cfg mydb.Config, observe lock.Observe) *Dialect {
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
		Store:     "mysql",
		Table:     d.cfg.Table,
		Now:       "CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS SIGNED)",
		Server:    serverVariable,
		ReadOnly:  "@@global.read_only",
		Unhex:     "UNHEX(?)",
		LateReads: true, // InnoDB makes a read view with the first read that needs one
		// Without AUTO_INCREMENT in the table the answer has what LAST_INSERT_ID was given.
		InsertNew: func(into string) string { return "INSERT IGNORE INTO " + into },
		Returning: func(expr, _ string) (value, tail string) { return "LAST_INSERT_ID(" + expr + ")", "" },
	}
}

// Schema implements sqllock.Dialect.
func (d *Dialect) Schema() string { return schema }

// Kind implements sqllock.Dialect.
func (d *Dialect) Kind() string {
	if k := d.kind.Load(); k != nil {
		return string(*k)
	}
	return ""
}

// Class implements sqllock.Dialect.
func (d *Dialect) Class(err error) sqllock.Class {
	var notSent *sqllock.NotSentError
	switch {
	case errors.As(err, &notSent), mydb.NotSent(err):
		return sqllock.NotSent
	case mydb.LockWait(err):
		return sqllock.Blocked
	case mydb.Retryable(err):
		return sqllock.Conflict
	case mydb.Missing(err):
		return sqllock.Missing
	case mydb.FromServer(err):
		return sqllock.Refused
	default:
		return sqllock.Unclear
	}
}

// Hint implements sqllock.Dialect.
func (d *Dialect) Hint(err error) string { return mydb.Hint(err) }

const (
	// idleTime is how long a connection may be idle before it is closed here,
	// and serverIdleTime, in seconds, before the server closes it and rolls back an
	// open transaction: a sidecar that vanished in one keeps a row locked so long.
	idleTime       = 10 * time.Second
	serverIdleTime = 20
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
func (d *Dialect) Listen(ctx context.Context, id lock.LeaseID, heard func(sqllock.Bell)) {
	p, err := d.open(sqllock.PoolOptions{Size: 1, Lasting: 2 * bellSleep, Long: bellSleep}, "long_query_time=3600") // a sleeper is no slow query
	if err != nil {
		heard(sqllock.NoBell)
		return
	}
	defer func() { _ = p.Close() }()
	for ctx.Err() == nil {
		refused := d.listenOnce(ctx, p, id, heard)
		pause, bell := 100*time.Millisecond, sqllock.NoBell
		if refused {
			pause, bell = time.Minute, sqllock.NoBells
		}
		heard(bell)
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// listenOnce sleeps on one connection until it fails. refused: the server does
// not give named locks.
func (d *Dialect) listenOnce(ctx context.Context, p *pool, id lock.LeaseID, heard func(sqllock.Bell)) (refused bool) {
	c, err := p.take(ctx)
	if err != nil {
		return false
	}
	defer c.Close(errAwake) //nolint:contextcheck // the transaction is ended, whatever ctx says
	limit, cancel := context.WithTimeout(ctx, p.timeout)
	res, err := c.do(limit, "listen", sqllock.Statement{SQL: "SELECT GET_LOCK(?, 0)", Args: []any{bellName(id)}})
	cancel()
	if err != nil {
		return mydb.FromServer(err) && !mydb.Interrupted(err)
	}
	if res[0].Rows[0].Int(0) != 1 { // the server still has our last connection
		return false
	}
	for {
		heard(sqllock.Rings) // it may have rung before
		_, err := c.send(ctx, sqllock.Statement{SQL: fmt.Sprintf("SELECT SLEEP(%d)", bellSleep)})
		if err != nil && !mydb.Interrupted(err) || ctx.Err() != nil {
			return false
		}
	}
}

// errAwake has the bell's connection closed, and with it the named lock.
var errAwake = errors.New("nobody listens any more")

// Ring implements sqllock.Dialect.
func (d *Dialect) Ring(ctx context.Context, p sqllock.Pool, ids []lock.LeaseID) error {
	var first error
	for _, id := range ids { // it fails where there is no bell
		if _, err := p.Do(ctx, "ring", sqllock.Statement{SQL: "SET @locksidecar=IS_USED_LOCK(?); KILL QUERY @locksidecar", Args: []any{bellName(id)}}); err != nil && first == nil && !mydb.FromServer(err) {
			first = err
		}
	}
	return first
}
