package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/backends/sqllock"
)

// Open implements sqllock.Dialect.
func (d *Dialect) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	c, err := d.connector(o)
	if err != nil {
		return nil, err
	}
	return sqllock.NewPool(o, d.cfg.Timeout, d.observe, func(ctx context.Context, server string) (sqllock.Link, error) {
		l, err := c.Open(ctx, server)
		if err == nil {
			d.kind.Store(&l.product)
		}
		return l, err
	}), nil
}

// connector opens connections for a pool.
func (d *Dialect) connector(o sqllock.PoolOptions) (*Connector, error) {
	wait := time.Duration(o.Long) * time.Second
	if o.Wait {
		wait = max(wait, lockWait)
	}
	settings := append([]string{fmt.Sprintf("wait_timeout=%d", max(o.Lasting, serverIdleTime))}, o.Settings...)
	return NewConnector(d.cfg, ConnectOptions{Wait: wait, Settings: settings, IdleTransaction: idleTransaction})
}

// Link implements sqllock.Link.
type Link struct {
	ID       int64 // of the connection, for KILL
	conn     driver.Conn
	product  product
	server   string
	readOnly bool // when the connection was made
	broken   bool
	kept     map[string]*kept // by text
}

// ForShare is how a SELECT locks rows against changes, needing no privilege but
// SELECT.
func (l *Link) ForShare() string {
	if l.product == MariaDB {
		return "LOCK IN SHARE MODE"
	}
	return "FOR SHARE"
}

// Server implements sqllock.Link.
func (l *Link) Server() string { return l.server }

// Usable implements sqllock.Link.
func (l *Link) Usable() bool { return !l.broken && l.conn.(driver.Validator).IsValid() }

// Alive implements sqllock.Link. The driver looks before it sends the next request.
func (l *Link) Alive() bool {
	return l.conn.(driver.SessionResetter).ResetSession(context.Background()) == nil
}

// Close implements sqllock.Link.
func (l *Link) Close() error { return l.conn.Close() } //nolint:wrapcheck // nobody reads it

// Send implements sqllock.Link.
func (l *Link) Send(ctx context.Context, batch []sqllock.Statement) ([]sqllock.Result, error) {
	res, err := l.send(ctx, batch)
	l.broken = l.broken || err != nil && (Code(err) == 0 || codes[Code(err)].useless)
	if errors.Is(err, driver.ErrBadConn) { // it was found broken before the request was sent
		err = &sqllock.NotSentError{Err: err}
	}
	return res, err
}

// keptAfter is how often a connection carries a statement out before it keeps it prepared:
// a server has room for some thousand of them, of all its connections.
const keptAfter = 8

// kept is a statement that is sent often.
type kept struct {
	sent int
	stmt driver.StmtExecContext // nil: not prepared
}

// prepared gives the statement of a batch as the connection keeps it, so that the server
// does not parse it each time, which is half of what it costs there; nil: it does not. Where
// there is no room in the server (max_prepared_stmt_count) that stays so.
func (l *Link) prepared(ctx context.Context, batch []sqllock.Statement) (driver.StmtExecContext, error) {
	if len(batch) != 1 || !batch[0].Often {
		return nil, nil
	}
	k := l.kept[batch[0].SQL]
	if k == nil {
		k = new(kept)
		l.kept[batch[0].SQL] = k
	}
	if k.sent++; k.sent == keptAfter {
		stmt, err := l.conn.(driver.ConnPrepareContext).PrepareContext(ctx, batch[0].SQL)
		if err == nil {
			k.stmt = stmt.(driver.StmtExecContext)
		} else if Code(err) == 0 {
			return nil, err
		}
	}
	return k.stmt, nil
}

func (l *Link) send(ctx context.Context, batch []sqllock.Statement) ([]sqllock.Result, error) {
	var text strings.Builder
	var args []driver.NamedValue
	rows := false
	for _, s := range batch {
		rows = rows || isSelect(s) && !s.Ignore
	}
	for i, s := range batch {
		if i > 0 {
			text.WriteString(";\n")
		}
		text.WriteString(s.SQL)
		if s.Count && rows {
			text.WriteString(";\nSELECT ROW_COUNT(), LAST_INSERT_ID()")
		}
		for _, a := range s.Args {
			v, err := driver.DefaultParameterConverter.ConvertValue(a)
			if err != nil {
				return nil, fmt.Errorf("argument of %s: %w", s.SQL, err)
			}
			args = append(args, driver.NamedValue{Ordinal: len(args) + 1, Value: v})
		}
	}
	if rows {
		return l.query(ctx, text.String(), args, batch)
	}
	return l.exec(ctx, text.String(), args, batch)
}

func isSelect(s sqllock.Statement) bool { return strings.HasPrefix(s.SQL, "SELECT") }

func (l *Link) exec(ctx context.Context, text string, args []driver.NamedValue, batch []sqllock.Statement) (res []sqllock.Result, err error) {
	prepared, err := l.prepared(ctx, batch)
	if err != nil {
		return nil, err
	}
	var r driver.Result
	if prepared != nil {
		r, err = prepared.ExecContext(ctx, args)
	} else {
		r, err = l.conn.(driver.ExecerContext).ExecContext(ctx, text, args)
	}
	if err != nil {
		return nil, err
	}
	all := r.(mysql.Result)
	counts, ids := all.AllRowsAffected(), all.AllLastInsertIds()
	res = make([]sqllock.Result, max(len(batch), len(counts)))
	for i := range counts {
		res[i] = sqllock.Result{Affected: counts[i], Value: ids[i]}
	}
	return res, nil
}

// query reads the rows of a batch. The driver shows only what gives rows.
func (l *Link) query(ctx context.Context, text string, args []driver.NamedValue, batch []sqllock.Statement) (res []sqllock.Result, err error) {
	rows, err := l.conn.(driver.QueryerContext).QueryContext(ctx, text, args)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	sets, first := rows.(driver.RowsNextResultSet), true
	next := func() ([]sqllock.Row, error) {
		if !first {
			if err := sets.NextResultSet(); err != nil {
				return nil, noEnd(err)
			}
		}
		first = false
		return read(rows)
	}
	res = make([]sqllock.Result, len(batch))
	for i, s := range batch {
		if isSelect(s) {
			if res[i].Rows, err = next(); err != nil {
				return nil, err
			}
		}
		if s.Count {
			count, err := next()
			if err != nil {
				return nil, err
			}
			if len(count) == 1 {
				res[i].Affected, res[i].Value = count[0].Int(0), count[0].Int(1)
			}
		}
	}
	// What comes last may give no rows, and fail.
	for err == nil {
		err = sets.NextResultSet()
	}
	if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return res, nil
}

// noEnd: the answer is shorter than it should be.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// read reads one set of rows.
func read(rows driver.Rows) (all []sqllock.Row, err error) {
	n := len(rows.Columns())
	if n == 0 {
		return nil, nil
	}
	for {
		row := make([]driver.Value, n)
		switch err := rows.Next(row); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		out := make(sqllock.Row, n)
		for i, v := range row {
			if b, ok := v.([]byte); ok { // it is the driver's
				v = string(b)
			}
			out[i] = v
		}
		all = append(all, out)
	}
}
