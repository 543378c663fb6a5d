package shards

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Lease implements lock.Lease with a lease at each shard.
type Lease struct {
	b      *Backend
	id     lock.LeaseID
	o      lock.LeaseOptions
	ctx    context.Context //nolint:containedctx // the life of the lease, not of a call
	stop   context.CancelFunc
	tasks  sync.WaitGroup
	events chan lock.Event
	opened chan struct{} // gets a value when a lease at a shard is open, or could not be opened for the first time
	pushed chan struct{} // has a value when losses are to be told

	lost   chan struct{} // closed when the lease is over
	closed sync.Once

	mu     sync.Mutex
	proven time.Duration // all that count have answered a heartbeat that was sent then
	latest time.Duration // when the latest heartbeat began
	seats  []*seat       // by number of the shard
	holds  map[lock.HoldID]*part
	parts  map[*part]struct{} // whose leases are not closed, also those that were given up
	losses []*loss
	isLost bool
}

// seat is where the lease at one shard is.
type seat struct {
	*shard
	now   *part                     // nil: the shard is away
	bells map[lock.HoldID]lock.Bell // of requests that wait for it to be back
	why   error                     // it is away
	tried bool
}

// part is one lease at one shard.
type part struct {
	*seat
	lease  lock.Lease
	prompt bool
	ctx    context.Context //nolint:containedctx // ends when the lease is given up
	giveUp context.CancelCauseFunc

	proven time.Duration // a heartbeat that was sent then was answered, or the lease was opened
	behind time.Duration // since when another shard has answered a later heartbeat; 0: none has
	over   bool          // it was given up, or lost
	until  time.Duration // the shard keeps it until then, when it is over; 0: it does not
	holds  map[lock.HoldID]hold
}

// hold is a hold, a waiter, or a request whose outcome is unknown.
type hold struct {
	resource lock.Resource
	granted  bool
	bell     lock.Bell // of a request that is asked for; nil: none is
	waits    bool      // its Acquire at the shard has returned lock.ErrWaiting
}

// loss is a hold that was lost with its part.
type loss struct {
	lock.Event
	pushed bool
	beats  int // how many more heartbeats tell it
}

var (
	_ lock.Prompt   = (*Lease)(nil)
	_ lock.Detacher = (*Lease)(nil)
	_ lock.Spread   = (*Lease)(nil)
)

var errAway = errors.New("its lease was given up")

// OpenLease implements lock.Backend. It returns when a lease is open at each shard, or at some
// of them, where the others do not answer.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l := &Lease{
		b: b, id: lock.NewLeaseID(), o: o,
		events: make(chan lock.Event),
		opened: make(chan struct{}, len(b.shards)),
		pushed: make(chan struct{}, 1),
		lost:   make(chan struct{}),
		proven: b.o.Clock(),
		holds:  make(map[lock.HoldID]*part),
		parts:  make(map[*part]struct{}),
	}
	l.latest = l.proven
	l.ctx, l.stop = context.WithCancel(context.WithoutCancel(ctx))
	for _, s := range b.shards {
		t := &seat{shard: s, bells: make(map[lock.HoldID]lock.Bell), why: fmt.Errorf("%w: no answer yet", lock.ErrUnavailable)}
		l.seats = append(l.seats, t)
	}
	for _, t := range l.seats { // each may end the lease, for all
		l.tasks.Go(func() { l.attend(t) }) //nolint:contextcheck,nolintlint // what follows has the life of the lease
	}
	l.tasks.Go(l.watch)
	l.tasks.Go(l.push)
	if err := l.begun(ctx); err != nil {
		// What is under way is ended first, so that nothing has to wait for it.
		farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		_ = l.Close(farewell)
		return nil, fmt.Errorf("open lease: %w", err)
	}
	return l, nil
}

// begun waits until the lease can be used.
func (l *Lease) begun(ctx context.Context) error {
	slow := time.NewTimer(l.o.TTL / 10)
	defer slow.Stop()
	late := false
	for {
		open, tried, err := l.state()
		var other *MismatchError
		switch {
		case errors.As(err, &other), open == 0 && tried == len(l.seats), errors.Is(err, lock.ErrInvalid):
			return err
		case open > 0 && (late || tried == len(l.seats)):
			return nil
		}
		select {
		case <-l.opened:
		case <-slow.C:
			late = true
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, join(context.Cause(ctx), err))
		}
	}
}

// state tells how many shards have a lease, how many were tried, and why the others have none.
func (l *Lease) state() (open, tried int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, t := range l.seats {
		switch {
		case t.now != nil:
			open++
			tried++
			continue
		case t.tried:
			tried++
		}
		errs = append(errs, t.explain(t.why))
	}
	return open, tried, join(errs...)
}

// ID implements lock.Lease. The leases at the shards have ids of their own.
func (l *Lease) ID() lock.LeaseID { return l.id }

// TellsBlocking implements lock.Prompt.
func (l *Lease) TellsBlocking() bool { return true }

// Places implements lock.Spread.
func (l *Lease) Places() int { return len(l.seats) }

// Place implements lock.Spread.
func (l *Lease) Place(r lock.Resource) int { return l.b.pick(r) }

// Events implements lock.Lease.
func (l *Lease) Events() <-chan lock.Event { return l.events }

// at gives the part where a request goes: the one at which it waits, although that may be over, or else
// the one that is there now. It notes that it goes there.
//
//	lock.ErrWaiting: the shard is away. The bell rings when it is back.
//	lock.ErrUnavailable: the same, and ctx has ended. lock.ErrLeaseLost.
//	lock.ErrPartLost: it went to a part that is over, where the shard may still grant it, or has.
func (l *Lease) at(ctx context.Context, q lock.Request) (*part, error) {
	t := l.seats[l.b.pick(q.Resource)]
	l.mu.Lock()
	defer l.mu.Unlock()
	switch p := l.holds[q.ID]; {
	case p != nil && p.holds[q.ID].waits:
		p.asked(q, q.Bell, false)
		return p, nil
	case p != nil && p.over && !l.isLost: // the next part must not find what this one may have been granted
		l.forget(q.ID)
		return nil, fmt.Errorf("%w: %w", lock.ErrPartLost, errAway)
	}
	delete(t.bells, q.ID)
	switch {
	case l.isLost:
		return nil, lock.ErrLeaseLost
	case t.now != nil:
		l.begin(t.now, q)
		return t.now, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: shard %s is away: %w", lock.ErrUnavailable, t.name, t.why)
	}
	t.bells[q.ID] = q.Bell
	return nil, lock.ErrWaiting
}

// trip is called before the lease at a shard is asked for something.
func (p *part) trip(ctx context.Context) {
	if !p.prompt {
		lock.Blocking(ctx)
	}
}

// Acquire implements lock.Lease.
func (l *Lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	return lock.Await(ctx, q, l.acquire)
}

// acquire is Acquire of a request with a Bell, which also rings at the end of the shard where it waits.
func (l *Lease) acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	p, err := l.at(ctx, q)
	switch {
	case errors.Is(err, lock.ErrWaiting):
		return lock.Grant{}, err
	case err != nil:
		return lock.Grant{}, fmt.Errorf("acquire %q: %w", string(q.Resource), err)
	}
	p.trip(ctx)
	limit, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(p.ctx, func() { cancel(errAway) })() //nolint:contextcheck,nolintlint // what follows has the life of the lease
	if p.ctx.Err() != nil {
		cancel(errAway) // it waited there, and is to end there
	}
	g, err := p.lease.Acquire(limit, q)
	if errors.Is(err, lock.ErrLeaseLost) {
		l.lose(p, err) //nolint:contextcheck,nolintlint // what follows has the life of the lease
	}
	if err = l.ended(ctx, p, q, err); err != nil {
		return lock.Grant{}, err
	}
	return g, nil
}

// begin notes that a request goes to a part. l.mu is held.
func (l *Lease) begin(p *part, q lock.Request) {
	if old := l.holds[q.ID]; old != nil && old != p {
		delete(old.holds, q.ID)
	}
	l.holds[q.ID] = p
	p.asked(q, q.Bell, false)
}

// asked notes who is to hear of the end of the part where a request is, and whether that waits. Lease.mu is held.
func (p *part) asked(q lock.Request, bell lock.Bell, waits bool) {
	h := p.holds[q.ID]
	h.resource, h.bell, h.waits = q.Resource, bell, waits
	p.holds[q.ID] = h
}

// ended notes how a request has ended, and gives what its caller is told.
func (l *Lease) ended(ctx context.Context, p *part, q lock.Request, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.holds[q.ID] == p; known && errors.Is(err, lock.ErrWaiting) {
		p.asked(q, q.Bell, true)
	} else if known {
		p.asked(q, nil, false)
	}
	switch {
	case errors.Is(err, lock.ErrWaiting):
		return err
	case l.isLost:
		return lock.ErrLeaseLost
	case p.over && (err == nil || errors.Is(err, lock.ErrLeaseLost) || ctx.Err() == nil && (ofContext(err) || errors.Is(err, lock.ErrUnavailable))):
		l.forget(q.ID)
		return fmt.Errorf("acquire %q: %w: shard %s: %w", string(q.Resource), lock.ErrPartLost, p.name, errAway)
	case err == nil:
		l.holds[q.ID] = p
		p.holds[q.ID] = hold{resource: q.Resource, granted: true}
		return nil
	case errors.Is(err, lock.ErrUnavailable): // something may be left
		return p.explain(err)
	default:
		l.forget(q.ID)
		return err
	}
}

// ofContext reports whether a wait has ended with its ctx.
func ofContext(err error) bool {
	var held *lock.HeldError
	return errors.As(err, &held) && !errors.Is(err, lock.ErrHeld)
}

// forget forgets a hold that is gone. l.mu is held.
func (l *Lease) forget(id lock.HoldID) {
	if p := l.holds[id]; p != nil {
		delete(p.holds, id)
		delete(l.holds, id)
	}
}

// has gives the part that has a hold, or that may have it; nil: none has.
func (l *Lease) has(r lock.Resource, id lock.HoldID) (p *part, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p = l.holds[id]; p == nil {
		p = l.seats[l.b.pick(r)].now
	}
	return p, l.isLost
}

// Release implements lock.Lease. What was lost with its part is released there as long as the shard keeps
// it.
func (l *Lease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.change(ctx, r, id, true, func(p *part) error { return p.lease.Release(ctx, r, id) })
}

// Downgrade implements lock.Lease.
func (l *Lease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.change(ctx, r, id, false, func(p *part) error { return p.lease.Downgrade(ctx, r, id) })
}

// change asks for something that ends or changes a hold.
func (l *Lease) change(ctx context.Context, r lock.Resource, id lock.HoldID, ends bool, ask func(*part) error) error {
	p, lost := l.has(r, id)
	switch {
	case lost:
		return lock.ErrLeaseLost
	case p == nil: // it was never asked for, or the lease that had it is over
		return lock.ErrNotHolder
	}
	p.trip(ctx)
	err := ask(p)
	if errors.Is(err, lock.ErrLeaseLost) {
		if l.lose(p, err) { //nolint:contextcheck,nolintlint // what follows has the life of the lease
			return err
		}
		err = fmt.Errorf("shard %s: its lease is over: %w", p.name, lock.ErrNotHolder)
	}
	if ends && (err == nil || errors.Is(err, lock.ErrNotHolder)) {
		l.mu.Lock()
		if l.holds[id] == p {
			l.forget(id)
		}
		l.mu.Unlock()
	}
	return p.explain(err)
}

// Detach implements lock.Detacher.
func (l *Lease) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	p, lost := l.has(r, id)
	if !lost && p == nil && ttl == 0 { // it may be there although the lease that had it is over
		return fmt.Errorf("%w: shard %s is away", lock.ErrUnavailable, l.b.of(r).name)
	}
	if p != nil {
		if _, can := p.lease.(lock.Detacher); !can {
			return lock.NoHandles()
		}
	}
	err := l.change(ctx, r, id, true, func(p *part) error { return p.lease.(lock.Detacher).Detach(ctx, r, id, key, ttl) })
	if ttl == 0 && errors.Is(err, lock.ErrNotHolder) && l.isOver(p) {
		return fmt.Errorf("%w: shard %s: %w", lock.ErrUnavailable, p.name, errAway) // the next lease there is asked again
	}
	return err
}

func (l *Lease) isOver(p *part) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return p != nil && p.over
}
