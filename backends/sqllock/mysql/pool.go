package mysql

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/backends/sqllock"
)

// pool implements sqllock.Pool.
type pool struct {
	d         *Dialect
	connector *mydb.Connector
	db        *sql.DB
	timeout   time.Duration
	trusted   atomic.Pointer[string] // nil: any server
}

// Open implements sqllock.Dialect.
func (d *Dialect) Open(o sqllock.PoolOptions) (sqllock.Pool, error) { return d.open(o) }

// OpenWith is Open for sessions with settings of their own, such as "time_zone='+00:00'".
func (d *Dialect) OpenWith(o sqllock.PoolOptions, settings ...string) (sqllock.Pool, error) {
	return d.open(o, settings...)
}

func (d *Dialect) open(o sqllock.PoolOptions, more ...string) (*pool, error) {
	lasting := max(o.Lasting, serverIdleTime)
	settings := func(s mydb.Server) []string {
		all := append([]string{fmt.Sprintf("wait_timeout=%d", lasting), serverVariable + "=" + mydb.Identity}, more...)
		if s.Dialect == mydb.MariaDB {
			all = append(all, "idle_transaction_timeout=5")
		}
		return all
	}
	c, err := mydb.NewConnector(d.cfg, mydb.ConnectOptions{
		NoWait: !o.Wait && o.Long == 0, Wait: time.Duration(o.Long) * time.Second, Settings: settings,
	})
	if err != nil {
		return nil, err
	}
	p := &pool{d: d, connector: c, timeout: d.cfg.Timeout}
	p.db = sql.OpenDB(p)
	p.db.SetMaxOpenConns(o.Size)
	p.db.SetMaxIdleConns(o.Size)
	if o.Lasting == 0 {
		p.db.SetConnMaxIdleTime(idleTime)
	}
	return p, nil
}

// Driver implements driver.Connector.
func (p *pool) Driver() driver.Driver { return p.connector.Driver() }

// Connect implements driver.Connector.
func (p *pool) Connect(ctx context.Context) (driver.Conn, error) {
	c, server, err := p.connector.Open(ctx)
	if err != nil {
		return nil, err
	}
	l := &link{Conn: c, p: p, server: server, number: p.d.opened.Add(1), kept: make(map[string]*kept)}
	if trusted := p.trusted.Load(); trusted != nil && *trusted != server.Identity {
		_ = c.Close()
		return nil, fmt.Errorf("connect: this is %s, and the heartbeats go to %s", server.Identity, *trusted)
	}
	p.d.kind.Store(&server.Dialect)
	return l, nil
}

// Trust implements sqllock.Pool.
func (p *pool) Trust(server string) {
	if server == "" {
		p.trusted.Store(nil)
		return
	}
	p.trusted.Store(&server)
}

// Close implements sqllock.Pool. That a connection was broken is no news.
func (p *pool) Close() error {
	_ = p.db.Close()
	return nil
}

// Do implements sqllock.Pool.
func (p *pool) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	for tries := 3; ; tries-- {
		c, err := p.take(ctx)
		if err != nil {
			p.d.observe(command, 0, err)
			return nil, err
		}
		res, err := c.Do(ctx, command, batch...)
		c.Close(err) //nolint:contextcheck // the transaction is ended, whatever ctx says
		if !mydb.NotSent(err) || tries == 0 || ctx.Err() != nil {
			return res, err
		}
	}
}

// Conn implements sqllock.Pool.
func (p *pool) Conn(ctx context.Context) (sqllock.Conn, error) { return p.take(ctx) }

func (p *pool) take(ctx context.Context) (*conn, error) {
	wait, cancel := context.WithTimeout(ctx, 5*p.timeout)
	defer cancel()
	c, err := p.db.Conn(wait)
	if err != nil {
		return nil, &sqllock.NotSentError{Err: err}
	}
	out := &conn{c: c, p: p}
	_ = c.Raw(func(dc any) error { out.link = dc.(*link); return nil })
	return out, nil
}

// link is a connection that knows its server.
type link struct {
	driver.Conn
	p      *pool
	server mydb.Server
	number int64
	kept   map[string]*kept // by text
}

var _ interface {
	driver.SessionResetter
	driver.Validator
} = (*link)(nil)

// IsValid implements driver.Validator: a connection to another server than that of the
// heartbeats is thrown away.
func (l *link) IsValid() bool {
	trusted := l.p.trusted.Load()
	return (trusted == nil || *trusted == l.server.Identity) && l.Conn.(driver.Validator).IsValid()
}

// ResetSession implements driver.SessionResetter.
func (l *link) ResetSession(ctx context.Context) error {
	if !l.IsValid() {
		return driver.ErrBadConn
	}
	return l.Conn.(driver.SessionResetter).ResetSession(ctx) //nolint:wrapcheck // driver.ErrBadConn must stay what it is
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
func (l *link) prepared(ctx context.Context, batch []sqllock.Statement) (driver.StmtExecContext, error) {
	if len(batch) != 1 || !batch[0].Often {
		return nil, nil
	}
	k := l.kept[batch[0].SQL]
	if k == nil {
		k = new(kept)
		l.kept[batch[0].SQL] = k
	}
	if k.sent++; k.sent == keptAfter {
		stmt, err := l.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, batch[0].SQL)
		if err == nil {
			k.stmt = stmt.(driver.StmtExecContext)
		} else if !mydb.FromServer(err) {
			return nil, err
		}
	}
	return k.stmt, nil
}

// conn implements sqllock.Conn.
type conn struct {
	c    *sql.Conn
	link *link
	p    *pool
}

// Server implements sqllock.Conn.
func (c *conn) Server() string { return c.link.server.Identity }

// Number implements sqllock.Conn.
func (c *conn) Number() int64 { return c.link.number }

// Close implements sqllock.Conn.
func (c *conn) Close(err error) {
	if err != nil {
		if !mydb.FromServer(err) || mydb.ReadOnly(err) || !c.rollBack() { // of several servers, another may take writes
			_ = c.c.Raw(func(any) error { return driver.ErrBadConn })
		}
	}
	_ = c.c.Close()
}

func (c *conn) rollBack() bool {
	_, err := c.link.Conn.(driver.ExecerContext).ExecContext(context.Background(), "ROLLBACK", nil)
	return err == nil
}

// Do implements sqllock.Conn. A request that is cut short would leave the outcome open
// and the connection useless, so ctx does not end it.
func (c *conn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	return c.do(context.WithoutCancel(ctx), command, batch...)
}

func (c *conn) do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	start := time.Now()
	res, err := c.send(ctx, batch...)
	c.p.d.observe(command, time.Since(start), err)
	return res, err
}

// send is do without a measurement, for what sleeps in the server.
func (c *conn) send(ctx context.Context, batch ...sqllock.Statement) ([]sqllock.Result, error) {
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
		return c.query(ctx, text.String(), args, batch)
	}
	return c.exec(ctx, text.String(), args, batch)
}

func isSelect(s sqllock.Statement) bool { return strings.HasPrefix(s.SQL, "SELECT") }

func (c *conn) exec(ctx context.Context, text string, args []driver.NamedValue, batch []sqllock.Statement) (res []sqllock.Result, err error) {
	prepared, err := c.link.prepared(ctx, batch)
	if err != nil {
		return nil, err
	}
	var r driver.Result
	if prepared != nil {
		r, err = prepared.ExecContext(ctx, args)
	} else {
		r, err = c.link.Conn.(driver.ExecerContext).ExecContext(ctx, text, args)
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
func (c *conn) query(ctx context.Context, text string, args []driver.NamedValue, batch []sqllock.Statement) (res []sqllock.Result, err error) {
	rows, err := c.link.Conn.(driver.QueryerContext).QueryContext(ctx, text, args)
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
