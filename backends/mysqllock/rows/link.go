package rows

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
)

// link is one connection, with at most one transaction on it.
type link struct {
	f    *foreign
	conn *mysql.Link
	turn chan struct{} // full while somebody uses conn

	closing sync.Once
	closed  chan struct{}

	// Guarded by the mutex of foreign.
	socket *socket
	gone   bool // it has ended
	row    *row // that it has, or waits for
}

// errNoAnswer: the request goes on, but nobody waits for its answer any more.
var errNoAnswer = errors.New("no answer in time")

// connect opens a link.
func (f *foreign) connect(ctx context.Context) (_ *link, err error) {
	if err := f.slots.take(); err != nil {
		return nil, err
	}
	k := &link{f: f, turn: make(chan struct{}, 1), closed: make(chan struct{})}
	start := time.Now()
	defer func() {
		f.observe("connect", time.Since(start), err)
		if err != nil {
			f.slots.put()
			err = fmt.Errorf("open a connection for a lock: %w", err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.timeout)
	defer cancel()
	at := dialed{end: func(s *socket) { f.ended(k, s) }, spawn: f.spawn}
	f.mu.Lock()
	server := f.server // the locks of another would exclude nobody
	f.mu.Unlock()
	if k.conn, err = f.connector.Open(context.WithValue(ctx, dialedKey{}, &at), server); err != nil {
		return nil, err
	}
	f.mu.Lock()
	k.socket = at.socket
	f.mu.Unlock()
	return k, nil
}

// run sends a request when it is its turn and gives the number of rows in its answer. One
// that waits for somebody has no command: it is not measured.
// When ctx ends first the error is errNoAnswer, and the request goes on: to cut it
// short would be to cut the connection, and so to lose the lock.
func (k *link) run(ctx context.Context, command string, batch ...sqllock.Statement) (int, error) {
	select {
	case k.turn <- struct{}{}:
	case <-k.closed:
		return 0, errClosed
	case <-ctx.Done():
		return 0, errNoAnswer
	}
	type answer struct {
		rows int
		err  error
	}
	answered := make(chan answer, 1)
	start := time.Now()
	if !k.f.spawn(func() { //nolint:contextcheck // see above
		res, err := k.conn.Send(context.Background(), batch)
		<-k.turn
		if command != "" {
			k.f.observe(command, time.Since(start), err)
		}
		n := 0
		for _, r := range res {
			n += len(r.Rows)
		}
		answered <- answer{n, err}
	}) {
		<-k.turn
		return 0, errClosed
	}
	select {
	case a := <-answered:
		return a.rows, a.err
	case <-ctx.Done():
		return 0, errNoAnswer
	}
}

// close ends the connection, and with it the transaction, as soon as the server
// notices: at once, unless it waits for a row.
func (k *link) close() {
	k.closing.Do(func() {
		close(k.closed)
		k.f.slots.put()
		select {
		case k.turn <- struct{}{}: // nobody uses it, so the server can be told
			_ = k.conn.Close()
		default:
			_ = k.socket.Close() // ends the request under way
			k.f.routines.Go(func() {
				k.turn <- struct{}{}
				_ = k.conn.Close()
			})
		}
	})
}
