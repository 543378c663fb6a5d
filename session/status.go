package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// maxForced bounds the forced releases that run at the same time. Each lasts for a grace, and asks the store now and
// then whether it is over.
const maxForced = 256

// Get tells who holds and who waits for a resource, through whatever sidecar.
// Errors: *lock.InvalidError, lock.ErrUnavailable.
func (sp *Space) Get(ctx context.Context, resource string) (lock.Status, error) {
	res, err := sp.inStore(resource)
	if err != nil {
		return lock.Status{}, err
	}
	st, err := sp.m.o.Backend.Get(ctx, res)
	if err != nil {
		return lock.Status{}, fmt.Errorf("get lock: %w", err)
	}
	st.Resource = lock.Resource(resource)
	return st, nil
}

// List does the same for the resources of the namespace whose name starts with
// prefix and comes after the name after, in byte order: at most limit of them,
// 1 to lock.MaxPage. With a *lock.PartialError it gives what it has.
func (sp *Space) List(ctx context.Context, prefix, after string, limit int) ([]lock.Status, error) {
	switch {
	case limit < 1 || limit > lock.MaxPage:
		return nil, invalid("page_size", "is %d, must be 1 to %d", limit, lock.MaxPage)
	}
	if err := sp.fits("prefix", prefix); err != nil {
		return nil, err
	}
	p := lock.Page{Limit: limit}
	if after != "" {
		p.After = lock.Resource(sp.prefix + after)
	}
	list, err := sp.m.o.Backend.List(ctx, sp.prefix+prefix, p)
	var partial *lock.PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil, fmt.Errorf("list locks: %w", err)
	}
	for i := range list {
		list[i].Resource = lock.Resource(sp.inApp(list[i].Resource))
	}
	if partial != nil {
		return list, fmt.Errorf("list locks: %w", sp.lacksInApp(partial))
	}
	return list, nil
}

// lacksInApp is what a list lacks, by the names that apps know.
func (sp *Space) lacksInApp(e *lock.PartialError) *lock.PartialError {
	lacks := func(r lock.Resource) bool { return e.Lacks(lock.Resource(sp.prefix) + r) }
	return &lock.PartialError{Missing: e.Missing, Lacks: lacks, Err: e.Err}
}

// ForceRelease takes the resource from the holder or waiter with that id, or,
// when id is empty, from all its holders, and tells which it has taken. Holders
// are told, and have grace, at most a minute, to stop their work; ForceRelease
// returns when they are gone. Nobody is there: lock.ErrNotHolder with an id,
// nothing without. Other errors: *lock.InvalidError, lock.ErrUnavailable.
func (sp *Space) ForceRelease(ctx context.Context, resource string, id lock.HoldID, grace time.Duration) ([]lock.HoldID, error) {
	res, err := sp.inStore(resource)
	if err != nil {
		return nil, err
	}
	if grace < 0 || grace > maxGrace {
		return nil, invalid("grace", "is %v, must be 0 to %v", grace, maxGrace)
	}
	sp.m.log.Warn("forced release", keyResource, res, keyLockID, id, keyGrace, grace)
	if id != "" {
		if err := sp.m.o.Backend.ForceRelease(ctx, res, id, grace); err != nil {
			return nil, fmt.Errorf("force release: %w", err)
		}
		return []lock.HoldID{id}, nil
	}
	st, err := sp.m.o.Backend.Get(ctx, res)
	if err != nil {
		return nil, fmt.Errorf("force release: %w", err)
	}
	// At the same time, so that their graces are not one after the other.
	errs := make([]error, len(st.Holders))
	var wg sync.WaitGroup
	places := make(chan struct{}, maxForced)
	for i, h := range st.Holders {
		places <- struct{}{}
		wg.Go(func() {
			errs[i] = sp.m.o.Backend.ForceRelease(ctx, res, h.ID, grace)
			<-places
		})
	}
	wg.Wait()
	var taken []lock.HoldID
	var failed error
	for i, h := range st.Holders {
		switch {
		case errs[i] == nil:
			taken = append(taken, h.ID)
		case !errors.Is(errs[i], lock.ErrNotHolder): // else it has gone by itself
			failed = errs[i]
		}
	}
	if failed != nil {
		return taken, fmt.Errorf("force release: %w", failed)
	}
	return taken, nil
}
