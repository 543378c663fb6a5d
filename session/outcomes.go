package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// maxSift bounds how many pages of the store one page of outcomes is picked from.
const maxSift = 10

// Outcomes gives outcomes in the order of their resources' names, which start with prefix and come
// after the name after: those with one of the states, or all where there are none. It gives at
// most limit, 1 to lock.MaxPage, and fewer where it has looked at many others; next is where to go on, empty at the end.
// With a *lock.PartialError it gives what it has.
//
//	lock.ErrUnsupported: the store keeps no records.
//	*lock.InvalidError, lock.ErrUnavailable.
func (sp *Space) Outcomes(ctx context.Context, prefix, after string, limit int, states ...outcome.State) (list []Outcome, next string, err error) {
	switch {
	case sp.m.records == nil:
		return nil, "", fmt.Errorf("list outcomes: %w", lock.ErrUnsupported)
	case limit < 1 || limit > lock.MaxPage:
		return nil, "", invalid("page_size", "is %d, must be 1 to %d", limit, lock.MaxPage)
	}
	if err := sp.fits("prefix", prefix); err != nil {
		return nil, "", err
	}
	p := lock.Page{Limit: limit}
	if after != "" {
		p.After = lock.Resource(sp.prefix + after)
	}
	var lacks *lock.PartialError
	defer func() {
		if err == nil && lacks != nil {
			err = fmt.Errorf("list outcomes: %w", sp.lacksInApp(lacks))
		}
	}()
	for range maxSift {
		found, err := sp.m.records.ListRecords(ctx, sp.prefix+prefix, p)
		var partial *lock.PartialError
		if err != nil && !errors.As(err, &partial) {
			return nil, "", fmt.Errorf("list outcomes: %w", err)
		}
		lacks = lacks.And(partial)
		for _, r := range found {
			p.After, next = r.Resource, sp.inApp(r.Resource)
			o, err := outcome.Read(r.Record)
			if err != nil {
				sp.m.log.Warn("list outcomes", keyResource, r.Resource, keyError, err)
				continue
			}
			if len(states) == 0 || slices.Contains(states, o.State) {
				list = append(list, Outcome{Resource: next, Outcome: *o})
			}
			if len(list) == limit {
				return list, next, nil
			}
		}
		if len(found) < p.Limit {
			return list, "", nil
		}
		p.Limit = lock.MaxPage // few are wanted of many
	}
	return list, next, nil
}

// ResetOutcome forgets what became of a resource, and tells what that was; nil: there
// was nothing. The next attempt is the first again.
//
//	*lock.HeldError with lock.ErrHeld: somebody holds the resource, and may be at work.
//	lock.ErrUnsupported, *lock.InvalidError, lock.ErrUnavailable.
func (sp *Space) ResetOutcome(ctx context.Context, resource string) (*Outcome, error) {
	res, err := sp.inStore(resource)
	switch {
	case sp.m.records == nil:
		return nil, fmt.Errorf("reset outcome: %w", lock.ErrUnsupported)
	case err != nil:
		return nil, err
	}
	for {
		found, err := sp.m.records.ReadRecord(ctx, res) // before Get: who begins after that has another record
		if err != nil {
			return nil, fmt.Errorf("reset outcome: %w", err)
		}
		if found.Version == "" {
			return nil, nil //nolint:nilnil // said above
		}
		st, err := sp.m.o.Backend.Get(ctx, res)
		switch {
		case err != nil:
			return nil, fmt.Errorf("reset outcome: %w", err)
		case slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return !h.Parked && h.Kept == 0 }):
			return nil, heldError(resource, &lock.HeldError{Status: st}, lock.ErrHeld)
		}
		err = sp.m.records.DeleteRecord(ctx, res, found.Version)
		switch {
		case errors.Is(err, lock.ErrRecordChanged):
			continue
		case err != nil:
			return nil, fmt.Errorf("reset outcome: %w", err)
		}
		sp.m.log.Warn("outcome forgotten", keyResource, res)
		o, err := outcome.Read(found)
		if err != nil { // it was somebody else's
			return &Outcome{Resource: resource}, nil
		}
		return &Outcome{Resource: resource, Outcome: *o}, nil
	}
}
