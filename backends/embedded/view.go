package embedded

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// briefHolders is how many holders a refused request is told of. A resource can
// have thousands of readers, and a refusal should cost little.
const briefHolders = 8

// view is a copy of a resource, taken under the mutex. Owners are decoded after
// the mutex is let go.
type view struct {
	name             lock.Resource
	holders, waiters []row
}

type row struct {
	holding lock.Holding
	owner   string
}

// Get implements lock.Backend.
func (s *Store) Get(_ context.Context, name lock.Resource) (lock.Status, error) {
	v, err := s.look(name)
	return v.status(), err
}

func (s *Store) look(name lock.Resource) (view, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return view{name: name}, err
	}
	return s.resources[name].view(name, now), nil
}

// List implements lock.Backend. A Limit out of bounds is taken as lock.MaxPage.
func (s *Store) List(_ context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	limit := p.Limit
	if limit < 1 || limit > lock.MaxPage {
		limit = lock.MaxPage
	}
	names, err := s.names(prefix, p.After)
	if err != nil {
		return nil, err
	}
	slices.Sort(names) // outside the mutex: there may be a lot of them
	var all []lock.Status
	for _, name := range names {
		if len(all) == limit {
			break
		}
		v, err := s.look(name)
		if err != nil {
			return nil, err
		}
		if len(v.holders) > 0 || len(v.waiters) > 0 { // else it was released since
			all = append(all, v.status())
		}
	}
	return all, nil
}

func (s *Store) names(prefix string, after lock.Resource) ([]lock.Resource, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.begin(); err != nil {
		return nil, err
	}
	var names []lock.Resource
	for name := range s.resources {
		if name > after && strings.HasPrefix(string(name), prefix) {
			names = append(names, name)
		}
	}
	return names, nil
}

// view copies the whole resource; r may be nil.
func (r *resource) view(name lock.Resource, now time.Duration) view {
	v := view{name: name}
	if r != nil {
		v.holders = r.holders.rows(now, math.MaxInt)
		v.waiters = r.waiters.rows(now, math.MaxInt)
	}
	return v
}

// brief copies the first few holders; r may be nil.
func (r *resource) brief(name lock.Resource, now time.Duration) view {
	v := view{name: name}
	if r != nil {
		v.holders = r.holders.rows(now, briefHolders)
	}
	return v
}

func (l *list) rows(now time.Duration, limit int) []row {
	var rows []row
	for e := l.first; e != nil && len(rows) < limit; e = e.next {
		rows = append(rows, e.row(now))
	}
	return rows
}

func (e *entry) row(now time.Duration) row {
	return row{owner: e.owner, holding: lock.Holding{
		ID:      e.id,
		Mode:    e.mode,
		Fence:   e.fence,
		Age:     now - e.since,
		Lease:   e.lease.id,
		Sidecar: e.lease.sidecar,
		Revoked: e.state == revoked,
	}}
}

func (v view) status() lock.Status {
	return lock.Status{Resource: v.name, Holders: decode(v.holders), Waiters: decode(v.waiters)}
}

func decode(rows []row) []lock.Holding {
	if len(rows) == 0 {
		return nil
	}
	hs := make([]lock.Holding, len(rows))
	for i, r := range rows {
		hs[i] = r.holding
		hs[i].Owner = lock.DecodeOwner(r.owner)
	}
	return hs
}
