// Package served is the part of a backendtest.Harness that is the same for every store
// whose server comes from package testengine. Each backend has its own connection to that
// server, through a proxy that makes faults.
package served

import (
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Store is such a store. A harness embeds it, and says otherwise where it is otherwise.
type Store struct {
	Server testengine.Server
	// OpenAt opens a backend at the URL of its road.
	OpenAt func(t testing.TB, roadURL string) lock.Backend
	// Wakeups is a word of the requests that wait for wake-ups.
	Wakeups string
	// KeepRoads: when answers come through again, connections go on as they are.
	KeepRoads bool
	// Light makes it a backendtest.Lighter.
	Light bool

	mu    sync.Mutex
	roads map[lock.Backend]*testengine.Proxy
}

var _ interface {
	backendtest.Harness
	backendtest.Faulter
	backendtest.WakeupDropper
	backendtest.Slower
	backendtest.Restarter
	backendtest.Lighter
} = (*Store)(nil)

// Lighter makes a Store a backendtest.Lighter.
func (s *Store) Lighter() bool { return s.Light }

// Open makes a Store a backendtest.Harness, as the next three do.
func (s *Store) Open(t testing.TB) lock.Backend {
	t.Helper()
	road := testengine.Through(t, s.Server)
	b := s.OpenAt(t, road.URL())
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.roads == nil {
		s.roads = make(map[lock.Backend]*testengine.Proxy)
	}
	s.roads[b] = road
	return b
}

// TTL is as short as a busy machine allows.
func (s *Store) TTL() time.Duration { return time.Second }

// Recheck is a third of the TTL, with room for a busy machine.
func (s *Store) Recheck() time.Duration { return time.Second }

// Exceptions are none.
func (s *Store) Exceptions() map[string]string { return nil }

// Road is that of a backend.
func (s *Store) Road(b lock.Backend) *testengine.Proxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.roads[b]
}

// LoseReplies makes a Store a backendtest.Faulter.
func (s *Store) LoseReplies(t testing.TB, b lock.Backend) func() {
	road := s.Road(b)
	heal := sync.OnceFunc(func() {
		if err := road.Heal(); err != nil {
			t.Error(err)
		}
		if !s.KeepRoads {
			road.Inject(testengine.Sever)
		}
	})
	t.Cleanup(heal)
	road.Inject(testengine.HoldReplies)
	return heal
}

// DropWakeups makes a Store a backendtest.WakeupDropper.
func (s *Store) DropWakeups(t testing.TB, b lock.Backend) func() {
	road := s.Road(b)
	restore := sync.OnceFunc(func() {
		if err := road.Heal(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	road.Mute(s.Wakeups)
	return restore
}

// Slow makes a Store a backendtest.Slower.
func (s *Store) Slow(t testing.TB, b lock.Backend, d time.Duration) {
	road := s.Road(b)
	t.Cleanup(func() { road.Delay(0) })
	road.Delay(d)
}

// Restart makes a Store a backendtest.Restarter: the server keeps its data.
func (s *Store) Restart(t testing.TB) { testengine.Restart(t, s.Server, testengine.KeepData) }

// Lead gives what Fork of a backendtest.Switcher does, with a server that was forked.
func (s *Store) Lead(t testing.TB, fork testengine.Server) func(toFork bool, bs ...lock.Backend) {
	first, second := testengine.Nodes(t, s.Server)[0].Addr(), testengine.Nodes(t, fork)[0].Addr()
	led := make(map[lock.Backend]bool)
	lead := func(toFork bool, bs ...lock.Backend) {
		for _, b := range bs {
			to := first
			if toFork {
				to = second
			}
			led[b] = true
			road := s.Road(b)
			road.Retarget(to)
			road.Inject(testengine.Sever)
		}
	}
	t.Cleanup(func() {
		for b := range led {
			lead(false, b)
		}
	})
	return lead
}
