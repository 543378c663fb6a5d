package mysql

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

// lockWait is how long a statement waits for a row that another transaction has
// locked; the least that InnoDB can be told.
const lockWait = time.Second

// ConnectOptions are what some connections have of their own.
type ConnectOptions struct {
	// Wait is added to the timeout of a request: the time that the server may
	// rightly take, beside what it does at once.
	Wait time.Duration
	// Settings are assignments for SET SESSION beside those that all have, such
	// as "wait_timeout=10". They come after them.
	Settings []string
	// IdleTransaction is how many seconds a MariaDB lets a transaction wait for its next
	// statement; 0: for ever.
	IdleTransaction int
	// Dial opens connections in place of net.Dialer; network is tcp or unix.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Connector opens connections. It is a driver.Connector, too, for programs with an sql.DB.
//
// Every connection is of the same kind: READ COMMITTED, autocommit, times in
// UTC, text in utf8mb4, an SQL mode of our own, several statements a request,
// arguments put into the text by the driver. Rows affected are rows found.
type Connector struct {
	o       ConnectOptions
	hosts   sqllock.Hosts
	drivers []driver.Connector // of each
}

// NewConnector makes a Connector. It does not ask the server anything.
func NewConnector(cfg Config, o ConnectOptions) (*Connector, error) {
	network, addrs := "tcp", cfg.Addrs
	if cfg.Socket != "" {
		network, addrs = "unix", []string{cfg.Socket}
	}
	c := &Connector{o: o, hosts: sqllock.Hosts{Addrs: addrs}}
	for _, addr := range addrs {
		d := mysql.NewConfig()
		d.Net, d.Addr, d.User, d.Passwd, d.DBName = network, addr, cfg.User, cfg.Password, cfg.Database
		d.Timeout, d.WriteTimeout, d.ReadTimeout = cfg.Timeout, cfg.Timeout, cfg.Timeout+o.Wait
		d.Logger = nowhere{}
		d.DialFunc = o.Dial
		d.ConnectionAttributes = "program_name:locksidecar"
		d.InterpolateParams, d.MultiStatements, d.ClientFoundRows = true, true, true
		hostname, _, _ := net.SplitHostPort(addr)
		d.TLS = cfg.TLS.To(hostname)
		// What stands in files may have changed since the last connection.
		_ = d.Apply(mysql.BeforeConnect(func(_ context.Context, now *mysql.Config) error { // it has no error
			now.Passwd, now.TLS = cfg.PasswordNow(), cfg.TLS.To(hostname)
			return nil
		}))
		host, err := mysql.NewConnector(d)
		if err != nil {
			return nil, &lock.InvalidError{Field: "store", Problem: err.Error()}
		}
		c.drivers = append(c.drivers, host)
	}
	return c, nil
}

// Open opens a connection. Of several hosts it takes the first that answers and takes
// writes, see sqllock.OpenFirst. One that stands alone need not take writes.
func (c *Connector) Open(ctx context.Context, server string) (*Link, error) {
	return sqllock.OpenFirst(&c.hosts, server, func(host int) (*Link, error) {
		conn, err := c.drivers[host].Connect(ctx)
		if err != nil {
			return nil, err
		}
		l := &Link{conn: conn, kept: make(map[string]*kept)}
		if err := l.setUp(ctx, c.o); err != nil {
			_ = conn.Close()
			return nil, err
		}
		if l.readOnly && len(c.drivers) > 1 {
			_ = conn.Close()
			return nil, errReadOnly
		}
		return l, nil
	})
}

// Connect implements driver.Connector.
func (c *Connector) Connect(ctx context.Context) (driver.Conn, error) {
	l, err := c.Open(ctx, "")
	if err != nil {
		return nil, err
	}
	return l.conn, nil
}

// Driver implements driver.Connector.
func (*Connector) Driver() driver.Driver { return mysql.MySQLDriver{} }

var errReadOnly = errors.New("the server takes no writes (read_only)")

// session are the settings of all sessions, so that no global setting of the
// server and no init_connect changes what our statements mean. Written so that
// it can be read in any SQL mode.
const session = "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE'; " +
	"SET NAMES utf8mb4 COLLATE utf8mb4_bin; " +
	"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; " +
	"SET SESSION TRANSACTION READ WRITE; " +
	"SET autocommit=1, time_zone='+00:00', timestamp=DEFAULT, innodb_lock_wait_timeout=1, lock_wait_timeout=5, " +
	"completion_type=0, sql_safe_updates=0, sql_select_limit=DEFAULT, unique_checks=1, foreign_key_checks=1"

// setUp asks the server what it is, and gives the session its settings.
func (l *Link) setUp(ctx context.Context, o ConnectOptions) error {
	res, err := l.Send(ctx, []sqllock.Statement{{SQL: session}, {SQL: "SELECT VERSION(), " + Identity + ", @@global.read_only, CONNECTION_ID()"}})
	if err == nil && len(res[1].Rows) == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("ask server: %w", err)
	}
	row := res[1].Rows[0]
	l.product, l.server, l.readOnly, l.ID = MySQL, row.Text(1), row.Bool(2), row.Int(3)
	settings := []string{"max_execution_time=0", serverVariable + "=" + Identity} // the one is a limit for SELECT
	if strings.Contains(strings.ToLower(row.Text(0)), "mariadb") {
		l.product = MariaDB
		settings[0] = fmt.Sprintf("max_statement_time=0, idle_readonly_transaction_timeout=0, idle_write_transaction_timeout=0, idle_transaction_timeout=%d", o.IdleTransaction)
	}
	if err := check(l.product, row.Text(0)); err != nil {
		return err
	}
	if _, err := l.Send(ctx, []sqllock.Statement{{SQL: "SET SESSION " + strings.Join(append(settings, o.Settings...), ", ")}}); err != nil {
		return fmt.Errorf("set up session: %w", err)
	}
	return nil
}

// nowhere keeps the driver from writing to standard error by itself: every
// failure reaches a caller, who knows what it means.
type nowhere struct{}

func (nowhere) Print(...any) {}

// product is which of the two a server is.
type product string

// The products, as lock.Guard names them.
const (
	MySQL   product = "mysql"
	MariaDB product = "mariadb"
)

// Identity is an expression that tells servers apart, and stays the same when one is
// restarted.
const Identity = "CONCAT(@@hostname, ':', @@port, ':', @@server_id, ':', @@datadir)"

// oldest are the first versions that can do what the strategies need: SKIP
// LOCKED, and ALTER TABLE as the migrations have it.
var oldest = map[product]string{MySQL: "8.0", MariaDB: "10.6"}

func check(p product, version string) error {
	var have, need [2]int
	_, _ = fmt.Sscanf(oldest[p], "%d.%d", &need[0], &need[1])
	if _, err := fmt.Sscanf(version, "%d.%d", &have[0], &have[1]); err != nil {
		return nil //nolint:nilerr // a fork that counts in its own way: it shows when a statement fails
	}
	if have[0] < need[0] || have[0] == need[0] && have[1] < need[1] {
		return fmt.Errorf("the server is %s %s; %s is the oldest that can be used", p, version, oldest[p])
	}
	return nil
}
