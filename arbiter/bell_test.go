package arbiter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// belled is a request with a bell, as its caller sees it.
type belled struct {
	s    *side
	q    lock.Request
	rung int
}

func (b *belled) Ring() { b.rung++ }

// look calls Acquire once.
func (b *belled) look(ctx context.Context) (lock.Grant, error) {
	b.rung = 0
	return b.s.Acquire(ctx, b.q)
}

// waits begins a request that must wait.
func (s *side) waits(q lock.Request) *belled {
	s.h.Helper()
	b := &belled{s: s, q: q}
	b.q.Bell = b
	b.still()
	return b
}

// still checks that it waits, and that nothing has rung for it.
func (b *belled) still() {
	b.s.h.Helper()
	synctest.Wait()
	rung := b.rung
	if _, err := b.look(b.s.h.Context()); !errors.Is(err, lock.ErrWaiting) || rung != 0 {
		b.s.h.Errorf("Acquire: %v, rung %d times", err, rung)
	}
}

// has checks that its bell has rung, for a grant.
func (b *belled) has() lock.Grant {
	b.s.h.Helper()
	synctest.Wait()
	rung := b.rung
	g, err := b.look(b.s.h.Context())
	if err != nil || rung != 1 {
		b.s.h.Fatalf("Acquire: %v, rung %d times", err, rung)
	}
	return g
}

// TestBells: who asks the store, who waits beside it, and who goes to the store by itself wait
// without their Acquire, and are served as they came.
func TestBells(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := a.take(exclusive())
		leads, beside := b.waits(exclusive()), b.waits(exclusive())
		alone := exclusive()
		alone.Direct = true
		direct, last := b.waits(alone), b.waits(exclusive())
		asked := len(b.way.asked)
		direct.still()
		end := b.waits(exclusive())
		if len(b.way.asked) != asked {
			t.Error("who came first keeps others from waiting together")
		}
		if _, waiters := h.inStore(); waiters != 3 {
			t.Errorf("%d wait in the store", waiters)
		}
		all := []*belled{leads, beside, direct, last, end}
		a.give(g)
		for _, w := range all {
			for _, o := range all {
				if o != w && o.rung != 0 {
					t.Error("rung for who is not next")
				}
			}
			b.give(w.has())
		}
		a.close()
		b.close()
	})
}

// TestBelledWaitsEnd: who leads gives up, and the next takes over; the end of the lease rings for
// all.
func TestBelledWaitsEnd(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := a.take(exclusive())
		all := []*belled{b.waits(exclusive()), b.waits(exclusive()), b.waits(exclusive())}
		ended, cancel := context.WithCancel(h.Context())
		cancel()
		for i, w := range all[:2] {
			if _, err := w.look(ended); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if next := all[i+1]; next.rung != 1 {
				t.Errorf("the next is rung for %d times", next.rung)
			}
			if _, err := all[i+1].look(h.Context()); !errors.Is(err, lock.ErrWaiting) {
				t.Errorf("the next: %v", err)
			}
		}
		if _, waiters := h.inStore(); waiters != 1 {
			t.Errorf("%d wait in the store", waiters)
		}
		beside := b.waits(exclusive())
		b.close()
		synctest.Wait()
		for _, w := range []*belled{all[2], beside} {
			if w.rung != 1 {
				t.Errorf("rung %d times", w.rung)
			}
			if _, err := w.look(h.Context()); !errors.Is(err, lock.ErrLeaseLost) {
				t.Errorf("got %v", err)
			}
		}
		if len(b.members) != 0 {
			t.Errorf("%d members are left", len(b.members))
		}
		a.give(g)
		a.close()
	})
}

// TestBellOfANestedWait: who holds something else gets a place of its own in the store in time,
// where other sidecars see it wait.
func TestBellOfANestedWait(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 9})
		g := s.take(exclusive())
		q := exclusive()
		q.Nested = true
		w := s.waits(q)
		if _, waiters := h.inStore(); waiters != 0 {
			t.Errorf("%d wait in the store", waiters)
		}
		time.Sleep(apartAfter)
		synctest.Wait()
		if w.rung != 1 {
			t.Errorf("rung %d times", w.rung)
		}
		if _, err := w.look(h.Context()); !errors.Is(err, lock.ErrWaiting) {
			t.Errorf("got %v", err)
		}
		if _, waiters := h.inStore(); waiters != 1 {
			t.Errorf("%d wait in the store", waiters)
		}
		s.give(g)
		s.give(w.has())
		s.close()
	})
}
