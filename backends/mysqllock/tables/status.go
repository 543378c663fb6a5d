package tables

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// Get implements lock.Backend.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	all, err := b.statuses(ctx, []lock.Resource{r})
	if err != nil {
		return lock.Status{}, mydb.Unavailable("get lock", err)
	}
	return all[0], nil
}

// List implements lock.Backend.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	limit := min(max(p.Limit, 1), lock.MaxPage)
	var out []lock.Status
	for after := p.After; ; {
		names, err := b.names(ctx, prefix, after, limit)
		if err != nil {
			return nil, mydb.Unavailable("list locks", err)
		}
		if len(names) == 0 {
			return out, nil
		}
		all, err := b.statuses(ctx, names)
		if err != nil {
			return nil, mydb.Unavailable("list locks", err)
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

// names gives the first names after one that are held or waited for.
func (b *Backend) names(ctx context.Context, prefix string, after lock.Resource, limit int) ([]lock.Resource, error) {
	var names []lock.Resource
	end := append([]byte(prefix), 0xff) // is in no name
	err := b.query(ctx, "list", func(_ int, rows *sql.Rows) error {
		var r lock.Resource
		if err := rows.Scan(&r); err != nil {
			return err
		}
		names = append(names, r)
		return nil
	}, b.sql.names, []byte(after), []byte(prefix), end, limit)
	return names, err
}

// statuses tells of some resources, in the order of names.
func (b *Backend) statuses(ctx context.Context, names []lock.Resource) ([]lock.Status, error) {
	type ordered struct {
		seq int64
		lock.Holding
	}
	holders, waiters := make(map[lock.Resource][]ordered), make(map[lock.Resource][]ordered)
	query, args := in(b.sql.status, texts(names), "")
	err := b.query(ctx, "status", func(_ int, rows *sql.Rows) error {
		var r lock.Resource
		var o ordered
		if err := scanHolding(rows, &o.Holding, &r, &o.seq); err != nil {
			return err
		}
		if o.seq == 0 {
			holders[r] = append(holders[r], o)
		} else {
			waiters[r] = append(waiters[r], o)
		}
		return nil
	}, query, args...)
	if err != nil {
		return nil, err
	}
	all := make([]lock.Status, len(names))
	plain := func(os []ordered, compare func(a, b ordered) int) (hs []lock.Holding) {
		slices.SortFunc(os, compare)
		for _, o := range os {
			hs = append(hs, o.Holding)
		}
		return hs
	}
	for i, r := range names {
		all[i] = lock.Status{
			Resource: r,
			Holders:  plain(holders[r], func(a, b ordered) int { return int(a.Fence - b.Fence) }),
			Waiters:  plain(waiters[r], func(a, b ordered) int { return int(a.seq - b.seq) }),
		}
	}
	return all, nil
}

// scanHolding reads a row of the statements status and about; before are the
// columns that come before those of a holding.
func scanHolding(rows *sql.Rows, h *lock.Holding, before ...any) error {
	var mode, owner string
	var ownerBytes []byte
	var grace, age sql.NullInt64
	dest := append(slices.Clone(before), &h.ID, &mode, &h.Fence, &h.Lease, &ownerBytes, &grace, &age, &h.Sidecar)
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	owner = string(ownerBytes)
	h.Mode, h.Owner = modeOf(mode), lock.DecodeOwner(owner)
	h.Age = max(0, time.Duration(age.Int64)*time.Microsecond)
	h.Fence *= lock.FenceRange
	h.Revoked = grace.Valid
	return nil
}

// about tells who holds a resource, and the place of a waiter in the queue; 0
// when it is not there.
func (b *Backend) about(ctx context.Context, r lock.Resource, id lock.HoldID) (lock.Status, int, error) {
	st := lock.Status{Resource: r}
	position := 0
	name := []byte(r)
	err := b.query(ctx, "status", func(_ int, rows *sql.Rows) error {
		var h lock.Holding
		var count int
		if err := scanHolding(rows, &h, &count); err != nil {
			return err
		}
		if h.ID == "" {
			position = count
		} else {
			st.Holders = append(st.Holders, h)
		}
		return nil
	}, b.sql.about, name, name, name, name, []byte(id))
	return st, position, err
}
