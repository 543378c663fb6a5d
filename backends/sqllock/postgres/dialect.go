// Package postgres is the dialect of PostgreSQL.
//
// It keeps no state in database sessions, so a pooler such as PgBouncer may stand in
// between and give each transaction any free connection. It sends the settings with each
// transaction, and prepares no statement by name. It finds out whether a connection leads
// to the server itself. On such a connection it sends the settings once and prepares
// statements. Only notifications need a direct connection, and they are hints.
package postgres

import (
	"context"
	_ "embed" // of the schema
	"fmt"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/lock"
)

// Strategies are the ways to keep locks, as MySQL has several.
var Strategies = []string{"tables"}

// Open makes a Backend for a URL, see docs/stores/postgres.md for its form. It does
// not ask the server anything, so a server that is down is no error here.
// The error is lock.ErrInvalid. observe may be nil.
func Open(rawURL string, observe lock.Observe) (*sqllock.Backend, error) {
	cfg, err := Parse(rawURL)
	if err != nil {
		return nil, err
	}
	o := sqllock.OptionsOf(cfg.SQL)
	if err := cfg.Options.Err(); err != nil {
		return nil, err
	}
	return sqllock.Open(NewDialect(cfg, observe), o)
}

// Schema is the SQL that makes the tables, in the schema that is current where it is
// applied. The error is lock.ErrInvalid.
func Schema(strategy, prefix string) (string, error) {
	if err := storeurl.CheckPrefix(prefix); err != nil {
		return "", err
	}
	if strategy != Strategies[0] {
		return "", storeurl.Invalid(fmt.Sprintf("option strategy is %q, and must be %s", strategy, Strategies[0]))
	}
	d := NewDialect(Config{Schema: defaultSchema, SQL: storeurl.SQL{Prefix: prefix}}, nil)
	return sqllock.Schema(d.Schema(), func(name string) string { return `"` + prefix + name + `"` }), nil
}

// Dialect is one database on PostgreSQL.
type Dialect struct {
	cfg     Config
	observe lock.Observe
	born    atomic.Int64 // connections
}

var _ sqllock.Dialect = (*Dialect)(nil)

// NewDialect makes a Dialect. It does not ask the server anything. observe may
// be nil.
func NewDialect(cfg Config, observe lock.Observe) *Dialect {
	if observe == nil {
		observe = func(string, time.Duration, error) {}
	}
	return &Dialect{cfg: cfg, observe: observe}
}

// Words implements sqllock.Dialect.
func (d *Dialect) Words() sqllock.Words {
	return sqllock.Words{
		Store:     "postgres",
		Table:     d.cfg.Table,
		Now:       "(extract(epoch FROM clock_timestamp())*1000000)::bigint",
		Server:    server,
		ReadOnly:  standby,
		Unhex:     "decode(?, 'hex')",
		InsertNew: func(into string) string { return "INSERT INTO " + into + " ON CONFLICT DO NOTHING" },
		Returning: func(expr, column string) (value, tail string) { return expr, " RETURNING " + column },
	}
}

// Kind implements sqllock.Dialect.
func (*Dialect) Kind() string { return "postgresql" }

//go:embed schema.sql
var schema string

// Schema implements sqllock.Dialect.
func (d *Dialect) Schema() string {
	text := regexp.MustCompile(`{index (\w+)}`).ReplaceAllString(schema, `"`+d.cfg.Prefix+`$1"`)
	if d.cfg.Schema != defaultSchema {
		text = `CREATE SCHEMA IF NOT EXISTS "` + d.cfg.Schema + `";` + "\n" + text
	}
	return text
}

// channel is where the bell of a lease rings.
func channel(id lock.LeaseID) string { return "locksidecar_" + string(id) }

const (
	// listenProbe is how often a connection that only listens is asked for a sign of life.
	listenProbe = 15 * time.Second
	// listenAgain is how long after a failure it is tried again, and listenNever where
	// there is a pooler in between, which passes no notifications on.
	listenAgain, listenNever = 200 * time.Millisecond, time.Minute
)

// Listen implements sqllock.Dialect.
func (d *Dialect) Listen(ctx context.Context, id lock.LeaseID, heard func(sqllock.Bell)) {
	addrs := d.cfg.Listen
	if addrs == nil {
		addrs = d.cfg.Addrs
	}
	p, err := d.newPool(addrs, d.cfg.Timeout)
	if err != nil {
		return // the URL would have been refused
	}
	for ctx.Err() == nil {
		pause, bell := listenAgain, sqllock.NoBell
		if k, err := p.open(ctx); err == nil {
			if !k.direct {
				pause, bell = listenNever, sqllock.NoBells
			} else {
				k.listen(ctx, id, heard)
			}
			k.end(ctx)
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

// listen hears the bell until the connection ends.
func (k *conn) listen(ctx context.Context, id lock.LeaseID, heard func(sqllock.Bell)) {
	if _, err := k.do(ctx, []sqllock.Statement{{SQL: `LISTEN "` + channel(id) + `"`}}); err != nil {
		return
	}
	heard(sqllock.Rings)
	for ctx.Err() == nil {
		_ = k.raw.SetDeadline(time.Time{}) // a connection that fails is found below
		probe, cancel := context.WithTimeout(ctx, listenProbe)
		err := k.pg.WaitForNotification(probe)
		cancel()
		if err == nil {
			heard(sqllock.Rings)
			continue
		}
		if k.pg.IsClosed() || ctx.Err() != nil {
			return
		}
		if _, err := k.do(ctx, []sqllock.Statement{{SQL: "SELECT 1"}}); err != nil {
			return
		}
	}
}

// Ring implements sqllock.Dialect. It is a transaction of its own, whose commit
// waits for no disk: a notification would make any other write wait for a lock
// of the whole server.
func (d *Dialect) Ring(ctx context.Context, p sqllock.Pool, ids []lock.LeaseID) error {
	batch := []sqllock.Statement{{SQL: "SELECT set_config('synchronous_commit', 'off', true)"}}
	for _, id := range ids {
		batch = append(batch, sqllock.Statement{SQL: "SELECT pg_notify(?, '')", Args: []any{channel(id)}})
	}
	_, err := p.Do(ctx, "ring", batch...)
	return err
}
