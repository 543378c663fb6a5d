// Package mydb is what all ways of keeping locks in MySQL or MariaDB share: the
// URL, connections whose session settings do not depend on what the server's
// administrator likes, the kinds of errors, and retries.
//
// Every connection is of the same kind: READ COMMITTED, autocommit, times in
// UTC, text in utf8mb4, an SQL mode of our own, several statements a request,
// arguments put into the text by the driver. Rows affected are rows found.
package mydb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/lock"
)

// Pool is a pool of connections for one purpose.
type Pool struct {
	DB        *sql.DB
	Connector *Connector
	observe   lock.Observe
}

// NewPool makes a pool of at most size connections. observe may be nil.
func NewPool(c *Connector, size int, observe lock.Observe) *Pool {
	if observe == nil {
		observe = func(string, time.Duration, error) {}
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return &Pool{DB: db, Connector: c, observe: observe}
}

// Close closes the connections.
func (p *Pool) Close() error {
	if err := p.DB.Close(); err != nil {
		return fmt.Errorf("close connections: %w", err)
	}
	return nil
}

// Results are what the statements of one request did, in their order. A
// statement that gives rows, such as SELECT, counts for 0.
type Results struct {
	Affected []int64 // rows found
	IDs      []int64 // of LAST_INSERT_ID(…) in the statement
}

// Exec sends statements that give no rows, in one request. command is what
// observe is told.
//
// When it fails the connection is left as the failing statement left it, unless
// it is out of order: a transaction that the request began is rolled back, but
// earlier statements of it that commit by themselves have been carried out.
func (p *Pool) Exec(ctx context.Context, command, query string, args ...any) (Results, error) {
	conn, err := p.DB.Conn(ctx)
	if err != nil {
		p.observe(command, 0, err)
		return Results{}, err
	}
	defer func() { _ = conn.Close() }()
	return p.ExecOn(ctx, conn, command, query, args...)
}

// ExecOn is Exec on one connection.
func (p *Pool) ExecOn(ctx context.Context, conn *sql.Conn, command, query string, args ...any) (Results, error) {
	start := time.Now()
	var res Results
	err := conn.Raw(func(dc any) error {
		values, err := named(args)
		if err != nil {
			return err
		}
		execer := dc.(driver.ExecerContext)
		r, err := execer.ExecContext(ctx, query, values)
		if err != nil {
			return rollBack(ctx, dc, err)
		}
		all := r.(mysql.Result)
		res = Results{Affected: all.AllRowsAffected(), IDs: all.AllLastInsertIds()}
		return nil
	})
	p.observe(command, time.Since(start), err)
	return res, err
}

// rollBack ends the transaction in which a statement failed, and gives the
// statement's error. Where the connection must not be used again, the error says
// so to database/sql.
func rollBack(ctx context.Context, dc any, cause error) error {
	if !FromServer(cause) || ReadOnly(cause) { // of several servers, another may take writes
		return &brokenError{cause}
	}
	if _, err := dc.(driver.ExecerContext).ExecContext(context.WithoutCancel(ctx), "ROLLBACK", nil); err != nil {
		return &brokenError{cause}
	}
	return cause
}

// brokenError is an error after which the connection is useless.
type brokenError struct{ err error }

func (e *brokenError) Error() string        { return e.err.Error() }
func (e *brokenError) Unwrap() error        { return e.err }
func (e *brokenError) Is(target error) bool { return target == driver.ErrBadConn }

// NotSent: the connection was found broken before the request was sent on it, so
// it can be sent again on another.
func NotSent(err error) bool {
	var broken *brokenError
	if errors.As(err, &broken) {
		err = broken.err
	}
	return errors.Is(err, driver.ErrBadConn)
}

// named are arguments as the driver takes them.
func named(args []any) ([]driver.NamedValue, error) {
	values := make([]driver.NamedValue, len(args))
	for i, a := range args {
		v, err := driver.DefaultParameterConverter.ConvertValue(a)
		if err != nil {
			return nil, fmt.Errorf("argument %d: %w", i+1, err)
		}
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: v}
	}
	return values, nil
}

// Query sends statements that give rows, and calls scan for each row of each
// of them. set counts the statements that give rows, from 0.
func (p *Pool) Query(ctx context.Context, command string, scan func(set int, rows *sql.Rows) error, query string, args ...any) error {
	return p.query(ctx, p.DB, command, scan, query, args)
}

// QueryOn is Query on one connection.
func (p *Pool) QueryOn(ctx context.Context, conn *sql.Conn, command string, scan func(set int, rows *sql.Rows) error, query string, args ...any) error {
	return p.query(ctx, conn, command, scan, query, args)
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (p *Pool) query(ctx context.Context, q queryer, command string, scan func(set int, rows *sql.Rows) error, query string, args []any) (err error) {
	start := time.Now()
	defer func() { p.observe(command, time.Since(start), err) }()
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for set := 0; ; {
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		for rows.Next() {
			if err := scan(set, rows); err != nil {
				return err
			}
		}
		if len(columns) > 0 { // START TRANSACTION and its like give none
			set++
		}
		if !rows.NextResultSet() {
			return rows.Err()
		}
	}
}

// Ping asks the server for a sign of life.
func (p *Pool) Ping(ctx context.Context) error {
	start := time.Now()
	err := p.DB.PingContext(ctx)
	p.observe("ping", time.Since(start), err)
	if err != nil {
		return Unavailable("ping "+p.Connector.cfg.What(), err)
	}
	return nil
}
