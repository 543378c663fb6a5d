// Package mydb is what all ways of keeping locks in MySQL or MariaDB share: the
// URL, connections whose session settings do not depend on what the server's
// administrator likes, and the kinds of errors.
//
// Every connection is of the same kind: READ COMMITTED, autocommit, times in
// UTC, text in utf8mb4, an SQL mode of our own, several statements a request,
// arguments put into the text by the driver. Rows affected are rows found.
package mydb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/lock"
)

// lockWait is how long a statement waits for a row that another transaction has
// locked; the least that InnoDB can be told.
const lockWait = time.Second

// ConnectOptions are what one pool's connections have of their own.
type ConnectOptions struct {
	// Wait is added to the timeout of a request: the time that the server may
	// rightly take, beside what it does at once. 0: that of one wait for a row.
	Wait time.Duration
	// NoWait: requests never wait for a row, so the timeout is all they have.
	NoWait bool
	// Settings are assignments for SET SESSION beside those that all have, such
	// as "wait_timeout=10". They come after them.
	Settings func(Server) []string
	// Dial opens connections in place of net.Dialer; network is tcp or unix.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Connected is told of each new connection before it is used. An error of it
	// is that of the connection.
	Connected func(Server) error
}

// Connector opens connections. It is a driver.Connector.
type Connector struct {
	cfg   Config
	o     ConnectOptions
	hosts []driver.Connector // one for each of cfg.Addrs
	addrs []string

	mu   sync.Mutex
	good int // the host that took the last connection
}

// NewConnector makes a Connector. It does not ask the server anything.
func NewConnector(cfg Config, o ConnectOptions) (*Connector, error) {
	c := &Connector{cfg: cfg, o: o}
	network, addrs := "tcp", cfg.Addrs
	if cfg.Socket != "" {
		network, addrs = "unix", []string{cfg.Socket}
	}
	c.addrs = addrs
	wait := o.Wait
	if wait == 0 && !o.NoWait {
		wait = lockWait
	}
	for _, addr := range addrs {
		d := mysql.NewConfig()
		d.Net, d.Addr, d.User, d.Passwd, d.DBName = network, addr, cfg.User, cfg.Password, cfg.Database
		d.Timeout, d.WriteTimeout, d.ReadTimeout = cfg.Timeout, cfg.Timeout, cfg.Timeout+wait
		d.Logger = nowhere{}
		d.DialFunc = o.Dial
		d.ConnectionAttributes = "program_name:locksidecar"
		d.InterpolateParams, d.MultiStatements, d.ClientFoundRows = true, true, true
		hostname, _, _ := net.SplitHostPort(addr)
		d.TLS = cfg.TLSTo(hostname)
		host, err := mysql.NewConnector(d)
		if err != nil {
			return nil, &lock.InvalidError{Field: "store", Problem: err.Error()}
		}
		c.hosts = append(c.hosts, host)
	}
	return c, nil
}

// Driver implements driver.Connector.
func (c *Connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

// Connect implements driver.Connector. Of several hosts it takes the first that
// answers and takes writes, beginning with the one that did last; where none
// takes writes, the first that answers.
func (c *Connector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, _, err := c.Open(ctx)
	return conn, err
}

// Open is Connect, and tells what the server said.
func (c *Connector) Open(ctx context.Context) (driver.Conn, Server, error) {
	c.mu.Lock()
	first := c.good
	c.mu.Unlock()
	var errs []error
	for i := range c.hosts {
		n := (first + i) % len(c.hosts)
		conn, server, err := c.connect(ctx, n)
		if err == nil && server.ReadOnly && len(c.hosts) > 1 {
			_ = conn.Close()
			err = errReadOnly
		}
		if err == nil && c.o.Connected != nil {
			if err = c.o.Connected(server); err != nil {
				_ = conn.Close()
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("connect to %s: %w", c.addrs[n], err))
			continue
		}
		c.mu.Lock()
		c.good = n
		c.mu.Unlock()
		return conn, server, nil
	}
	return nil, Server{}, errors.Join(errs...)
}

var errReadOnly = errors.New("the server takes no writes (read_only)")

// connect opens one connection and gives its session the settings that all have.
func (c *Connector) connect(ctx context.Context, host int) (driver.Conn, Server, error) {
	conn, err := c.hosts[host].Connect(ctx)
	if err != nil {
		return nil, Server{}, err
	}
	server, err := c.setUp(ctx, conn)
	if err != nil {
		_ = conn.Close()
		return nil, Server{}, err
	}
	return conn, server, nil
}

// session are the settings of all sessions, so that no global setting of the
// server and no init_connect changes what our statements mean. Written so that
// it can be read in any SQL mode.
const session = "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE'; " +
	"SET NAMES utf8mb4 COLLATE utf8mb4_bin; " +
	"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; " +
	"SET SESSION TRANSACTION READ WRITE; " +
	"SET autocommit=1, time_zone='+00:00', timestamp=DEFAULT, innodb_lock_wait_timeout=1, lock_wait_timeout=5, " +
	"completion_type=0, sql_safe_updates=0, sql_select_limit=DEFAULT, unique_checks=1, foreign_key_checks=1"

func (c *Connector) setUp(ctx context.Context, conn driver.Conn) (Server, error) {
	execer := conn.(driver.ExecerContext)
	if _, err := execer.ExecContext(ctx, session, nil); err != nil {
		return Server{}, fmt.Errorf("set up session: %w", err)
	}
	server, err := askServer(ctx, conn.(driver.QueryerContext))
	if err != nil {
		return Server{}, err
	}
	settings := []string{"max_execution_time=0"} // a limit for SELECT
	if server.Dialect == MariaDB {
		settings = []string{"max_statement_time=0", "idle_transaction_timeout=0"}
	}
	if c.o.Settings != nil {
		settings = append(settings, c.o.Settings(server)...)
	}
	if _, err := execer.ExecContext(ctx, "SET SESSION "+strings.Join(settings, ", "), nil); err != nil {
		return Server{}, fmt.Errorf("set up session: %w", err)
	}
	return server, nil
}

// nowhere keeps the driver from writing to standard error by itself: every
// failure reaches a caller, who knows what it means.
type nowhere struct{}

func (nowhere) Print(...any) {}

// Server is what a server says of itself.
type Server struct {
	Dialect  Dialect
	Version  string // as it says it
	Identity string // of the process's data, as good as the server tells it
	ReadOnly bool
	ID       int64 // of the connection, for KILL
}

// Dialect is which of the two a server is.
type Dialect string

// The dialects, as lock.Guard names them.
const (
	MySQL   Dialect = "mysql"
	MariaDB Dialect = "mariadb"
)

// ForShare is how a SELECT locks rows against changes, needing no privilege but
// SELECT.
func (d Dialect) ForShare() string {
	if d == MariaDB {
		return "LOCK IN SHARE MODE"
	}
	return "FOR SHARE"
}

// Identity is an expression that tells servers apart, and stays the same when one is
// restarted.
const Identity = "CONCAT(@@hostname, ':', @@port, ':', @@server_id, ':', @@datadir)"

func askServer(ctx context.Context, conn driver.QueryerContext) (Server, error) {
	rows, err := conn.QueryContext(ctx, "SELECT VERSION(), "+Identity+", @@global.read_only, CONNECTION_ID()", nil)
	if err != nil {
		return Server{}, fmt.Errorf("ask server: %w", err)
	}
	defer func() { _ = rows.Close() }()
	row := make([]driver.Value, 4)
	if err := rows.Next(row); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return Server{}, fmt.Errorf("ask server: %w", err)
	}
	s := Server{Dialect: MySQL, Version: text(row[0]), Identity: text(row[1])}
	if strings.Contains(strings.ToLower(s.Version), "mariadb") {
		s.Dialect = MariaDB
	}
	s.ReadOnly, s.ID = number(row[2]) != 0, number(row[3])
	return s, s.check()
}

// oldest are the first versions that can do what the strategies need: SKIP
// LOCKED, and ALTER TABLE as the migrations have it.
var oldest = map[Dialect]string{MySQL: "8.0", MariaDB: "10.6"}

func (s Server) check() error {
	var have, need [2]int
	_, _ = fmt.Sscanf(oldest[s.Dialect], "%d.%d", &need[0], &need[1])
	if _, err := fmt.Sscanf(s.Version, "%d.%d", &have[0], &have[1]); err != nil {
		return nil //nolint:nilerr // a fork that counts in its own way: it shows when a statement fails
	}
	if have[0] < need[0] || have[0] == need[0] && have[1] < need[1] {
		return fmt.Errorf("the server is %s %s; %s is the oldest that can be used", s.Dialect, s.Version, oldest[s.Dialect])
	}
	return nil
}

func text(v driver.Value) string {
	switch v := v.(type) {
	case []byte:
		return string(v)
	case string:
		return v
	default:
		return ""
	}
}

func number(v driver.Value) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case uint64:
		return int64(v) //nolint:gosec // a connection's number
	default:
		var n int64
		_, _ = fmt.Sscan(text(v), &n)
		return n
	}
}
