package stores

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// postgresStore is one PostgreSQL.
type postgresStore struct {
	url  string
	conn *pgx.Conn // for the run's own questions
	pid  int       // of the server; 0: not on this machine
}

var _ measure.Store = (*postgresStore)(nil)

// PostgresWords for tables of a store of that name.
var PostgresWords = measure.Words{
	Name: "PostgreSQL", Steps: "transactions", Memory: "of its database", Renewal: "heartbeat",
	Notified: "NOTIFY, to who listens", Answered: "NOTIFY, round trip",
}

const postgresAdvisory = "pg_advisory_lock + pg_advisory_unlock"

// ConnectPostgres makes the connection of the run. All peers have a connection of their
// own, with prepared statements.
func ConnectPostgres(ctx context.Context, address string) (measure.Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("parse the URL of the store: %w", err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return nil, fmt.Errorf("find the port in the URL of the store: %w", err)
	}
	s := &postgresStore{url: address, pid: proc.Listener(port)}
	if s.conn, err = s.connect(ctx); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *postgresStore) connect(ctx context.Context) (*pgx.Conn, error) {
	c, err := pgx.Connect(ctx, s.url+"?sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return c, nil
}

// prepare makes the table, and a server of the tests as careful as servers are
// by default: a commit is answered when it is on the disk.
func (s *postgresStore) prepare(ctx context.Context) error {
	for _, statement := range []string{
		"ALTER SYSTEM SET fsync=on", "ALTER SYSTEM SET full_page_writes=on", "SELECT pg_reload_conf()",
		"CREATE TABLE IF NOT EXISTS " + table + " (name TEXT PRIMARY KEY, n BIGINT NOT NULL)",
	} {
		if _, err := s.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// URL implements measure.Store.
func (s *postgresStore) URL() string { return s.url }

// Close implements measure.Store.
func (s *postgresStore) Close() error { return s.conn.Close(context.Background()) }

// Subjects implements measure.Store.
func (s *postgresStore) Subjects() []measure.Subject {
	return []measure.Subject{s.onOwnRows(postgresAdvisory, postgresAdvisoryPair), s.onOwnRows(rowLock, postgresRowLock), s.onOwnRows(TwoUpdates, postgresUpdates)}
}

// postgresAdvisoryPair is a lock of the server, which belongs to the connection.
func postgresAdvisoryPair(ctx context.Context, c *pgx.Conn, name string) error {
	if _, err := c.Exec(ctx, "SELECT pg_advisory_lock(hashtext($1))", name); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if _, err := c.Exec(ctx, "SELECT pg_advisory_unlock(hashtext($1))", name); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// postgresRowLock is a lock of the database, which belongs to the transaction.
func postgresRowLock(ctx context.Context, c *pgx.Conn, name string) error {
	tx, err := c.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	var n int64
	if err := tx.QueryRow(ctx, "SELECT n FROM "+table+" WHERE name = $1 FOR UPDATE", name).Scan(&n); err != nil {
		return errors.Join(fmt.Errorf("lock: %w", err), tx.Rollback(ctx))
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// postgresUpdates are the least that two changes which last can cost.
func postgresUpdates(ctx context.Context, c *pgx.Conn, name string) error {
	for range 2 {
		if _, err := c.Exec(ctx, "UPDATE "+table+" SET n = n + 1 WHERE name = $1", name); err != nil {
			return fmt.Errorf("update: %w", err)
		}
	}
	return nil
}

// onOwnRows gives each caller a connection and a row of its own.
func (s *postgresStore) onOwnRows(name string, pair func(ctx context.Context, c *pgx.Conn, name string) error) measure.Subject {
	return measure.Subject{Name: name, Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		var conns []*pgx.Conn
		closeAll := func() error {
			var errs []error
			for _, c := range conns {
				errs = append(errs, c.Close(context.WithoutCancel(ctx)))
			}
			return errors.Join(errs...)
		}
		var pairs []measure.Pair
		for i := range callers {
			c, err := s.connect(ctx)
			if err != nil {
				return nil, nil, errors.Join(err, closeAll())
			}
			conns = append(conns, c)
			row := fmt.Sprintf("bench/%s/%d", name, i)
			if _, err := c.Exec(ctx, "INSERT INTO "+table+" VALUES ($1, 0) ON CONFLICT DO NOTHING", row); err != nil {
				return nil, nil, errors.Join(fmt.Errorf("insert a row: %w", err), closeAll())
			}
			pairs = append(pairs, func(ctx context.Context) error { return pair(ctx, c, row) })
		}
		return pairs, closeAll, nil
	}}
}
