package rows

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// link is one connection, with at most one transaction on it.
type link struct {
	l     *lease
	conn  driver.Conn
	raw   net.Conn      // below TLS
	token string        // its named lock, without the prefix
	turn  chan struct{} // full while somebody uses conn
	key   int32         // in the watcher
	gone  bool          // it has ended; guarded by the lease's mutex
	end   func()        // tells the lease, once, that it has ended

	closing sync.Once
	closed  chan struct{}
}

var (
	errClosed = errors.New("the connection was closed")
	// errNoAnswer: the request goes on, but nobody waits for its answer any more.
	errNoAnswer = errors.New("no answer in time")
)

// dialed is where dial leaves the socket of a connection under way.
type dialed struct{ conn net.Conn }

type dialedKey struct{}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if at, ok := ctx.Value(dialedKey{}).(*dialed); ok && err == nil {
		at.conn = c
	}
	return c, err
}

// connect opens a link. end is called once when the link has ended, unless by
// close: the watcher calls it when the other side hangs up, and run when a
// request fails for it. Neither alone would do. Nobody reads from a link between
// requests, and on a failed read the driver closes the socket, which the kernel
// then takes from the watcher before it has looked.
func (l *lease) connect(ctx context.Context, end func(*link)) (k *link, err error) {
	if err := l.b.takeSlot(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.b.links.Add(-1)
		}
	}()
	start := time.Now()
	defer func() { l.b.observe("connect", time.Since(start), err) }()
	ctx, cancel := l.b.patience(ctx)
	defer cancel()
	var socket dialed
	conn, err := l.connector.Connect(context.WithValue(ctx, dialedKey{}, &socket))
	if err != nil {
		return nil, mydb.Unavailable("open connection for a lock", err)
	}
	k = &link{l: l, conn: conn, raw: socket.conn, token: string(lock.NewHoldID()), turn: make(chan struct{}, 1), closed: make(chan struct{})}
	k.end = sync.OnceFunc(func() { end(k) })
	got, err := collect(k.query(ctx, "SELECT 1 FROM (SELECT GET_LOCK(?, 0) AS got) AS t WHERE got = 1", l.b.sql.prefix+k.token))
	if err == nil && len(got) != 1 {
		err = errors.New("GET_LOCK gives no lock")
	}
	if err == nil {
		k.key, err = l.watch.add(socket.conn.(syscall.Conn), k.end)
	}
	if err != nil {
		_ = conn.Close()
		return nil, mydb.Unavailable("open connection for a lock", err)
	}
	return k, nil
}

// run sends a request and gives the number of rows in its answer; see ask.
func (k *link) run(ctx context.Context, command, query string, args ...any) (int, error) {
	rows, err := k.ask(ctx, command, query, args...)
	return len(rows), err
}

// ask sends a request when it is its turn and gives the rows of its answer. When
// ctx ends first the error is errNoAnswer, and the request goes on: to cut it short
// would be to cut the connection, and so to lose the lock. A request without a name
// waits for other holders: it is not measured.
func (k *link) ask(ctx context.Context, command, query string, args ...any) ([][]driver.Value, error) {
	select {
	case k.turn <- struct{}{}:
	case <-k.closed:
		return nil, errClosed
	case <-ctx.Done():
		return nil, errNoAnswer
	}
	type answer struct {
		rows [][]driver.Value
		err  error
	}
	answered := make(chan answer, 1)
	start := time.Now()
	k.l.routines.Go(func() { //nolint:contextcheck // see above
		rows, err := collect(k.query(context.Background(), query, args...))
		<-k.turn
		if command != "" {
			k.l.b.observe(command, time.Since(start), err)
		}
		if broken(err) {
			k.end()
		}
		answered <- answer{rows, err}
	})
	select {
	case a := <-answered:
		return a.rows, a.err
	case <-ctx.Done():
		return nil, errNoAnswer
	}
}

func (k *link) query(ctx context.Context, query string, args ...any) (driver.Rows, error) {
	values := make([]driver.NamedValue, len(args))
	for i, a := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return k.conn.(driver.QueryerContext).QueryContext(ctx, query, values)
}

// collect reads an answer to its end, and gives the rows of all its parts.
func collect(rows driver.Rows, err error) (all [][]driver.Value, _ error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for {
		for columns := len(rows.Columns()); columns > 0; {
			row := make([]driver.Value, columns)
			err := rows.Next(row)
			for i, v := range row {
				if b, ok := v.([]byte); ok {
					row[i] = bytes.Clone(b) // the driver uses its buffer again
				}
			}
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			all = append(all, row)
		}
		next, ok := rows.(driver.RowsNextResultSet)
		if !ok || !next.HasNextResultSet() {
			return all, nil
		}
		if err := next.NextResultSet(); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
	}
}

// text is a value of an answer.
func text(v driver.Value) string { return string(v.([]byte)) }

// number is one that is a number, which the server may send as text.
func number(v driver.Value) int64 {
	if n, ok := v.(int64); ok {
		return n
	}
	n, _ := strconv.ParseInt(text(v), 10, 64) // as the column has them
	return n
}

// close ends the connection, and with it the transaction, as soon as the server
// notices: at once, unless it waits for a row.
func (k *link) close() {
	k.closing.Do(func() {
		close(k.closed)
		k.l.watch.remove(k.key)
		k.l.b.links.Add(-1)
		select {
		case k.turn <- struct{}{}: // nobody uses it, so the server can be told
			_ = k.conn.Close()
		default:
			_ = k.raw.Close() // ends the request under way
			k.l.routines.Go(func() {
				k.turn <- struct{}{}
				_ = k.conn.Close()
			})
		}
	})
}

// broken reports whether err says that the connection is of no use any more:
// any error that is not the server's own, and those with which it takes leave.
func broken(err error) bool {
	switch mydb.Code(err) {
	case 0, 1053, 1927, 3169, 4031: // shutdown; killed, on MariaDB and MySQL; silent for too long
		return err != nil
	}
	return false
}

// settle makes sure that links are gone from the server, by ending those that
// are not. nil promises that the rows that they had locked are free.
func (b *Backend) settle(ctx context.Context, pool *mydb.Pool, tokens ...string) error {
	for pause := time.Millisecond; len(tokens) > 0; pause = min(2*pause, 50*time.Millisecond) {
		var left []string
		for _, token := range tokens {
			id, err := b.connectionOf(ctx, pool, token)
			if err != nil {
				return err
			}
			if id == 0 {
				continue
			}
			left = append(left, token)
			if _, err := pool.Exec(ctx, "kill", fmt.Sprintf("KILL %d", id)); err != nil && !mydb.KillRefused(err) {
				return mydb.Unavailable("end connection", err)
			}
		}
		if tokens = left; len(left) > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return mydb.Unavailable("end connection", context.Cause(ctx))
			}
		}
	}
	return nil
}
