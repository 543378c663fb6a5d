package embedded

import (
	"context"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// briefHolders is how many holders a refused request is told of. A resource can
// have thousands of readers, and a refusal should cost little.
const briefHolders = 8

// view is a copy of a resource, taken under the mutex: of what can change, and no
// more, because there may be thousands. The rest is done after the mutex is let go.
type view struct {
	name             lock.Resource
	holders, waiters []row
}

type row struct {
	id      lock.HoldID
	lease   *lease
	owner   string
	fence   lock.Fence
	age     time.Duration
	kept    time.Duration
	loose   bool // detached, and nobody has attached it
	mode    lock.Mode
	revoked bool
	cohort  bool
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

// listStep is how many names List looks at before it lets others in.
const listStep = 1000

// List implements lock.Backend.
func (s *Store) List(_ context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	limit := p.Most()
	names, err := names(s, &s.listed, prefix, p.After)
	if err != nil {
		return nil, err
	}
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

// named is what the store keeps under a name.
type named interface{ called() lock.Resource }

func (r *resource) called() lock.Resource { return r.name }

// names gives the names with the prefix after one, in order.
func names[N named](s *Store, all *[]N, prefix string, after lock.Resource) ([]lock.Resource, error) {
	var names []lock.Resource
	for from := math.MaxInt; from > 0; {
		s.mu.Lock()
		if _, err := s.begin(); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		// From the end: what is moved to fill a gap comes from there, so that it
		// may be seen twice between two steps, and is never missed.
		from = min(from, len(*all))
		to := max(from-listStep, 0)
		for _, n := range (*all)[to:from] {
			if name := n.called(); name > after && strings.HasPrefix(string(name), prefix) {
				names = append(names, name)
			}
		}
		s.mu.Unlock()
		from = to
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// find gives the hold or waiter of an id, or nil; r may be nil.
func (r *resource) find(id lock.HoldID) *entry {
	if r == nil {
		return nil
	}
	return r.Find(id)
}

// view copies the whole resource; r may be nil.
func (r *resource) view(name lock.Resource, now time.Duration) view {
	if r == nil {
		return view{name: name}
	}
	holders, waiters := r.Len()
	return view{name: name, holders: rows(r.Holders(), holders, now), waiters: rows(r.Waiters(), waiters, now)}
}

// brief copies the first few holders.
func (r *resource) brief(now time.Duration) view {
	holders, _ := r.Len()
	return view{name: r.name, holders: rows(r.Holders(), min(holders, briefHolders), now)}
}

func rows(entries iter.Seq[*entry], n int, now time.Duration) []row {
	all := make([]row, 0, n)
	for e := range entries {
		if n == 0 {
			break
		}
		n--
		v := &e.Value
		if v.lease.over && !v.keeps(now) { // see drop
			continue
		}
		one := row{id: e.ID, lease: v.lease, owner: v.owner, fence: v.fence, age: now - v.since, mode: e.Room().Mode(), revoked: v.force != nil, cohort: v.cohort}
		if v.isKept() {
			one.kept, one.loose = v.until-now, v.key != ""
		}
		all = append(all, one)
	}
	return all
}

func (v view) status() lock.Status {
	return lock.Status{Resource: v.name, Holders: holdings(v.holders), Waiters: holdings(v.waiters)}
}

func holdings(rows []row) []lock.Holding {
	if len(rows) == 0 {
		return nil
	}
	hs := make([]lock.Holding, len(rows))
	for i, r := range rows {
		l := r.lease
		hs[i] = lock.Holding{
			ID: r.id, Mode: r.mode, Fence: r.fence, Age: r.age, Revoked: r.revoked,
			Lease: l.id, Sidecar: l.sidecar, Owner: lock.DecodeOwner(r.owner), Cohort: r.cohort,
			Kept: r.kept, Detached: r.loose,
		}
	}
	return hs
}
