package zklock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

// driver is what a lease of leasekit asks of ZooKeeper.
//
// What is read about locks is read in the first session alone, and nodes are deleted
// in it: what a session has seen or done once, it never sees undone again. Nodes are
// made in whichever session has room for them.
type driver struct {
	b         *Backend
	leaseNode *leaseNode // the first session
	set       *zksession.Sessions
	id        lock.LeaseID
	sidecar   string
	recheck   time.Duration

	turns chan struct{} // requests under way
	beats chan struct{} // a heartbeat is under way

	renewed chan struct{} // takes a value from each good heartbeat that somebody waits for

	run       context.Context // until Close
	stop      context.CancelFunc
	listening chan struct{} // closed when push is set
	push      func(leasekit.Push)

	mu      sync.Mutex
	closed  bool
	tasks   sync.WaitGroup // started under mu, while it is not closed
	lines   map[string]*line
	spots   map[lock.HoldID]*spot
	missing []*spot       // whose nodes are gone, but perhaps with the session
	fresh   later         // holds that were granted just now
	lasting chan struct{} // has a value when there are some again
	lefts   leftovers
}

var (
	_ leasekit.Driver       = (*driver)(nil)
	_ leasekit.CostlyTeller = (*driver)(nil)
	_ leasekit.Teller       = (*driver)(nil)
	_ leasekit.Keeper       = (*driver)(nil)
	_ leasekit.Detacher     = (*driver)(nil)
)

const (
	// maxTurns bounds how many requests are under way at a time, and maxLineTurns those
	// for one resource: so the next heartbeat, and the next request for another resource,
	// stands behind so many and not behind thousands.
	maxTurns     = 128
	maxLineTurns = 16

	// kitRecheck is when the kit asks again although nobody has told it to. The driver
	// itself looks at each line more often, and tells.
	kitRecheck = time.Minute
)

// OpenLease implements lock.Backend.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: fmt.Sprintf("must be from %s to %s", lock.MinTTL, lock.MaxTTL)}
	}
	d := &driver{
		b: b, id: lock.NewLeaseID(), sidecar: o.Sidecar, recheck: b.recheckOf(o.TTL),
		turns: make(chan struct{}, maxTurns), beats: make(chan struct{}, 1), renewed: make(chan struct{}), listening: make(chan struct{}),
		lines: make(map[string]*line), spots: make(map[lock.HoldID]*spot), lasting: make(chan struct{}, 1),
		lefts: leftovers{of: make(map[lock.HoldID]*leftover), more: make(chan struct{}, 1)},
	}
	d.leaseNode = b.newLeaseNode(d.id, leaseRecord{Sidecar: o.Sidecar, TTL: o.TTL.String()})
	d.run, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	cfg := d.leaseNode.config()
	cfg.TTL, cfg.Tick = o.TTL, b.cfg.tick
	// A server that has fallen silent must be left while there is time enough for
	// another one.
	cfg.Timeout = min(cfg.Timeout, o.TTL/3)
	cfg.OnReconnect = d.advanceAll
	opened := b.clock()
	set, err := zksession.OpenSessions(ctx, cfg)
	if err != nil {
		d.stop()
		return nil, unavailable("open lease", err)
	}
	d.set = set
	if err := d.leaseNode.take(ctx, set.First()); err != nil {
		d.stop()
		ctx, cancel := b.afterwards(ctx)
		defer cancel()
		return nil, errors.Join(err, set.Close(ctx))
	}
	b.mu.Lock()
	b.drivers = append(b.drivers, d)
	b.mu.Unlock()
	l := leasekit.Start(ctx, d, leasekit.Options{
		ID: d.id, TTL: o.TTL, Clock: b.clock, Opened: opened, Recheck: kitRecheck, Unproven: true,
	})
	<-d.listening
	return l, nil
}

// Listen implements leasekit.Driver.
func (d *driver) Listen(ctx context.Context, push func(leasekit.Push)) {
	d.mu.Lock()
	d.push = push
	d.mu.Unlock()
	close(d.listening)
	var beside sync.WaitGroup
	defer beside.Wait()
	beside.Go(func() { d.care(ctx) })
	beside.Go(func() { d.recheckAll(ctx) })
	beside.Go(func() { d.endLeftovers(ctx) })
	beside.Go(func() { d.sweep(ctx) })
	select {
	case <-d.set.Done():
		push(leasekit.Push{Kind: leasekit.Over})
	case <-ctx.Done():
	}
}

// recheckAll looks at what is waited for, in case a watch did not come through, and at
// what is missing, in case an answer did not.
func (d *driver) recheckAll(ctx context.Context) {
	for leasekit.Sleep(ctx, d.recheck-rand.N(d.recheck/8+1)) { //nolint:gosec // not a secret
		d.advanceAll()
		d.explain(ctx)
	}
}

// advanceAll has every line look at what it waits for.
func (d *driver) advanceAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.lines {
		if len(l.waiting) > 0 || l.curious() {
			l.suspect = true
			l.poke()
		}
	}
}

// do does something in the background, unless the lease is closed. d.mu is held.
func (d *driver) do(task func(context.Context)) {
	if !d.closed {
		d.tasks.Go(func() { task(d.run) })
	}
}

// turn waits until a request may be sent.
func (d *driver) turn(ctx context.Context) error {
	if d.set.Overdue() {
		return errOverdue
	}
	select {
	case d.turns <- struct{}{}:
		return nil
	case <-ctx.Done():
		return zksession.ErrNotSent
	case <-d.set.Done():
		return d.set.Err()
	}
}

// turn is what a request has its place in while it is under way.
type turn []chan struct{}

func (t turn) end() {
	for _, of := range t {
		<-of
	}
}

// turn waits until a create or a delete may be sent.
func (l *line) turn(ctx context.Context) (t turn, err error) {
	l.d.mu.Lock()
	turns := l.turns
	l.d.mu.Unlock()
	if turns != nil {
		select {
		case turns <- struct{}{}:
			t = turn{turns}
		case <-ctx.Done():
			return nil, zksession.ErrNotSent
		}
	}
	if err := l.d.turn(ctx); err != nil {
		t.end()
		return nil, err
	}
	return append(t, l.d.turns), nil
}

// ask sends calls in the first session when it is their turn. What is cut short is
// unknown, so ctx does not cut it short: the session bounds how long an answer may
// take.
func (d *driver) ask(ctx context.Context, calls ...*zksession.Call) error {
	if err := d.turn(ctx); err != nil {
		return err
	}
	defer func() { <-d.turns }()
	return d.leaseNode.s.Do(context.WithoutCancel(ctx), calls...)
}

// failed makes the error of a call of an error of the session or the server.
func (d *driver) failed(what string, r lock.Resource, err error) error {
	var held *lock.HeldError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, zksession.ErrExpired), d.set.Err() != nil:
		return lock.ErrLeaseLost
	case errors.As(err, &held), errors.Is(err, lock.ErrNotHolder), errors.Is(err, lock.ErrNoHandle), errors.Is(err, lock.ErrInvalid),
		errors.Is(err, lock.ErrLimit), errors.Is(err, leasekit.ErrNotSent):
		return err
	case errors.Is(err, lock.ErrUnavailable):
		return fmt.Errorf("%s %q: %w", what, string(r), err)
	}
	return unavailable(fmt.Sprintf("%s %q", what, string(r)), err)
}

// errOverdue is why an overdue lease asks for nothing.
var errOverdue = fmt.Errorf("the lease has not been renewed in time: %w", lock.ErrUnavailable)

// Held implements leasekit.Driver. It reads every node that the lease has made and
// not deleted; what a request without an answer may have made is not among them.
func (d *driver) Held(ctx context.Context, each func(leasekit.Ref)) error {
	spots := d.placed()
	calls, err := d.read(ctx, spots)
	if err != nil {
		return d.failed("compare holds", "", err)
	}
	for i, s := range spots {
		if !errors.Is(calls[i].Err, zksession.ErrNoNode) {
			each(s.Ref)
		}
	}
	return nil
}

// read reads the nodes of spots.
func (d *driver) read(ctx context.Context, spots []seen) ([]*zksession.Call, error) {
	calls := make([]*zksession.Call, len(spots))
	for i, s := range spots {
		calls[i] = zksession.Get(s.path)
	}
	return calls, doAll(ctx, d.leaseNode, calls)
}

// seen is where a spot was.
type seen struct {
	*spot
	path string
}

// placed are all spots with nodes.
func (d *driver) placed() []seen {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []seen
	for _, s := range d.spots {
		if s.name != "" && !s.gone {
			all = append(all, seen{s, s.node})
		}
	}
	return all
}

// Close implements leasekit.Driver. Ending the sessions removes all their nodes.
func (d *driver) Close(ctx context.Context) error {
	d.b.mu.Lock()
	d.b.drivers = slices.DeleteFunc(d.b.drivers, func(o *driver) bool { return o == d })
	d.b.mu.Unlock()
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.stop()
	err := d.set.Close(ctx)
	d.tasks.Wait()
	if err != nil {
		return unavailable("close lease", err)
	}
	return nil
}
