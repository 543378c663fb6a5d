package arbiter

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// Who learns in the store who was in the way says first that it may block.
func TestEndOfAWaitSaysThatItBlocks(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		first := a.ask(exclusive())
		said := false
		a.way.beforeGet = func() {
			if !said {
				t.Error("the store is asked without a word")
			}
		}
		ctx, cancel := context.WithCancel(lock.WithBlocking(h.Context(), func() { said = true }))
		cancel()
		if _, err := a.Acquire(ctx, exclusive()); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		first.cancel()
		synctest.Wait()
		b.give(g)
		a.close()
		b.close()
	})
}

// givesUpInVain loses answers to Withdraw.
type givesUpInVain struct {
	leasekit.Driver
	times *int
}

func (d givesUpInVain) Describe(ctx context.Context, r leasekit.Ref, owner string) error {
	return d.Driver.(leasekit.Teller).Describe(ctx, r, owner)
}

func (d givesUpInVain) Withdraw(ctx context.Context, w leasekit.Withdrawal) (leasekit.Withdrawn, error) {
	found, err := d.Driver.Withdraw(ctx, w)
	if *d.times > 0 {
		*d.times--
		return found, lock.ErrUnavailable
	}
	return found, err
}

// A try that has waited a moment for what may be parked is a try, also when it had to be
// given up twice.
func TestTryThatIsGivenUpTwice(t *testing.T) {
	inHouse(t, func(h *house) {
		b := h.side(Options{Turns: 9})
		g := b.take(exclusive())
		lose := 1
		local := New(h.store, Options{Turns: 9, Clock: h.clock})
		inner, err := h.store.OpenThrough(h.Context(), lock.LeaseOptions{TTL: ttl}, h.clock, func(d leasekit.Driver) leasekit.Driver {
			return givesUpInVain{d, &lose}
		})
		if err != nil {
			t.Fatal(err)
		}
		a := start(h.Context(), local, inner, lock.LeaseOptions{TTL: ttl})
		go func() {
			for range a.Events() {
			}
		}()
		q := try(exclusive())
		if _, err := a.Acquire(h.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if _, err := a.Acquire(h.Context(), q); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("again: got %v", err)
		}
		if err := a.Close(h.Context()); err != nil {
			t.Error(err)
		}
		b.give(g)
		b.close()
	})
}

// The place in the queue that the end of a wait names counts those of other sidecars, too.
func TestPlaceBehindOthers(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		q := exclusive()
		q.Direct = true
		other := b.ask(q)
		first, second := a.ask(exclusive()), a.ask(exclusive())
		second.cancel()
		synctest.Wait()
		var held *lock.HeldError
		if !errors.As(second.err, &held) || held.Position != 3 {
			t.Errorf("got %+v", second.err)
		}
		b.give(g)
		h.granted(other)(other, first)
		b.give(other.g)
		h.granted(other, first)(other, first)
		a.give(first.g)
		a.close()
		b.close()
	})
}

// unheard gets no push that somebody stands behind a hold.
type unheard struct{ leasekit.Driver }

func (d unheard) Describe(ctx context.Context, r leasekit.Ref, owner string) error {
	return d.Driver.(leasekit.Teller).Describe(ctx, r, owner)
}

func (d unheard) Listen(ctx context.Context, push func(leasekit.Push)) {
	d.Driver.Listen(ctx, func(p leasekit.Push) {
		if p.Kind != leasekit.Contended {
			push(p)
		}
	})
}

// unheardOf opens a lease with an arbiter that gets no such push.
func (h *house) unheardOf(o Options) *side {
	h.Helper()
	o.Clock = h.clock
	w := &way{}
	inner, err := h.store.OpenThrough(h.Context(), lock.LeaseOptions{TTL: ttl}, h.clock, func(d leasekit.Driver) leasekit.Driver { return unheard{d} })
	if err != nil {
		h.Fatal(err)
	}
	w.Lease = inner
	s := &side{h: h, Lease: start(h.Context(), New(h.store, o), w, lock.LeaseOptions{TTL: ttl}), way: w, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for range s.Events() {
		}
	}()
	return s
}

// Where the news of a try is lost, what the store shows as parked is waited for longer than
// what may be in use.
func TestTryOfWhatIsSeenToBeParked(t *testing.T) {
	inHouse(t, func(h *house) {
		const park = 450 * time.Millisecond
		a, b := h.unheardOf(Options{Turns: 9, Park: park}), h.side(Options{Turns: 9})
		a.parks()
		before := h.clock()
		time.Sleep(2 * shownAfter)
		g, err := b.Acquire(h.Context(), try(exclusive()))
		if took := h.clock() - before; err != nil || took != park {
			t.Fatalf("%v after %v", err, took)
		}
		b.give(g)
		a.close()
		b.close()
	})
}

// A nested request that gets a place of its own just as the one that led its cohort leaves
// does not leave the cohort's place in the store to nobody.
func TestPlaceThatNobodyNeeds(t *testing.T) {
	for range 40 { // which of the two is first is by chance
		inHouse(t, func(h *house) {
			a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
			g := b.take(exclusive())
			first := a.ask(exclusive())
			time.AfterFunc(apartAfter, first.cancel)
			nested := exclusive()
			nested.Nested = true
			second := a.ask(nested)
			time.Sleep(apartAfter + time.Millisecond)
			synctest.Wait()
			if errors.Is(first.err, lock.ErrUnavailable) { // then the caller gives it up
				if err := a.Release(h.Context(), "r", first.q.ID); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
			synctest.Wait()
			if _, waiters := h.inStore(); waiters != 1 {
				t.Errorf("%d wait in the store, want one; the first got %v", waiters, first.err)
			}
			b.give(g)
			h.granted(second)(first, second)
			a.give(second.g)
			synctest.Wait()
			if holders, waiters := h.inStore(); holders+waiters != 0 {
				t.Errorf("the store still has %d holders and %d waiters", holders, waiters)
			}
			a.close()
			b.close()
		})
	}
}
