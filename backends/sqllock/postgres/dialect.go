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
	"fmt"
	"strings"
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
	w := NewDialect(Config{Schema: defaultSchema, SQL: storeurl.SQL{Prefix: prefix}}, nil).Words()
	w.Table = func(name string) string { return `"` + prefix + name + `"` }
	return sqllock.Schema(w), nil
}

// Dialect is one database on PostgreSQL.
type Dialect struct {
	cfg     Config
	observe lock.Observe
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
		Version:   2,
		Table:     d.cfg.Table,
		Now:       "(extract(epoch FROM clock_timestamp())*1000000)::bigint",
		Server:    server,
		ReadOnly:  standby,
		Unhex:     "decode(?, 'hex')",
		Schema:    d.schemaWords(),
		Index:     d.index,
		Join:      func(a, b string) string { return "(" + a + " || " + b + ")" },
		InsertNew: func(into string) string { return "INSERT INTO " + into + " ON CONFLICT DO NOTHING" },
		Returning: func(expr, column string) (value, tail string) { return expr, " RETURNING " + column },
	}
}

func (d *Dialect) schemaWords() []string {
	const vacuum = "autovacuum_vacuum_threshold=1000, autovacuum_vacuum_scale_factor=0.1"
	before := "-- Two sidecars do not make them at the same time.\nSELECT pg_advisory_xact_lock(hashtext('locksidecar schema'));\n"
	if d.cfg.Schema != defaultSchema {
		before += `CREATE SCHEMA IF NOT EXISTS "` + d.cfg.Schema + `";` + "\n"
	}
	return []string{
		"{before}", before,
		"{id}", "BYTEA", "{name}", "BYTEA", "{label}", "BYTEA", "{owner}", "BYTEA",
		"{byfence}", "", "{bysince}", "",
		"{small}", "SMALLINT", "{number}", "BIGINT GENERATED ALWAYS AS IDENTITY",
		"{rewritten}", "WITH (fillfactor=50, " + vacuum + ")", "{passing}", "WITH (" + vacuum + ")", " {lasting}", "",
	}
}

// index leaves NULL out: it is what most rows of lock have.
func (d *Dialect) index(table, name, columns string) string {
	first, _, _ := strings.Cut(columns, ",")
	return `CREATE INDEX IF NOT EXISTS "` + d.cfg.Prefix + table + "_" + name + `" ON {` + table + "} (" + columns + ") WHERE " + first + " IS NOT NULL"
}

// Kind implements sqllock.Dialect.
func (*Dialect) Kind() string { return "postgresql" }

// channel is where the bell of a lease rings.
func channel(id lock.LeaseID) string { return "locksidecar_" + string(id) }

// listenProbe is how often a connection that only listens is asked for a sign of life.
const listenProbe = 15 * time.Second

// Listen implements sqllock.Dialect. A pooler passes no notifications on.
func (d *Dialect) Listen(ctx context.Context, id lock.LeaseID, server string, rang func()) error {
	addrs := d.cfg.Listen
	if addrs == nil {
		addrs = d.cfg.Addrs
	}
	p, err := d.servers(addrs, d.cfg.Timeout)
	if err != nil {
		return err
	}
	k, err := p.open(ctx, server)
	if err != nil {
		return err
	}
	defer func() { _ = k.Close() }() //nolint:contextcheck // also when ctx has ended
	if !k.direct {
		return sqllock.ErrNoBells
	}
	_, err = k.Send(ctx, []sqllock.Statement{{SQL: `LISTEN "` + channel(id) + `"`}})
	for err == nil {
		rang()
		err = k.wait(ctx)
	}
	return err
}

// wait returns when the bell may have rung, or the connection fails.
func (k *conn) wait(ctx context.Context) error {
	for {
		_ = k.raw.SetDeadline(time.Time{}) // a connection that fails is found below
		probe, cancel := context.WithTimeout(ctx, listenProbe)
		err := k.pg.WaitForNotification(probe)
		cancel()
		if err == nil || k.pg.IsClosed() || ctx.Err() != nil {
			return err
		}
		if _, err := k.Send(ctx, []sqllock.Statement{{SQL: "SELECT 1"}}); err != nil {
			return err
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
