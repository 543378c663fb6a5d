package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

const (
	// patience is how long a test waits for what must happen. Nothing but a
	// failing test waits so long, so it is generous.
	patience = time.Minute
	// longTTL is for leases that must not end while a test runs.
	longTTL = 30 * time.Second
	// slack is the room for a loaded machine where a test measures time.
	slack = 10 * time.Second
)

// env is what one test works with. Its methods end the test when the store does
// not do what they expect, so they are for the goroutine of the test.
type env struct {
	testing.TB // is attempt
	attempt    *attempt
	h          Harness
	limits     Limits
	ctx        context.Context // ends when the attempt is over
	prefix     string
	clock      lock.Clock // of the moments in events
	deaf       bool       // no push reaches any backend of the test
	severed    bool       // connections are ended, and a backend whose Close meets such a one may say so
	tasks      sync.WaitGroup
	leases     []*sidecar
	handles    map[lock.HandleKey]time.Time // until when each is good for sure
}

// timekeeper is a harness whose store has another clock than lock.BootTime: that
// of the tests that show what the suite catches.
type timekeeper interface{ Clock() lock.Clock }

// name gives a resource of this test.
func (e *env) name(s string) lock.Resource { return lock.Resource(e.prefix + s) }

// sharing reports whether the store has shared locks.
func (e *env) sharing() bool { return e.limits.Sharing == "" }

// ordered reports whether the store serves waiters in the order in which they came.
func (e *env) ordered() bool { return e.limits.Order == "" }

// modes are those that the store has.
func (e *env) modes() []lock.Mode {
	if e.sharing() {
		return []lock.Mode{lock.Exclusive, lock.Shared}
	}
	return []lock.Mode{lock.Exclusive}
}

// mass is a large number of holds: a tenth where tests are to be short, or where another
// run of the suite has the whole, less where time does not pass, and no more than the store
// takes.
func (e *env) mass(n int) int {
	if _, bubble := e.h.(timekeeper); bubble {
		return n / 200
	}
	if l, ok := e.h.(Lighter); ok && l.Lighter() && !full || testing.Short() && e.limits.Holds == 0 {
		return n / 10
	}
	return e.holdsOf(n)
}

// holdsOf is n, or as many holds as the store takes of one lease.
func (e *env) holdsOf(n int) int {
	if e.limits.Holds > 0 {
		return min(n, e.limits.Holds)
	}
	return n
}

// shared is for a request that would be a shared one for the sake of variety:
// where the store has none it is exclusive.
func (e *env) shared() lock.Mode { return e.modes()[len(e.modes())-1] }

// open gives a backend of its own.
func (e *env) open() lock.Backend {
	e.Helper()
	b := e.h.Open(e.TB)
	e.Cleanup(func() {
		if err := b.Close(); err != nil && !e.severed {
			e.Errorf("close backend: %v", err)
		}
	})
	if e.deaf {
		e.h.(WakeupDropper).DropWakeups(e.TB, b)
	}
	return b
}

// moment is when a moment of the store's events comes.
func (e *env) moment(until time.Duration) time.Time { return time.Now().Add(until - e.clock()) }

// eventually waits until f is true.
func (e *env) eventually(what string, f func() bool) {
	e.Helper()
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; !f(); pause = min(2*pause, 50*time.Millisecond) {
		e.goOn()
		if time.Now().After(deadline) {
			e.lasting()
			e.Fatalf("waited %s in vain until %s", patience, what)
		}
		time.Sleep(pause)
	}
}

// answered calls f until its outcome is known.
func (e *env) answered(f func() error) error {
	e.Helper()
	var err error
	e.eventually("the store answers", func() bool {
		err = f()
		return !errors.Is(err, lock.ErrUnavailable)
	})
	return err
}

// late is how much later than with pushes something may happen in this test.
func (e *env) late() time.Duration {
	if e.deaf {
		return e.h.Recheck()
	}
	return 0
}

func request(r lock.Resource, m lock.Mode) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: m, Owner: lock.Owner{PID: 4711, Session: "suite"}.Encode()}
}

// acquire takes what must be free.
func (e *env) acquire(s *sidecar, r lock.Resource, m lock.Mode) lock.Grant {
	e.Helper()
	q := request(r, m)
	q.Try = true
	g, err := e.try(s, q)
	if err != nil {
		e.Fatalf("Acquire(%s) of what is free: %v", m, s.blame(err))
	}
	e.is(g, q)
	return g
}

// try asks until the store answers: a busy machine may let it take too long.
func (e *env) try(s *sidecar, q lock.Request) (g lock.Grant, err error) {
	e.Helper()
	err = e.answered(func() (err error) {
		g, err = s.Acquire(e.ctx, q)
		return err
	})
	return g, err
}

// is checks a grant against its request.
func (e *env) is(g lock.Grant, q lock.Request) {
	e.Helper()
	if g.ID != q.ID || g.Resource != q.Resource || g.Mode != q.Mode || g.Fence <= 0 {
		e.Fatalf("got the grant %+v for the request %+v", g, q)
	}
}

// refused tries what must be taken, and gives what the store says about it.
func (e *env) refused(s *sidecar, r lock.Resource, m lock.Mode) *lock.HeldError {
	e.Helper()
	q := request(r, m)
	q.Try = true
	g, err := e.try(s, q)
	var held *lock.HeldError
	if !errors.Is(err, lock.ErrHeld) || !errors.As(err, &held) {
		e.lasting()
		e.Fatalf("try of a taken resource: got %+v, %v; want a HeldError with ErrHeld", g, s.blame(err))
	}
	return held
}

func (e *env) release(s *sidecar, g lock.Grant) {
	e.Helper()
	if err := e.tryRelease(s, g); err != nil {
		e.Fatalf("Release: %v", s.blame(err))
	}
}

// tryRelease asks until the store answers.
func (e *env) tryRelease(s *sidecar, g lock.Grant) error {
	e.Helper()
	tries := 0
	err := e.answered(func() error {
		tries++
		return s.Release(e.ctx, g.Resource, g.ID)
	})
	if tries > 1 && errors.Is(err, lock.ErrNotHolder) {
		return nil // it was released by an attempt whose answer did not come
	}
	return err
}

// waiter is an Acquire under way.
type waiter struct {
	e      *env
	s      *sidecar
	q      lock.Request
	cancel context.CancelFunc
	done   chan struct{}
	grant  lock.Grant
	err    error
	at     time.Time // when it returned
	kept   bool      // of Model: it was released, and its MinHold is not over
}

// start begins to acquire and does not wait for anything.
func (e *env) start(s *sidecar, q lock.Request) *waiter {
	ctx, cancel := context.WithCancel(e.ctx)
	w := &waiter{e: e, s: s, q: q, cancel: cancel, done: make(chan struct{})}
	e.tasks.Go(func() {
		defer cancel()
		defer close(w.done)
		w.grant, w.err = s.Acquire(ctx, q)
		w.at = time.Now()
	})
	return w
}

// queue begins to acquire and returns when the store has it in the queue.
func (e *env) queue(s *sidecar, r lock.Resource, m lock.Mode) *waiter {
	e.Helper()
	w := e.start(s, request(r, m))
	w.queued()
	return w
}

// queued waits until the store has w in the queue.
func (w *waiter) queued() {
	w.e.Helper()
	w.e.eventually("the request is in the queue", func() bool {
		w.pending()
		return slices.Contains(ids(w.e.get(w.s.b, w.q.Resource).Waiters), w.q.ID)
	})
}

// pending checks that Acquire has not returned.
func (w *waiter) pending() {
	w.e.Helper()
	select {
	case <-w.done:
		w.e.lasting()
		w.e.Fatalf("Acquire returned %+v, %v instead of waiting", w.grant, w.s.blame(w.err))
	default:
	}
}

// blocked checks that w waits, in the store's eyes too.
func (w *waiter) blocked() {
	w.e.Helper()
	w.pending()
	st := w.e.get(w.s.b, w.q.Resource)
	if !slices.Contains(ids(st.Waiters), w.q.ID) {
		w.e.lasting()
		w.e.Fatalf("the %s request %s does not wait any more: %+v", w.q.Mode, w.q.ID, st)
	}
}

func (w *waiter) wait() {
	w.e.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		w.e.goOn()
		w.e.lasting()
		st, err := w.s.b.Get(w.e.ctx, w.q.Resource)
		w.e.Fatalf("Acquire(%s) has not returned after %s; the store has %+v, %v", w.q.Mode, patience, st, err)
	}
}

// granted waits for the grant.
func (w *waiter) granted() lock.Grant {
	w.e.Helper()
	w.wait()
	if w.err != nil {
		w.e.Fatalf("Acquire(%s) by a waiter: %v", w.q.Mode, w.s.blame(w.err))
	}
	w.e.is(w.grant, w.q)
	return w.grant
}

// died waits for Acquire to say that the lease is over, without heartbeats. In a store that is made of several, the part that
// was asked may be over before the others are.
func (w *waiter) died() {
	w.e.Helper()
	w.wait()
	if _, several := w.s.Lease.(lock.Spread); !several || !errors.Is(w.err, lock.ErrPartLost) {
		w.failed(lock.ErrLeaseLost)
	}
}

// failed waits for Acquire to return the error.
func (w *waiter) failed(want error) error {
	w.e.Helper()
	w.wait()
	if !errors.Is(w.err, want) {
		w.e.Fatalf("Acquire(%s) by a waiter: got %+v, %v; want %v", w.q.Mode, w.grant, w.s.blame(w.err), want)
	}
	return w.err
}

func (e *env) get(b lock.Backend, r lock.Resource) lock.Status {
	e.Helper()
	var st lock.Status
	if err := e.answered(func() (err error) { st, err = b.Get(e.ctx, r); return err }); err != nil {
		e.Fatalf("Get: %v", err)
	}
	if st.Resource != r {
		e.Fatalf("Get(%q) answers for %q", r, st.Resource)
	}
	return st
}

func (e *env) list(b lock.Backend, prefix string, p lock.Page) (all []lock.Status) {
	e.Helper()
	if err := e.answered(func() (err error) { all, err = b.List(e.ctx, prefix, p); return err }); err != nil {
		e.Fatalf("List: %v", err)
	}
	return all
}

// holds checks who holds and who waits; holders may come in any order, and
// waiters too where the store has none.
func (e *env) holds(b lock.Backend, r lock.Resource, holders, waiters []lock.HoldID) lock.Status {
	e.Helper()
	st := e.get(b, r)
	got := slices.Sorted(slices.Values(ids(st.Holders)))
	want := slices.Sorted(slices.Values(holders))
	gotWaiters := ids(st.Waiters)
	if !e.ordered() {
		gotWaiters, waiters = slices.Sorted(slices.Values(gotWaiters)), slices.Sorted(slices.Values(waiters))
	}
	if !slices.Equal(got, want) || !slices.Equal(gotWaiters, waiters) {
		e.lasting()
		e.Fatalf("the store has holders %v and waiters %v, want %v and %v", ids(st.Holders), ids(st.Waiters), holders, waiters)
	}
	return st
}

// nothingLeft checks that no hold and no waiter of this test is in the store, nor
// anything that people do not see. What dead leases left may wait for a living one
// that clears it away, in its own time: nobody waits for that.
func (e *env) nothingLeft() {
	e.Helper()
	b := e.open()
	var left []string
	look := func() bool {
		left = nil
		for _, st := range e.list(b, e.prefix, lock.Page{Limit: lock.MaxPage}) {
			left = append(left, fmt.Sprintf("%q with holders %+v and waiters %+v", st.Resource, st.Holders, st.Waiters))
		}
		if in, ok := e.h.(Insider); ok && len(left) == 0 {
			left = in.Leftovers(e.TB, e.prefix)
		}
		return len(left) == 0
	}
	if look() {
		return
	}
	e.lease(longTTL)
	for end := time.Now().Add(2 * patience); !look(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			e.Errorf("left behind: %d, such as %s", len(left), strings.Join(left[:min(len(left), 3)], "; "))
			return
		}
	}
}

func ids(hs []lock.Holding) []lock.HoldID {
	var all []lock.HoldID
	for _, h := range hs {
		all = append(all, h.ID)
	}
	return all
}
