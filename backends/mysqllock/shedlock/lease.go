package shedlock

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// maxRecheck bounds how long a waiter trusts the poll for all waiters.
	maxRecheck = 3 * time.Second
	// newsPoll is how often a lease with holds or waiters asks whether one was forced.
	newsPoll = 100 * time.Millisecond
	// reapEvery is how often a lease clears away what ended leases left.
	reapEvery = time.Minute
)

// lease is one sidecar's session.
type lease struct {
	b       *Backend
	id      lock.LeaseID
	label   string // first part of locked_by
	ttl     time.Duration
	recheck time.Duration // a waiter looks for itself at least this often
	beats   *mydb.Pool    // for heartbeats, so that they wait for nobody
	looks   *mydb.Pool    // for what the goroutines ask, so that nobody waits for them

	mu      sync.Mutex
	entries map[lock.HoldID]*entry
	news    []lock.Event  // of holds that ended before their time, for the next heartbeat to tell
	renewed time.Duration // on the boot-time clock, before the last heartbeat was sent that was carried out

	taking sync.RWMutex // read-locked while a request is on its way that may be granted

	lost      chan struct{} // closed when the store said so, or by Close
	lostOnce  sync.Once
	run       context.Context // of the goroutines
	stop      context.CancelFunc
	kick      chan struct{} // to the poll: look at once
	routines  sync.WaitGroup
	closeOnce sync.Once

	events   chan lock.Event
	eventsMu sync.RWMutex
	closed   bool // events is closed
}

var _ lock.Lease = (*lease)(nil)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	if err := b.prepare(ctx); err != nil {
		return nil, err
	}
	beats, err := b.connect(1)
	if err != nil {
		return nil, err
	}
	looks, err := b.connect(1)
	if err != nil {
		return nil, err
	}
	l := &lease{
		b: b, id: lock.NewLeaseID(), label: ascii(o.Sidecar), ttl: o.TTL, beats: beats, looks: looks,
		recheck: min(maxRecheck, o.TTL/3),
		entries: make(map[lock.HoldID]*entry), renewed: lock.BootTime(),
		lost: make(chan struct{}), kick: make(chan struct{}, 1), events: make(chan lock.Event, 64),
	}
	bounded, cancel := b.patience(ctx)
	defer cancel()
	if _, err := beats.Exec(bounded, "open", b.sql.open, []byte(l.id), []byte(o.Sidecar), o.TTL.Microseconds()); err != nil {
		_, _ = beats.Close(), looks.Close()
		return nil, mydb.Unavailable("open lease", err)
	}
	l.run, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	l.routines.Go(l.poll)
	l.routines.Go(l.attend)
	return l, nil
}

// ascii is a name that fits any character set, cut to leave room for an id.
func ascii(name string) string {
	name = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}, name)
	return name[:min(len(name), 200)]
}

// by is locked_by of a hold: it tells people where it is, and is its own.
func (l *lease) by(id lock.HoldID) string { return l.label + "/" + string(id) }

// ID implements lock.Lease.
func (l *lease) ID() lock.LeaseID { return l.id }

// Events implements lock.Lease.
func (l *lease) Events() <-chan lock.Event { return l.events }

// Heartbeat implements lock.Lease: one request that renews the lease and moves
// lock_until of all holds.
//
// lock_until of a hold must never be before the end of the lease as the sidecar
// counts it: TTL after the last heartbeat was sent. That of a hold which is
// granted while a heartbeat is under way is counted from when its own request
// was sent. If that was before the heartbeat, and the heartbeat did not know of
// the hold, it is moved by a request of its own before either counts.
func (l *lease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	err := l.beat(ctx)
	return l.report(), err
}

// beat renews the lease.
func (l *lease) beat(ctx context.Context) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	sent := lock.BootTime()
	holds := l.settled(func(*entry) bool { return true })
	query, args := l.b.sql.heartbeat, []any{l.ttl.Microseconds(), []byte(l.id)}
	if len(holds) > 0 {
		more, list := l.extension(holds)
		query, args = query+"; "+more, append(args, list...)
	}
	var res mydb.Results
	if err := mydb.Retry(ctx, func() (err error) {
		res, err = l.beats.Exec(ctx, "heartbeat", query, args...)
		return err
	}); err != nil {
		return mydb.Unavailable("heartbeat", err)
	}
	if res.Affected[0] == 0 {
		l.lose()
		return lock.ErrLeaseLost
	}
	for {
		if len(holds) > 0 && res.Affected[len(res.Affected)-1] < int64(len(holds)) {
			if err := l.compare(ctx, holds); err != nil {
				return mydb.Unavailable("heartbeat", err)
			}
		}
		if holds = l.renew(sent, holds); len(holds) == 0 {
			return l.learnNow(ctx)
		}
		query, args := l.extension(holds)
		var err error
		if res, err = l.beats.Exec(ctx, "heartbeat", query, args...); err != nil {
			return mydb.Unavailable("heartbeat", err)
		}
	}
}

// extension moves lock_until of many holds.
func (l *lease) extension(holds []*entry) (query string, args []any) {
	condition, list := in(keys(holds))
	return l.b.sql.extend + condition, append([]any{l.ttl.Microseconds(), []byte(l.id)}, list...)
}

// renew takes note that holds were moved by requests not sent before. It gives
// the holds that were not; when there are none the lease is renewed.
func (l *lease) renew(sent time.Duration, moved []*entry) (left []*entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range moved {
		e.sent = max(e.sent, sent)
	}
	for _, e := range l.entries {
		if e.settled && e.sent < sent {
			left = append(left, e)
		}
	}
	if len(left) == 0 {
		l.renewed = max(l.renewed, sent)
	}
	return left
}

// settled gives the holds that fulfil a condition.
func (l *lease) settled(want func(*entry) bool) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	var holds []*entry
	for _, e := range l.entries {
		if e.settled && want(e) {
			holds = append(holds, e)
		}
	}
	return holds
}

func keys(holds []*entry) []holdKey {
	all := make([]holdKey, len(holds))
	for i, e := range holds {
		all[i] = holdKey{string(e.q.Resource), e.by}
	}
	return all
}

// learnNow asks for forced releases of holds. attend writes that they are known.
func (l *lease) learnNow(ctx context.Context) error {
	if len(l.settled(func(*entry) bool { return true })) == 0 {
		return nil
	}
	marks, err := l.readNews(ctx, l.beats)
	if err != nil {
		return mydb.Unavailable("heartbeat", err)
	}
	l.learn(marks)
	return nil
}

// compare finds out which holds the store does not have any more, for the heartbeat
// to tell.
func (l *lease) compare(ctx context.Context, holds []*entry) error {
	condition, args := in(keys(holds))
	owned := make(map[string]bool)
	if err := l.beats.Query(ctx, "compare", func(_ int, rows *sql.Rows) error {
		var by string
		err := rows.Scan(&by)
		owned[by] = true
		return err
	}, l.b.sql.owned+condition, args...); err != nil {
		return err
	}
	marks, err := l.readNews(ctx, l.beats)
	if err != nil {
		return err
	}
	for _, id := range l.missing(holds, owned, marks) {
		_, _ = l.beats.Exec(ctx, "forget", l.b.sql.forget, []byte(id), []byte(l.id)) // means nothing any more
	}
	return nil
}

// missing takes note of holds that the store does not have any more.
func (l *lease) missing(holds []*entry, owned map[string]bool, marks []mark) (gone []lock.HoldID) {
	forced := make(map[lock.HoldID]bool)
	for _, m := range marks {
		forced[m.id] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range holds {
		if owned[e.by] || l.entries[e.q.ID] != e || !e.settled || e.out {
			continue
		}
		delete(l.entries, e.q.ID)
		ev := lock.Event{Kind: lock.Vanished, Resource: e.q.Resource, ID: e.q.ID}
		switch {
		case e.told && e.until <= lock.BootTime(): // it has ended as it was told to
			ev = e.revocation()
		case forced[e.q.ID]:
			ev.Kind = lock.Revoked
		}
		l.news = append(l.news, ev)
		gone = append(gone, e.q.ID)
	}
	return gone
}

// Close implements lock.Lease.
func (l *lease) Close(ctx context.Context) error {
	var err error
	l.closeOnce.Do(func() {
		l.lose()
		l.stop()
		l.taking.Lock() // what is granted is known then
		err = l.drop(ctx)
		l.taking.Unlock()
		l.routines.Wait()
		_, _ = l.beats.Close(), l.looks.Close() // nothing is under way on them
		l.eventsMu.Lock()
		close(l.events)
		l.closed = true
		l.eventsMu.Unlock()
	})
	return err
}

// drop ends the lease first, so that nothing is granted to it any more, and
// frees what it holds.
func (l *lease) drop(ctx context.Context) error {
	l.mu.Lock()
	var all []*entry
	for _, e := range l.entries {
		all = append(all, e)
	}
	l.mu.Unlock()
	query, args := l.b.sql.closing, []any{[]byte(l.id)}
	if len(all) > 0 {
		condition, list := in(keys(all))
		query, args = query+"; "+l.b.sql.unlock+condition, append(args, list...)
	}
	query, args = query+"; "+l.b.sql.sweep, append(args, []byte(l.id), []byte(l.id))
	if err := mydb.Retry(ctx, func() error {
		_, err := l.beats.Exec(ctx, "drop", query, args...)
		return err
	}); err != nil {
		return mydb.Unavailable("close lease", err)
	}
	return nil
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
