package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// idleTime is how long a connection is kept that nobody uses.
	idleTime = 10 * time.Second
	// rowWait is how long a statement waits for a row that another transaction has locked.
	rowWait = time.Second
	// oldest is the first version that can be used, as server_version_num has it.
	oldest = 130000
)

// pool is a pool of connections. As a driver.Connector it opens them.
type pool struct {
	d       *Dialect
	limit   time.Duration // of a batch
	hosts   []*pgconn.Config
	good    atomic.Int64           // the host that took the last connection
	trusted atomic.Pointer[string] // the server; nil: any
	db      *sql.DB
}

// newPool makes a pool that only opens connections. It asks the server nothing.
func (d *Dialect) newPool(addrs []string, limit time.Duration) (*pool, error) {
	p := &pool{d: d, limit: limit}
	if d.cfg.Socket != "" {
		addrs = []string{net.JoinHostPort("localhost", defaultPort)}
	}
	for _, addr := range addrs {
		// What stands here is not taken from the environment (PGHOST and its like), and
		// what follows takes the place of what is.
		c, err := pgconn.ParseConfig("host=localhost port=" + defaultPort + " user=nobody dbname=none password=none" +
			" sslmode=disable sslrootcert='' sslcert='' sslkey='' target_session_attrs=any connect_timeout=0")
		if err != nil {
			return nil, &lock.InvalidError{Field: "store", Problem: err.Error()}
		}
		host, port, _ := net.SplitHostPort(addr)
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, &lock.InvalidError{Field: "store", Problem: "has a port that is none"}
		}
		c.Host, c.Port, c.User, c.Password, c.Database = host, uint16(n), d.cfg.User, d.cfg.Password, d.cfg.Database
		if d.cfg.Socket != "" {
			c.Host = d.cfg.Socket
		}
		c.RuntimeParams = map[string]string{"application_name": "locksidecar", "client_encoding": "UTF8"}
		c.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {} // it is waited for, see listen
		if c.TLSConfig = d.cfg.TLS.Clone(); c.TLSConfig != nil && c.TLSConfig.ServerName == "" {
			c.TLSConfig.ServerName = host
		}
		p.hosts = append(p.hosts, c)
	}
	return p, nil
}

// Open implements sqllock.Dialect.
func (d *Dialect) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	limit := d.cfg.Timeout + time.Duration(o.Long)*time.Second
	if o.Wait {
		limit += rowWait
	}
	p, err := d.newPool(d.cfg.Addrs, limit)
	if err != nil {
		return nil, err
	}
	p.db = sql.OpenDB(p)
	p.db.SetMaxOpenConns(o.Size)
	p.db.SetMaxIdleConns(o.Size)
	p.db.SetConnMaxIdleTime(max(idleTime, time.Duration(o.Lasting)*time.Second))
	return p, nil
}

// Driver implements driver.Connector.
func (*pool) Driver() driver.Driver { return nil }

// Connect implements driver.Connector.
func (p *pool) Connect(ctx context.Context) (driver.Conn, error) {
	k, err := p.open(ctx)
	if err == nil && !k.IsValid() {
		k.end(ctx)
		err = errOtherServer
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

var errOtherServer = errors.New("another server answers than the one that answers the heartbeats")

// open opens a connection. Of several hosts it takes the first that takes writes,
// beginning with the one that did last.
func (p *pool) open(ctx context.Context) (*conn, error) {
	first := int(p.good.Load())
	var errs []error
	for i := range p.hosts {
		n := (first + i) % len(p.hosts)
		k, err := p.connect(ctx, p.hosts[n])
		if err == nil {
			p.good.Store(int64(n))
			return k, nil
		}
		errs = append(errs, fmt.Errorf("connect to %s:%d: %w", p.hosts[n].Host, p.hosts[n].Port, err))
	}
	return nil, errors.Join(errs...)
}

func (p *pool) connect(ctx context.Context, host *pgconn.Config) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.d.cfg.Timeout)
	defer cancel()
	k := &conn{p: p, number: p.d.born.Add(1), names: make(map[string]string)}
	own := host.Copy()
	own.DialFunc = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
		if k.raw != nil { // the driver would cancel a request: whoever asks for it does not wait for that
			return nil, net.ErrClosed
		}
		k.raw, err = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, network, addr)
		return k.raw, err //nolint:wrapcheck // the driver's caller wraps it
	}
	var err error
	if k.pg, err = pgconn.ConnectConfig(ctx, own); err != nil {
		return nil, err
	}
	if err := k.setUp(ctx); err != nil {
		k.end(ctx)
		return nil, err
	}
	return k, nil
}

// Trust implements sqllock.Pool.
func (p *pool) Trust(server string) {
	p.trusted.Store(&server)
	if server == "" {
		p.trusted.Store(nil)
	}
}

// Close implements sqllock.Pool.
func (p *pool) Close() error {
	if err := p.db.Close(); err != nil {
		return fmt.Errorf("close connections: %w", err)
	}
	return nil
}

// Do implements sqllock.Pool.
func (p *pool) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	c, err := p.Conn(ctx)
	if err != nil {
		p.d.observe(command, 0, err)
		return nil, err
	}
	results, err := c.Do(ctx, command, batch...)
	c.Close(err)
	return results, err
}

// Conn implements sqllock.Pool.
func (p *pool) Conn(ctx context.Context) (sqllock.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*p.d.cfg.Timeout)
	defer cancel()
	c, err := p.db.Conn(ctx)
	if err != nil {
		return nil, &sqllock.NotSentError{Err: err}
	}
	l := &lentConn{p: p, c: c}
	_ = c.Raw(func(dc any) error { // it gives what the function gives
		l.k = dc.(*conn)
		return nil
	})
	return l, nil
}

// lentConn is a connection out of a pool.
type lentConn struct {
	p *pool
	c *sql.Conn
	k *conn
}

// Do implements sqllock.Conn.
func (l *lentConn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	start := time.Now()
	results, err := l.k.do(ctx, batch)
	l.p.d.observe(command, time.Since(start), err)
	return results, err
}

// Server implements sqllock.Conn.
func (l *lentConn) Server() string { return l.k.server }

// Number implements sqllock.Conn.
func (l *lentConn) Number() int64 { return l.k.number }

// Close implements sqllock.Conn.
func (l *lentConn) Close(error) {
	if !l.k.broken && l.k.pg.TxStatus() != 'I' {
		_, err := l.k.do(context.Background(), []sqllock.Statement{{SQL: "ROLLBACK"}})
		l.k.broken = l.k.broken || err != nil
	}
	_ = l.c.Close() // a connection that is broken is closed by that
}
