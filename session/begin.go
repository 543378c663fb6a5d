package session

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/session/ledger"
)

// Request is an acquire that has begun, and whose caller does not stand by until
// it is answered.
type Request struct {
	s    *Session
	call *ledger.Call // nil: it was answered at once
	ask  func()       // nil: there is nothing to ask the store
	then func(Grant, error)

	grant Grant // of one that was answered at once
	err   error
	cause error // why it was given up; written before call is answered
}

// Begin is Acquire in two steps: it enters the request, and does not block. Run must
// follow. then gets what Acquire would return, once, on a goroutine that may block;
// at the earliest when Run is called, or the wait is over. ctx is for its values
// only: the request ends with its wait, by GiveUp, or with the session.
func (s *Session) Begin(ctx context.Context, r AcquireRequest, then func(Grant, error)) *Request {
	q := &Request{s: s, then: then}
	res, err := s.m.checkAcquire(&r)
	if err != nil {
		q.err = err
		return q
	}
	began := time.Now()
	q.then = func(g Grant, err error) {
		s.m.o.Observer.Acquired(r.Mode, resultOf(g, err), time.Since(began))
		then(g, err)
	}
	q.grant, q.call, q.ask, q.err = s.begin(ctx, &r, res, func(c *ledger.Call) {
		q.then(s.answer(&r, c, q.cause))
	})
	return q
}

// Run asks the store, on this goroutine, where nobody has asked it for the same yet.
// It returns when the store has answered, which may be long after the wait is over.
func (q *Request) Run() {
	switch {
	case q.call == nil:
		q.then(q.grant, q.err)
	case q.ask != nil:
		q.ask()
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
