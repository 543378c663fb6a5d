package rows

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// linkWait is how long a link waits for a row in one statement. What a sidecar
	// that died waited for is out of the way after that. InnoDB looks once a second
	// whether a wait is over, also one that was interrupted as it began.
	linkWait = time.Second
	// revokePoll is how often a lease with holds asks whether one was forced. A
	// forced hold without a grace is noticed by the end of its connection.
	revokePoll = 200 * time.Millisecond
	// reapEvery is how often a lease clears away rows that mean nothing any more.
	reapEvery = time.Minute
	// keepIdle is how many links without a transaction are kept for the next
	// requests. The server ends them when they are idle for the TTL.
	keepIdle = 16
)

// lease is one sidecar's session: a link of its own, and one for each hold and
// each waiter.
type lease struct {
	b         *Backend
	id        lock.LeaseID
	sidecar   string
	ttl       time.Duration
	dialect   mydb.Dialect
	connector *mydb.Connector // of links
	side      *mydb.Pool      // on the same server
	watch     *watcher
	main      *link

	mu      sync.Mutex
	entries map[lock.HoldID]*entry
	idle    []*link
	news    []lock.Event // of holds that ended before their time, for the next heartbeat to tell

	falling   chan struct{} // closed when the server has ended main, or by Close
	fallOnce  sync.Once
	lost      chan struct{} // closed when everything of the lease is gone then
	run       context.Context
	stop      context.CancelFunc
	routines  sync.WaitGroup
	closeOnce sync.Once

	events   chan lock.Event
	eventsMu sync.RWMutex
	closed   bool // events is closed
}

var _ lock.Lease = (*lease)(nil)

// errOtherServer: a lease whose links are on several servers excludes nobody.
var errOtherServer = errors.New("another server answers than the one that keeps the lease")

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	grace := b.grace
	if grace < 0 {
		grace = o.TTL
	}
	if err := b.waitOutRestart(ctx, grace); err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &lease{
		b: b, id: lock.NewLeaseID(), sidecar: o.Sidecar, ttl: o.TTL,
		entries: make(map[lock.HoldID]*entry),
		falling: make(chan struct{}), lost: make(chan struct{}), run: run, stop: stop,
		events: make(chan lock.Event, 64),
	}
	if err := l.open(ctx); err != nil {
		stop()
		if l.main != nil {
			l.main.close()
		}
		if l.side != nil {
			_ = l.side.Close()
		}
		if l.watch != nil {
			l.watch.close()
		}
		l.routines.Wait()
		return nil, err
	}
	l.routines.Go(l.attend)
	return l, nil
}

// open connects the lease to one server.
func (l *lease) open(ctx context.Context) (err error) {
	if l.watch, err = newWatcher(); err != nil {
		return mydb.Unavailable("open lease", err)
	}
	var first sync.Once
	var mu sync.Mutex
	var server mydb.Server
	same := func(s mydb.Server) error {
		mu.Lock()
		defer mu.Unlock()
		first.Do(func() { server = s })
		if s.Identity != server.Identity {
			return errOtherServer
		}
		return nil
	}
	if l.connector, err = mydb.NewConnector(l.b.cfg, mydb.ConnectOptions{
		Wait: lock.MaxTTL, // the lease sees to it that a link answers
		Dial: dial,
		Settings: func(mydb.Server) []string {
			return []string{
				fmt.Sprintf("wait_timeout=%d", wholeSeconds(l.ttl)),
				fmt.Sprintf("innodb_lock_wait_timeout=%d", wholeSeconds(linkWait)),
			}
		},
		Connected: same,
	}); err != nil {
		return err
	}
	side, err := mydb.NewConnector(l.b.cfg, mydb.ConnectOptions{Connected: same})
	if err != nil {
		return err
	}
	l.side = mydb.NewPool(side, sideConnections, l.b.observe)
	l.mu.Lock() // who hears of the end of main waits until it is there
	l.main, err = l.connect(ctx, l.ended)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	if server.ReadOnly {
		return fmt.Errorf("open lease: the server takes no writes (read_only): %w", lock.ErrUnavailable)
	}
	l.dialect = server.Dialect
	return nil
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// waitOutRestart refuses leases while holders from before the server's start may
// not know yet that their locks are gone.
func (b *Backend) waitOutRestart(ctx context.Context, grace time.Duration) error {
	if grace == 0 {
		return nil
	}
	up, err := b.uptime(ctx)
	if err != nil {
		return err
	}
	// The server counts the seconds that began since.
	if left := grace - (up - time.Second); left > 0 {
		return fmt.Errorf("open lease: the server was started lately, and row locks from before are forgotten; locks are granted again in %s: %w",
			left, lock.ErrUnavailable)
	}
	return nil
}

// ID implements lock.Lease.
func (l *lease) ID() lock.LeaseID { return l.id }

// Events implements lock.Lease.
func (l *lease) Events() <-chan lock.Event { return l.events }

// isLost waits for the end of a fall under way.
func (l *lease) isLost() bool {
	select {
	case <-l.falling:
		<-l.lost
		return true
	default:
		return false
	}
}

// ended is called when the server has ended the connection of the lease itself.
func (l *lease) ended(*link) {
	l.fallOnce.Do(func() {
		close(l.falling)
		l.routines.Go(func() {
			ctx, cancel := l.b.patience(l.run)
			defer cancel()
			_ = l.tearDown(ctx) // what could not be reached ends with its connection
			close(l.lost)
		})
	})
}

// tearDown ends all links and what is written about them.
func (l *lease) tearDown(ctx context.Context) error {
	l.stop()
	l.mu.Lock()
	links := append([]*link{l.main}, l.idle...)
	l.idle = nil
	var waiting []*entry
	var tokens []string
	for id, e := range l.entries {
		tokens = append(tokens, e.loose...)
		if e.granted {
			links = append(links, e.link)
			delete(l.entries, id)
		} else {
			e.at.end(lock.ErrLeaseLost)
			waiting = append(waiting, e)
		}
	}
	l.mu.Unlock()
	for _, k := range links {
		k.close()
		tokens = append(tokens, k.token)
	}
	for _, e := range waiting { // each sees to its own link
		<-e.at.done
		tokens = append(tokens, e.at.loose...)
	}
	err := l.b.settle(ctx, l.side, tokens...)
	// Then what is written about them: who looks sees nothing free that is not.
	if dropErr := mydb.Retry(ctx, func() error {
		_, err := l.side.Exec(ctx, "drop", l.b.sql.drop, []byte(l.id))
		return err
	}); dropErr != nil {
		err = errors.Join(err, mydb.Unavailable("close lease", dropErr))
	}
	return err
}

// Heartbeat implements lock.Lease: one request on the connection of the lease,
// and one on that of each hold, all at the same time.
func (l *lease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	marks, err := l.beat(ctx)
	l.learn(marks) // report tells of it, and attend writes that it is known
	return l.report(), err
}

// beat renews the lease, and reads which of its holds are forced. What it has read
// is not learnt before the holds have answered: until the caller is told, attend may
// tell it by an event, and nobody may write that it is known.
func (l *lease) beat(ctx context.Context) ([]mark, error) {
	if l.isLost() {
		return nil, lock.ErrLeaseLost
	}
	holds := l.holds()
	errs := make(chan error, len(holds))
	for _, e := range holds {
		l.routines.Go(func() {
			_, err := e.link.run(ctx, "heartbeat", "DO 0")
			if err != nil && !l.has(e) { // it was released, and others use the link
				err = nil
			}
			errs <- err
		})
	}
	// A primary that was made a replica keeps its row locks, and its successor
	// knows nothing of them.
	answer, err := l.main.ask(ctx, "heartbeat", "SELECT '' FROM (SELECT @@GLOBAL.read_only AS r) AS t WHERE r <> 0; "+l.b.sql.revoked, []byte(l.id))
	var marks []mark
	readOnly := false
	for _, row := range answer {
		if len(row) == 1 {
			readOnly = true
			continue
		}
		marks = append(marks, mark{id: lock.HoldID(text(row[0])), grace: number(row[1]), known: number(row[2])})
	}
	switch {
	case err == nil && readOnly, broken(err) && !errors.Is(err, errNoAnswer):
		l.ended(l.main) //nolint:contextcheck // it goes on when this call ends
		<-l.lost
		return marks, lock.ErrLeaseLost
	case err != nil:
		return marks, mydb.Unavailable("heartbeat", err)
	}
	for range holds {
		// A link that is broken is the end of one hold, and the lease knows (link.run).
		if err := <-errs; err != nil && (!broken(err) || errors.Is(err, errNoAnswer)) {
			return marks, mydb.Unavailable("heartbeat", err)
		}
	}
	return marks, nil
}

// holds are all that the lease has.
func (l *lease) holds() []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []*entry
	for _, e := range l.entries {
		if e.granted {
			all = append(all, e)
		}
	}
	return all
}

// has reports whether a hold is there still.
func (l *lease) has(e *entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries[e.q.ID] == e && e.granted
}

// Close implements lock.Lease.
func (l *lease) Close(ctx context.Context) error {
	var err error
	l.closeOnce.Do(func() {
		l.fallOnce.Do(func() {
			close(l.falling)
			bounded, cancel := context.WithTimeout(ctx, 4*(l.b.cfg.Timeout+rowWait))
			defer cancel()
			err = l.tearDown(bounded)
			close(l.lost)
		})
		l.stop()
		l.routines.Wait()
		l.watch.close()
		_ = l.side.Close() // nothing is under way on it
		l.eventsMu.Lock()
		close(l.events)
		l.closed = true
		l.eventsMu.Unlock()
	})
	return err
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
	case <-l.falling:
	}
}
