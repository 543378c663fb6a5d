package leasekit

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

var _ lock.Detacher = (*Lease)(nil)

// Detach implements lock.Detacher.
func (l *Lease) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	d, err := l.detacher()
	if err == nil && ttl != 0 {
		err = lock.CheckDetach(ttl)
	}
	if err != nil {
		return fmt.Errorf("detach %q: %w", string(r), err)
	}
	w, err := l.withdrawBy(ctx, Ref{r, id}, lock.ErrNotHolder, func(ctx context.Context, w Withdrawal) (Withdrawn, error) {
		return d.Detach(ctx, w, key, ttl)
	})
	return withdrawn("detach", r, w, err)
}

// detaches is nil where the store can do what is asked of its detached holds.
func (l *Lease) detaches(q lock.Request) error {
	if q.Handle == "" && !q.Detachable {
		return nil
	}
	_, err := l.detacher()
	return err
}

// detacher is the driver, where it has detached holds.
func (l *Lease) detacher() (Detacher, error) {
	d, may := l.d.(Detacher)
	if !may {
		return nil, lock.NoHandles()
	}
	return d, d.Detaches()
}

// sent is when a request is sent, where its answer says how much time is left.
func (l *Lease) sent(q lock.Request) time.Duration {
	if q.Handle == "" {
		return 0
	}
	return l.o.Clock()
}
