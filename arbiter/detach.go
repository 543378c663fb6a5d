package arbiter

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

var _ lock.Detacher = (*Lease)(nil)

// Detach implements lock.Detacher. A hold that may be detached is one app's alone: the arbiter has
// no part in it.
func (l *Lease) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	l.mu.Lock()
	m, err := l.own(r, id)
	l.mu.Unlock()
	if m != nil {
		err = lock.ErrNotHolder
	}
	d, may := l.inner.(lock.Detacher)
	if err == nil && !may {
		err = lock.NoHandles()
	}
	if err != nil {
		return fmt.Errorf("detach %q: %w", string(r), err)
	}
	err = d.Detach(ctx, r, id, key, ttl)
	l.answered(id, err)
	return err
}
