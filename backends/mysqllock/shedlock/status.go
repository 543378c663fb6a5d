package shedlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

// Get implements lock.Backend. What ShedLock itself holds is shown without an id, with
// locked_by as the sidecar; whoever the engine has granted it to waits for that.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	var st lock.Status
	rows, err := b.around(ctx, sqllock.Statement{SQL: b.sql.status, Args: []any{string(r)}}, func() (err error) {
		st, err = b.Backend.Get(ctx, r)
		return err
	})
	for _, row := range rows { // one
		beside(&st, row)
	}
	return st, err
}

// List implements lock.Backend. All locks that are held are read: ShedLock's
// table has no index for less, and is small.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	var all []lock.Status
	rows, err := b.around(ctx, sqllock.Statement{SQL: b.sql.list}, func() (err error) {
		all, err = b.Backend.List(ctx, prefix, p)
		return err
	})
	if err != nil {
		return nil, err
	}
	byName := func(s lock.Status, name lock.Resource) int { return cmp.Compare(s.Resource, name) }
	for _, row := range rows {
		name := lock.Resource(row.Text(0))
		if !strings.HasPrefix(string(name), prefix) || name <= p.After {
			continue
		}
		i, found := slices.BinarySearchFunc(all, name, byName)
		if !found {
			all = slices.Insert(all, i, lock.Status{Resource: name})
		}
		beside(&all[i], row)
	}
	return all[:min(len(all), p.Most())], nil
}

// ForceRelease implements lock.Backend. What ShedLock itself holds cannot be forced.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	if err := b.Backend.ForceRelease(ctx, r, id, grace); err != nil {
		return err
	}
	// The holder's sidecar does it, too, where it is reached. Else lock_until would come.
	_, _ = b.pool.Do(ctx, "force", sqllock.Statement{SQL: b.sql.force, Args: []any{string(r), "%/" + string(id), "%/" + string(id) + kept}})
	return nil
}

// around reads ShedLock's table before and after the engine is asked, and gives the locks
// that nobody has taken or given back meanwhile: so they stood there at the moment of which
// the engine tells. Else a lock that one sidecar hands to the next would look like that of
// a stranger.
func (b *Backend) around(ctx context.Context, s sqllock.Statement, ask func() error) (stood []sqllock.Row, err error) {
	before, err := b.read(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := ask(); err != nil || len(before) == 0 {
		return nil, err
	}
	after, err := b.read(ctx, s)
	same := make(map[string]bool, len(after))
	for _, row := range after {
		same[row.Text(0)+"\x00"+row.Text(1)] = true
	}
	return slices.DeleteFunc(before, func(row sqllock.Row) bool { return !same[row.Text(0)+"\x00"+row.Text(1)] }), err
}

func (b *Backend) read(ctx context.Context, s sqllock.Statement) ([]sqllock.Row, error) {
	res, err := b.pool.Do(ctx, "status", s)
	if err != nil {
		return nil, fmt.Errorf("read ShedLock's table: %w: %w%s", lock.ErrUnavailable, err, b.d.Hint(err))
	}
	return res[0].Rows, nil
}

// beside puts what ShedLock's table says of a lock into its status.
func beside(st *lock.Status, row sqllock.Row) {
	by := strings.TrimSuffix(row.Text(1), kept)
	if slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return strings.HasSuffix(by, "/"+string(h.ID)) }) {
		return
	}
	for _, h := range slices.Backward(st.Holders) {
		h.Fence = 0
		st.Waiters = slices.Insert(st.Waiters, 0, h)
	}
	st.Holders = []lock.Holding{{Mode: lock.Exclusive, Sidecar: by, Age: max(0, time.Duration(row.Int(2))*time.Microsecond)}}
}
