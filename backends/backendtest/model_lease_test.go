package backendtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// modelLease is what a driver makes of a lease.
type modelLease struct {
	b       *modelBackend
	id      lock.LeaseID
	ttl     time.Duration
	events  chan lock.Event
	poke    chan struct{}
	done    chan struct{}
	once    sync.Once
	routine sync.WaitGroup

	mu   sync.Mutex
	own  map[lock.HoldID]*ownHold
	said map[lock.Event]bool
}

type ownHold struct {
	resource lock.Resource
	granted  bool // and the caller was told
}

var _ lock.Lease = (*modelLease)(nil)

func (l *modelLease) ID() lock.LeaseID          { return l.id }
func (l *modelLease) Events() <-chan lock.Event { return l.events }

func (l *modelLease) pushed(s *server) {
	if l.b.mute.Load() || l.b.deaf.Load() || l.b.target.Load() != s {
		return
	}
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// listen asks for news when a push has come.
func (l *modelLease) listen() {
	for {
		select {
		case <-l.poke:
		case <-l.done:
			return
		}
		news, _ := l.news(false) // the heartbeat asks again
		for _, ev := range news {
			select {
			case l.events <- ev:
			case <-l.done:
				return
			}
		}
	}
}

func (l *modelLease) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	if q.MinHold < 0 || q.MinHold > lock.MaxMinHold {
		return lock.Grant{}, &lock.InvalidError{Field: "min_hold", Problem: "is out of bounds"}
	}
	l.mu.Lock()
	if l.own[q.ID] == nil {
		l.own[q.ID] = &ownHold{resource: q.Resource}
	}
	l.mu.Unlock()
	sent := l.b.m.clock()
	g, err := l.acquire(ctx, q)
	if g.Until > 0 {
		g.Until += sent
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.own[q.ID] = &ownHold{resource: q.Resource, granted: true}
	case !errors.Is(err, lock.ErrUnavailable):
		delete(l.own, q.ID)
	}
	return g, err
}

func (l *modelLease) acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	for queued := false; ; queued = true {
		var g lock.Grant
		var answer error
		var changed chan struct{}
		held := &lock.HeldError{}
		err := l.b.ask(func(s *server, now time.Time) {
			s.stall(q.Resource)
			held.Status, changed = s.status(q.Resource, now), s.changed
			h, holder := s.find(q.Resource, q.ID)
			row := s.locks[q.Resource]
			switch {
			case !s.lives(l.id, now, s.bad.revivedByAcquire):
				answer = lock.ErrLeaseLost
			case ctx.Err() != nil:
				held.Cause, answer = ctx.Err(), held
				if h != nil && !holder {
					held.Position = 1 + slices.Index(row.waiters, h)
				}
				if h != nil {
					s.remove(q.Resource, q.ID)
				}
			case q.Handle != "":
				g, answer = s.attach(l.id, q, now)
			case holder && (h.Revoked || h.kept), h == nil && queued:
				answer = lock.ErrNotHolder
			case holder:
				g = lock.Grant{ID: q.ID, Resource: q.Resource, Mode: h.Mode, Fence: h.Fence}
			case h == nil && row != nil && row.clashes(q.Mode) && !s.bad.mixesLimits:
				answer = &lock.InvalidError{Field: "limit", Problem: "is another while somebody has a permit"}
			case q.Try && row != nil && (len(row.waiters) > 0 || !row.admits(q.Mode)):
				held.Cause, answer = lock.ErrHeld, held
			case h == nil:
				if row == nil {
					row = &lockRow{}
					s.locks[q.Resource] = row
				}
				h = &holdRow{Holding: lock.Holding{ID: q.ID, Mode: q.Mode, Lease: l.id}, owner: q.Owner, since: now, pending: -1, minHold: q.MinHold}
				row.waiters = append(row.waiters, h)
				if len(row.waiters) == 1 && row.admits(q.Mode) {
					row.waiters = nil
					s.hold(row, h, now)
					g = lock.Grant{ID: q.ID, Resource: q.Resource, Mode: h.Mode, Fence: h.Fence}
				}
			}
		})
		if err != nil || answer != nil {
			return lock.Grant{}, errors.Join(err, answer)
		}
		wait := time.After(modelRecheck)
		if g.ID != "" {
			left := l.b.graceLeft(l.ttl)
			if left <= 0 {
				return g, nil
			}
			wait, changed = time.After(left), nil
		}
		if l.b.mute.Load() {
			changed = nil
		}
		select {
		case <-changed:
		case <-wait:
		case <-ctx.Done():
		}
	}
}

// stall is what a bad server does to all others.
func (s *server) stall(r lock.Resource) {
	if l := s.locks[r]; l != nil && s.bad.stalls {
		time.Sleep(time.Duration(len(l.holders)+len(l.waiters)) * 10 * time.Millisecond)
	}
}

func (l *modelLease) Release(_ context.Context, r lock.Resource, id lock.HoldID) error {
	l.mu.Lock()
	delete(l.own, id)
	l.mu.Unlock()
	var answer error
	err := l.b.ask(func(s *server, now time.Time) {
		h, holder := s.find(r, id)
		switch {
		case !s.lives(l.id, now, s.bad.revivedByRelease):
			answer = lock.ErrLeaseLost
		case h == nil || h.Lease != l.id || h.kept:
			answer = lock.ErrNotHolder
		case holder && !s.bad.forgetsMinHold && s.keeps(h, now):
		default:
			s.remove(r, id)
		}
	})
	return errors.Join(err, answer)
}

func (l *modelLease) Downgrade(_ context.Context, r lock.Resource, id lock.HoldID) error {
	var answer error
	err := l.b.ask(func(s *server, now time.Time) {
		h, holder := s.find(r, id)
		switch {
		case !s.lives(l.id, now, false):
			answer = lock.ErrLeaseLost
		case !holder || h.Lease != l.id || h.kept:
			answer = lock.ErrNotHolder
		case h.Mode.Limit() > 0:
			answer = &lock.InvalidError{Field: "lock_id", Problem: "is a permit"}
		default:
			h.Mode = lock.Shared
		}
	})
	return errors.Join(err, answer)
}

func (l *modelLease) Heartbeat(context.Context) ([]lock.Event, error) {
	news, err := l.news(true)
	if l.b.m.bad.silentHeartbeat {
		news = nil
	}
	return news, err
}

// news compares the lease's holds with the server's, tells of the differences and
// acknowledges what is revoked.
func (l *modelLease) news(renew bool) (news []lock.Event, err error) {
	l.mu.Lock()
	before := make(map[lock.HoldID]lock.Resource)
	for id, h := range l.own {
		if h.granted {
			before[id] = h.resource
		}
	}
	l.mu.Unlock()
	asked := l.b.m.clock()
	var answer error
	var there map[lock.HoldID]ofLease
	forced := make(map[lock.HoldID]bool)
	strange := l.b.isStrange()
	err = l.b.ask(func(s *server, now time.Time) {
		if !s.lives(l.id, now, renew && s.bad.revivedByHeartbeat) {
			answer = lock.ErrLeaseLost
			return
		}
		if renew {
			s.leases[l.id].ends = now.Add(l.ttl)
		}
		there = s.of(l.id)
		if renew && s.bad.looksAtEach {
			l.b.m.commands.Add(int64(len(there)))
		}
		for id := range before {
			forced[id] = s.forced[id]
		}
	})
	if err != nil || answer != nil {
		return nil, errors.Join(err, answer)
	}
	var known []lock.HoldID
	for _, id := range slices.Sorted(maps.Keys(there)) {
		h := there[id]
		l.mu.Lock()
		own := l.own[id]
		l.mu.Unlock()
		switch {
		case own == nil && strange:
			if err := l.Release(context.Background(), h.resource, id); errors.Is(err, lock.ErrUnavailable) {
				return nil, err
			}
		case h.Revoked:
			known = append(known, id)
			left := h.pending
			if left < 0 || !h.until.IsZero() && time.Until(h.until) < left {
				left = time.Until(h.until)
			}
			news = append(news, lock.Event{Kind: lock.Revoked, Resource: h.resource, ID: id, Until: asked + left})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(before)) {
		kind := lock.Vanished
		if forced[id] {
			kind = lock.Revoked
		}
		if there[id].held || kind == lock.Vanished && !strange {
			continue
		}
		l.mu.Lock()
		_, still := l.own[id] // else it was released meanwhile
		delete(l.own, id)
		l.mu.Unlock()
		if still {
			news = append(news, lock.Event{Kind: kind, Resource: before[id], ID: id})
		}
	}
	if strange {
		l.b.compared()
	}
	if l.b.m.bad.newsOnce {
		news = l.unsaid(news)
	}
	return news, l.b.ask(func(s *server, now time.Time) { s.acknowledge(l.id, known, now) })
}

// unsaid is the news that nobody was told of.
func (l *modelLease) unsaid(news []lock.Event) (fresh []lock.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said == nil {
		l.said = make(map[lock.Event]bool)
	}
	for _, ev := range news {
		key := lock.Event{Kind: ev.Kind, ID: ev.ID}
		if !l.said[key] {
			fresh = append(fresh, ev)
		}
		l.said[key] = true
	}
	return fresh
}

func (l *modelLease) Close(context.Context) error {
	err := lock.ErrLeaseLost
	l.once.Do(func() {
		close(l.done)
		l.routine.Wait()
		close(l.events)
		err = l.b.ask(func(s *server, now time.Time) {
			if s.leases[l.id] != nil {
				s.end(l.id, now)
			}
			delete(s.listeners, l.id)
		})
	})
	return err
}
