package rows

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// rowWait is how long a link waits for a row in one statement. What a sidecar
	// that died waited for is out of the way after that.
	rowWait = time.Second
	// late is for how much longer than the TTL the server keeps a link on which nothing
	// comes: a heartbeat that was sent in time may come late. The sidecar itself ends its
	// links when the TTL is over.
	late = time.Second
	// keepIdle is how many links without a transaction are kept for the next
	// requests. The server ends them, too, when nothing comes.
	keepIdle = 16
)

// foreign implements sqllock.Foreign: the row locks of one lease.
type foreign struct {
	observe   lock.Observe
	slots     *slots
	events    sqllock.Events
	table     string
	ttl       time.Duration
	timeout   time.Duration // of what does not wait for a row
	connector *mysql.Connector
	routines  sync.WaitGroup

	mu     sync.Mutex
	server string // that answers the heartbeats
	rows   map[lock.HoldID]*row
	idle   []*link
	all    map[*link]bool
	closed bool
}

// row is the row lock of a hold.
type row struct {
	q      lock.Request
	k      *link
	locked bool // else the link waits for it
}

var _ sqllock.Foreign = (*foreign)(nil)

func open(cfg mysql.Config, observe lock.Observe, s *slots, ttl time.Duration, server string, ev sqllock.Events) (*foreign, error) {
	f := &foreign{
		observe: observe, slots: s, events: ev, table: cfg.Table("row"), ttl: ttl, timeout: cfg.Timeout + rowWait,
		server: server, rows: make(map[lock.HoldID]*row), all: make(map[*link]bool),
	}
	var err error
	f.connector, err = mysql.NewConnector(cfg, mysql.ConnectOptions{
		Dial: dial,
		Wait: rowWait,
		Settings: []string{
			fmt.Sprintf("wait_timeout=%d", wholeSeconds(ttl+late)),
			fmt.Sprintf("innodb_lock_wait_timeout=%d", wholeSeconds(rowWait)),
		},
	})
	return f, err
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// spawn starts a goroutine that Close waits for; false: it is over.
func (f *foreign) spawn(do func()) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.routines.Go(do)
	}
	return !f.closed
}

// Check implements sqllock.Foreign.
func (f *foreign) Check(q lock.Request) error {
	if q.Mode.Limit() > 0 {
		return leasekit.NoPermits("a row lock is exclusive or shared")
	}
	return nil
}

// Strangers implements sqllock.Foreign. Who has locked a row the server tells nobody
// without more rights.
func (f *foreign) Strangers(_ context.Context, r lock.Resource) lock.Status {
	return lock.Status{Resource: r}
}

// Take implements sqllock.Foreign. Its requests are not cut short when nobody wants the
// lock any more: that leaves the outcome open, and takes the connection with it.
func (f *foreign) Take(ctx context.Context, q lock.Request) (bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.timeout)
	defer cancel()
	f.mu.Lock()
	r := f.rows[q.ID]
	waits := r != nil && !r.locked
	f.mu.Unlock()
	switch {
	case waits:
		return false, nil
	case r != nil: // is the link still there?
		_, err := r.k.run(ctx, "acquire", sqllock.Statement{SQL: "DO 0"})
		if err != nil && !errors.Is(err, errNoAnswer) {
			f.drop(r)
			f.events.Lost(q.ID)
		}
		return err == nil, err
	}
	for {
		k, used, err := f.link(ctx)
		if err != nil {
			return false, err
		}
		took, err := f.ask(ctx, k, q)
		if err == nil {
			return took, nil
		}
		k.close()
		if !used || ctx.Err() != nil { // one that was used before may have ended meanwhile
			return false, err
		}
	}
}

// ask tries to lock the row on a link, without waiting, and has the link wait for it
// where it is locked.
func (f *foreign) ask(ctx context.Context, k *link, q lock.Request) (took bool, err error) {
	for {
		n, err := k.run(ctx, "acquire", f.begin(k, q, " NOWAIT")...)
		switch {
		case mysql.Class(err) == sqllock.Blocked && q.Try:
			if _, err := k.run(ctx, "give up", sqllock.Statement{SQL: "ROLLBACK"}); err != nil {
				return false, err
			}
			f.putBack(k)
			return false, nil
		case mysql.Class(err) == sqllock.Blocked:
			r, err := f.add(k, q, false)
			if err == nil {
				f.spawn(func() { f.wait(r) }) //nolint:contextcheck // it goes on when this call ends
			}
			return false, err
		case mysql.Class(err).Again(): // a deadlock with others, who insert beside it, says nothing of this row
		case err != nil:
			return false, err
		case n > 0:
			_, err := f.add(k, q, true)
			return err == nil, err
		default: // INSERT waits for whoever has locked it, so it comes only where it is not there
			if err := f.insert(ctx, k, q.Resource); err != nil {
				return false, err
			}
		}
	}
}

// begin begins a transaction that locks the row of a resource. more ends the SELECT.
func (f *foreign) begin(k *link, q lock.Request, more string) []sqllock.Statement {
	how := "FOR UPDATE"
	if q.Mode == lock.Shared {
		how = k.conn.ForShare()
	}
	return []sqllock.Statement{
		{SQL: "START TRANSACTION"},
		{SQL: "SELECT 1 FROM " + f.table + " WHERE name=? " + how + more, Args: []any{[]byte(q.Resource)}},
	}
}

// insert makes the row of a resource. A row that is locked is there.
func (f *foreign) insert(ctx context.Context, k *link, r lock.Resource) error {
	_, err := k.run(ctx, "add row", sqllock.Statement{SQL: "ROLLBACK"},
		sqllock.Statement{SQL: "INSERT IGNORE INTO " + f.table + " (name) VALUES (?)", Args: []any{[]byte(r)}})
	if mysql.Class(err).Again() {
		return nil
	}
	return err
}

// add notes which link a hold has.
func (f *foreign) add(k *link, q lock.Request, locked bool) (*row, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k.gone || f.closed {
		return nil, errClosed
	}
	r := &row{q: q, k: k, locked: locked}
	f.rows[q.ID], k.row = r, r
	return r, nil
}

// wait waits until a link has the row, or nobody wants it any more.
func (f *foreign) wait(r *row) {
	ctx := context.Background()
	for {
		n, err := r.k.run(ctx, "", f.begin(r.k, r.q, "")...)
		if err == nil && n == 0 { // somebody has deleted it
			err = f.insert(ctx, r.k, r.q.Resource)
		}
		switch {
		case n > 0:
			f.mu.Lock()
			r.locked = true
			f.mu.Unlock()
			f.events.Wake(r.q.ID)
			return
		case err != nil && !mysql.Class(err).Again() && !mysql.Interrupted(err):
			f.drop(r)
			f.events.Wake(r.q.ID) // to begin again
			return
		}
	}
}

// link gives a link without a transaction. used: it had one before.
func (f *foreign) link(ctx context.Context) (_ *link, used bool, err error) {
	f.mu.Lock()
	if n := len(f.idle); n > 0 {
		k := f.idle[n-1]
		f.idle = f.idle[:n-1]
		f.mu.Unlock()
		return k, true, nil
	}
	f.mu.Unlock()
	k, err := f.connect(ctx)
	if err != nil {
		return nil, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		f.routines.Go(k.close)
		return nil, false, errClosed
	}
	f.all[k] = true
	return k, false, nil
}

// putBack keeps a link without a transaction for the next request.
func (f *foreign) putBack(k *link) {
	f.mu.Lock()
	keep := !k.gone && !f.closed && len(f.idle) < keepIdle && k.conn.Server() == f.server
	if keep {
		f.idle = append(f.idle, k)
	}
	f.mu.Unlock()
	if !keep {
		k.close()
	}
}

// ended is called when a socket has ended. It does not block.
func (f *foreign) ended(k *link, s *socket) {
	f.mu.Lock()
	if k.socket != s {
		f.mu.Unlock()
		return
	}
	k.gone = true
	delete(f.all, k)
	for i, other := range f.idle {
		if other == k {
			f.idle = append(f.idle[:i:i], f.idle[i+1:]...)
			break
		}
	}
	r := k.row
	lost := r != nil && r.locked && f.rows[r.q.ID] == r
	if lost {
		delete(f.rows, r.q.ID)
	}
	f.mu.Unlock()
	k.close()
	if lost {
		f.events.Lost(r.q.ID)
	}
}

// drop ends the link of a row lock that is of no use any more.
func (f *foreign) drop(r *row) {
	f.mu.Lock()
	if f.rows[r.q.ID] == r {
		delete(f.rows, r.q.ID)
	}
	f.mu.Unlock()
	r.k.close()
}

// Give implements sqllock.Foreign. What has no answer ends with its connection.
func (f *foreign) Give(ctx context.Context, ref leasekit.Ref) error {
	f.mu.Lock()
	r := f.rows[ref.ID]
	delete(f.rows, ref.ID)
	if r != nil {
		r.k.row = nil
	}
	f.mu.Unlock()
	switch {
	case r == nil:
		return nil
	case !r.locked:
		r.k.close()
		return nil
	}
	if _, err := r.k.run(ctx, "release", sqllock.Statement{SQL: "COMMIT"}); err != nil {
		r.k.close()
		return nil //nolint:nilerr // see above
	}
	f.putBack(r.k)
	return nil
}

// Keep implements sqllock.Foreign: one request on each link, all at the same time.
func (f *foreign) Keep(ctx context.Context, server string, holds []leasekit.Ref) (kept map[lock.HoldID]time.Duration, lost []lock.HoldID) {
	ctx, cancel := context.WithTimeout(ctx, f.ttl/6)
	defer cancel()
	sent := f.events.Now()
	f.mu.Lock()
	f.server = server
	rows := make([]*row, len(holds))
	for i, h := range holds {
		rows[i] = f.rows[h.ID]
	}
	f.mu.Unlock()
	errs := make([]error, len(holds))
	var wg sync.WaitGroup
	for i, r := range rows {
		switch {
		case r == nil:
			errs[i] = errClosed
		case r.k.conn.Server() != server: // that one knows nothing of its lock
			errs[i] = errClosed
			f.drop(r)
		default:
			wg.Go(func() { _, errs[i] = r.k.run(ctx, "heartbeat", sqllock.Statement{SQL: "DO 0"}) })
		}
	}
	wg.Wait()
	kept = make(map[lock.HoldID]time.Duration, len(holds))
	for i, h := range holds {
		switch errs[i] {
		case nil:
			kept[h.ID] = sent
		case errNoAnswer: //nolint:errorlint // it is not wrapped
		default:
			lost = append(lost, h.ID)
		}
	}
	return kept, lost
}

// Lapse implements sqllock.Foreign. The server ends links, too, but not to the moment.
func (f *foreign) Lapse() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k := range f.all {
		_ = k.socket.Close()
	}
}

// Close implements sqllock.Foreign.
func (f *foreign) Close(ctx context.Context, _ []leasekit.Ref) error {
	var commits sync.WaitGroup
	f.mu.Lock()
	for _, r := range f.rows { // the server notices the end of a connection somewhat later
		if r.locked {
			commits.Go(func() { _, _ = r.k.run(ctx, "close", sqllock.Statement{SQL: "COMMIT"}) })
		}
	}
	f.mu.Unlock()
	commits.Wait()
	f.mu.Lock()
	f.closed = true
	f.idle, f.rows = nil, make(map[lock.HoldID]*row)
	all := f.all
	f.all = make(map[*link]bool)
	for k := range all {
		k.row = nil
	}
	f.mu.Unlock()
	for k := range all {
		k.close()
	}
	f.routines.Wait()
	return nil
}
