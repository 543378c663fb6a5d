package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
	"github.com/locksidecar/locksidecar/bench/internal/proc"
)

// mysqlStore is one MySQL or MariaDB.
type mysqlStore struct {
	url string
	db  *sql.DB
	pid int // of the server; 0: not on this machine

	asked float64 // statements with which the server was asked for its numbers
}

var _ measure.Store = (*mysqlStore)(nil)

// MySQLWords for tables of a store of that name.
func MySQLWords(name string) measure.Words {
	return measure.Words{
		Name: name, Steps: "statements", Memory: "in its buffer pool", Renewal: "heartbeat",
		Notified: "RELEASE_LOCK, to who waits in GET_LOCK", Answered: "RELEASE_LOCK, round trip",
	}
}

const mysqlNamedLock = "GET_LOCK + RELEASE_LOCK"

// ConnectMySQL makes the one pool that all peers share.
func ConnectMySQL(ctx context.Context, address string) (measure.Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("parse the URL of the store: %w", err)
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.DBName, c.User = "tcp", u.Host, u.Path[1:], u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.InterpolateParams = true // one round trip a statement, as the sidecar does it
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("configure the driver: %w", err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return nil, fmt.Errorf("find the port in the URL of the store: %w", err)
	}
	s := &mysqlStore{url: address, db: sql.OpenDB(connector), pid: proc.Listener(port)}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, s.db.Close())
	}
	return s, nil
}

// prepare makes the table, and a server of the tests as careful as servers are
// by default: a commit is answered when it is on the disk.
func (s *mysqlStore) prepare(ctx context.Context) error {
	const careful = 1
	var now int
	if err := s.db.QueryRowContext(ctx, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit").Scan(&now); err != nil {
		return fmt.Errorf("ask when a commit is answered: %w", err)
	}
	if now != careful {
		if _, err := s.db.ExecContext(ctx, "SET GLOBAL innodb_flush_log_at_trx_commit = ?", careful); err != nil {
			return fmt.Errorf("let commits wait for the disk: %w", err)
		}
	}
	// The leases of many sidecars have some connections each.
	if _, err := s.db.ExecContext(ctx, "SET GLOBAL max_connections = 10000"); err != nil {
		return fmt.Errorf("allow many connections: %w", err)
	}
	if _, err := s.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS "+table+" (name VARCHAR(128) PRIMARY KEY, n BIGINT NOT NULL)"); err != nil {
		return fmt.Errorf("create a table: %w", err)
	}
	return nil
}

// URL implements measure.Store.
func (s *mysqlStore) URL() string { return s.url }

// Close implements measure.Store.
func (s *mysqlStore) Close() error { return s.db.Close() }

// Subjects implements measure.Store.
func (s *mysqlStore) Subjects() []measure.Subject {
	return []measure.Subject{s.onOwnRows(mysqlNamedLock, namedLock), s.onOwnRows(rowLock, mysqlRowLock), s.onOwnRows(TwoUpdates, mysqlUpdates)}
}

// namedLock is a lock of the server, which belongs to the connection.
func namedLock(ctx context.Context, c *sql.Conn, name string) error {
	if err := mysqlSaysOne(ctx, c, "SELECT GET_LOCK(?, 0)", name); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if err := mysqlSaysOne(ctx, c, "SELECT RELEASE_LOCK(?)", name); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// mysqlRowLock is a lock of the database, which belongs to the transaction.
func mysqlRowLock(ctx context.Context, c *sql.Conn, name string) error {
	tx, err := c.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	var n int64
	if err := tx.QueryRowContext(ctx, "SELECT n FROM "+table+" WHERE name = ? FOR UPDATE", name).Scan(&n); err != nil {
		return errors.Join(fmt.Errorf("lock: %w", err), tx.Rollback())
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// mysqlUpdates are the least that two changes which last can cost.
func mysqlUpdates(ctx context.Context, c *sql.Conn, name string) error {
	for range 2 {
		if _, err := c.ExecContext(ctx, "UPDATE "+table+" SET n = n + 1 WHERE name = ?", name); err != nil {
			return fmt.Errorf("update: %w", err)
		}
	}
	return nil
}

var errRefused = errors.New("the server says that the lock is not ours")

// mysqlSaysOne runs a statement that answers 1 when it did what it is for.
func mysqlSaysOne(ctx context.Context, c *sql.Conn, statement, name string) error {
	var n sql.NullInt64
	if err := c.QueryRowContext(ctx, statement, name).Scan(&n); err != nil {
		return err
	}
	if n.Int64 != 1 {
		return errRefused
	}
	return nil
}

// onOwnRows gives each caller a connection and a row of its own.
func (s *mysqlStore) onOwnRows(name string, pair func(ctx context.Context, c *sql.Conn, name string) error) measure.Subject {
	return measure.Subject{Name: name, Open: func(ctx context.Context, callers int) ([]measure.Pair, func() error, error) {
		var conns []*sql.Conn
		closeAll := func() error {
			var errs []error
			for _, c := range conns {
				errs = append(errs, c.Close())
			}
			return errors.Join(errs...)
		}
		var pairs []measure.Pair
		for i := range callers {
			c, err := s.db.Conn(ctx)
			if err != nil {
				return nil, nil, errors.Join(fmt.Errorf("connect: %w", err), closeAll())
			}
			conns = append(conns, c)
			row := fmt.Sprintf("bench/%s/%d", name, i)
			if _, err := c.ExecContext(ctx, "INSERT IGNORE INTO "+table+" VALUES (?, 0)", row); err != nil {
				return nil, nil, errors.Join(fmt.Errorf("insert a row: %w", err), closeAll())
			}
			pairs = append(pairs, func(ctx context.Context) error { return pair(ctx, c, row) })
		}
		return pairs, closeAll, nil
	}}
}
