package shards

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// aloneTime bounds how long the opening of a lease is held up by the look at the record.
const aloneTime = time.Second

// alone is a store that is no shard.
type alone struct {
	lock.Backend
	s *shard
}

// Alone refuses leases at a store that is a shard: a sidecar that names it alone would look there for the locks
// of all. A store that keeps no records cannot be one.
func Alone(b lock.Backend, name string) lock.Backend {
	records, ok := lock.RecordsOf(b)
	if !ok {
		return b
	}
	return &alone{Backend: b, s: &shard{Backend: b, name: name, records: records}}
}

// Unwrap gives the Backend behind it, for lock.RecordsOf and lock.HandlesOf.
func (a *alone) Unwrap() lock.Backend { return a.Backend }

// OpenLease implements lock.Backend. Where the record cannot be read, the store is taken for what the sidecar says.
func (a *alone) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := a.Backend.OpenLease(ctx, o)
	if err != nil {
		return nil, err
	}
	limit, cancel := context.WithTimeout(ctx, min(aloneTime, o.TTL/4))
	found, err := a.s.readSet(limit)
	cancel()
	if err != nil || !found.Confirmed {
		return l, nil
	}
	farewell, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	_ = l.Close(farewell) // else it ends by its TTL
	return nil, &MismatchError{Shard: a.s.name, Theirs: found.Shards, Own: []string{a.s.name}}
}
