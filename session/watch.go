package session

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// How often Watch looks.
const (
	DefaultWatchInterval = time.Second
	minWatchInterval     = 100 * time.Millisecond
	maxWatchInterval     = time.Minute
)

// WatchKind says what a WatchEvent tells.
type WatchKind uint8

// The kinds of a WatchEvent.
const (
	Current WatchKind = iota + 1 // was there when the watch began
	Changed                      // is new, or its holders or waiters changed
	Free                         // nobody holds or waits any more
	Synced                       // all Current events were sent
	Missing                      // other parts of the store do not answer than before
)

// WatchEvent is a change that Watch saw.
type WatchEvent struct {
	Kind   WatchKind
	Status lock.Status        // Free: only the name; Synced and Missing: empty
	Lacks  *lock.PartialError // of Missing; nil: all answer again
}

// Watch calls fn first for each resource of the namespace whose name starts
// with prefix, then Synced, then each change, in byte order of the names at each
// look. Where parts of the store do not answer, Missing comes before what the others have. It looks every interval (100ms to 1m, default 1s) and does not see what
// came and went between two looks. All watches of one prefix share their looks,
// see looks. It returns fn's error, the cause of ctx, or *lock.InvalidError;
// lock.ErrUnavailable only of the first look: later it looks again, so that a
// watch outlives a store that is away for a while.
func (sp *Space) Watch(ctx context.Context, prefix string, interval time.Duration, fn func(WatchEvent) error) error {
	if interval == 0 {
		interval = DefaultWatchInterval
	}
	if interval < minWatchInterval || interval > maxWatchInterval {
		return invalid("interval", "is %v, must be %v to %v", interval, minWatchInterval, maxWatchInterval)
	}
	sp.m.looks.join(sp, prefix)
	defer sp.m.looks.leave(sp, prefix)
	list := func(ctx context.Context, before map[lock.Resource]lock.Status) (map[lock.Resource]lock.Status, *lock.PartialError, error) {
		return sp.look(ctx, prefix, before)
	}
	seen, err := sp.m.looks.since(ctx, sp, prefix, time.Now(), list)
	if err != nil {
		return err
	}
	if seen.lacks != nil {
		if err := fn(WatchEvent{Kind: Missing, Lacks: seen.lacks}); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(seen.locks)) {
		if err := fn(WatchEvent{Kind: Current, Status: seen.locks[name]}); err != nil {
			return err
		}
	}
	if err := fn(WatchEvent{Kind: Synced}); err != nil {
		return err
	}
	for {
		at := sp.m.looks.next(interval)
		if err := sleepUntil(ctx, at); err != nil {
			return err
		}
		now, err := sp.m.looks.since(ctx, sp, prefix, at, list)
		switch {
		case errors.Is(err, lock.ErrUnavailable):
			continue
		case err != nil:
			return err
		}
		for _, e := range now.after(seen) {
			if err := fn(e); err != nil {
				return err
			}
		}
		seen = now
	}
}

// look lists everything with that prefix. What it cannot see because a part of the store does not
// answer stays as it was in the look before.
func (sp *Space) look(ctx context.Context, prefix string, before map[lock.Resource]lock.Status) (all map[lock.Resource]lock.Status, lacks *lock.PartialError, err error) {
	all = make(map[lock.Resource]lock.Status)
	after := ""
	for {
		page, err := sp.List(ctx, prefix, after, lock.MaxPage)
		var partial *lock.PartialError
		if err != nil && !errors.As(err, &partial) {
			return nil, nil, err
		}
		lacks = lacks.And(partial)
		for _, st := range page {
			all[st.Resource] = st
		}
		if len(page) < lock.MaxPage {
			break
		}
		after = string(page[len(page)-1].Resource)
	}
	if lacks == nil {
		return all, nil, nil
	}
	for name, st := range before {
		if _, seen := all[name]; !seen && lacks.Lacks(name) {
			all[name] = st
		}
	}
	return all, lacks, nil
}

// changes tells what became of each resource between two looks.
func changes(before, now map[lock.Resource]lock.Status) []WatchEvent {
	var list []WatchEvent
	for name, st := range now {
		if old, ok := before[name]; !ok || !same(old, st) {
			list = append(list, WatchEvent{Kind: Changed, Status: st})
		}
	}
	for name := range before {
		if _, ok := now[name]; !ok {
			list = append(list, WatchEvent{Kind: Free, Status: lock.Status{Resource: name}})
		}
	}
	slices.SortFunc(list, func(a, b WatchEvent) int { return cmp.Compare(a.Status.Resource, b.Status.Resource) })
	return list
}

// same tells whether the same hold and wait, whatever their age.
func same(a, b lock.Status) bool {
	eq := func(a, b lock.Holding) bool {
		return a.ID == b.ID && a.Mode == b.Mode && a.Fence == b.Fence && a.Revoked == b.Revoked && a.Parked == b.Parked && (a.Kept > 0) == (b.Kept > 0) && a.Detached == b.Detached
	}
	return slices.EqualFunc(a.Holders, b.Holders, eq) && slices.EqualFunc(a.Waiters, b.Waiters, eq)
}
