package leasekit

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Due has something done for each key when its time has come: a hold is ended whose release
// is forced, when the grace is over.
type Due[K comparable] struct {
	clock lock.Clock
	bell  chan struct{} // has a value when the next one may be another

	mu sync.Mutex
	at map[K]time.Duration
}

// NewDue makes a Due in which there is nothing, for Run to run.
func NewDue[K comparable](clock lock.Clock) *Due[K] {
	return &Due[K]{clock: clock, bell: make(chan struct{}, 1), at: make(map[K]time.Duration)}
}

// In says that the time of k has come after so long. Where that was said before, the
// earliest counts.
func (d *Due[K]) In(k K, after time.Duration) {
	at := d.clock() + after
	d.mu.Lock()
	was, known := d.at[k]
	sooner := !known || at < was
	if sooner {
		d.at[k] = at
	}
	d.mu.Unlock()
	if sooner {
		Ring(d.bell)
	}
}

// Forget says that nothing has to be done for k.
func (d *Due[K]) Forget(k K) {
	d.mu.Lock()
	delete(d.at, k)
	d.mu.Unlock()
}

// Run calls do for each key whose time has come, one after the other, until ctx ends.
func (d *Due[K]) Run(ctx context.Context, do func(K)) {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.bell:
		case <-t.C:
		}
		over, next := d.over()
		for _, k := range over {
			do(k)
		}
		t.Reset(max(0, next-d.clock()))
	}
}

// over takes the keys whose time has come, and says when to look again.
func (d *Due[K]) over() (over []K, next time.Duration) {
	now := d.clock()
	next = now + lock.MaxTTL
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.at, func(k K, at time.Duration) bool {
		if at > now {
			next = min(next, at)
			return false
		}
		over = append(over, k)
		return true
	})
	return over, next
}
