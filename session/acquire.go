package session

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
	"github.com/locksidecar/locksidecar/session/outcome"
)

const (
	// tryLimit bounds a try when the store does not answer.
	tryLimit = 2 * time.Second
	// patience is how long a wait that is over waits on to learn who holds the lock.
	patience = 100 * time.Millisecond
	// nearPatience is the same, also of a try, where the store is in this process: it always answers, and only a machine that is
	// very busy takes long to get to it. That the store does not answer would be wrong.
	nearPatience = 30 * time.Second
)

// errSilent is for a wait that ended without a word of the store.
var errSilent = fmt.Errorf("the store has not answered: %w", lock.ErrUnavailable)

// Acquire asks for a hold and waits for it as long as the request says. With an
// error the app has nothing, and nothing is left behind in the store: what an
// unanswered request may have left is given back in the background. A try ends
// after two seconds and a wait at its time, whatever the store does, save that a
// wait takes up to 0.1 s more to learn who holds the lock. A store in this process is
// waited for: it answers as soon as the processor gets to it.
//
// Each request gets a hold of its own: a second one of the same session waits for
// the first. Two kinds share. A request with the id of one that waits, or of one
// whose hold lives, gets the same answer and counts once. A reentrant request of
// an owner who holds the resource by another reentrant request counts that hold
// up and does not ask the store; where the other one waits, both get its answer.
//
// A request for several resources takes them one after the other, in the byte order of
// their names, and is granted when it has all. When one is lost before that, it begins
// again with the first. Afterwards they are one hold: released and downgraded together,
// and lost together when one of them is lost.
//
// A grant whose caller is gone (ctx has ended) is given back, unless another
// caller with the same request id was answered with it.
//
//	*lock.HeldError with lock.ErrHeld: a try found it taken.
//	*lock.HeldError with context.DeadlineExceeded: the wait is over.
//	*lock.HeldError with context.Canceled: ctx or, by Cancel, the request was
//	  cancelled.
//	lock.ErrUnavailable: the wait is over and the store does not answer; a try
//	  waits two seconds for an answer.
//	ErrUpgradeRefused: the request is reentrant, and the owner holds it, or waits
//	  for it, SHARED.
//	*LimitError: the session, or its user, has too many holds or waiters.
//	*DeadlockError: its owner and others wait for each other, and it asked last.
//	*LostError: an administrator took the waiter out of the queue, or the hold
//	  was lost before it could be handed out.
//	*outcome.RefusedError: r.Once, and it has succeeded before, or was tried as often as
//	  it may be.
//	lock.ErrUnsupported: r.Once, and the store keeps no records; or a permit, or r.MinHold, and
//	  it has none.
//	ErrSessionClosed: the session has ended.
//	*lock.InvalidError: a field is refused.
func (s *Session) Acquire(ctx context.Context, r AcquireRequest) (Grant, error) {
	q := newRequest(ctx, s, r, nil)
	if q.ask != nil {
		// Another goroutine asks the store, so that this one is there in time whatever
		// the driver does.
		s.space.m.workers.Run(q.ask.run)
	}
	q.wait(ctx)
	return q.answer()
}

// asking is a request to the store for a hold, its ctx, its place in a lane, and its bell. While it
// waits it has no goroutine.
type asking struct {
	call
	place
	s          *Session
	h          *ledger.Hold
	g          *generation // nil: there is no lease to ask on yet
	q          lock.Request
	held       []string // the resources that the owner of the request has
	state      atomic.Int32
	introduced bool     // the store may be asked; nobody but run looks at it
	glanced    bool     // the record of what is done once was looked at; nobody but beginOnce looks at it
	over       bool     // run has ended
	parting    *place   // in the same lane, from when nobody wants it any more up to the end of run; nil: somebody does
	inquiry    *inquiry // looks into its wait; nil: there is none
}

// The states of an asking.
const (
	atWork int32 = iota // a goroutine asks the store
	atRest              // it waits, in its lane or in the store, and has none
	rung                // there is something new
)

// Ring implements lock.Bell.
func (a *asking) Ring() {
	if a.state.Swap(rung) == atRest {
		a.s.space.m.workers.Run(a.run)
	}
}

// Stop ends the wait. s.mu is held.
func (a *asking) Stop() {
	a.s.lanes.leave(&a.place)
	if !a.over && a.parting == nil {
		a.parting = &place{resource: a.resource}
		a.s.lanes.enter(a.parting)
		a.s.parting++
	}
	a.call.Stop()
	a.Ring()
}

// Value implements context.Context. Who comes after it in its lane is let go on by lock.Queued, too.
func (a *asking) Value(key any) any {
	if _, queued := key.(lock.QueuedKey); queued {
		return func() { passed(a.s, &a.place) }
	}
	return a.call.Value(key)
}

// request prepares to ask the store for a hold; nil: it is not wanted any more. s.mu is
// held.
func (s *Session) request(h *ledger.Hold, id lock.HoldID) *asking {
	a := &asking{call: call{values: h.Tag().(context.Context), from: s}, s: s, h: h, q: lock.Request{ID: id}}
	var wanted bool
	if g := s.space.m.lease.Load(); g != nil && !g.lost() {
		wanted = a.on(g)
	} else {
		wanted = s.ledger.Waiting(h, id, a)
	}
	if !wanted {
		return nil
	}
	a.resource, a.bell, a.number, a.try = h.Resource(), a, h.Number(), h.Try()
	s.lanes.enter(&a.place)
	return a
}

// on notes on which lease it is asked, and reports whether it is wanted still. s.mu is held.
func (a *asking) on(g *generation) bool {
	q, held, wanted := a.s.ledger.Asked(a.h, a.q.ID, g, a)
	if wanted {
		a.g, a.q, a.held = g, q, held
		a.s.lease = g
		g.add(q.ID, a.s)
	}
	return wanted
}

// onNext waits for a lease to ask on. It reports false when nobody waits for it any more.
func (a *asking) onNext() (wanted bool) {
	lock.Blocking(a)
	for lost := true; lost; {
		g, err := a.s.space.m.awaitLease(a)
		if err != nil {
			return false
		}
		a.s.enter()
		if lost = g.lost(); !lost {
			wanted = a.on(g)
		}
		a.s.exit()
	}
	return wanted
}

// valuesOf is a ctx with the values of the call that has asked first.
func valuesOf(h *ledger.Hold) context.Context {
	return context.WithoutCancel(h.Tag().(context.Context))
}

// introduce says who asks, once there is a lease. It reports false when nobody waits for it any more. The
// owner of the request has the resources held.
func (a *asking) introduce() bool {
	if a.g == nil && !a.onNext() {
		return false
	}
	a.introduced = true
	a.q.Owner = a.s.encoded
	if label := a.h.Owner(); label != "" {
		o := a.s.owner
		o.Label = label
		if len(a.held) > 0 {
			o.Nested = &lock.Nested{Asked: time.Now().UnixMilli(), Held: a.held}
			if a.s.space.m.o.Deadlock != IgnoreDeadlocks {
				a.inquiry = inquire(a, a.s, a.h, a.q.ID, a.held)
			}
		}
		a.q.Owner = o.Encode()
	}
	a.q.Bell = a
	return true
}

// run asks the store, once it is its turn, until it answers or has the request wait: then the bell goes
// on. The answer goes to the ledger.
func (a *asking) run() {
	s, h := a.s, a.h
	var grant lock.Grant
	var attempt *outcome.Attempt
	err := lock.ErrWaiting
	for errors.Is(err, lock.ErrWaiting) {
		a.state.Store(atWork) // what has come until now is found now
		if a.turn.Load() || a.Err() != nil {
			if !a.introduced && !a.introduce() {
				a.leave()
				a.end()
				return
			}
			if h.Once() == nil {
				grant, err = a.g.acquire(a, a.q)
			} else {
				grant, attempt, err = beginOnce(a)
			}
			if errors.Is(err, lock.ErrWaiting) {
				passed(s, &a.place)
			}
		}
		if errors.Is(err, lock.ErrWaiting) && a.state.CompareAndSwap(atWork, atRest) {
			return
		}
	}
	if a.inquiry != nil {
		a.inquiry.end()
	}
	a.end()
	if errors.Is(err, lock.ErrLeaseLost) {
		a.g.keeper.Lose()
	}
	s.enter()
	if attempt != nil {
		s.ledger.Started(h, a.q.ID, attempt)
	}
	s.ledger.Answered(h, a.q.ID, a.g, grant, err)
	_, calls := s.settle(nil)
	a.leave() // what is asked for again stands before those that came later
	if len(calls) > 0 {
		tell(s, calls[1:])
		calls[0].Then(calls[0]) // usually there is no other
	}
}

// leave notes that there is nothing of it on the way any more.
func (a *asking) leave() {
	a.s.mu.Lock()
	defer a.s.mu.Unlock()
	a.over = true
	if a.s.lanes.leave(&a.place); a.parting != nil {
		a.s.lanes.leave(a.parting)
		a.s.parting--
		recount(a.s)
	}
}

// acquire asks the store until it answers, ctx ends, or the lease is over.
func (g *generation) acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	g.trip(ctx)
	for tries := 0; ; tries++ {
		grant, err := g.lease.Acquire(ctx, q)
		if !g.again(ctx, tries, err) {
			return grant, err
		}
	}
}

// again tells, after a pause, whether a request is to be made again: its outcome is
// unknown, and somebody waits for it.
func (g *generation) again(ctx context.Context, tries int, err error) bool {
	return errors.Is(err, lock.ErrUnavailable) && !g.lost() && pause(ctx, backoff(tries, minPause, maxPause))
}

// peek sees who holds what a try must not wait for.
func peek(ctx context.Context, s *Session, c *ledger.Call, r lock.Resource) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	st, err := s.space.m.o.Backend.Get(ctx, r)
	if err != nil {
		err = fmt.Errorf("acquire lock: %w", err)
	}
	s.change(func(l *ledger.Ledger) { l.Peeked(c, st, err) })
}

// heldError is what the app gets when it was not granted in time. From the
// store's own error it takes who holds the lock.
func heldError(resource string, from *lock.HeldError, cause error) error {
	e := &lock.HeldError{Cause: cause}
	if from != nil {
		e.Status, e.Position = from.Status, from.Position
	}
	e.Status.Resource = lock.Resource(resource)
	return e
}

func resultOf(g Grant, err error) AcquireResult {
	switch {
	case err == nil && g.Count > 1:
		return Reentered
	case err == nil:
		return Granted
	case errors.Is(err, lock.ErrHeld):
		return Held
	case errors.Is(err, lock.ErrUnavailable): // before the time-out that may be behind it
		return Unavailable
	case errors.Is(err, context.DeadlineExceeded):
		return TimedOut
	case errors.Is(err, context.Canceled):
		return Cancelled
	case errors.Is(err, ErrSessionClosed), errors.Is(err, ErrLost):
		return Ended
	case errors.Is(err, ErrDeadlock):
		return Deadlocked
	case errors.Is(err, outcome.ErrAlreadyDone):
		return Done
	case errors.Is(err, outcome.ErrAttemptsExhausted):
		return Exhausted
	default:
		return Refused
	}
}
