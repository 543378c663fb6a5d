package sqllock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// soonest is when a waiter asks again for what a stranger has, at the earliest.
const soonest = 2 * time.Millisecond

// doubles is a lease whose holds have a foreign lock beside the engine's. The engine
// alone decides among sidecars; while a stranger has the foreign lock, the engine's
// hold waits for it, in front of all who wait in the engine.
type doubles struct {
	engine *lease
	f      Foreign
	some   chan struct{} // has a value when there may be something to give back

	keeping chan struct{} // has a value while foreign locks are made to last
	over    bool          // they were taken away, and so the lease was ended. Guarded by keeping

	taking sync.RWMutex // read-locked while a foreign lock is asked for
	closed bool

	mu      sync.Mutex
	push    func(leasekit.Push) // nil before Listen
	holds   map[lock.HoldID]*double
	dues    map[lock.HoldID]*double
	beat    time.Duration         // on the clock, before the last heartbeat was sent,
	renewed time.Duration         // and before the last that was answered was
	lapsed  bool                  // since then foreign locks were ended, for nobody relied on them
	untold  []leasekit.Revocation // that were lost before Listen
}

// double is a hold that the engine has granted. Its fields stand under the mutex of
// doubles.
type double struct {
	leasekit.Ref
	mode     lock.Mode
	least    bool          // it has a MinHold
	had      bool          // it has had the foreign lock
	forced   bool          // its release is forced, as far as is known
	released bool          // its app has given it back
	turn     sync.Mutex    // for calls of Foreign about it
	taken    bool          // it has the foreign lock, too, and was told so
	lost     bool          // the foreign lock was taken away
	doubt    bool          // it was while nobody was told yet that it is taken
	proven   time.Duration // on the clock: from when it lasts for a TTL
	asked    int           // how often the foreign lock was asked for
	since    time.Duration // when a stranger was first found to have it; 0: none was
	due      time.Duration // when the foreign lock is to be given back, and with lost the engine's hold
}

var (
	_ leasekit.Driver = (*doubles)(nil)
	_ leasekit.Keeper = (*doubles)(nil)
)

// besides makes the lease of an engine one whose holds have a foreign lock, too.
func (l *lease) besides(o lock.LeaseOptions, opened time.Duration) (_ *doubles, err error) {
	d := &doubles{
		engine: l, some: make(chan struct{}, 1), keeping: make(chan struct{}, 1), renewed: opened,
		holds: make(map[lock.HoldID]*double), dues: make(map[lock.HoldID]*double),
	}
	d.f, err = l.b.o.Beside.Open(o, l.server, Events{Now: l.b.clock, Wake: d.wake, Lost: d.vanished})
	return d, err
}

func (d *doubles) now() time.Duration { return d.engine.b.clock() }

func (d *doubles) hold(id lock.HoldID) *double {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.holds[id]
}

// Ask implements leasekit.Driver.
func (d *doubles) Ask(ctx context.Context, q lock.Request) (leasekit.Answer, error) {
	if err := d.f.Check(q); err != nil {
		return leasekit.Answer{}, fmt.Errorf("acquire %q: %w", string(q.Resource), err)
	}
	h, took := d.hold(q.ID), false
	if h != nil && d.waits(h) {
		var err error
		if took, err = d.take(ctx, h, q); !took {
			return d.notTaken(ctx, h, q, err)
		}
	}
	// Also where the engine has granted it before: that may be long ago.
	a, err := d.engine.Ask(ctx, q)
	switch {
	case errors.Is(err, lock.ErrUnavailable), errors.Is(err, leasekit.ErrNotSent):
		return a, err
	case err != nil || !a.Granted:
		if h != nil && d.end(ctx, h) != nil {
			d.giveLater(q.ID, d.now()+giveAgain)
		}
		return a, err
	}
	if h == nil {
		h = d.add(q)
	}
	if !took {
		if took, err = d.take(ctx, h, q); !took {
			return d.notTaken(ctx, h, q, err)
		}
	}
	return a, nil
}

func (d *doubles) add(q lock.Request) *double {
	h := &double{Ref: leasekit.Ref{Resource: q.Resource, ID: q.ID}, mode: q.Mode, least: q.MinHold > 0}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.holds[q.ID] = h
	return h
}

// waits tells whether a hold waits for a stranger.
func (d *doubles) waits(h *double) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return h.since != 0 && !h.taken
}

// later is the answer to a request that a stranger is in the way of.
func (d *doubles) later(h *double) leasekit.Answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return leasekit.Answer{Recheck: min(max((d.now()-h.since)/10, soonest), d.engine.b.o.Beside.Recheck)}
}

// take takes the foreign lock of a hold, or makes sure of it. A heartbeat that began
// meanwhile does not know of it, and counts for longer than it lasts: then it is made
// sure of once more.
func (d *doubles) take(ctx context.Context, h *double, q lock.Request) (bool, error) {
	d.taking.RLock()
	defer d.taking.RUnlock()
	if d.closed {
		return false, lock.ErrLeaseLost
	}
	h.turn.Lock()
	defer h.turn.Unlock()
	for {
		d.mu.Lock()
		h.asked, h.doubt = h.asked+1, false
		d.mu.Unlock()
		sent := d.now()
		took, err := d.f.Take(ctx, q)
		switch {
		case errors.Is(err, lock.ErrLimit):
			return false, err
		case err != nil:
			return false, d.engine.b.unavailable("acquire", err)
		}
		d.mu.Lock()
		settled := true
		switch {
		case !took && h.since == 0:
			h.since = max(1, d.now())
		case took && (h.doubt || sent < d.beat):
			settled = false
		case took:
			h.taken, h.had, h.proven, h.since = true, true, sent, 0
			d.holds[h.ID] = h
		}
		d.mu.Unlock()
		if settled {
			return took, nil
		}
	}
}

// notTaken answers a request whose foreign lock was not taken, because of err, or because
// a stranger has it. What a refused one leaves behind is taken back, also where the time
// of the request is over: its caller relies on that.
func (d *doubles) notTaken(ctx context.Context, h *double, q lock.Request, err error) (leasekit.Answer, error) {
	limit := errors.Is(err, lock.ErrLimit)
	if err == nil && !q.Try {
		return d.later(h), nil
	}
	if err != nil && !limit {
		return leasekit.Answer{}, err
	}
	longer, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveTime)
	defer cancel()
	w, gone := d.Withdraw(longer, leasekit.Withdrawal{Ref: h.Ref, Mode: h.mode})
	switch {
	case gone != nil:
		return leasekit.Answer{}, gone
	case limit:
		return leasekit.Answer{}, err
	}
	cause := lock.ErrHeld
	if ctx.Err() != nil {
		cause = context.Cause(ctx)
	}
	return leasekit.Answer{}, &lock.HeldError{Cause: cause, Status: w.Status}
}

// Withdraw implements leasekit.Driver. A hold that was lost is not found, even where
// the engine has it still.
func (d *doubles) Withdraw(ctx context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	h := d.hold(w.ID)
	if h == nil {
		return d.engine.Withdraw(ctx, w)
	}
	waited := d.waits(h)
	given := d.give(ctx, h)
	found, err := d.engine.Withdraw(ctx, w)
	if err == nil {
		err = d.unkeep(ctx, h)
	}
	if given != nil { // a stranger waits for longer, and so does the next sidecar: it is excluded all the same
		d.giveLater(h.ID, d.now()+giveAgain)
	}
	if err != nil {
		return found, err
	}
	found.Found = found.Found && !d.wasLost(h)
	if given == nil {
		d.forget(h)
	}
	if waited {
		found.Position, found.Status = 1, d.f.Strangers(ctx, h.Resource)
	}
	return found, nil
}

// unkeep ends what the engine keeps of a hold with a MinHold that never had the foreign lock: its caller was not
// told that it is granted.
func (d *doubles) unkeep(ctx context.Context, h *double) error {
	d.mu.Lock()
	kept := h.least && !h.had
	d.mu.Unlock()
	if !kept {
		return nil
	}
	err := d.engine.b.ForceRelease(ctx, h.Resource, h.ID, 0)
	if errors.Is(err, lock.ErrNotHolder) {
		return nil
	}
	return err
}

// KeepsMinHold implements leasekit.Keeper.
func (d *doubles) KeepsMinHold() error {
	if _, lasts := d.f.(Lasting); lasts {
		return nil
	}
	return leasekit.NoMinHold("what it has beside the sidecars' own tables ends with the hold")
}

// give gives the foreign lock of a hold back, but for what its MinHold has left of it.
func (d *doubles) give(ctx context.Context, h *double) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveTime)
	defer cancel()
	h.turn.Lock()
	defer h.turn.Unlock()
	d.mu.Lock()
	h.taken, h.released = false, true // from now on it is not kept
	ended := h.forced || h.lost || !h.had
	d.mu.Unlock()
	if f, lasts := d.f.(Lasting); lasts && !ended {
		return f.Leave(ctx, h.Ref)
	}
	return d.f.Give(ctx, h.Ref)
}

// isForced notes that the release of a hold is forced.
func (d *doubles) isForced(id lock.HoldID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if h := d.holds[id]; h != nil {
		h.forced = true
	}
}

func (d *doubles) wasLost(h *double) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return h.lost
}

// Downgrade implements leasekit.Driver.
func (d *doubles) Downgrade(_ context.Context, r leasekit.Ref) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.holds[r.ID]
	switch {
	case h == nil || !h.taken || h.lost:
		return lock.ErrNotHolder
	case h.mode == lock.Shared:
		return nil
	}
	return fmt.Errorf("downgrade %q: others use this lock too, in a way in which it cannot be made a weaker one: %w", string(r.Resource), lock.ErrUnsupported)
}

// Held implements leasekit.Driver. The foreign lock of a hold that the engine does not
// have any more is given back.
func (d *doubles) Held(ctx context.Context, each func(leasekit.Ref)) error {
	d.mu.Lock()
	missing := make(map[lock.HoldID]time.Duration)
	for id, h := range d.holds {
		if h.taken {
			missing[id] = h.proven
		}
	}
	d.mu.Unlock()
	if err := d.engine.Held(ctx, func(r leasekit.Ref) {
		delete(missing, r.ID)
		each(r)
	}); err != nil {
		return err
	}
	for id, proven := range missing {
		d.mu.Lock()
		h := d.holds[id]
		same := h != nil && h.proven == proven // it was not asked for again
		d.mu.Unlock()
		if same {
			d.giveLater(id, d.now())
		}
	}
	return nil
}

// Listen implements leasekit.Driver.
func (d *doubles) Listen(ctx context.Context, push func(leasekit.Push)) {
	d.mu.Lock()
	d.push = push
	d.mu.Unlock()
	var tasks sync.WaitGroup
	tasks.Go(func() { d.chores(ctx) })
	d.engine.Listen(ctx, func(p leasekit.Push) {
		switch p.Kind {
		case leasekit.Granted:
			p = leasekit.Push{Kind: leasekit.Woken, Ref: p.Ref} // it lacks the foreign lock yet
		case leasekit.Revoked:
			d.isForced(p.ID)
			if p.Grace == 0 {
				d.giveLater(p.ID, d.now())
			}
		}
		push(p)
	})
	tasks.Wait()
}

// Close implements leasekit.Driver.
func (d *doubles) Close(ctx context.Context) error {
	d.taking.Lock() // what is taken is known then
	d.closed = true
	d.taking.Unlock()
	d.mu.Lock()
	var holds, leasts []*double
	var plain []leasekit.Ref
	for _, h := range d.holds {
		if holds = append(holds, h); h.least {
			leasts = append(leasts, h)
		} else {
			plain = append(plain, h.Ref)
		}
	}
	d.mu.Unlock()
	var err error
	for _, h := range leasts {
		if ctx.Err() == nil {
			err = errors.Join(err, d.give(ctx, h))
		}
	}
	if err != nil {
		err = d.engine.b.unavailable("close lease", err)
	}
	err = errors.Join(err, d.f.Close(ctx, plain), d.engine.Close(ctx))
	for _, h := range holds {
		err = errors.Join(err, d.unkeep(ctx, h))
	}
	return err
}
