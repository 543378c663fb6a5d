package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// Request is an acquire under way.
type Request struct {
	s     *Session
	r     AcquireRequest
	good  bool               // its fields are not refused
	began time.Duration      // on the clock, when it was entered into the ledger
	then  func(Grant, error) // nil: somebody stands by, in wait
	ctx   context.Context    //nolint:containedctx // for its values

	call *ledger.Call // nil: it was answered at once,
	g    Grant        // with these
	err  error
	ask  *asking // asks the store; nil: there is nothing to ask, or others do

	cause error // why the wait has ended; nil: its time is over. Written before call is answered, or by wait
}

// Begin is Acquire for a caller that does not stand by until it is answered. It enters
// the request, and does not block. Run must follow. then gets what Acquire would
// return, once, on a goroutine that may block; at the earliest when Run is called, or
// the wait is over. ctx is for its values only: the request ends with its wait, by
// GiveUp, or with the session.
func (s *Session) Begin(ctx context.Context, r AcquireRequest, then func(Grant, error)) *Request {
	return newRequest(ctx, s, r, then)
}

// newRequest enters a request into the ledger, which may answer it at once.
func newRequest(ctx context.Context, s *Session, r AcquireRequest, then func(Grant, error)) *Request {
	q := &Request{s: s, r: r, then: then, ctx: ctx}
	secret, err := q.r.attaches(s.space)
	if err != nil {
		q.err = err
		return q
	}
	res, parts, err := s.space.checkAcquire(&q.r)
	if err != nil {
		q.err = err
		return q
	}
	r, q.good = q.r, true
	if err := ctx.Err(); err != nil && then == nil {
		q.err = heldError(nameIn(res, r.Resource), nil, err)
		return q
	}
	size := max(len(parts), 1)
	a := ledger.Ask{
		RequestID:  r.RequestID,
		Resource:   res,
		Name:       nameIn(res, r.Resource),
		Parts:      parts,
		Owner:      r.Owner,
		Mode:       r.Mode,
		Try:        r.Wait == 0,
		Wait:       max(r.Wait, 0),
		Reentrant:  r.Reentrant,
		Direct:     r.Direct,
		Guard:      r.Guard,
		Once:       r.Once,
		MaxHold:    r.MaxHold,
		MinHold:    r.MinHold,
		Detachable: r.Detachable,
		Tag:        ctx,
	}
	if parts != nil {
		a.Resource, a.Name = parts[0].Resource, parts[0].Name
	}
	if secret != "" {
		a.Handle = secret.Key()
	}
	if a.Try {
		a.Wait = tryLimit
	}
	if then != nil {
		a.Then = func(*ledger.Call) { then(q.answer()) }
	}
	s.enter()
	q.began = s.now
	a.Full, a.Busy = reserve(s, int32(size)) //nolint:gosec // a few
	if q.g, q.call, q.err = s.ledger.Acquire(&a); q.call == nil {
		s.exit()
		return q
	}
	var others []*ledger.Call
	q.ask, others = s.settle(q.call.Hold())
	tell(s, others)
	return q
}

// Run asks the store, on this goroutine, where nobody has asked it for the same yet.
// It returns when the store has answered, which may be long after the wait is over, or when the
// request waits: then other goroutines go on when there is something new.
func (q *Request) Run() {
	switch {
	case q.call == nil:
		q.then(q.answer())
	case q.ask != nil:
		q.ask.run()
	}
}

// GiveUp ends the wait as if ctx had ended in Acquire. A request that was answered
// keeps its answer.
func (q *Request) GiveUp() {
	if q.call == nil {
		return
	}
	q.s.enter()
	if q.s.ledger.GiveUp(q.call, ledger.ErrOver) {
		q.cause = context.Canceled
	}
	q.s.exit()
}

// wait returns when the request is answered, or ctx has ended: then it has nothing.
func (q *Request) wait(ctx context.Context) {
	if q.call == nil {
		return
	}
	select {
	case <-q.call.Ready:
	case <-ctx.Done():
	}
	if q.cause = ctx.Err(); q.cause != nil {
		q.s.enter()
		q.s.ledger.Gone(q.call, ledger.ErrOver)
		q.s.exit()
	}
}

// answer is what the caller gets. Who was not granted in time is told who holds it, as
// far as the driver says so soon.
func (q *Request) answer() (Grant, error) {
	g, err := q.g, q.err
	var took time.Duration
	if c := q.call; c != nil {
		g, err, took = c.Grant, c.Err, c.At()-q.began
		if errors.Is(err, ledger.ErrOver) {
			g, err = Grant{}, q.over()
		}
	}
	if q.good {
		name := q.r.Resource
		if name == "" && q.call != nil {
			name = q.call.Hold().Name() // of several, the one that was waited for
		}
		q.s.space.m.o.Observer.Acquired(q.s.space.told(name), q.r.Mode, resultOf(g, err), took)
	}
	return g, err
}

// over says why a request has nothing whose wait is over.
func (q *Request) over() error {
	c, cause := q.call, q.cause
	if cause == nil {
		cause = context.DeadlineExceeded
	}
	var err error
	if f := c.Farewell(); f != nil {
		err = errSilent
		limit := patience
		if q.r.Wait == 0 {
			limit = 0 // a try has nothing to learn: nobody waits for who holds the lock
		}
		if g := q.s.space.m.lease.Load(); g != nil && g.near && !errors.Is(cause, context.Canceled) {
			limit = nearPatience
		}
		if limit > 0 {
			lock.Blocking(q.ctx)
			t := time.NewTimer(limit)
			defer t.Stop()
			select {
			case <-f.Done:
			case <-t.C:
			}
		}
		select {
		case <-f.Done:
			err = f.Err
		default:
		}
	}
	var from *lock.HeldError
	name := c.Hold().Name()                                            // of several, the one that was waited for
	left := errors.As(err, &from) || errors.Is(err, lock.ErrNotHolder) // the queue, maybe as an administrator took it out just then
	if q.r.Wait == 0 && left && !errors.Is(cause, context.Canceled) {
		if cause = lock.ErrHeld; !errors.Is(err, cause) { // the call was given up before the store said anything
			err, left = errSilent, false
		}
	}
	switch {
	case left, errors.Is(cause, context.Canceled):
		return heldError(name, from, cause)
	case c.Leaseless(), errors.Is(err, lock.ErrLeaseLost):
		return q.s.space.m.noLease()
	case err != nil:
		return fmt.Errorf("acquire lock: %w", err)
	case q.r.Wait == 0:
		return fmt.Errorf("acquire lock: %w", errSilent)
	default:
		return heldError(name, nil, cause)
	}
}
