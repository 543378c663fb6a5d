package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// maxRecheck bounds how long a waiter trusts that it will be told.
const maxRecheck = time.Second

// lease is one sidecar's session in the tables.
type lease struct {
	b       *Backend
	id      lock.LeaseID
	sidecar string
	ttl     time.Duration
	recheck time.Duration
	events  chan lock.Event

	beats     *mydb.Pool   // one connection for heartbeats: they wait for nobody
	connected atomic.Int64 // connections of beats so far

	compareMu sync.Mutex
	compared  int64 // connected, when memories were compared

	mu      sync.Mutex
	entries map[lock.HoldID]*entry
	waiters int // calls of Acquire that wait in the queue

	post   *post
	keeper *keeper

	lost     chan struct{} // closed when the store said so, or by Close
	lostOnce sync.Once

	stop      context.CancelFunc // ends the goroutines
	routines  sync.WaitGroup
	closeOnce sync.Once

	eventsMu sync.RWMutex
	closed   bool // events is closed
}

var _ lock.Lease = (*lease)(nil)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	if err := b.check(ctx); err != nil {
		return nil, err
	}
	if err := b.learnGuards(ctx); err != nil {
		return nil, err
	}
	l := &lease{
		b: b, id: lock.NewLeaseID(), sidecar: o.Sidecar[:min(len(o.Sidecar), 255)], ttl: o.TTL, recheck: min(maxRecheck, o.TTL/3),
		events: make(chan lock.Event, 64), entries: make(map[lock.HoldID]*entry), lost: make(chan struct{}),
	}
	var err error
	l.beats, err = b.newPool(1, mydb.ConnectOptions{NoWait: true, Connected: func(mydb.Server) error { l.connected.Add(1); return nil }})
	if err != nil {
		return nil, err
	}
	if l.post, err = newPost(l); err != nil {
		return nil, errors.Join(err, l.beats.Close())
	}
	l.keeper = newKeeper(l)
	if err := l.insert(ctx); err != nil {
		return nil, errors.Join(mydb.Unavailable("open lease", err), l.beats.Close(), l.post.listener.Close())
	}
	b.mu.Lock()
	b.leases[string(l.id)] = l
	b.mu.Unlock()
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.routines.Go(func() { l.post.listen(run) })
	l.routines.Go(func() { l.post.poll(run) })
	l.routines.Go(func() { l.keeper.watch(run) })
	l.routines.Go(func() { l.keeper.chores(run) })
	l.routines.Go(func() { l.keeper.acknowledge(run) })
	select { // until the bell is there, grants are found late
	case <-l.post.ready:
	case <-time.After(min(b.cfg.Timeout, o.TTL/4)): // a bell is a hint: the lease must not end while it is waited for
	case <-ctx.Done():
	}
	return l, nil
}

// insert makes the lease known. Where that has no answer, a row may be left
// behind that nobody renews; others end it.
func (l *lease) insert(ctx context.Context) error {
	id := []byte(l.id)
	// A new connection takes the server longer than a request, and when it fails
	// nothing was asked for.
	for range 3 {
		if l.beats.DB.PingContext(ctx) == nil || ctx.Err() != nil {
			break
		}
	}
	if _, err := l.beats.Exec(ctx, "open", l.b.sql.open, id, newBeat(), l.ttl.Milliseconds(), []byte(l.sidecar), id, []byte(l.sidecar)); err != nil {
		return err
	}
	l.compared = l.connected.Load()
	return nil
}

// newBeat is a number that no heartbeat of a lease has had before: after a
// failover to a replica that lags, a counter could come to the same again.
func newBeat() int64 { return rand.Int64() } //nolint:gosec // not a secret

// local is the lease of that id, if it is one of this backend.
func (b *Backend) local(id string) *lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leases[id]
}

// ID implements lock.Lease.
func (l *lease) ID() lock.LeaseID { return l.id }

// Events implements lock.Lease.
func (l *lease) Events() <-chan lock.Event { return l.events }

// Heartbeat implements lock.Lease: one round trip.
//
// What the store has lost is told where holds are compared, after the connection
// of the heartbeats has changed.
func (l *lease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	if l.isLost() {
		return nil, lock.ErrLeaseLost
	}
	forced, err := l.beat(ctx)
	if err != nil {
		return l.revocations(), err
	}
	vanished, err := l.compareOnce(ctx)
	// Not before the comparison, which may take long: until the caller is told,
	// nobody may write that it is known, and an event may be sooner.
	for _, n := range forced {
		id, grace := lock.HoldID(n.id), time.Duration(n.grace)*time.Microsecond
		if _, ok := l.revoke(n.name, id, grace); ok { // Heartbeat tells of it
			l.keeper.acknowledgeSoon(n.name, id, grace)
		}
	}
	return append(l.revocations(), vanished...), err
}

// beat renews the lease, and reads which of its holds are revoked.
func (l *lease) beat(ctx context.Context) (revoked []news, err error) {
	conn, err := l.beats.DB.Conn(ctx)
	if err != nil {
		return nil, mydb.Unavailable("heartbeat", err)
	}
	defer func() { _ = conn.Close() }()
	renewed := false
	err = l.beats.QueryOn(context.WithoutCancel(ctx), conn, "heartbeat", func(set int, rows *sql.Rows) error {
		if set == 0 {
			return rows.Scan(&renewed)
		}
		var n news
		err := rows.Scan(&n.name, &n.id, &n.grace)
		revoked = append(revoked, n)
		return err
	}, l.b.sql.beat, newBeat(), []byte(l.id), []byte(l.id))
	if err != nil {
		drop(ctx, conn, err)
		return nil, mydb.Unavailable("heartbeat", err)
	}
	if !renewed {
		l.lose()
		return nil, lock.ErrLeaseLost
	}
	return revoked, nil
}

// alive asks whether the lease is there, without renewing it.
func (l *lease) alive(ctx context.Context) (bool, error) {
	var n int
	err := l.b.query(ctx, "lease", func(_ int, rows *sql.Rows) error { return rows.Scan(&n) }, l.b.sql.alive, []byte(l.id))
	return n > 0, err
}

// Close implements lock.Lease. The row of the lease goes first: from then on
// nothing that hangs on it counts.
func (l *lease) Close(ctx context.Context) error {
	var err error
	l.closeOnce.Do(func() {
		l.lose()
		if err = l.drop(ctx); err != nil {
			err = mydb.Unavailable("close lease", err)
		}
		l.stop()
		l.routines.Wait()
		l.b.mu.Lock()
		delete(l.b.leases, string(l.id))
		l.b.mu.Unlock()
		_ = l.beats.Close()
		_ = l.post.listener.Close()
		l.eventsMu.Lock()
		close(l.events)
		l.closed = true
		l.eventsMu.Unlock()
	})
	return err
}

// drop ends the lease in the store and releases what hangs on it.
func (l *lease) drop(ctx context.Context) error {
	id := []byte(l.id)
	if err := mydb.Retry(ctx, func() error {
		_, err := l.b.exec(ctx, "close", l.b.sql.close, id, id)
		return err
	}); err != nil {
		return err
	}
	names := make(map[lock.Resource]bool)
	l.mu.Lock()
	for _, e := range l.entries {
		names[e.resource] = true
	}
	l.mu.Unlock()
	if err := l.b.sweep(ctx, string(l.id), names, "release"); err != nil {
		return err
	}
	l.keeper.moveTrails(ctx)
	return nil
}

// tell sends an event, unless the lease is over.
func (l *lease) tell(e lock.Event) {
	l.eventsMu.RLock()
	defer l.eventsMu.RUnlock()
	if l.closed {
		return
	}
	select {
	case l.events <- e:
	case <-l.lost:
	}
}

func (l *lease) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

// lose marks the lease as over.
func (l *lease) lose() { l.lostOnce.Do(func() { close(l.lost) }) }
