package arbiter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// A forced release means who has that id, and not who would have it next.
func TestForcedWhileItIsHandedOn(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9, Park: time.Second})
		for range 2 { // the second time it would be parked
			g := s.take(exclusive())
			var w *call
			s.way.beforeForce = func() {
				s.way.beforeForce = nil
				w = s.ask(exclusive())
				s.give(g)
			}
			if err := s.b.ForceRelease(h.Context(), "r", g.ID, 0); err != nil && !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("got %v", err)
			}
			h.granted(w)(w)
			if len(s.told) != 0 {
				t.Errorf("told %+v", s.told)
			}
			if n, _ := h.inStore(); n != 1 {
				t.Errorf("%d holds in the store, want that of the next", n)
			}
			s.give(w.g)
		}
		s.close()
	})
}

// A forced release of one of several readers is over with the lease.
func TestForcedReaderAndTheEndOfTheLease(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g := s.take(shared())
		s.take(shared())
		returned := make(chan error, 1)
		go func() { returned <- s.b.ForceRelease(h.Context(), "r", g.ID, time.Hour) }()
		synctest.Wait()
		s.close()
		synctest.Wait()
		select {
		case err := <-returned:
			if err != nil {
				t.Errorf("got %v", err)
			}
		default:
			t.Error("it waits for the grace of a hold that is gone")
			time.Sleep(time.Hour)
		}
	})
}

// A forced release of readers returns when the store has let their hold go, and tells them first.
func TestForcedReadersAreGone(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		s.way.slow = 100 * time.Millisecond
		for i, g := range []lock.Grant{s.take(shared()), s.take(shared())} {
			go func() {
				if err := s.b.ForceRelease(h.Context(), "r", g.ID, time.Duration(i+1)*time.Second); err != nil {
					t.Error(err)
				}
				s.mu.Lock()
				others := len(s.members)
				s.mu.Unlock()
				if n, _ := h.inStore(); n != others {
					t.Errorf("%d holds in the store of %d readers", n, others)
				}
			}()
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if len(s.told) != 2 {
			t.Errorf("told %+v", s.told)
		}
		s.close()
	})
}

// Also a sidecar that answers nothing by itself forces nobody by the id of who had the lock
// before.
func TestForceOfWhoHadItBefore(t *testing.T) {
	inHouse(t, func(h *house) {
		a := h.side(Options{Turns: 9})
		off := New(h.store, Options{Clock: h.clock})
		g := a.take(exclusive())
		w := a.ask(exclusive())
		a.give(g)
		time.Sleep(2 * shownAfter)
		synctest.Wait()
		if err := off.ForceRelease(h.Context(), "r", g.ID, 0); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("got %v", err)
		}
		if synctest.Wait(); len(a.told) != 0 {
			t.Errorf("told %+v", a.told)
		}
		h.granted(w)(w)
		if err := a.Release(h.Context(), "r", w.g.ID); err != nil {
			t.Error(err)
		}
		a.close()
	})
}

// Who waits here behind a hold that is forced keeps its place in front of who came later elsewhere.
func TestForcedInFrontOfOthers(t *testing.T) {
	for _, c := range []struct {
		name     string
		grace    time.Duration
		releases bool
	}{{"released", time.Minute, true}, {"grace over", time.Second, false}, {"at once", 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			inHouse(t, func(h *house) {
				a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
				g := a.take(exclusive())
				one, two := a.ask(exclusive()), a.ask(exclusive())
				far := b.ask(exclusive())
				late := a.ask(exclusive())
				done := make(chan error, 1)
				go func() { done <- a.b.ForceRelease(h.Context(), "r", g.ID, c.grace) }()
				synctest.Wait()
				if len(a.told) != 1 || a.told[0].ID != g.ID || a.told[0].Kind != lock.Revoked {
					t.Errorf("told %+v", a.told)
				}
				if c.releases {
					a.give(g)
				} else if c.grace > 0 {
					h.granted()(one, two, far, late)
					if x := a.holder(); x.ID != g.ID || !x.Revoked {
						t.Errorf("while the grace lasts: %+v", x)
					}
					time.Sleep(c.grace)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
				h.granted(one)(one, two, far, late)
				if one.g.Fence <= g.Fence {
					t.Errorf("broken law: fence %d after %d", one.g.Fence, g.Fence)
				}
				if err := a.Release(h.Context(), "r", g.ID); !errors.Is(err, lock.ErrNotHolder) {
					t.Errorf("Release of what was forced: %v", err)
				}
				a.give(one.g)
				h.granted(one, two)(one, two, far, late)
				a.give(two.g)
				h.granted(one, two, far)(one, two, far, late)
				b.give(far.g)
				h.granted(one, two, far, late)(one, two, far, late)
				a.give(late.g)
				a.forgets()
				a.close()
				b.close()
			})
		})
	}
}

// Thousands of others that are forced together do not each read what all of them have.
func TestManyOthersAreForced(t *testing.T) {
	inHouse(t, func(h *house) {
		const many = 1000
		owner, s := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		holds := make([]lock.Grant, many)
		for i := range holds {
			q := shared()
			q.Direct = true
			holds[i] = owner.take(q)
		}
		looks, at, most := 0, 0, 0
		s.way.beforeGet = func() {
			looks++
			at++
			most = max(most, at)
			time.Sleep(10 * time.Millisecond)
			at--
		}
		var all sync.WaitGroup
		for _, g := range holds {
			all.Go(func() {
				if err := s.b.ForceRelease(h.Context(), "r", g.ID, 0); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if looks > 2 || most > 1 {
			t.Errorf("%d looks, %d at a time", looks, most)
		}
		if n, _ := h.inStore(); n != 0 {
			t.Errorf("%d are left", n)
		}
		s.way.beforeGet = nil
		s.close()
		owner.close()
	})
}

// Who gives up does not take the look from those who wait for it.
func TestOneOfThoseWhoForceGivesUp(t *testing.T) {
	inHouse(t, func(h *house) {
		owner, s := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := owner.take(exclusive())
		s.way.beforeGet = func() { time.Sleep(time.Second) }
		ctx, cancel := context.WithTimeout(h.Context(), 100*time.Millisecond)
		defer cancel()
		go func() {
			time.Sleep(50 * time.Millisecond)
			if err := s.b.ForceRelease(h.Context(), "r", g.ID, 0); err != nil {
				t.Error(err)
			}
		}()
		if err := s.b.ForceRelease(ctx, "r", g.ID, 0); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("who gives up is told %v", err)
		}
		time.Sleep(3 * time.Second)
		if n, _ := h.inStore(); n != 0 {
			t.Error("it is held still")
		}
		s.close()
		owner.close()
	})
}

// blind is a store that does not say who has a lock.
type blind struct {
	lock.Backend
	forced int
}

func (b *blind) Get(context.Context, lock.Resource) (lock.Status, error) {
	return lock.Status{}, lock.ErrUnavailable
}

func (b *blind) ForceRelease(context.Context, lock.Resource, lock.HoldID, time.Duration) error {
	b.forced++
	return nil
}

// TestForcedWithoutALook: where the store does not say who has a lock now, nobody is forced: under that id in the store
// another app may have it.
func TestForcedWithoutALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &blind{}
		b := New(store, Options{Turns: 9})
		for range 2 {
			if err := b.ForceRelease(t.Context(), "r", "id", 0); !errors.Is(err, lock.ErrUnavailable) || store.forced > 0 {
				t.Errorf("got %v, forced %d", err, store.forced)
			}
		}
		if synctest.Wait(); len(b.looks) > 0 {
			t.Errorf("left %v", b.looks)
		}
	})
}

// mute is a store that does not answer.
type mute struct {
	lock.Backend
	asked, over atomic.Int32
}

func (m *mute) Get(ctx context.Context, _ lock.Resource) (lock.Status, error) {
	m.asked.Add(1)
	<-ctx.Done()
	m.over.Add(1)
	return lock.Status{}, lock.ErrUnavailable
}

func (*mute) Close() error { return nil }

// TestCloseEndsLooks: a look for a forced release goes on when who has asked does not wait any more. It ends with the arbiter,
// and is over when Close returns.
func TestCloseEndsLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &mute{}
		b := New(store, Options{Turns: 9})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.ForceRelease(ctx, "r", "id", 0); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		waits := make(chan error, 1)
		go func() { waits <- b.ForceRelease(t.Context(), "s", "id", 0) }()
		synctest.Wait()
		began := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 0 || store.asked.Load() != 2 || store.over.Load() != 2 {
			t.Errorf("Close took %v; of %d looks, %d are over", took, store.asked.Load(), store.over.Load())
		}
		if err := <-waits; !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("who waits is told %v", err)
		}
		if err := b.ForceRelease(t.Context(), "r", "id", 0); !errors.Is(err, lock.ErrUnavailable) || store.asked.Load() != 2 {
			t.Errorf("after Close: %v, asked %d times", err, store.asked.Load())
		}
	})
}
