package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// faults are the laws that a model breaks.
type faults struct {
	silentHeartbeat    bool // news come by push only
	newsOnce           bool // a heartbeat does not say again what was said
	forcersClock       bool // grace counts from the call of the forcer
	ignoresSecondForce bool
	prolongsGrace      bool // a second, longer grace counts
	revivedByHeartbeat bool // a lease that is over is renewed
	revivedByAcquire   bool
	revivedByRelease   bool
	trustsAnyServer    bool // never compares its holds with the server's
	trustsKnownServer  bool // compares only with a server that it has not seen before
	noFailoverGrace    bool // grants at once after a change of server
	keepsDeadWaiters   bool // in the store, where List does not look
	stalls             bool // a request holds up all others for as long as the resource has holders and waiters
	shortLivedLease    bool // ends every lease after some seconds
}

// model is a Harness of servers in memory, in a bubble of testing/synctest.
type model struct {
	bad   faults
	clock lock.Clock

	main *server
}

func newModel(bad faults) *model {
	return &model{bad: bad, clock: lock.GoTime(), main: newServer(bad)}
}

const modelRecheck = time.Second

var (
	_ Faulter       = (*model)(nil)
	_ WakeupDropper = (*model)(nil)
	_ Switcher      = (*model)(nil)
	_ Insider       = (*model)(nil)
	_ timekeeper    = (*model)(nil)
)

func (m *model) Open(testing.TB) lock.Backend {
	b := &modelBackend{m: m}
	b.target.Store(m.main)
	b.seen = map[*server]bool{m.main: true}
	b.last = m.main
	return b
}
func (m *model) TTL() time.Duration            { return 2 * time.Second }
func (m *model) Recheck() time.Duration        { return modelRecheck }
func (m *model) Exceptions() map[string]string { return nil }
func (m *model) Clock() lock.Clock             { return m.clock }

// LoseReplies makes the model a Faulter.
func (m *model) LoseReplies(t testing.TB, b lock.Backend) func() {
	deaf := &b.(*modelBackend).deaf
	heal := func() { deaf.Store(false) }
	t.Cleanup(heal)
	deaf.Store(true)
	return heal
}

// DropWakeups makes the model a WakeupDropper.
func (m *model) DropWakeups(t testing.TB, b lock.Backend) func() {
	mute := &b.(*modelBackend).mute
	restore := func() { mute.Store(false) }
	t.Cleanup(restore)
	mute.Store(true)
	return restore
}

// Fork makes the model a Switcher.
func (m *model) Fork(testing.TB) func(toFork bool, bs ...lock.Backend) {
	fork := m.main.fork()
	return func(toFork bool, bs ...lock.Backend) {
		for _, b := range bs {
			to := m.main
			if toFork {
				to = fork
			}
			b.(*modelBackend).target.Store(to)
		}
	}
}

type modelBackend struct {
	m          *model
	target     atomic.Pointer[server]
	deaf, mute atomic.Bool

	mu      sync.Mutex
	last    *server
	seen    map[*server]bool
	strange bool      // the last is to be compared with
	since   time.Time // when the last server was first met
}

var _ lock.Backend = (*modelBackend)(nil)

// ask carries out a request. The answer may be lost.
func (b *modelBackend) ask(f func(s *server, now time.Time)) error {
	s := b.target.Load()
	b.meet(s)
	s.do(func(now time.Time) { f(s, now) })
	if b.deaf.Load() {
		return fmt.Errorf("%w: no answer", lock.ErrUnavailable)
	}
	return nil
}

// meet notices a change of server.
func (b *modelBackend) meet(s *server) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s == b.last {
		return
	}
	b.last, b.since = s, time.Now()
	b.strange = !b.m.bad.trustsAnyServer && !(b.m.bad.trustsKnownServer && b.seen[s])
	b.seen[s] = true
}

// isStrange tells whether the holds are to be compared with the server's.
func (b *modelBackend) isStrange() bool {
	b.meet(b.target.Load())
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.strange
}

func (b *modelBackend) compared() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.strange = false
}

// graceLeft is how long nothing may be granted yet, on leases of that TTL.
func (b *modelBackend) graceLeft(ttl time.Duration) time.Duration {
	b.meet(b.target.Load())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() || b.m.bad.noFailoverGrace {
		return 0
	}
	return time.Until(b.since.Add(ttl))
}

func (b *modelBackend) OpenLease(_ context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: "is out of bounds"}
	}
	if left := b.graceLeft(o.TTL); left > 0 {
		return nil, fmt.Errorf("%w: another server", lock.ErrUnavailable)
	}
	l := &modelLease{
		b: b, id: lock.NewLeaseID(), ttl: o.TTL, events: make(chan lock.Event), poke: make(chan struct{}, 1), done: make(chan struct{}),
		own: make(map[lock.HoldID]*ownHold),
	}
	if b.m.bad.shortLivedLease {
		l.ttl = min(l.ttl, 3*time.Second)
	}
	err := b.ask(func(s *server, now time.Time) {
		s.leases[l.id] = &leaseRow{sidecar: o.Sidecar, ttl: l.ttl, ends: now.Add(l.ttl)}
		s.listeners[l.id] = l
	})
	if err != nil {
		return nil, err
	}
	l.routine.Go(l.listen)
	return l, nil
}

func (b *modelBackend) Get(_ context.Context, r lock.Resource) (st lock.Status, err error) {
	err = b.ask(func(s *server, now time.Time) { st = s.status(r, now) })
	return st, err
}

func (b *modelBackend) List(_ context.Context, prefix string, p lock.Page) (all []lock.Status, err error) {
	err = b.ask(func(s *server, now time.Time) {
		for _, r := range s.names(prefix) {
			if r > p.After && len(all) < p.Limit {
				all = append(all, s.status(r, now))
			}
		}
	})
	return all, err
}

func (b *modelBackend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	var answer error
	if err := b.ask(func(s *server, now time.Time) { answer = s.force(r, id, grace, now) }); err != nil {
		return err
	}
	for answer == nil {
		var there *holdRow
		if err := b.ask(func(s *server, _ time.Time) { there, _ = s.find(r, id) }); err != nil {
			return err
		}
		if there == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, ctx.Err())
		case <-time.After(modelRecheck / 4):
		}
	}
	return answer
}

func (b *modelBackend) Ping(context.Context) error { return b.ask(func(*server, time.Time) {}) }
func (b *modelBackend) Close() error               { return nil }

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
	l.mu.Lock()
	if l.own[q.ID] == nil {
		l.own[q.ID] = &ownHold{resource: q.Resource}
	}
	l.mu.Unlock()
	g, err := l.acquire(ctx, q)
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
			case holder && h.Revoked, h == nil && queued:
				answer = lock.ErrNotHolder
			case holder:
				g = lock.Grant{ID: q.ID, Resource: q.Resource, Mode: h.Mode, Fence: h.Fence}
			case q.Try && row != nil && (len(row.waiters) > 0 || !row.admits(q.Mode)):
				held.Cause, answer = lock.ErrHeld, held
			case h == nil:
				if row == nil {
					row = &lockRow{}
					s.locks[q.Resource] = row
				}
				h = &holdRow{Holding: lock.Holding{ID: q.ID, Mode: q.Mode, Lease: l.id}, owner: q.Owner, since: now, pending: -1}
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
		h, _ := s.find(r, id)
		switch {
		case !s.lives(l.id, now, s.bad.revivedByRelease):
			answer = lock.ErrLeaseLost
		case h == nil || h.Lease != l.id:
			answer = lock.ErrNotHolder
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
		case !holder || h.Lease != l.id:
			answer = lock.ErrNotHolder
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
				s.end(l.id)
			}
			delete(s.listeners, l.id)
		})
	})
	return err
}

// Leftovers makes the model an Insider.
func (m *model) Leftovers(_ testing.TB, prefix string) (left []string) {
	m.main.do(func(time.Time) {
		for _, r := range m.main.names(prefix) {
			left = append(left, string(r))
		}
		for _, h := range m.main.hidden {
			if strings.HasPrefix(h, prefix) {
				left = append(left, h)
			}
		}
	})
	return left
}
