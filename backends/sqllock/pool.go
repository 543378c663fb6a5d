package sqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// Link is one connection to a server, as a dialect opens it. One goroutine uses it at a
// time.
type Link interface {
	// Send is Conn.Do. ctx never ends: a request that is cut short would leave the outcome
	// open and the connection useless, so the connection's own time limits bound it. The
	// error is a NotSentError where the connection was found broken before.
	Send(ctx context.Context, batch []Statement) ([]Result, error)
	// Server is what {server} was when the connection was made.
	Server() string
	// Usable tells whether more can be sent.
	Usable() bool
	// Alive tells, without a trip, whether a connection that was idle may still be there.
	Alive() bool
	// Close ends the connection.
	Close() error
}

const (
	// idleTime is how long a connection is kept that nobody uses.
	idleTime = 10 * time.Second
	// lateTime is for how long one counts that had no answer in time, see pool.leave.
	lateTime = 10 * time.Second
)

// pool implements Pool. As a driver.Connector it opens the connections of its sql.DB, which
// counts them and ends those that are idle.
type pool struct {
	open     Opener
	lates    bool          // those that had no answer in time count
	timeout  time.Duration // of one request,
	patience time.Duration // and of who waits for a connection
	observe  lock.Observe
	db       *sql.DB
	gate     *leasekit.Gate         // to the connections: sql.DB gives one that is free to any of those who wait
	opened   atomic.Int64           // connections so far
	trusted  atomic.Pointer[string] // the server; nil: any

	mu   sync.Mutex
	late int // places of connections that had no answer in time,
	turn int // since Regain was called for the last time
}

// Opener opens a connection. server is the only one that will do; "": any.
type Opener func(ctx context.Context, server string) (Link, error)

// NewPool makes a pool of connections. timeout is that of one request, and observe is told
// of each.
func NewPool(o PoolOptions, timeout time.Duration, observe lock.Observe, open Opener) Pool {
	p := &pool{open: open, lates: o.CountLate, timeout: timeout, patience: 5 * timeout, observe: observe, gate: leasekit.NewGate(o.Size)}
	p.db = sql.OpenDB(p)
	p.db.SetMaxOpenConns(o.Size)
	p.db.SetMaxIdleConns(o.Size)
	p.db.SetConnMaxIdleTime(max(idleTime, time.Duration(o.Lasting)*time.Second))
	return p
}

// Driver implements driver.Connector.
func (*pool) Driver() driver.Driver { return nil }

// Connect implements driver.Connector.
func (p *pool) Connect(ctx context.Context) (driver.Conn, error) {
	server := ""
	if trusted := p.trusted.Load(); trusted != nil {
		server = *trusted
	}
	l, err := p.open(ctx, server)
	if err != nil {
		return nil, err
	}
	return &pooled{Link: l, p: p, number: p.opened.Add(1)}, nil
}

// Trust implements Pool.
func (p *pool) Trust(server string) {
	p.trusted.Store(&server)
	if server == "" {
		p.trusted.Store(nil)
	}
	p.Regain()
}

// leave gives the place of a connection back. late: it had no answer in time. A server that waits for its disk or for a
// standby does not notice that nobody waits for a commit any more, and keeps the connection. With one more for each request that
// is tried again it would soon have no room for anybody. So the place stays taken for a while.
func (p *pool) leave(late bool) {
	if !late || !p.lates {
		p.gate.Leave()
		return
	}
	p.mu.Lock()
	p.late++
	turn := p.turn
	p.mu.Unlock()
	time.AfterFunc(lateTime, func() {
		p.mu.Lock()
		mine := p.turn == turn
		if mine {
			p.late--
		}
		p.mu.Unlock()
		if mine {
			p.gate.Leave()
		}
	})
}

// Regain implements Pool.
func (p *pool) Regain() {
	p.mu.Lock()
	n := p.late
	p.late, p.turn = 0, p.turn+1
	p.mu.Unlock()
	for range n {
		p.gate.Leave()
	}
}

// Close implements Pool. That a connection was broken is no news.
func (p *pool) Close() error {
	_ = p.db.Close()
	return nil
}

// Do implements Pool. What never left is sent again, on another connection.
func (p *pool) Do(ctx context.Context, command string, batch ...Statement) ([]Result, error) {
	for tries := 3; ; tries-- {
		c, err := p.take(ctx)
		if err != nil {
			p.observe(command, 0, err)
			return nil, err
		}
		res, err := c.Do(ctx, command, batch...)
		c.Close() //nolint:contextcheck // the transaction is ended, whatever ctx says
		if err == nil || tries == 0 || ctx.Err() != nil || !errors.As(err, new(*NotSentError)) {
			return res, err
		}
	}
}

// Conn implements Pool.
func (p *pool) Conn(ctx context.Context) (Conn, error) { return p.take(ctx) }

func (p *pool) take(ctx context.Context) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	if !p.gate.Enter(ctx) {
		return nil, &NotSentError{Err: fmt.Errorf("all connections are in use: %w", context.Cause(ctx))}
	}
	c, err := p.db.Conn(ctx)
	if err != nil {
		p.gate.Leave()
		return nil, &NotSentError{Err: err}
	}
	taken := &conn{p: p, c: c}
	_ = c.Raw(func(k any) error { // it gives what the function gives
		taken.k = k.(*pooled)
		return nil
	})
	return taken, nil
}

// pooled is a Link as it is kept in a sql.DB.
type pooled struct {
	Link
	p      *pool
	number int64
}

var _ interface {
	driver.Conn
	driver.SessionResetter
	driver.Validator
} = (*pooled)(nil)

// Prepare implements driver.Conn.
func (*pooled) Prepare(string) (driver.Stmt, error) { return nil, errors.ErrUnsupported }

// Begin implements driver.Conn.
func (*pooled) Begin() (driver.Tx, error) { return nil, errors.ErrUnsupported }

// IsValid implements driver.Validator. A connection to another server than that of the
// heartbeats is given up.
func (k *pooled) IsValid() bool {
	trusted := k.p.trusted.Load()
	return k.Usable() && (trusted == nil || *trusted == k.Server())
}

// ResetSession implements driver.SessionResetter: it is asked before each use.
func (k *pooled) ResetSession(context.Context) error {
	if !k.IsValid() || !k.Alive() {
		return driver.ErrBadConn
	}
	return nil
}

// conn implements Conn.
type conn struct {
	p    *pool
	c    *sql.Conn
	k    *pooled
	open bool // there may be a transaction
	over bool
	late bool // it had no answer in time
	left bool // its place in the gate is given back
}

// Do implements Conn.
func (c *conn) Do(ctx context.Context, command string, batch ...Statement) ([]Result, error) {
	c.open = c.open || batch[0].SQL == "START TRANSACTION"
	start := time.Now()
	res, err := c.k.Send(context.WithoutCancel(ctx), batch)
	took := time.Since(start)
	c.late = c.late || err != nil && took >= c.p.timeout && !c.k.Usable()
	c.p.observe(command, took, err)
	if err == nil && batch[len(batch)-1].SQL == "COMMIT" {
		c.open = false
	}
	return res, err
}

// Server implements Conn.
func (c *conn) Server() string { return c.k.Server() }

// Number implements Conn.
func (c *conn) Number() int64 { return c.k.number }

// GiveUp implements Conn.
func (c *conn) GiveUp() { c.over = true }

// Close implements Conn.
func (c *conn) Close() {
	if c.open && c.k.Usable() {
		_, err := c.k.Send(context.Background(), []Statement{{SQL: "ROLLBACK"}})
		c.over = c.over || err != nil
	}
	if c.over {
		_ = c.c.Raw(func(any) error { return driver.ErrBadConn }) // which closes it
	}
	if _ = c.c.Close(); !c.left {
		c.left = true
		c.p.leave(c.late)
	}
}

// Hosts are the servers of a URL. Which of them has taken the last connection is
// remembered.
type Hosts struct {
	Addrs []string
	good  atomic.Int64
}

// OpenFirst opens a connection to the first host that takes writes, as dial finds out,
// beginning with the one that did last. server is the only one that will do; "": any.
func OpenFirst[L Link](h *Hosts, server string, dial func(host int) (L, error)) (L, error) {
	first := int(h.good.Load())
	var errs []error
	for i := range h.Addrs {
		n := (first + i) % len(h.Addrs)
		l, err := dial(n)
		if err == nil && server != "" && l.Server() != server {
			_ = l.Close()
			err = errOtherServer(l.Server(), server)
		}
		if err == nil {
			h.good.Store(int64(n))
			return l, nil
		}
		errs = append(errs, fmt.Errorf("connect to %s: %w", h.Addrs[n], err))
	}
	var none L
	return none, errors.Join(errs...)
}

type otherServerError struct{ is, trusted string }

func (e *otherServerError) Error() string {
	return "this is " + e.is + ", and " + e.trusted + " answers the heartbeats"
}

func errOtherServer(is, trusted string) error { return &otherServerError{is, trusted} }
