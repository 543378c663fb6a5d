package backendtest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

var (
	_ lock.Detacher = (*modelLease)(nil)
	_ lock.Handles  = (*modelBackend)(nil)
)

// named gives the hold of a key, while its time is not over.
func (s *server) named(r lock.Resource, key lock.HandleKey, now time.Time) *holdRow {
	l := s.locks[r]
	if l == nil {
		return nil
	}
	i := slices.IndexFunc(l.holders, func(h *holdRow) bool {
		return h.key != "" && (h.key == key || s.bad.attachesAny || s.bad.permitsFormerKeys && slices.Contains(h.formerly, key))
	})
	if i < 0 || l.holders[i].Revoked || !now.Before(l.holders[i].least) {
		return nil
	}
	return l.holders[i]
}

// takeAway tells the lease that has a detached hold that it has it no more.
func (s *server) takeAway(h *holdRow) {
	if !h.kept && !s.bad.attachesQuietly {
		s.forced[h.ID] = true
		s.push(h.Lease)
	}
}

func (s *server) attach(id lock.LeaseID, q lock.Request, now time.Time) (lock.Grant, error) {
	h, holder := s.find(q.Resource, q.ID)
	switch {
	case holder && h.Lease == id && !now.Before(h.least): // asked again, too late
		s.remove(q.Resource, q.ID)
		return lock.Grant{}, lock.ErrNoHandle
	case !holder || h.Lease != id:
		if h = s.named(q.Resource, q.Handle, now); h == nil || h.Mode != q.Mode {
			return lock.Grant{}, lock.ErrNoHandle
		}
		s.takeAway(h)
		h.ID, h.Lease, h.owner, h.since, h.kept = q.ID, id, q.Owner, now, false
		if s.bad.attachesAnew {
			h.Fence++
		}
	}
	g := lock.Grant{ID: h.ID, Resource: q.Resource, Mode: h.Mode, Fence: h.Fence, Until: h.least.Sub(now)}
	if s.bad.attachesForGood {
		h.least = now
	}
	return g, nil
}

func (l *modelLease) Detach(_ context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	if ttl != 0 && lock.CheckDetach(ttl) != nil {
		return lock.CheckDetach(ttl)
	}
	l.mu.Lock()
	delete(l.own, id)
	l.mu.Unlock()
	var answer error
	err := l.b.ask(func(s *server, now time.Time) {
		h, holder := s.find(r, id)
		switch {
		case !s.lives(l.id, now, false):
			answer = lock.ErrLeaseLost
		case !holder || h.key != key && (h.kept || h.Lease != l.id) || !h.kept && h.Lease != l.id && ttl != 0:
			answer = lock.ErrNotHolder
		case h.Revoked:
			s.remove(r, id)
			answer = lock.ErrNotHolder
		case ttl == 0:
			s.remove(r, id)
		case !h.kept:
			h.formerly = append(h.formerly, h.key)
			h.key, h.kept, h.least = key, !s.bad.detachesNothing, now.Add(ttl)
			if s.bad.detachesForEver {
				h.least = now.Add(lock.MaxDetach)
			}
			s.dirty = true
		}
	})
	return errors.Join(err, answer)
}

func (b *modelBackend) SetHandle(_ context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (d lock.Detached, _ error) {
	var answer error
	err := b.ask(func(s *server, now time.Time) {
		h := s.named(r, key, now)
		if h == nil {
			answer = lock.ErrNoHandle
			return
		}
		d = lock.Detached{ID: h.ID, Mode: h.Mode, Fence: h.Fence}
		switch {
		case ttl == 0:
			s.takeAway(h)
			s.remove(r, h.ID)
		case !s.bad.extendsNothing:
			h.least = now.Add(ttl)
		}
	})
	return d, errors.Join(err, answer)
}
