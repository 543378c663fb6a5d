package shards

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// aloneTime bounds how long the opening of a lease is held up by the look at the record.
	aloneTime = time.Second
	// lookAlone is the time between two looks of a sidecar whose store was no shard at the last one.
	lookAlone = time.Minute
)

// alone is a store that is no shard.
type alone struct {
	lock.Backend
	s       *shard
	ctx     context.Context //nolint:containedctx // the life of the Backend, not of a call
	stop    context.CancelFunc
	looking sync.Once
	done    sync.WaitGroup

	mu     sync.Mutex
	latest lock.Lease // that was opened
	unread bool       // the record could not be read at the last look
}

// Alone refuses leases at a store that is a shard: a sidecar that names it alone would look there for the locks
// of all. When it becomes one, or the record that says so can be read at last, it closes the lease. A store that
// keeps no records cannot be one.
func Alone(b lock.Backend, name string) lock.Backend {
	records, ok := lock.RecordsOf(b)
	if !ok {
		return b
	}
	a := &alone{Backend: b, s: &shard{Backend: b, name: name, records: records}}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// Unwrap gives the Backend behind it, for lock.RecordsOf and lock.HandlesOf.
func (a *alone) Unwrap() lock.Backend { return a.Backend }

// OpenLease implements lock.Backend. Where the record cannot be read, the store is taken for what the sidecar says.
func (a *alone) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := a.Backend.OpenLease(ctx, o)
	if err != nil {
		return nil, err
	}
	found, err := a.look(ctx, min(aloneTime, o.TTL/4))
	if err == nil {
		err = a.s.settled(found)
	}
	if err != nil {
		farewell(ctx, l)
		return nil, err
	}
	a.mu.Lock()
	a.latest = l
	a.mu.Unlock()
	a.looking.Do(func() { a.done.Go(a.lookOn) })
	return l, nil
}

// look reads whether the store is a shard, and not for long. The error is a *MismatchError.
func (a *alone) look(ctx context.Context, limit time.Duration) (setRecord, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	found, err := a.s.readSet(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.unread = err != nil; a.unread || !found.Confirmed || len(found.Shards) == 1 {
		return found, nil
	}
	return found, &MismatchError{Shard: a.s.name, Theirs: found.Shards, Own: []string{a.s.name}}
}

// lookOn looks until the Backend is closed.
func (a *alone) lookOn() {
	for a.pause() {
		if _, err := a.look(a.ctx, lookSet); err != nil {
			a.mu.Lock()
			l := a.latest
			a.mu.Unlock()
			farewell(a.ctx, l)
		}
	}
}

// pause waits for the next look; it reports false when the Backend is closed.
func (a *alone) pause() bool {
	a.mu.Lock()
	d := lookAlone
	if a.unread {
		d = lookSet
	}
	a.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-a.ctx.Done():
		return false
	}
}

// farewell closes a lease that must not be used. Else it ends by its TTL.
func farewell(ctx context.Context, l lock.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	_ = l.Close(ctx)
}

// Close implements lock.Backend.
func (a *alone) Close() error {
	a.stop()
	a.done.Wait()
	return a.Backend.Close()
}
