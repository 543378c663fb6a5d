package backendtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Detach is that of the lease, one call at a time.
func (s *sidecar) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	defer s.alone(id)()
	return s.Lease.(lock.Detacher).Detach(ctx, r, id, key, ttl)
}

// attaching is a request for the hold of a key.
func attaching(g lock.Grant, key lock.HandleKey) lock.Request {
	q := request(g.Resource, g.Mode)
	q.Handle = key
	return q
}

// detachable takes what must be free, and can be detached.
func (e *env) detachable(s *sidecar, r lock.Resource, m lock.Mode) lock.Grant {
	e.Helper()
	q := request(r, m)
	q.Detachable = true
	g, err := e.try(s, q)
	if err != nil {
		e.Fatalf("Acquire(%s) of what can be detached: %v", m, s.blame(err))
	}
	e.is(g, q)
	return g
}

// detach detaches a hold, under a new key.
func (e *env) detach(s *sidecar, g lock.Grant, ttl time.Duration) lock.HandleKey {
	e.Helper()
	key := lock.NewSecret().Key()
	e.ends(key, ttl)
	if err := e.answered(func() error { return s.Detach(e.ctx, g.Resource, g.ID, key, ttl) }); err != nil {
		e.Fatalf("Detach: %v", s.blame(err))
	}
	return key
}

// ends notes that what a key is of may end after ttl from now on.
func (e *env) ends(key lock.HandleKey, ttl time.Duration) {
	if e.handles == nil {
		e.handles = make(map[lock.HandleKey]time.Time)
	}
	e.handles[key] = time.Now().Add(ttl)
}

// inVain gives the error of a request with a key, and says so where the machine was too
// busy to send it in time.
func (e *env) inVain(key lock.HandleKey, err error) error {
	if errors.Is(err, lock.ErrNoHandle) && time.Now().After(e.handles[key]) {
		return fmt.Errorf("%w: %w", busyError("it came too late"), err)
	}
	return err
}

// attach attaches what is there for at most so long.
func (e *env) attach(s *sidecar, g lock.Grant, key lock.HandleKey, ttl time.Duration) lock.Grant {
	e.Helper()
	q := attaching(g, key)
	var got lock.Grant
	err := e.answered(func() (err error) { got, err = s.Acquire(e.ctx, q); return err })
	if err != nil {
		e.Fatalf("attach: %v", e.inVain(key, s.blame(err)))
	}
	left := got.Until - e.clock()
	if left <= 0 && time.Now().After(e.handles[key]) {
		e.Fatal(busyError("the answer came when the time was over"))
	}
	if got.ID != q.ID || got.Resource != g.Resource || got.Mode != g.Mode || got.Fence != g.Fence || left <= 0 || left > ttl {
		e.Fatalf("attached as %+v for another %s, want the mode and the fence of %+v for at most %s", got, left, g, ttl)
	}
	return got
}

// noHandle checks that nobody can do anything with a key.
func (e *env) noHandle(s *sidecar, g lock.Grant, key lock.HandleKey) {
	e.Helper()
	if got, err := s.Acquire(e.ctx, attaching(g, key)); !errors.Is(err, lock.ErrNoHandle) {
		e.Errorf("attach by a key that is of nothing: got %+v, %v; want ErrNoHandle", got, err)
	}
	for _, ttl := range []time.Duration{0, longHold} {
		if got, err := e.handlesOf(s).SetHandle(e.ctx, g.Resource, key, ttl); !errors.Is(err, lock.ErrNoHandle) {
			e.Errorf("SetHandle(%s) by a key that is of nothing: got %+v, %v; want ErrNoHandle", ttl, got, err)
		}
	}
}

func (e *env) handlesOf(s *sidecar) lock.Handles {
	e.Helper()
	h, ok := lock.HandlesOf(s.b)
	if !ok {
		e.Fatalf("the store has no Handles")
	}
	return h
}

// set moves the end of a detached hold.
func (e *env) set(s *sidecar, g lock.Grant, key lock.HandleKey, ttl time.Duration) {
	e.Helper()
	h := e.handlesOf(s)
	var d lock.Detached
	if err := e.answered(func() (err error) { d, err = h.SetHandle(e.ctx, g.Resource, key, ttl); return err }); err != nil {
		e.Fatalf("SetHandle(%s): %v", ttl, e.inVain(key, err))
	}
	e.ends(key, ttl)
	if d.ID != g.ID || d.Fence != g.Fence || d.Mode != g.Mode {
		e.Errorf("SetHandle(%s): got %+v, want %+v", ttl, d, g)
	}
}

// loose checks that a hold is shown as detached.
func (e *env) loose(b lock.Backend, g lock.Grant, by *sidecar) {
	e.Helper()
	e.kept(b, g, by)
	for _, h := range e.get(b, g.Resource).Holders {
		if h.ID == g.ID && !h.Detached {
			e.Errorf("a hold that is detached is shown as %+v", h)
		}
	}
}
