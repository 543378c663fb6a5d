package shards

import (
	"context"

	"github.com/locksidecar/locksidecar/lock"
)

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
	if found, err := a.s.readSet(ctx); err == nil && found.Confirmed {
		return nil, &MismatchError{Shard: a.s.name, Theirs: found.Shards, Own: []string{a.s.name}}
	}
	return a.Backend.OpenLease(ctx, o)
}
