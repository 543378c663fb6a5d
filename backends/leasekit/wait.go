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

// Ring fills the one place of a channel, unless it has a value: there is something for who
// reads it.
func Ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}
