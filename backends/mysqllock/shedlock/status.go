package shedlock

import (
	"cmp"
	"context"
	"database/sql"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// Get implements lock.Backend. What ShedLock itself holds is shown without an id,
// with locked_by as the sidecar.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	all, err := b.read(ctx, "get", b.sql.status, []byte(r), string(r))
	if err != nil {
		return lock.Status{}, mydb.Unavailable("get lock", err)
	}
	st := lock.Status{Resource: r}
	for _, other := range all { // of one name, or of names that the table takes for the same
		st.Holders = append(st.Holders, other.Holders...)
		st.Waiters = append(st.Waiters, other.Waiters...)
	}
	return st, nil
}

// List implements lock.Backend. All locks that are held are read: ShedLock's
// table has no index for less, and is small.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	all, err := b.read(ctx, "list", b.sql.list, []byte(prefix), []byte(prefix+"\xff"), []byte(p.After)) // 0xff is in no name
	if err != nil {
		return nil, mydb.Unavailable("list locks", err)
	}
	limit := min(max(p.Limit, 1), lock.MaxPage)
	var page []lock.Status
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if strings.HasPrefix(string(name), prefix) && name > p.After && len(page) < limit {
			page = append(page, *all[name])
		}
	}
	return page, nil
}

// status is who is in the way of a request, for its error; empty when the store
// does not say.
func (l *lease) status(ctx context.Context, r lock.Resource) lock.Status {
	ctx, cancel := l.b.patience(ctx)
	defer cancel()
	st, err := l.b.Get(ctx, r)
	if err != nil {
		return lock.Status{Resource: r}
	}
	return st
}

// read gives what is held or waited for. A hold counts while ShedLock's row says
// that it is locked by it, and both while the lease lives.
func (b *Backend) read(ctx context.Context, command, query string, args ...any) (map[lock.Resource]*lock.Status, error) {
	type record struct {
		lock.Holding
		name  lock.Resource
		by    string
		seq   int64
		alive bool
	}
	var ours []record
	locked := make(map[string]record) // by locked_by and name
	err := b.pool.Query(ctx, command, func(_ int, rows *sql.Rows) error {
		var r record
		var kind int
		var name, id, lease, owner string
		var us int64
		if err := rows.Scan(&kind, &name, &id, &r.by, &r.Fence, &us, &lease, &r.Sidecar, &owner, &r.Revoked, &r.alive, &r.seq); err != nil {
			return err
		}
		r.Fence *= lock.FenceRange
		r.ID, r.name, r.Mode, r.Age = lock.HoldID(id), lock.Resource(name), lock.Exclusive, max(0, time.Duration(us)*time.Microsecond)
		if kind == 1 {
			r.Sidecar = r.by
			locked[r.by+"\x00"+name] = r
			return nil
		}
		r.Lease, r.Owner = lock.LeaseID(lease), lock.DecodeOwner(owner)
		ours = append(ours, r)
		return nil
	}, query, args...)
	if err != nil {
		return nil, err
	}
	all := make(map[lock.Resource]*lock.Status)
	at := func(name lock.Resource) *lock.Status {
		if all[name] == nil {
			all[name] = &lock.Status{Resource: name}
		}
		return all[name]
	}
	slices.SortFunc(ours, func(a, b record) int { return cmp.Compare(a.seq, b.seq) })
	for _, r := range ours {
		key := r.by + "\x00" + string(r.name)
		_, holds := locked[key]
		delete(locked, key)
		switch {
		case !r.alive:
		case r.Fence == 0:
			at(r.name).Waiters = append(at(r.name).Waiters, r.Holding)
		case holds:
			at(r.name).Holders = append(at(r.name).Holders, r.Holding)
		}
	}
	for _, r := range locked { // by ShedLock
		at(r.name).Holders = append(at(r.name).Holders, r.Holding)
	}
	return all, nil
}
