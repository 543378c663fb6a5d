package caslock

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// listed is how many lines one request reads, and startOfLine how much of each.
	listed, startOfLine = 20, 100
)

// Get implements lock.Backend.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	all, err := b.statuses(ctx, []lock.Resource{r})
	if err != nil {
		return lock.Status{}, b.unavailable("get", err)
	}
	return all[0], nil
}

// List implements lock.Backend.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	p.Limit = p.Most()
	heads := all(headPrefix+prefix, p.Limit)
	if behind := headKey(p.After) + "\x00"; p.After != "" && behind > heads.Key {
		heads.Key = behind
	}
	var found []lock.Status
	for len(found) < p.Limit && heads.Key < heads.End {
		answer, err := b.inTurn(ctx, "list", Txn{Read: []Range{heads}})
		if err != nil {
			return nil, b.unavailable("list", err)
		}
		kvs := answer.Reads[0].KVs
		for chunk := range slices.Chunk(kvs, listed) {
			var names []lock.Resource
			for _, kv := range chunk {
				names = append(names, lock.Resource(strings.TrimPrefix(kv.Key, headPrefix)))
			}
			some, err := b.statuses(ctx, names)
			if err != nil {
				return nil, b.unavailable("list", err)
			}
			for _, st := range some { // the dead, and those who have just left, are not there
				if len(st.Holders)+len(st.Waiters) > 0 {
					found = append(found, st)
				}
			}
		}
		if len(kvs) < heads.Limit {
			break
		}
		heads.Key = kvs[len(kvs)-1].Key + "\x00"
	}
	return found[:min(len(found), p.Limit)], nil
}

// statuses are who holds and who waits for some resources.
func (b *Backend) statuses(ctx context.Context, names []lock.Resource) ([]lock.Status, error) {
	var read []Range
	for _, n := range names {
		read = append(read, all(lineOf(n), startOfLine))
	}
	answer, err := b.inTurn(ctx, "status", Txn{Read: read})
	if err != nil {
		return nil, err
	}
	lines := make([][]KV, len(names))
	leases := make(map[string]bool)
	for i, n := range names {
		f := answer.Reads[i]
		lines[i] = f.KVs
		for limit := startOfLine; len(f.KVs) == limit; { // there may be more
			limit = page
			more := Range{Key: lines[i][len(lines[i])-1].Key + "\x00", End: after(lineOf(n)), Limit: limit}
			answer, err := b.inTurn(ctx, "status", Txn{Read: []Range{more}})
			if err != nil {
				return nil, err
			}
			f = answer.Reads[0]
			lines[i] = append(lines[i], f.KVs...)
		}
		for _, kv := range lines[i] {
			if p := decode[place](kv); p.Lease != keptLease {
				leases[p.Lease] = true
			}
		}
	}
	if err := b.living(ctx, leases); err != nil {
		return nil, err
	}
	revoked, err := b.revoked(ctx, leases)
	if err != nil {
		return nil, err
	}
	found := make([]lock.Status, len(names))
	for i, n := range names {
		found[i].Resource = n
		var holders []place
		for _, kv := range lines[i] {
			switch p := decode[place](kv); {
			case p.Fence > 0:
				holders = append(holders, p)
			case leases[p.Lease]:
				found[i].Waiters = append(found[i].Waiters, b.holding(p, revoked[forcedKey(p.Lease, n, p.ID)]))
			}
		}
		found[i].Holders = b.holders(n, holders, leases, revoked)
	}
	return found, nil
}

// living finds out which leases are there.
func (b *Backend) living(ctx context.Context, leases map[string]bool) error {
	for ids := range slices.Chunk(keysOf(leases), MaxParts) {
		var read []Range
		for _, id := range ids {
			read = append(read, Range{Key: leaseKey(id)})
		}
		answer, err := b.inTurn(ctx, "status", Txn{Read: read})
		if err != nil {
			return err
		}
		for i, id := range ids {
			_, leases[id] = answer.Reads[i].one()
		}
	}
	return nil
}

// revoked are the keys of the forced releases of some leases.
func (b *Backend) revoked(ctx context.Context, leases map[string]bool) (map[string]bool, error) {
	found := make(map[string]bool)
	for ids := range slices.Chunk(keysOf(leases), MaxParts) {
		var read []Range
		for _, id := range ids {
			read = append(read, all(forcedOf(id), page))
		}
		answer, err := b.inTurn(ctx, "status", Txn{Read: read})
		if err != nil {
			return nil, err
		}
		for _, f := range answer.Reads {
			for _, kv := range f.KVs {
				found[kv.Key] = true
			}
		}
	}
	return found, nil
}

func keysOf(m map[string]bool) []string {
	var ids []string
	for id := range m {
		ids = append(ids, id)
	}
	return ids
}

// holding is a place in the line, for people.
func (b *Backend) holding(p place, revoked bool) lock.Holding {
	return lock.Holding{
		ID: lock.HoldID(p.ID), Mode: p.Mode, Fence: p.fence(), Lease: lock.LeaseID(p.Lease), Sidecar: p.Sidecar,
		Owner: lock.DecodeOwner(p.Owner), Age: max(0, time.Duration(b.wall().UnixMicro()-p.Since)*time.Microsecond),
		Revoked: revoked, Cohort: p.Several,
	}
}
