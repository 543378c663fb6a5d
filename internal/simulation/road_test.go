package simulation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// weather is what a road does to what it carries: chances of 100, and times.
type weather struct {
	lost      int           // requests
	unheard   int           // answers
	copied    int           // requests that arrive after the caller has given them up
	dropped   int           // pushes
	slow      time.Duration // the longest way, in one direction
	hangs     bool          // who gets no answer waits for it
	farewells int           // answers to Close that do not come
}

var (
	fair  = weather{slow: 2 * time.Millisecond}
	foul  = weather{lost: 15, unheard: 15, copied: 15, dropped: 30, slow: 200 * time.Millisecond}
	slow  = weather{slow: 900 * time.Millisecond, dropped: 10}
	muted = weather{dropped: 100, slow: 5 * time.Millisecond}
	deaf  = weather{unheard: 100, hangs: true}
	cut   = weather{lost: 100, dropped: 100}
	holes = weather{lost: 40, unheard: 20, copied: 20, dropped: 60, slow: 20 * time.Millisecond, hangs: true, farewells: 50}
)

var climate = []weather{foul, slow, muted, deaf, cut, holes}

// longest is how long a request without an answer is waited for.
const longest = time.Second

var errLost = fmt.Errorf("read reply: %w", lock.ErrUnavailable)

// trip carries one request to the store and its answer back. sent tells whether the
// request has left; again is a copy of it.
func (p *process) trip(ctx context.Context, do func() error, again func()) (sent bool, _ error) {
	if !p.passes(ctx) {
		return false, errLost
	}
	v := p.weather()
	there, back, late := p.upTo(v.slow), p.upTo(v.slow), p.upTo(3*time.Second)
	switch {
	case p.chance(v.lost):
		return true, p.silence(ctx, v)
	case again != nil && p.chance(v.copied):
		p.w.after(late, again)
		return true, p.silence(ctx, v)
	case !sleep(ctx, there):
		if again != nil {
			p.w.after(late, again)
		}
		return true, errLost
	}
	err := do()
	if p.chance(v.unheard) {
		return true, p.silence(ctx, v)
	}
	if !sleep(ctx, back) || !p.passes(ctx) {
		return true, errLost
	}
	return true, err
}

// silence is how a request ends that gets no answer.
func (p *process) silence(ctx context.Context, v weather) error {
	if v.hangs || p.chance(30) {
		sleep(ctx, longest)
	} else {
		sleep(ctx, p.upTo(20*time.Millisecond))
	}
	return errLost
}

// road is between one lease and the store.
type road struct {
	leasekit.Driver
	p *process

	mu     sync.Mutex
	gone   map[lock.HoldID]bool   // ids that were given up while a copy could still arrive
	busy   map[lock.HoldID]string // the call that is under way
	pushes []leasekit.Push
	bell   chan struct{}
}

func newRoad(d leasekit.Driver, p *process) *road {
	return &road{Driver: d, p: p, gone: map[lock.HoldID]bool{}, busy: map[lock.HoldID]string{}, bell: make(chan struct{}, 1)}
}

// alone notes that a call on a hold begins, and complains where another is under way.
func (r *road) alone(what string, id lock.HoldID) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, ok := r.busy[id]; ok {
		r.p.w.witness.complains("%v: %s of %s while its %s is under way", r.p, what, id, other)
	}
	r.busy[id] = what
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, id)
	}
}

// ask is Ask where the store remembers ids that were given up, as one behind a network
// must.
func (r *road) ask(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	r.mu.Lock()
	gone := r.gone[q.ID]
	r.mu.Unlock()
	if gone {
		return leasekit.Answer{}, lock.ErrNotHolder
	}
	if r.p.w.broken == ignoresMinHold {
		q.MinHold = 0
	}
	a, err := r.Driver.Ask(ctx, q)
	if err == nil && q.Handle != "" {
		r.p.w.witness.tookOver(q.Handle, q.ID)
	}
	return a, err
}

func (r *road) Ask(ctx context.Context, q lock.Request) (a leasekit.Answer, _ error) {
	defer r.alone("Ask", q.ID)()
	sent, err := r.p.trip(ctx, func() (err error) { a, err = r.ask(ctx, q); return err },
		func() { _, _ = r.ask(context.Background(), q) })
	switch {
	case !sent && ctx.Err() != nil:
		return leasekit.Answer{}, leasekit.ErrNotSent
	case err != nil:
		return leasekit.Answer{}, err
	}
	switch r.p.w.broken {
	case grantsBlindly:
		if !a.Granted {
			a.Granted, a.Fence = true, lock.FenceOf(time.Now().UnixMicro())
		}
	case lowFences:
		if a.Granted {
			a.Fence %= 7 * lock.FenceRange
		}
	}
	return a, nil
}

func (r *road) Withdraw(ctx context.Context, w leasekit.Withdrawal) (found leasekit.Withdrawn, _ error) {
	defer r.alone("Withdraw", w.ID)()
	if r.p.w.broken == keepsReleased && w.Mode == lock.Exclusive {
		return leasekit.Withdrawn{Found: true}, nil
	}
	if _, err := r.p.trip(ctx, func() (err error) { found, err = r.withdraw(ctx, w); return err },
		func() { _, _ = r.withdraw(context.Background(), w) }); err != nil {
		return leasekit.Withdrawn{}, err
	}
	return found, nil
}

func (r *road) withdraw(ctx context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	r.p.w.log("store: %v withdraws %s of %s", r.p, w.ID, w.Resource)
	r.mu.Lock()
	r.gone[w.ID] = r.gone[w.ID] || w.Unsure
	r.mu.Unlock()
	return r.Driver.Withdraw(ctx, w)
}

func (r *road) Downgrade(ctx context.Context, ref leasekit.Ref) error {
	defer r.alone("Downgrade", ref.ID)()
	_, err := r.p.trip(ctx, func() error { return r.Driver.Downgrade(ctx, ref) }, func() { _ = r.Driver.Downgrade(context.Background(), ref) })
	return err
}

// KeepsMinHold makes the road a leasekit.Keeper.
func (r *road) KeepsMinHold() error { return r.Driver.(leasekit.Keeper).KeepsMinHold() }

// Detaches makes the road a leasekit.Detacher.
func (r *road) Detaches() error { return r.Driver.(leasekit.Detacher).Detaches() }

func (r *road) Detach(ctx context.Context, w leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (found leasekit.Withdrawn, _ error) {
	defer r.alone("Detach", w.ID)()
	if _, err := r.p.trip(ctx, func() (err error) { found, err = r.detach(ctx, w, key, ttl); return err },
		func() { _, _ = r.detach(context.Background(), w, key, ttl) }); err != nil {
		return leasekit.Withdrawn{}, err
	}
	return found, nil
}

func (r *road) detach(ctx context.Context, w leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (leasekit.Withdrawn, error) {
	r.p.w.log("store: %v detaches %s of %s for %v", r.p, w.ID, w.Resource, ttl)
	r.mu.Lock()
	r.gone[w.ID] = r.gone[w.ID] || w.Unsure
	r.mu.Unlock()
	if r.p.w.broken == freesDetached {
		ttl /= 3
	}
	found, err := r.Driver.(leasekit.Detacher).Detach(ctx, w, key, ttl)
	if err == nil && ttl > 0 {
		r.p.w.witness.keyed(key, w.ID)
	}
	return found, err
}

// Describe makes the road a leasekit.Teller.
func (r *road) Describe(ctx context.Context, ref leasekit.Ref, owner string) error {
	do := func() error { return r.Driver.(leasekit.Teller).Describe(ctx, ref, owner) }
	_, err := r.p.trip(ctx, do, func() { _ = do() })
	return err
}

func (r *road) Renew(ctx context.Context, acks []leasekit.Revocation) (a leasekit.Renewal, _ error) {
	_, err := r.p.trip(ctx, func() (err error) { a, err = r.renew(ctx, acks); return err },
		func() { _, _ = r.renew(context.Background(), acks) })
	if r.p.w.broken == answersForTheStore && err != nil {
		return leasekit.Renewal{Entries: -1}, nil
	}
	if err != nil {
		return leasekit.Renewal{}, err
	}
	return a, nil
}

func (r *road) renew(ctx context.Context, acks []leasekit.Revocation) (leasekit.Renewal, error) {
	a, err := r.Driver.Renew(ctx, acks)
	r.p.w.log("store: %v renews, acknowledges %v, is told %v, %v", r.p, acks, a.Revoked, err)
	switch r.p.w.broken {
	case acknowledgesUnread:
		_, _ = r.Driver.Renew(ctx, a.Revoked)
		a.Revoked = nil
	case keepsReleased:
		a.Entries = -1
	}
	return a, err
}

func (r *road) Held(ctx context.Context, each func(leasekit.Ref)) error {
	_, err := r.p.trip(ctx, func() error { return r.Driver.Held(ctx, each) }, nil)
	return err
}

func (r *road) Close(ctx context.Context) error {
	if r.p.chance(r.p.weather().farewells) {
		sleep(ctx, longest)
		return errLost
	}
	_, err := r.p.trip(ctx, func() error {
		r.p.w.log("store: %v ends its lease", r.p)
		return r.Driver.Close(ctx)
	}, nil)
	return err
}

// Listen passes pushes on in their order, late, and not all of them.
func (r *road) Listen(ctx context.Context, push func(leasekit.Push)) {
	var reader sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	reader.Go(func() {
		for {
			select {
			case <-r.bell:
			case <-ctx.Done():
				return
			}
			r.mu.Lock()
			all := r.pushes
			r.pushes = nil
			r.mu.Unlock()
			for _, one := range all {
				v := r.p.weather()
				switch {
				case !sleep(ctx, r.p.upTo(v.slow)) || !r.p.passes(ctx):
					return
				case r.p.chance(v.dropped):
				case one.Kind == leasekit.Revoked && r.p.w.broken == acknowledgesUnread:
				default:
					push(one)
				}
			}
		}
	})
	r.Driver.Listen(ctx, func(one leasekit.Push) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pushes = append(r.pushes, one)
		select {
		case r.bell <- struct{}{}:
		default:
		}
	})
	<-ctx.Done() // the end of the lease in the store is not the end of the connection
	stop()
	reader.Wait()
}

// backend is the store as one process sees it.
type backend struct{ p *process }

var (
	_ lock.Backend = backend{}
	_ lock.Handles = backend{}
)

func (b backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (l lock.Lease, _ error) {
	p := b.p
	inStore := o
	if p.w.broken == shortLeases {
		inStore.TTL = max(lock.MinTTL, o.TTL*2/3)
	}
	_, err := p.trip(ctx, func() (err error) {
		l, err = p.w.store.OpenThrough(ctx, inStore, p.clock, func(d leasekit.Driver) leasekit.Driver { return newRoad(d, p) })
		return err
	}, nil)
	if err != nil && l != nil { // it ends by its TTL
		gone, cancel := context.WithCancel(ctx)
		cancel()
		_ = l.Close(gone)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (b backend) Get(ctx context.Context, r lock.Resource) (st lock.Status, _ error) {
	_, err := b.p.trip(ctx, func() (err error) { st, err = b.p.w.store.Get(ctx, r); return err }, nil)
	if err != nil {
		return lock.Status{Resource: r}, err
	}
	return st, nil
}

func (b backend) List(ctx context.Context, prefix string, p lock.Page) (all []lock.Status, _ error) {
	_, err := b.p.trip(ctx, func() (err error) { all, err = b.p.w.store.List(ctx, prefix, p); return err }, nil)
	if err != nil {
		return nil, err
	}
	return all, nil
}

func (b backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	if grace == 0 {
		b.p.w.witness.forcedAtOnce(id, 0)
	}
	_, err := b.p.trip(ctx, func() error {
		b.p.w.witness.forcing(id, 0)
		st, _ := b.p.w.store.Get(ctx, r)
		for _, h := range st.Holders {
			if h.ID != id {
				continue
			}
			b.p.w.witness.forcing(id, h.Fence)
			if grace == 0 { // who has it by then is not told early, either
				b.p.w.witness.forcedAtOnce(id, h.Fence)
			}
		}
		b.p.w.log("store: %v forces %s of %s with %v", b.p, id, r, grace)
		return b.p.w.store.ForceRelease(ctx, r, id, grace)
	}, nil)
	return err
}

// SetHandle implements lock.Handles.
func (b backend) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (d lock.Detached, _ error) {
	do := func() (lock.Detached, error) {
		b.p.w.log("store: %v sets the handle of %s to %v", b.p, r, ttl)
		if ttl == 0 {
			b.p.w.witness.tookOver(key, "")
		}
		return b.p.w.store.SetHandle(context.WithoutCancel(ctx), r, key, ttl)
	}
	_, err := b.p.trip(ctx, func() (err error) { d, err = do(); return err }, func() { _, _ = do() })
	if err != nil {
		return lock.Detached{}, err
	}
	return d, nil
}

// noting notes what is forced at once, also where the sidecar does it by itself.
type noting struct {
	lock.Backend
	w *world
}

// Unwrap lets lock.HandlesOf find the store.
func (n noting) Unwrap() lock.Backend { return n.Backend }

func (n noting) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	if grace == 0 {
		n.w.witness.forcedAtOnce(id, 0)
	}
	return n.Backend.ForceRelease(ctx, r, id, grace)
}

func (b backend) Ping(ctx context.Context) error {
	_, err := b.p.trip(ctx, func() error { return b.p.w.store.Ping(ctx) }, nil)
	return err
}

func (b backend) Close() error { return nil }
