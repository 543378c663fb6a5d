package leasekit

import (
	"context"
	"errors"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// tryTime is how long a try that is refused waits for a hold that another sidecar may
	// have parked: that one lets go as soon as it hears that somebody waits.
	tryTime = 100 * time.Millisecond
	// mostTries is how often it does so for a hold that is parked for certain: the news may be lost.
	mostTries = 10
	// maxUsed bounds the holds that are known to be in use: two such sets are kept.
	maxUsed = 1024
)

// Acquire implements lock.Lease. A try is not refused because of a hold that no app has: it
// waits for a moment where another sidecar may have parked it.
func (l *Lease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	switch {
	case q.Try:
		return l.try(ctx, q)
	case q.Bell != nil: // Await would do the same, and take stack for as long as the store is silent
		return l.acquire(ctx, q)
	default:
		return lock.Await(ctx, q, l.acquire)
	}
}

// try is Acquire of a try.
func (l *Lease) try(ctx context.Context, q lock.Request) (lock.Grant, error) {
	q.Bell = nil // a try does not wait for long
	spent := l.copied(q.ID)
	g, err := lock.Await(ctx, q, l.acquire)
	if err == nil {
		return g, nil
	}
	held, refused := refusal(err)
	q.Try = false
	for n := 0; n < mostTries && refused && !spent && ctx.Err() == nil && l.mayBeParked(held.Status); n++ {
		soon, cancel := context.WithTimeout(ctx, tryTime)
		g, err = lock.Await(soon, q, l.acquire)
		cancel()
		if held, refused = refusal(err); refused && ctx.Err() == nil {
			l.inUse(held.Status)
		}
	}
	if refused && ctx.Err() == nil {
		held.Cause, held.Position = lock.ErrHeld, 0
	}
	return g, err
}

// copied tells whether a request had no answer before, so that a copy of it may arrive. When it is refused, the store remembers that
// its id was given up: by that nothing can be asked for any more.
func (l *Lease) copied(id lock.HoldID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[id]
	return e != nil && e.copies
}

func refusal(err error) (*lock.HeldError, bool) {
	var held *lock.HeldError
	ok := errors.As(err, &held)
	return held, ok
}

// mayBeParked tells whether all who are in the way may be other sidecars that have it for nobody.
func (l *Lease) mayBeParked(st lock.Status) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range st.Holders {
		_, used := l.used[h.ID]
		_, before := l.usedBefore[h.ID]
		if !h.Cohort || h.Lease == l.o.ID || (used || before) && !h.Owner.Parked() {
			return false
		}
	}
	return len(st.Holders) > 0
}

// inUse notes holds that were not let go when somebody waited: who is told of that once does
// not park the hold again.
func (l *Lease) inUse(st lock.Status) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range st.Holders {
		if l.used == nil || len(l.used) >= maxUsed {
			l.used, l.usedBefore = make(map[lock.HoldID]struct{}), l.used
		}
		l.used[h.ID] = struct{}{}
	}
}
