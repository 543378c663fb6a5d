package sqllock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Get implements lock.Backend.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	all, err := b.statuses(ctx, [][]byte{[]byte(r)})
	if err != nil {
		return lock.Status{}, b.unavailable("get lock", err)
	}
	return all[0], nil
}

// List implements lock.Backend.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	limit := p.Most()
	var out []lock.Status
	end := append([]byte(prefix), 0xff) // is in no name
	for after := []byte(p.After); ; {
		res, err := b.pool.Do(ctx, "list", Statement{SQL: b.sql.names, Args: []any{after, []byte(prefix), end, limit}})
		if err != nil {
			return nil, b.unavailable("list locks", err)
		}
		var names [][]byte
		for _, r := range res[0].Rows {
			names = append(names, []byte(r.Text(0)))
		}
		if len(names) == 0 {
			return out, nil
		}
		all, err := b.statuses(ctx, names)
		if err != nil {
			return nil, b.unavailable("list locks", err)
		}
		for _, st := range all {
			if len(st.Holders)+len(st.Waiters) > 0 { // those of dead leases are left out
				if out = append(out, st); len(out) == limit {
					return out, nil
				}
			}
		}
		if len(names) < limit {
			return out, nil
		}
		after = names[len(names)-1]
	}
}

// statuses tells of some resources, in the order of names.
func (b *Backend) statuses(ctx context.Context, names [][]byte) ([]lock.Status, error) {
	question := b.sql.status.with(nil, names, nil, 0)
	question.Rare = true
	res, err := b.pool.Do(ctx, "status", question)
	if err != nil {
		return nil, err
	}
	rows := res[0].Rows
	slices.SortStableFunc(rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(x.Text(0), y.Text(0)), cmp.Compare(x.Int(1), y.Int(1)), cmp.Compare(x.Int(4), y.Int(4)))
	})
	all := make([]lock.Status, len(names))
	at := make(map[string]*lock.Status, len(names))
	for i, n := range names {
		all[i].Resource = lock.Resource(n)
		at[string(n)] = &all[i]
	}
	for _, r := range rows {
		st := at[r.Text(0)]
		if r.Int(1) == 0 {
			st.Holders = append(st.Holders, holding(r))
		} else {
			st.Waiters = append(st.Waiters, holding(r))
		}
	}
	return all, nil
}

// holding reads a row of the statements status and brief.
func holding(r Row) lock.Holding {
	owner, several := cutSeveral(r.Text(6))
	return lock.Holding{
		ID: lock.HoldID(r.Text(2)), Mode: lock.Mode(r.Int(3)), Fence: fenceOf(r.Int(4)), //nolint:gosec // a mode
		Lease: lock.LeaseID(r.Text(5)), Owner: lock.DecodeOwner(owner), Sidecar: r.Text(7),
		Age: max(0, time.Duration(r.Int(8))*time.Microsecond), Revoked: r.Bool(9),
		Cohort: several, Kept: max(0, time.Duration(r.Int(10))*time.Microsecond), Detached: r.Bool(11),
	}
}
