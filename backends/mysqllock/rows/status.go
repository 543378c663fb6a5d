package rows

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
	all, err := b.read(ctx, b.pool, "get", b.sql.status, []byte(r))
	if err != nil {
		return lock.Status{}, mydb.Unavailable("get lock", err)
	}
	if len(all) == 0 {
		return lock.Status{Resource: r}, nil
	}
	return all[0], nil
}

// List implements lock.Backend. There are never more rows than connections to
// the server, so all are read.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	all, err := b.read(ctx, b.pool, "list", b.sql.list, []byte(prefix), after(prefix), []byte(p.After))
	if err != nil {
		return nil, mydb.Unavailable("list locks", err)
	}
	return all[:min(len(all), max(p.Limit, 1), lock.MaxPage)], nil
}

// status is who is in the way of a request, for its error; empty when the server
// does not say.
func (l *lease) status(r lock.Resource) lock.Status {
	ctx, cancel := l.b.patience(l.run)
	defer cancel()
	all, err := l.b.read(ctx, l.side, "get", l.b.sql.status, []byte(r))
	if err != nil || len(all) == 0 {
		return lock.Status{Resource: r}
	}
	return all[0]
}

// read gives what the rows of a status say, which come by name.
func (b *Backend) read(ctx context.Context, pool *mydb.Pool, command, query string, args ...any) ([]lock.Status, error) {
	var all []lock.Status
	err := pool.Query(ctx, command, func(_ int, rows *sql.Rows) error {
		var name, id, mode, lease, sidecar, owner string
		var fence, us int64
		var revoked bool
		if err := rows.Scan(&name, &id, &mode, &fence, &us, &lease, &sidecar, &owner, &revoked); err != nil {
			return err
		}
		h := lock.Holding{
			ID: lock.HoldID(id), Mode: lock.Exclusive, Fence: lock.FenceOf(fence), Age: max(0, time.Duration(us)*time.Microsecond),
			Lease: lock.LeaseID(lease), Sidecar: sidecar, Owner: lock.DecodeOwner(owner), Revoked: revoked,
		}
		if mode == "S" {
			h.Mode = lock.Shared
		}
		if len(all) == 0 || string(all[len(all)-1].Resource) != name {
			all = append(all, lock.Status{Resource: lock.Resource(name)})
		}
		st := &all[len(all)-1]
		if fence == 0 {
			st.Waiters = append(st.Waiters, h)
		} else {
			st.Holders = append(st.Holders, h)
		}
		return nil
	}, query, args...)
	for i := range all {
		slices.SortStableFunc(all[i].Holders, func(a, b lock.Holding) int { return int(a.Fence - b.Fence) })
	}
	return all, err
}

// connectionOf gives the number of the connection that has a token; 0: none.
func (b *Backend) connectionOf(ctx context.Context, pool *mydb.Pool, token string) (int64, error) {
	var id sql.NullInt64
	if err := pool.Query(ctx, "look for connection", func(_ int, rows *sql.Rows) error {
		return rows.Scan(&id)
	}, b.sql.user, b.sql.prefix+token); err != nil {
		return 0, mydb.Unavailable("look for connection", err)
	}
	return id.Int64, nil
}

// uptime is how long the server runs, in seconds that have begun.
func (b *Backend) uptime(ctx context.Context) (time.Duration, error) {
	var seconds int64
	if err := b.pool.Query(ctx, "uptime", func(_ int, rows *sql.Rows) error {
		return rows.Scan(new(sql.RawBytes), &seconds)
	}, "SHOW GLOBAL STATUS LIKE 'Uptime'"); err != nil {
		return 0, mydb.Unavailable("ask for the server's start", err)
	}
	return time.Duration(seconds) * time.Second, nil
}
