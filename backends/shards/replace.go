package shards

import (
	"context"
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/lock"
)

// Sets tells to which set of shards each of the list belongs; nil: to none. The error is that of those that
// do not answer.
func Sets(ctx context.Context, list []Shard) ([][]string, error) {
	b, err := gather(list)
	if err != nil {
		return nil, err
	}
	sets := make([][]string, len(list))
	err = join(b.each(func(s *shard) error {
		found, err := s.readSet(ctx)
		if len(found.Shards) > 1 {
			sets[slices.IndexFunc(list, func(own Shard) bool { return own.Name == s.name })] = found.Shards
		}
		if err == nil && slices.Equal(found.Shards, b.names()) {
			return b.compare(s, found)
		}
		return err
	})...)
	return sets, err
}

// Agree finds the first of a list that belongs to another set, by what Sets says. The error is a
// *MismatchError.
func Agree(list []Shard, sets [][]string) error {
	b, err := gather(list)
	if err != nil {
		return err
	}
	own := b.names()
	if len(own) == 1 {
		own = nil // it stands alone
	}
	for i, s := range list {
		if len(sets[i]) > 0 && !slices.Equal(sets[i], own) {
			return &MismatchError{Shard: s.Name, Theirs: sets[i], Own: own}
		}
	}
	return nil
}

// Replace has each of the list belong to the set of the list from now on. One alone belongs to none.
// It refuses where somebody has a lock, or waits for one: no sidecar may use any of them. One that was not stopped
// ends its lease within lookSet.
func Replace(ctx context.Context, list []Shard) error {
	b, err := gather(list)
	if err != nil {
		return err
	}
	if err := join(b.each(func(s *shard) error { return s.idle(ctx) })...); err != nil {
		return err
	}
	own := b.names()
	return join(b.each(func(s *shard) error {
		found, err := s.readSet(ctx)
		if err != nil || len(own) == 1 && found.version == "" {
			return err
		}
		return s.writeSet(ctx, found, set{Shards: own, Name: s.name, Confirmed: true, Replaced: true})
	})...)
}

// idle is nil when nobody has a lock of the shard or waits for one. What is only kept has nobody.
func (s *shard) idle(ctx context.Context) error {
	for p := (lock.Page{Limit: lock.MaxPage}); ; {
		page, err := s.List(ctx, "", p)
		if err != nil {
			return s.explain(err)
		}
		for _, st := range page {
			used := len(st.Waiters) > 0 || slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return h.Kept == 0 })
			if used {
				return fmt.Errorf("%w: shard %s is in use: somebody has %q or waits for it; stop all sidecars first", lock.ErrUnavailable, s.name, string(st.Resource))
			}
		}
		if len(page) < p.Limit {
			return nil
		}
		p.After = page[len(page)-1].Resource
	}
}
