package leasekit

import (
	"context"
	"math/rand/v2"
	"time"
)

// maxRetry bounds the pauses of a Retry. A thousand sidecars then make a few hundred
// tries a second at a server that is down.
const maxRetry = 5 * time.Second

// Retry paces the tries of a lease to hear its pushes: while these fail, the pauses between
// them double up to some seconds, each shortened by chance by up to a half. A push is only a
// hint, so nothing waits for it; and a server that comes back has better things to do than to
// meet all sidecars at once. One goroutine tries. Others say when the server has answered
// something else: then the next try is due.
type Retry struct {
	first, next time.Duration
	answered    chan struct{} // has room for one
}

// NewRetry makes a Retry whose first pause is so long at most.
func NewRetry(first time.Duration) *Retry {
	return &Retry{first: first, next: first, answered: make(chan struct{}, 1)}
}

// Wait pauses after a try, and tells whether ctx has lasted that long.
func (r *Retry) Wait(ctx context.Context) bool {
	select {
	case <-r.answered: // before the try has failed
	default:
	}
	t := time.NewTimer(r.next/2 + rand.N(r.next/2)) //nolint:gosec // not a secret
	defer t.Stop()
	r.next = min(2*r.next, maxRetry)
	select {
	case <-t.C:
	case <-r.answered:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// Worked says that a try did not fail: the next pause is the first again.
func (r *Retry) Worked() { r.next = r.first }

// Answered ends a pause: the server has answered a heartbeat. Any goroutine may call it.
func (r *Retry) Answered() {
	select {
	case r.answered <- struct{}{}:
	default:
	}
}
