package arbiter

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 9 * time.Second // so that cohorts end after 3 s

// house is a store with sidecars, in fake time.
type house struct {
	*testing.T
	clock lock.Clock
	store *embedded.Store
}

func inHouse(t *testing.T, f func(*house)) {
	synctest.Test(t, func(t *testing.T) {
		h := &house{T: t, clock: lock.GoTime()}
		h.store = embedded.New(embedded.WithClock(h.clock))
		f(h)
		if left, err := h.store.List(t.Context(), "", lock.Page{}); err != nil || len(left) > 0 {
			t.Errorf("left in the store: %+v, %v", left, err)
		}
		if err := h.store.Close(); err != nil {
			t.Error(err)
		}
	})
}

// side is a sidecar: an arbiter with its lease, on the store by a way that can have faults.
type side struct {
	h *house
	*Lease
	way  *way
	told []lock.Event
	hear func(lock.Event) // optional
	done chan struct{}
}

func (h *house) side(o Options) *side {
	h.Helper()
	o.Clock = h.clock
	w := &way{}
	b := New(through{h.store, w}, o)
	l, err := b.OpenLease(h.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "side"})
	if err != nil {
		h.Fatal(err)
	}
	s := &side{h: h, Lease: l.(*Lease), way: w, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for e := range s.Events() {
			s.told = append(s.told, e)
			if s.hear != nil {
				s.hear(e)
			}
		}
	}()
	return s
}

func (s *side) close() {
	s.h.Helper()
	if err := s.Close(context.Background()); err != nil {
		s.h.Error(err)
	}
	<-s.done
}

// through is the store by a way.
type through struct {
	*embedded.Store
	w *way
}

func (b through) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	l, err := b.Store.OpenLease(ctx, o)
	b.w.Lease = l
	return b.w, err
}

func (b through) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	if b.w.beforeForce != nil {
		b.w.beforeForce()
	}
	return b.Store.ForceRelease(ctx, r, id, grace)
}

func (b through) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	if b.w.beforeGet != nil {
		b.w.beforeGet()
	}
	return b.Store.Get(ctx, r)
}

// way is the road to the store.
type way struct {
	lock.Lease
	mu     sync.Mutex
	deaf   bool // answers do not come
	after  func(*lock.Grant, *error)
	asked  []lock.HoldID
	waits  map[lock.HoldID]bool // and are asked for again
	last   lock.Request
	closed bool // the store cannot tell
	costly bool // and it costs something where it can
	guards func(lock.Request) bool

	beforeForce, beforeGet func()
	slow                   time.Duration // how long a Release is under way
	mute                   int           // so many descriptions have no answer, and are not carried out
	lossy                  *rand.Rand    // not nil: some answers do not come
}

func (w *way) TellsContended() bool { return !w.closed }

func (w *way) TellingCosts() bool { return w.costly }

func (w *way) Guards(q lock.Request) bool { return w.guards != nil && w.guards(q) }

func (w *way) Describe(ctx context.Context, r lock.Resource, id lock.HoldID, owner string) error {
	if w.mute > 0 {
		w.mute--
		return lock.ErrUnavailable
	}
	return w.Lease.(lock.Contender).Describe(ctx, r, id, owner)
}

func (w *way) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	w.mu.Lock()
	if !w.waits[q.ID] {
		w.asked, w.last = append(w.asked, q.ID), q
	}
	w.mu.Unlock()
	g, err := w.Lease.Acquire(ctx, q)
	w.mu.Lock()
	if w.waits == nil {
		w.waits = make(map[lock.HoldID]bool)
	}
	w.waits[q.ID] = errors.Is(err, lock.ErrWaiting)
	w.mu.Unlock()
	if errors.Is(err, lock.ErrWaiting) {
		return g, err
	}
	if w.deaf || w.lost() {
		return lock.Grant{}, lock.ErrUnavailable
	}
	if w.after != nil {
		w.after(&g, &err)
	}
	return g, err
}

func (w *way) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	time.Sleep(w.slow)
	err := w.Lease.Release(ctx, r, id)
	if w.deaf || w.lost() {
		return lock.ErrUnavailable
	}
	return err
}

func (w *way) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	err := w.Lease.Downgrade(ctx, r, id)
	if w.lost() {
		return lock.ErrUnavailable
	}
	return err
}

// lost tells whether an answer does not come.
func (w *way) lost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lossy != nil && w.lossy.IntN(10) == 0
}

func exclusive() lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Exclusive, Owner: lock.Owner{PID: 1}.Encode()}
}

func shared() lock.Request {
	q := exclusive()
	q.Mode = lock.Shared
	return q
}

func try(q lock.Request) lock.Request {
	q.Try = true
	return q
}

// take asks for what must be there at once.
func (s *side) take(q lock.Request) lock.Grant {
	s.h.Helper()
	g, err := s.Acquire(s.h.Context(), q)
	if err != nil {
		s.h.Fatalf("Acquire: %v", err)
	}
	return g
}

func (s *side) give(g lock.Grant) {
	s.h.Helper()
	if err := s.Release(s.h.Context(), "r", g.ID); err != nil {
		s.h.Fatalf("Release: %v", err)
	}
}

// call is an Acquire under way.
type call struct {
	q      lock.Request
	cancel context.CancelFunc
	over   bool
	g      lock.Grant
	err    error
}

func (s *side) ask(q lock.Request) *call {
	ctx, cancel := context.WithCancel(s.h.Context())
	c := &call{q: q, cancel: cancel}
	go func() {
		c.g, c.err = s.Acquire(ctx, q)
		c.over = true
	}()
	synctest.Wait()
	return c
}

// granted checks which of the calls have the lock.
func (h *house) granted(want ...*call) func(all ...*call) {
	synctest.Wait()
	return func(all ...*call) {
		h.Helper()
		for i, c := range all {
			if has := c.over && c.err == nil; has != slices.Contains(want, c) {
				h.Errorf("call %d: %+v, %v", i, c.g, c.err)
			}
		}
	}
}

func (h *house) inStore() (holders, waiters int) {
	st, err := h.store.Get(h.Context(), "r")
	if err != nil {
		h.Fatal(err)
	}
	return len(st.Holders), len(st.Waiters)
}

func TestParking(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Park: 200 * time.Millisecond, Turns: MaxTurns})
		s.give(s.take(exclusive()))
		if n, _ := h.inStore(); n != 0 {
			t.Error("a resource that has not come back is parked")
		}
		last := lock.Fence(0)
		for range 3 {
			g := s.take(exclusive())
			if g.Fence <= last {
				t.Errorf("broken law: fence %d after %d", g.Fence, last)
			}
			last = g.Fence
			s.give(g)
			time.Sleep(150 * time.Millisecond)
		}
		if n, _ := h.inStore(); n != 1 || len(s.way.asked) != 2 || s.b.Stats() != (Stats{Saved: 2, Parked: 1}) {
			t.Errorf("%d holds in the store, which was asked %d times; %+v", n, len(s.way.asked), s.b.Stats())
		}
		time.Sleep(51 * time.Millisecond)
		synctest.Wait()
		if n, _ := h.inStore(); n != 0 || s.b.Stats().Parked != 0 {
			t.Error("a hold is parked for longer than its time")
		}
		s.give(s.take(exclusive()))
		s.close() // with a hold that is parked
	})
}

// A cohort ends with its turns, and after a while, though nobody else is known to wait.
func TestCohortsEnd(t *testing.T) {
	inHouse(t, func(h *house) {
		s := h.side(Options{Turns: 3})
		g := s.take(exclusive())
		var calls []*call
		for range 5 {
			calls = append(calls, s.ask(exclusive()))
		}
		if _, waiters := h.inStore(); waiters != 1 || len(s.way.asked) != 2 {
			t.Errorf("%d wait in the store, which was asked %d times; want 1, by the fourth", waiters, len(s.way.asked))
		}
		for _, c := range calls {
			s.give(g)
			synctest.Wait()
			if !c.over || c.err != nil || c.g.Fence <= g.Fence {
				t.Fatalf("%+v, %v after %+v", c.g, c.err, g)
			}
			g = c.g
		}
		time.Sleep(3 * time.Second)
		late := s.ask(exclusive())
		if len(s.way.asked) != 3 {
			t.Error("a cohort takes members for longer than a third of the TTL")
		}
		s.give(g)
		h.granted(late)(late)
		s.give(late.g)
		s.close()
	})
}

// Who asks the store for all may go, and their place stays.
func TestPlaceStaysForOthers(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9}), h.side(Options{Turns: 9})
		g := b.take(exclusive())
		first, second := a.ask(exclusive()), a.ask(exclusive())
		other := b.ask(exclusive())
		first.cancel()
		synctest.Wait()
		var held *lock.HeldError
		if !errors.As(first.err, &held) || !errors.Is(held.Cause, context.Canceled) || len(held.Status.Holders) != 1 {
			t.Errorf("who went got %v", first.err)
		}
		b.give(g)
		h.granted(second)(second, other)
		a.give(second.g)
		h.granted(second, other)(second, other)
		b.give(other.g)
		third := a.ask(exclusive())
		h.granted(third)(third)
		a.give(third.g)
		a.close()
		b.close()
	})
}

func TestLastOfAllLeaves(t *testing.T) {
	inHouse(t, func(h *house) {
		a := h.side(Options{Turns: 9})
		g := a.take(exclusive())
		w := a.ask(shared())
		w.cancel()
		synctest.Wait()
		if _, waiters := h.inStore(); waiters != 0 || w.err == nil {
			t.Errorf("%d wait for nobody; %v", waiters, w.err)
		}
		a.give(g)
		a.close()
	})
}
