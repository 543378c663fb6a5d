package lock

import (
	"context"
	"errors"
)

// ErrWaiting is Acquire's for a request with a Bell: it waits, and its Acquire goes on when it is
// called again.
var ErrWaiting = errors.New("the request waits")

// Bell lets a request wait without a goroutine. An Acquire of a request with a Bell may return
// ErrWaiting where it would have to wait. Then it is still under way, and the lease rings when there is
// something new for it. The caller calls Acquire again with the same request: when the bell has
// rung, and when the ctx of the request has ended, of which the lease does not learn by itself. It
// does so until Acquire returns something else.
type Bell interface {
	// Ring may be called by any goroutine, more often than there is something new, and also
	// after the end of the Acquire. It must not block, and must not call the lease.
	Ring()
}

// Await is for a Lease whose acquire knows only requests with a Bell: it waits on this
// goroutine where the request has none.
func Await(ctx context.Context, q Request, acquire func(context.Context, Request) (Grant, error)) (Grant, error) {
	if q.Bell != nil {
		return acquire(ctx, q)
	}
	rung := make(chanBell, 1)
	q.Bell = rung
	for {
		g, err := acquire(ctx, q)
		if !errors.Is(err, ErrWaiting) {
			return g, err
		}
		Queued(ctx)
		Blocking(ctx)
		select {
		case <-rung:
		case <-ctx.Done():
		}
	}
}

// chanBell has a value when it was rung.
type chanBell chan struct{}

// Ring implements Bell.
func (b chanBell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}
