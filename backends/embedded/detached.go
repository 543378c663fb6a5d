package embedded

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// A detached hold is one that is kept, see kept.go, and that can be found by its key. Who attaches
// it takes it over to a lease, under another id. Its moment stays: when it leaves that lease
// before, it is kept again.

var (
	_ leasekit.Detacher = (*lease)(nil)
	_ lock.Handles      = (*Store)(nil)
)

// handle is what a detached hold is found by.
type handle struct {
	resource lock.Resource
	key      lock.HandleKey
}

// Detaches implements leasekit.Detacher.
func (l *lease) Detaches() error { return nil }

// Detach implements leasekit.Detacher.
//
// Model: kept.DETACH, kept.RELEASE.
func (l *lease) Detach(_ context.Context, w leasekit.Withdrawal, key lock.HandleKey, ttl time.Duration) (leasekit.Withdrawn, error) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := l.begin()
	if err != nil {
		return leasekit.Withdrawn{}, err
	}
	e := l.own(w.Ref)
	switch {
	case e == nil: // a second call of the same?
		delete(l.takenAway, w.Ref)
		if e = s.handles[handle{w.Resource, key}]; e == nil || e.ID != w.ID {
			return leasekit.Withdrawn{}, nil
		}
		if ttl == 0 {
			s.give(e, now)
		}
	case !e.Held() || e.Value.force != nil: // it is to be released, and not to be kept
		s.remove(e, now)
		return leasekit.Withdrawn{}, nil
	case ttl == 0:
		s.remove(e, now)
	default:
		s.forgetHandle(e)
		e.Value.key, e.Value.until, e.Value.cohort = key, now+ttl, false
		s.handles[handle{w.Resource, key}] = e
		s.leave(e)
	}
	return leasekit.Withdrawn{Found: true}, nil
}

// attach is Ask for a hold that is there.
//
// Model: kept.ATTACH.
func (l *lease) attach(q lock.Request) (leasekit.Answer, error) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := l.begin()
	if err != nil {
		return leasekit.Answer{}, err
	}
	r := leasekit.Ref{Resource: q.Resource, ID: q.ID}
	e := l.own(r)
	_, taken := l.takenAway[r]
	switch {
	case taken, e == nil && s.resources[q.Resource].find(q.ID) != nil: // asked again, and it was taken away, or given up, meanwhile
		return leasekit.Answer{}, lock.ErrNotHolder
	case e == nil:
		e = s.handles[handle{q.Resource, q.Handle}]
		if e == nil || !e.Value.keeps(now) || e.Room().Mode() != q.Mode {
			return leasekit.Answer{}, lock.ErrNoHandle
		}
		s.takeAway(e)
		v := &e.Value
		had := v.lease
		had.unlink(e)
		v.resource.Rename(e, q.ID)
		v.lease, v.owner, v.since = l, q.Owner, now
		l.link(e)
		if had.ofHold {
			s.drop(had, now)
		}
	case now >= e.Value.until: // asked again, too late; or a copy, and it is the lease's still
		return leasekit.Answer{}, lock.ErrNoHandle
	}
	return leasekit.Answer{Granted: true, Fence: e.Value.fence, Left: e.Value.until - now}, nil
}

// takeAway tells the lease that has a detached hold that it has it no more.
func (s *Store) takeAway(e *entry) {
	if l := e.Value.lease; !e.Value.isKept() {
		l.takenAway[ref(e)] = struct{}{}
		l.push(leasekit.Push{Kind: leasekit.Revoked, Ref: ref(e)})
	}
}

// SetHandle implements lock.Handles.
func (s *Store) SetHandle(_ context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (lock.Detached, error) {
	if ttl != 0 {
		if err := lock.CheckDetach(ttl); err != nil {
			return lock.Detached{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.begin()
	if err != nil {
		return lock.Detached{}, err
	}
	e := s.handles[handle{r, key}]
	if e == nil || !e.Value.keeps(now) {
		return lock.Detached{}, lock.ErrNoHandle
	}
	d := lock.Detached{ID: e.ID, Mode: e.Room().Mode(), Fence: e.Value.fence}
	switch v := &e.Value; {
	case ttl == 0 && v.isKept():
		s.give(e, now)
	case ttl == 0:
		s.takeAway(e)
		s.remove(e, now)
	default:
		v.until = now + ttl
		if v.lease.ofHold {
			s.endsAt(&v.lease.end, v.until)
		}
	}
	return d, nil
}

// forgetHandle takes the handle from a hold.
func (s *Store) forgetHandle(e *entry) {
	if v := &e.Value; v.key != "" {
		delete(s.handles, handle{v.resource.name, v.key})
		v.key = ""
	}
}
