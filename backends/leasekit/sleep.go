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
