package shards

import (
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/redislock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

var _ interface {
	backendtest.Faulter
	backendtest.WakeupDropper
	backendtest.Slower
	backendtest.Restarter
	backendtest.Freezer
} = (*servers)(nil)

// servers is a harness with servers of their own as shards. Faults meet all of them at once: what one alone does is
// tested by name.
type servers struct {
	harness
	all []*served.Store

	mu    sync.Mutex
	parts map[lock.Backend][]lock.Backend
}

func newServers(t testing.TB) *servers {
	h := &servers{parts: make(map[lock.Backend][]lock.Backend)}
	for range 3 {
		h.all = append(h.all, &served.Store{
			Server:  testengine.New(t, testengine.Redis),
			Wakeups: "subscribe",
			OpenAt: func(t testing.TB, url string) lock.Backend {
				b, err := redislock.Open(url+"?timeout=3s&restart-grace=1s", nil) // other tests use the machine too
				if err != nil {
					t.Fatal(err)
				}
				return b
			},
		})
	}
	return h
}

// Open makes it a backendtest.Harness.
func (h *servers) Open(t testing.TB) lock.Backend {
	t.Helper()
	var list []Shard
	var parts []lock.Backend
	for i, s := range h.all {
		b := s.Open(t)
		parts = append(parts, b)
		list = append(list, Shard{Name: string(rune('a' + i)), Backend: b})
	}
	b, err := New(list, Options{})
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts[b] = parts
	return b
}

// each does something to the road of each shard, and gives what undoes it.
func (h *servers) each(b lock.Backend, do func(s *served.Store, part lock.Backend) (undo func())) func() {
	h.mu.Lock()
	parts := h.parts[b]
	h.mu.Unlock()
	undos := make([]func(), len(parts))
	for i, part := range parts {
		undos[i] = do(h.all[i], part)
	}
	return func() {
		for _, undo := range undos {
			undo()
		}
	}
}

// LoseReplies makes it a backendtest.Faulter.
func (h *servers) LoseReplies(t testing.TB, b lock.Backend) func() {
	return h.each(b, func(s *served.Store, part lock.Backend) func() { return s.LoseReplies(t, part) })
}

// DropWakeups makes it a backendtest.WakeupDropper.
func (h *servers) DropWakeups(t testing.TB, b lock.Backend) func() {
	return h.each(b, func(s *served.Store, part lock.Backend) func() { return s.DropWakeups(t, part) })
}

// Slow makes it a backendtest.Slower.
func (h *servers) Slow(t testing.TB, b lock.Backend, d time.Duration) {
	h.each(b, func(s *served.Store, part lock.Backend) func() {
		s.Slow(t, part, d)
		return func() {}
	})
}

// Restart makes it a backendtest.Restarter.
func (h *servers) Restart(t testing.TB) {
	for _, s := range h.all {
		s.Restart(t)
	}
}

// Freeze makes it a backendtest.Freezer.
func (h *servers) Freeze(t testing.TB) func() {
	thaw := make([]func(), len(h.all))
	for i, s := range h.all {
		thaw[i] = testengine.Pause(t, s.Server)
	}
	return func() {
		for _, f := range thaw {
			f()
		}
	}
}
