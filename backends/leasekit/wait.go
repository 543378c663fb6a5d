package leasekit

import (
	"context"
	"time"
)

// Sleep waits, and tells whether ctx has lasted that long.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// maxPace bounds what Pace gives.
const maxPace = time.Second

// Pace is the time until the next look at something that began so long ago: a quarter of that, at least so much, and
// at most a second. So thousands that wait for long do not flood the store, and none learns much later than it would
// have to.
func Pace(began, least time.Duration) time.Duration { return min(max(began/4, least), maxPace) }

// Ring fills the one place of a channel, unless it has a value: there is something for who
// reads it.
func Ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
