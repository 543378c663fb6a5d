package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// maxRecheck bounds how long a waiter trusts that it will be woken.
const maxRecheck = 3 * time.Second

// lease is one sidecar's session in ZooKeeper.
type lease struct {
	b       *Backend
	seat    *seat
	id      lock.LeaseID
	sidecar string
	ttl     time.Duration
	recheck time.Duration // a waiter looks again at least this often
	events  chan lock.Event

	mu      sync.Mutex
	entries map[lock.HoldID]*entry
	resync  chan struct{} // closed and replaced when all waiters are to look again
	chores  []func(context.Context)
	missing []*entry // whose nodes are gone, but perhaps with the session
	news    []lock.Event
	ended   []lock.Event // holds that ended before their time, for the next heartbeat to tell
	toWatch later
	toNote  later

	chore     chan struct{} // there are chores
	told      chan struct{} // there are news
	lasting   chan struct{} // there is something to watch or to note
	unwatched atomic.Bool   // a watch on a node of ours could not be set

	lost      chan struct{} // closed when the store said so, or by Close
	lostOnce  sync.Once
	stop      context.CancelFunc // ends the goroutines
	routines  sync.WaitGroup
	closeOnce sync.Once
}

var _ lock.Lease = (*lease)(nil)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	l := &lease{
		b: b, id: lock.NewLeaseID(), sidecar: o.Sidecar, ttl: o.TTL, recheck: min(maxRecheck, o.TTL/3),
		events: make(chan lock.Event, 8), entries: make(map[lock.HoldID]*entry), resync: make(chan struct{}),
		chore: make(chan struct{}, 1), told: make(chan struct{}, 1), lasting: make(chan struct{}, 1), lost: make(chan struct{}),
	}
	l.seat = b.newSeat(l.id, &o)
	err := l.seat.open(ctx, zksession.Config{
		TTL:  o.TTL,
		Tick: b.cfg.tick,
		// A server that has fallen silent must be left while there is time enough for
		// another one.
		Timeout:     min(b.cfg.timeout, o.TTL/3),
		OnReconnect: l.reconnected,
	})
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.routines.Go(func() { l.attend() })
	l.routines.Go(func() { l.work(run) })
	l.routines.Go(func() { l.deliver(run) })
	l.routines.Go(func() { l.care(run) })
	b.mu.Lock()
	b.leases = append(b.leases, l)
	b.mu.Unlock()
	return l, nil
}

// ID implements lock.Lease.
func (l *lease) ID() lock.LeaseID { return l.id }

// Events implements lock.Lease.
func (l *lease) Events() <-chan lock.Event { return l.events }

// Heartbeat implements lock.Lease: two requests a session, of which there is one for
// each quarter of a megabyte of names.
func (l *lease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	err := l.beat(ctx)
	return l.report(), err
}

// beat renews the lease.
func (l *lease) beat(ctx context.Context) error {
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	late := l.seat.overdue()
	if err := l.seat.all.Beat(ctx, l.seat.beat); err != nil {
		return l.failed("heartbeat", err)
	}
	if late { // waiters have not asked for anything meanwhile
		l.resyncAll()
	}
	if l.unwatched.Swap(false) {
		l.do(l.rewatch)
	}
	if l.seat.touched.Swap(false) {
		if err := l.review(ctx); err != nil {
			l.seat.touched.Store(true)
			return l.failed("heartbeat", err)
		}
	}
	return nil
}

// Close implements lock.Lease. Ending the sessions removes all nodes.
func (l *lease) Close(ctx context.Context) error {
	var err error
	l.closeOnce.Do(func() {
		l.lose()
		l.b.mu.Lock()
		l.b.leases = slices.DeleteFunc(l.b.leases, func(o *lease) bool { return o == l })
		l.b.mu.Unlock()
		if err = l.seat.close(ctx); err != nil {
			err = unavailable("close lease", err)
		}
		l.stop()
		l.routines.Wait()
		close(l.events)
	})
	return err
}

// attend waits until the session is over.
func (l *lease) attend() {
	<-l.seat.all.Done()
	l.lose()
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

// failed makes the error of a call of an error of the session or the server.
func (l *lease) failed(what string, err error) error {
	if errors.Is(err, zksession.ErrExpired) {
		l.lose()
	}
	if l.isLost() {
		return lock.ErrLeaseLost
	}
	if errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrInvalid) || errors.Is(err, lock.ErrLimit) {
		return err
	}
	return unavailable(what, err)
}

// errOverdue is why an overdue lease asks for nothing.
var errOverdue = fmt.Errorf("the lease has not been renewed in time: %w", lock.ErrUnavailable)

// resyncAll makes all waiters look again.
func (l *lease) resyncAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.resync)
	l.resync = make(chan struct{})
}

// reconnected is called when the session is on another connection. Watches are
// there again, but for those that were about to be set.
func (l *lease) reconnected() {
	l.resyncAll()
	l.do(l.rewatch)
}

// do has something done that must not be done where it was found.
func (l *lease) do(chore func(context.Context)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.doLocked(chore)
}

// doLocked does the same with l.mu held.
func (l *lease) doLocked(chore func(context.Context)) {
	l.chores = append(l.chores, chore)
	signal(l.chore)
}

// signal wakes a goroutine that looks for more before it waits again.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// work does chores until ctx ends.
func (l *lease) work(ctx context.Context) {
	for {
		l.mu.Lock()
		chores := l.chores
		l.chores = nil
		l.mu.Unlock()
		for _, chore := range chores {
			chore(ctx)
		}
		if len(chores) > 0 {
			continue
		}
		select {
		case <-l.chore:
		case <-ctx.Done():
			return
		}
	}
}

// tell sends an event without waiting for the reader, in order. l.mu is held.
func (l *lease) tell(e lock.Event) {
	l.news = append(l.news, e)
	signal(l.told)
}

// deliver sends events until ctx ends.
func (l *lease) deliver(ctx context.Context) {
	for {
		l.mu.Lock()
		news := l.news
		l.news = nil
		l.mu.Unlock()
		for _, e := range news {
			select {
			case l.events <- e:
			case <-ctx.Done():
				return
			}
		}
		if len(news) > 0 {
			continue
		}
		select {
		case <-l.told:
		case <-ctx.Done():
			return
		}
	}
}
