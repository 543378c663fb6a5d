package leasekit

import (
	"context"
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/lock"
)

// compare sets the store's memory beside the lease's own. What the store does
// not have is lost, and is the result; what only the store has is released in the
// background, because no hold depends on it. Until the comparison has an answer,
// no heartbeat counts, neither the one that compares nor those beside it.
//
// Model: failover.COMPARE.
func (l *Lease) compare(ctx context.Context) ([]lock.Event, error) {
	select {
	case l.comparing <- struct{}{}:
		defer func() { <-l.comparing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: another comparison is under way: %w", lock.ErrUnavailable, context.Cause(ctx))
	}
	l.mu.Lock()
	began, settles, epoch := l.o.Clock(), l.doubted, l.epoch
	if settles == l.settled { // by the one that was under way
		l.mu.Unlock()
		return nil, nil
	}
	known := make(map[lock.HoldID]uint64, len(l.entries))
	sorter, sorts := l.d.(Sorter)
	sorts = sorts && l.stranger > l.settled
	holds, fences := make(map[lock.HoldID]uint64), make(map[lock.HoldID]lock.Fence)
	for id, e := range l.entries {
		if e.stored && !e.busy {
			known[id] = e.touched
			if sorts && e.held {
				holds[id], fences[id] = e.touched, e.fence
			}
		}
	}
	l.mu.Unlock()

	var listed, waiting []Ref
	var had []Hold
	err := l.d.Held(ctx, func(r Ref) {
		listed = append(listed, r)
		delete(known, r.ID)
		if _, held := holds[r.ID]; held {
			had = append(had, Hold{r, fences[r.ID]})
		}
	})
	if err == nil && len(had) > 0 {
		waiting, err = sorter.Waiting(ctx, had)
	}
	if err != nil {
		if errors.Is(err, lock.ErrLeaseLost) {
			l.Lose()
		}
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled, l.exact, l.compared = settles, max(l.exact, began), began
	for _, r := range listed {
		if l.entries[r.ID] == nil {
			l.strays[r.ID] = r
			Ring(l.tidyBell)
		}
	}
	// The store grants what is in front of such a waiter, or the slot to another: it is no hold
	// any more.
	for _, r := range waiting {
		known[r.ID] = holds[r.ID]
		if e := l.entries[r.ID]; e != nil && e.touched == holds[r.ID] {
			l.strays[r.ID] = r
			Ring(l.tidyBell)
		}
	}
	vanished := l.drop(known)
	for _, e := range l.entries {
		if !e.busy && e.touched <= epoch { // else it was left out
			e.compared = settles
		}
	}
	return vanished, nil
}

// leftOut has a hold compared with the next heartbeat about which a request has ended, if a comparison has left it out
// because of that. Another server may have answered the request than the one that is compared with, which may have the hold as a waiter. l.mu is held.
func (l *Lease) leftOut(e *entry) {
	if e.compared < l.shaken {
		l.doubted++
		l.stranger = l.doubted
	}
}

// drop takes out the holds that the store does not have, unless something has
// happened to them since, and makes the waiters ask again. l.mu is held.
func (l *Lease) drop(missing map[lock.HoldID]uint64) []lock.Event {
	var vanished []lock.Event
	for id, touched := range missing {
		e := l.entries[id]
		switch {
		case e == nil || e.touched != touched:
		case e.held && e.revoked: // its end is no news
			if l.o.Clock() < e.until { // but that it came so soon
				l.revoke(e, 0, false)
			}
		case e.held:
			vanished = append(vanished, lock.Event{Kind: lock.Vanished, Resource: e.Resource, ID: id})
			l.remove(e)
		default:
			e.pushed = nil
			e.wake()
		}
	}
	return vanished
}

// tidy releases what only the store has. What fails here the next comparison finds.
//
// Model: failover.STRAY.
func (l *Lease) tidy(ctx context.Context) {
	for {
		select {
		case <-l.tidyBell:
		case <-l.lost:
			return
		case <-ctx.Done():
			return
		}
		for r, ok := l.stray(); ok; r, ok = l.stray() {
			limit, cancel := context.WithTimeout(ctx, l.o.TTL/3)
			_, err := l.d.Withdraw(limit, Withdrawal{Ref: r, Unsure: true})
			cancel()
			l.mu.Lock()
			delete(l.strays, r.ID)
			if err != nil {
				l.doubt()
			}
			l.mu.Unlock()
			if errors.Is(err, lock.ErrLeaseLost) {
				l.Lose()
				return
			}
		}
	}
}

func (l *Lease) stray() (Ref, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.strays {
		return r, true
	}
	return Ref{}, false
}
