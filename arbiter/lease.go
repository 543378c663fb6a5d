package arbiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// maxAge bounds for how long a cohort takes members under one hold of the store: the
// news that somebody else waits may be lost.
const maxAge = 3 * time.Second

// comesBack is how soon a resource must be asked for again to be parked.
const comesBack = time.Second

// Lease implements lock.Lease over that of a store.
type Lease struct {
	b      *Backend
	inner  lock.Lease
	tells  lock.Contender // the same
	costly bool           // it costs the store something to tell who stands behind a cohort
	o      lock.LeaseOptions
	age    time.Duration
	ctx    context.Context //nolint:containedctx // the life of the lease, not of a call
	stop   context.CancelFunc
	tasks  sync.WaitGroup
	events chan lock.Event

	lost     chan struct{} // closed when the lease is over
	loseOnce sync.Once
	closed   sync.Once

	mu      sync.Mutex
	at      time.Duration // when the clock was last read
	closing bool
	members map[lock.HoldID]*member
	stores  map[lock.HoldID]*cohort // by their id in the store
	lines   map[lock.Resource][]*cohort
	direct  map[lock.HoldID]struct{} // that went to the store by themselves, and wait there
	unsure  map[lock.HoldID]struct{} // that went to the store by themselves, and had no answer
	idle    int                      // cohorts that are parked
	recent  recent                   // resources that were released
}

var _ lock.Prompt = (*Lease)(nil)

func start(ctx context.Context, b *Backend, inner lock.Lease, o lock.LeaseOptions) *Lease {
	l := &Lease{
		b: b, inner: inner, o: o, age: min(o.TTL/3, maxAge),
		events:  make(chan lock.Event),
		lost:    make(chan struct{}),
		members: make(map[lock.HoldID]*member),
		stores:  make(map[lock.HoldID]*cohort),
		lines:   make(map[lock.Resource][]*cohort),
		direct:  make(map[lock.HoldID]struct{}),
		unsure:  make(map[lock.HoldID]struct{}),
		recent:  recent{window: comesBack},
	}
	l.tells = inner.(lock.Contender)
	l.costly = l.tells.TellingCosts()
	l.ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	l.tasks.Go(l.pump)
	return l
}

// ID implements lock.Lease.
func (l *Lease) ID() lock.LeaseID { return l.inner.ID() }

// TellsBlocking implements lock.Prompt.
func (l *Lease) TellsBlocking() bool { return lock.TellsBlocking(l.inner) }

// IsNear implements lock.Near.
func (l *Lease) IsNear() bool { return lock.IsNear(l.inner) }

// Events implements lock.Lease.
func (l *Lease) Events() <-chan lock.Event { return l.events }

// Heartbeat implements lock.Lease.
func (l *Lease) Heartbeat(ctx context.Context) ([]lock.Event, error) {
	news, err := l.inner.Heartbeat(ctx)
	var all []lock.Event
	for _, e := range news {
		all = append(all, l.news(e)...)
	}
	if errors.Is(err, lock.ErrLeaseLost) {
		l.lose()
	}
	return all, err
}

// Close implements lock.Lease.
func (l *Lease) Close(ctx context.Context) error {
	l.mu.Lock()
	l.closing = true
	for _, c := range l.stores {
		if c.timer != nil {
			c.timer.Stop()
		}
		l.unpark(c)
	}
	l.mu.Unlock()
	l.lose()
	l.stop()
	err := l.inner.Close(ctx)
	l.tasks.Wait()
	l.closed.Do(func() { close(l.events) })
	l.mu.Lock()
	for _, m := range l.members {
		m.left()
	}
	l.mu.Unlock()
	l.b.drop(l)
	return err
}

// now reads the clock, which takes a system call. l.mu is held.
func (l *Lease) now() time.Duration {
	l.at = l.b.o.Clock()
	return l.at
}

// lose notes that the lease is over, and has that found by who waits.
func (l *Lease) lose() {
	l.loseOnce.Do(func() {
		close(l.lost)
		l.tasks.Go(func() { // l.mu may be held
			l.mu.Lock()
			defer l.mu.Unlock()
			for _, m := range l.members {
				m.wake()
			}
		})
	})
}

func (l *Lease) isLost() bool {
	select {
	case <-l.lost:
		return true
	default:
		return false
	}
}

// pump passes the store's news on.
func (l *Lease) pump() {
	for e := range l.inner.Events() {
		for _, own := range l.news(e) {
			select {
			case l.events <- own:
			case <-l.lost:
			}
		}
	}
}

// news draws the conclusions from what the store says of a hold, and gives what to tell
// of those who have it.
func (l *Lease) news(e lock.Event) []lock.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.stores[e.ID]
	switch {
	case e.Kind == lock.Contended:
		if c != nil {
			l.contended(c)
		}
		return nil
	case c == nil:
		return []lock.Event{e}
	}
	c.closed = true
	switch c.state {
	case asking:
		c.early = &e
		return nil
	case parked:
		l.leave(c)
		return nil
	}
	l.reroute(c)
	var all []lock.Event
	for _, m := range c.holders {
		own := e
		own.ID = m.id
		all = append(all, own)
	}
	if e.Kind == lock.Vanished && c.state == holding {
		for _, m := range slices.Clone(c.holders) {
			l.out(m)
		}
		l.gone(c)
	}
	return all
}

// contended is the news that somebody stands behind a cohort.
func (l *Lease) contended(c *cohort) {
	c.closed = true
	if c.behind == 0 {
		c.behind = l.now()
		l.b.told.Add(1)
	}
	if c.state == parked {
		l.leave(c)
	}
}

// recent remembers names for one or two windows, and so many at most.
type recent struct {
	window      time.Duration
	now, before map[string]struct{}
	since       time.Duration
}

const maxRecent = 4096

func (r *recent) turn(at time.Duration) {
	if r.now != nil && at-r.since < r.window && len(r.now) < maxRecent {
		return
	}
	r.before = r.now
	if at-r.since >= 2*r.window {
		r.before = nil
	}
	r.now, r.since = make(map[string]struct{}), at
}

func (r *recent) add(name string, at time.Duration) {
	r.turn(at)
	r.now[name] = struct{}{}
}

func (r *recent) has(name string, at time.Duration) bool {
	r.turn(at)
	_, now := r.now[name]
	_, before := r.before[name]
	return now || before
}
