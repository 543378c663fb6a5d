package leasekit

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// maxRecheck bounds how long a waiter trusts that a push will come.
const maxRecheck = 3 * time.Second

// Options are what a lease is started with.
type Options struct {
	ID      lock.LeaseID
	TTL     time.Duration
	Clock   lock.Clock    // default lock.BootTime
	Opened  time.Duration // on Clock, before the request that opened the lease was sent
	Recheck time.Duration // a waiter asks again at least this often; default TTL/3, at most 3s

	// Unproven: the driver has no use for Withdrawal.Proven, which costs a look at
	// the clock, and does not get it.
	Unproven bool

	// Local: the driver answers without a trip, and does not block.
	Local bool

	// Tells: the driver itself calls lock.Blocking before it blocks.
	Tells bool
}

// RecheckOf is the default Recheck for a TTL.
func RecheckOf(ttl time.Duration) time.Duration { return min(maxRecheck, ttl/3) }

// Lease implements lock.Lease over a Driver.
type Lease struct {
	o      Options
	d      Driver
	stop   context.CancelFunc
	tasks  sync.WaitGroup
	events chan lock.Event
	closed sync.Once

	lost     chan struct{} // closed when the store said so, or by Close
	loseOnce sync.Once

	comparing chan struct{} // has a value while memories are compared

	mu       sync.Mutex
	entries  map[lock.HoldID]*entry
	waits    map[lock.HoldID]*entry // whose Acquire has returned lock.ErrWaiting
	epoch    uint64                 // of the last change of an entry
	removed  uint64                 // entries taken out so far
	forced   map[lock.HoldID]*entry // whose release is forced
	news     []*entry               // revocations that Events has not told yet
	behind   []*entry               // behind which somebody stands, that Events has not told yet
	newsBell chan struct{}          // has a value when there may be some
	ackBell  chan struct{}          // has a value when acknowledgements may be due
	renewed  time.Duration          // before the last request that renewed the lease was sent
	exact    time.Duration          // when the number of entries was last known to be that of the store
	compared time.Duration          // when everything was compared last

	// Reasons to compare memories before the lease counts as renewed: how many there
	// were, and how many of them a comparison has settled.
	doubted, settled uint64
	stranger         uint64 // the last of them that was another server
	shaken           uint64 // the last of them that was not about a single hold: what was sent for before says nothing any more

	strays   map[lock.HoldID]Ref // that only the store has, to be released
	tidyBell chan struct{}       // has a value when there may be some

	used, usedBefore map[lock.HoldID]struct{} // holds of other sidecars that are not parked; nil: none
}

var (
	_ lock.Prompt    = (*Lease)(nil)
	_ lock.Near      = (*Lease)(nil)
	_ lock.Contender = (*Lease)(nil)
)

// Start begins what a lease needs that the driver has just opened. ctx does not
// end it.
func Start(ctx context.Context, d Driver, o Options) *Lease {
	if o.Clock == nil {
		o.Clock = lock.BootTime
	}
	if o.Recheck == 0 {
		o.Recheck = RecheckOf(o.TTL)
	}
	l := &Lease{
		o: o, d: d,
		events:    make(chan lock.Event),
		lost:      make(chan struct{}),
		comparing: make(chan struct{}, 1),
		entries:   make(map[lock.HoldID]*entry),
		waits:     make(map[lock.HoldID]*entry),
		forced:    make(map[lock.HoldID]*entry),
		newsBell:  make(chan struct{}, 1),
		ackBell:   make(chan struct{}, 1),
		renewed:   o.Opened,
		exact:     o.Opened,
		compared:  o.Opened,
		strays:    make(map[lock.HoldID]Ref),
		tidyBell:  make(chan struct{}, 1),
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	l.tasks.Go(func() { d.Listen(run, l.pushed) })
	l.tasks.Go(func() { l.tell(run) })
	l.tasks.Go(func() { l.acknowledge(run) })
	l.tasks.Go(func() { l.tidy(run) })
	return l
}

// ID implements lock.Lease.
func (l *Lease) ID() lock.LeaseID { return l.o.ID }

// TellsBlocking implements lock.Prompt.
func (l *Lease) TellsBlocking() bool { return true }

// IsNear implements lock.Near.
func (l *Lease) IsNear() bool { return l.o.Local }

// TellsContended implements lock.Contender.
func (l *Lease) TellsContended() bool {
	_, tells := l.d.(Teller)
	d, may := l.d.(Deaf)
	return tells && (!may || !d.Deaf())
}

// TellingCosts implements lock.Contender.
func (l *Lease) TellingCosts() bool {
	_, costs := l.d.(CostlyTeller)
	return costs
}

// Guards implements lock.Contender.
func (l *Lease) Guards(q lock.Request) bool {
	g, may := l.d.(Guarder)
	return may && g.Guards(q)
}

// Describe implements lock.Contender.
func (l *Lease) Describe(ctx context.Context, r lock.Resource, id lock.HoldID, owner string) error {
	t, tells := l.d.(Teller)
	switch {
	case !tells:
		return lock.ErrUnsupported
	case l.isLost():
		return lock.ErrLeaseLost
	}
	err := t.Describe(ctx, Ref{r, id}, owner)
	if errors.Is(err, lock.ErrLeaseLost) {
		l.Lose()
	}
	return err
}

// trip is called before the driver is asked for something.
func (l *Lease) trip(ctx context.Context) {
	if !l.o.Local && !l.o.Tells {
		lock.Blocking(ctx)
	}
}

// Events implements lock.Lease.
func (l *Lease) Events() <-chan lock.Event { return l.events }

// Lost is closed when the lease is over: the store said so, or Close was called.
func (l *Lease) Lost() <-chan struct{} { return l.lost }

// Lose marks the lease as over, because the store said so.
func (l *Lease) Lose() {
	l.loseOnce.Do(func() {
		close(l.lost)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, e := range l.waits {
			e.ring()
		}
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

// proven tells whether the lease is known to live in the store at this moment:
// its TTL has not passed since a request that renewed it was sent. l.mu is held.
func (l *Lease) proven() bool { return l.o.Clock() < l.renewed+l.o.TTL }

// Close implements lock.Lease.
func (l *Lease) Close(ctx context.Context) error {
	err := lock.ErrLeaseLost
	l.closed.Do(func() {
		l.Lose()
		l.stop()
		err = l.d.Close(ctx)
		l.tasks.Wait()
		close(l.events)
	})
	return err
}
