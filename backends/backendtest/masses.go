package backendtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// This file is about the laws that every resource has a budget and that work in
// the store is bounded: what one sidecar does with many holds, or what many do
// with one resource, does not hold up others.

const (
	massOfHolds = 20_000 // of one lease
	longName    = 200    // bytes of each name
	crowd       = 10_000 // readers, and waiters, of one resource

	// Where the whole takes long.
	fewerHolds   = 6_000 // with names of more than a MiB, which no store has in one request
	smallerCrowd = 6_000 // more than sqllock counts in a heartbeat
)

// full has all tests run with the whole of these numbers, on every store: `make test-full`.
var full = os.Getenv("LOCKSIDECAR_TEST_FULL") != ""

// whole is the first number where the store is quick or all tests run with the whole, and
// else the second.
func (e *env) whole(all, fewer int) int {
	if q, ok := e.h.(Quick); full || ok && q.Quick() {
		return all
	}
	return fewer
}

// crowd is how many readers, or waiters, a crowd has.
func (e *env) crowd() int {
	n := e.mass(e.whole(crowd, smallerCrowd))
	if c, ok := e.h.(Crowder); ok && !full {
		n = min(n, c.Crowd())
	}
	return n
}

// massTTL is that of a lease with many holds: a store may take the fewer the shorter it is.
func (e *env) massTTL() time.Duration {
	if full {
		return max(10*time.Second, e.h.TTL())
	}
	return max(5*time.Second, e.h.TTL())
}

// massName is the name of one of many resources.
func (e *env) massName(i int) lock.Resource {
	name := fmt.Sprintf("%smass/%05d/", e.prefix, i)
	if e.limits.LongNames == "" {
		name += strings.Repeat("x", max(longName-len(name), 0))
	}
	return lock.Resource(name)
}

// takeMass takes many resources.
func (e *env) takeMass(s *sidecar, many int) (n int) {
	e.Helper()
	n = e.mass(many)
	began := time.Now()
	e.several(n, func(i int) error {
		return e.take(s, e.massName(i), lock.Exclusive)
	})
	e.Logf("%d holds were taken in %s", n, time.Since(began))
	return n
}

// pulse is another sidecar that takes and releases a resource of its own all the
// time. stop checks that it was never held up for long.
func (e *env) pulse() (stop func()) {
	s := e.sidecar()
	var over atomic.Bool
	var worst time.Duration
	done := make(chan struct{})
	e.tasks.Go(func() {
		defer close(done)
		for !over.Load() && e.ctx.Err() == nil {
			began := time.Now()
			late := func(err error) bool { // on a busy machine an answer may be
				return errors.Is(err, lock.ErrUnavailable) && time.Since(began) < slack
			}
			q := request(e.name("pulse"), lock.Exclusive)
			_, err := s.Acquire(e.ctx, q)
			for late(err) {
				_, err = s.Acquire(e.ctx, q)
			}
			if err == nil {
				err = s.Release(e.ctx, q.Resource, q.ID)
			}
			for late(err) {
				if err = s.Release(e.ctx, q.Resource, q.ID); errors.Is(err, lock.ErrNotHolder) {
					err = nil // it was released by the one whose answer did not come
				}
			}
			if err != nil {
				if e.ctx.Err() == nil && !e.Failed() { // a test that fails ends leases before ctx
					e.Errorf("a pair of another sidecar: %v", err)
				}
				return
			}
			worst = max(worst, time.Since(began))
			time.Sleep(5 * time.Millisecond)
		}
	})
	return sync.OnceFunc(func() {
		over.Store(true)
		<-done
		if worst > slack {
			e.slow("another sidecar was held up for %s", worst)
		}
		e.Logf("the slowest pair of another sidecar took %s", worst)
	})
}

// quick does something that must not take long, whatever else is in the store.
func (e *env) quick(what string, f func()) {
	e.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > patience {
		e.slow("%s took %s", what, took)
	} else {
		e.Logf("%s took %s", what, took)
	}
}

// testMassClosed: one lease has many holds with long names, and is closed.
func testMassClosed(e *env) {
	a, b := e.sidecar(), e.sidecar()
	n := e.takeMass(a, e.whole(massOfHolds, fewerHolds))
	e.quick("a heartbeat", func() {
		if err := e.answered(func() error { return a.beat(e.ctx) }); err != nil {
			e.Errorf("Heartbeat: %v", err)
		}
	})
	w := e.queue(b, e.massName(n/2), lock.Exclusive)
	stop := e.pulse()
	began := time.Now()
	if err := a.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
	e.Logf("Close took %s", time.Since(began))
	e.release(b, w.granted())
	stop()
}

// testMassRefused: one lease has as many holds as the store takes of one. It is refused
// another, and may have it when one is released.
func testMassRefused(e *env) {
	a, b := e.sidecar(), e.sidecar()
	n := e.takeMass(a, massOfHolds)
	q := request(e.name("more"), lock.Exclusive)
	_, err := a.Acquire(e.ctx, q)
	if limit := (*lock.LimitError)(nil); !errors.As(err, &limit) || limit.Max != n {
		e.Errorf("one hold more than %d: got %v, want a LimitError that says so", n, err)
	}
	e.notHolder("Release of what was refused", a.Release(e.ctx, q.Resource, q.ID))
	e.holds(b.b, q.Resource, nil, nil)
	first := e.get(b.b, e.massName(0)).Holders[0]
	e.release(a, lock.Grant{Resource: e.massName(0), ID: first.ID})
	e.release(a, e.acquire(a, q.Resource, lock.Exclusive))
	if err := a.Close(e.ctx); err != nil {
		e.Errorf("Close: %v", err)
	}
}

// limitsHolds is what testMassRefused needs.
func limitsHolds(h Harness) (capability string, has bool) {
	l, ok := h.(Limited)
	return "Limited in the number of holds", ok && l.Limits().Holds > 0
}

// testMassExpires: and it dies.
func testMassExpires(e *env) {
	b := e.sidecar()
	dead := e.lease(e.massTTL())
	n := e.takeMass(dead, e.whole(massOfHolds, fewerHolds))
	middle, first := e.queue(b, e.massName(n/2), lock.Exclusive), e.queue(b, e.massName(0), lock.Exclusive)
	stop := e.pulse()
	e.release(b, e.inTime(dead, middle))
	e.release(b, e.inTime(dead, first)) // a store of several parts may end them one after the other
	e.release(b, e.start(b, request(e.massName(n-1), lock.Exclusive)).granted())
	e.quick("a list", func() { e.list(b.b, e.prefix, lock.Page{Limit: lock.MaxPage}) })
	stop()
	e.staysDead(dead)
}

// testMassRestart: and the server is restarted. It knows all holds or none.
func testMassRestart(e *env) {
	a := e.lease(e.massTTL())
	n := e.takeMass(a, e.whole(massOfHolds, fewerHolds))
	e.h.(Restarter).Restart(e.TB)
	err := e.answered(func() error { return a.beat(e.ctx) })
	if err != nil && !errors.Is(err, lock.ErrLeaseLost) {
		e.Fatalf("Heartbeat after a restart: %v", err)
	}
	if err == nil {
		const some = 100 // of all
		e.several(n/some, func(i int) error {
			q := request(e.massName(i*some), lock.Exclusive)
			q.Try = true
			if g, err := a.Acquire(e.ctx, q); err == nil && !a.toldOfLossOn(q.Resource) { // a slow server may take longer than it takes to lose some
				return fmt.Errorf("a try of what is held was granted: %+v", g)
			}
			return nil
		})
	}
	// Where the server has no time yet to end all of it at once, the lease runs out.
	if err := a.Close(e.ctx); err != nil && !errors.Is(err, lock.ErrLeaseLost) && !errors.Is(err, lock.ErrUnavailable) {
		e.Errorf("Close: %v", err)
	}
	b := e.lease(e.h.TTL()) // waits as long as the store must not grant
	w := e.start(b, request(e.massName(0), lock.Exclusive))
	e.release(b, w.granted())
}

// waiters tells how many wait for a resource. A status has each of them, which takes long
// where there are many, so where the store has a queue somebody waits there for a while
// and is told the place, if the store tells it; -1: that was not long enough.
func (e *env) waiters(by *sidecar, r lock.Resource, m lock.Mode, wait time.Duration) int {
	e.Helper()
	if !e.ordered() {
		time.Sleep(wait)
		return len(e.get(by.b, r).Waiters)
	}
	ctx, cancel := context.WithTimeout(e.ctx, wait)
	defer cancel()
	q := request(r, m)
	_, err := by.Acquire(ctx, q)
	var held *lock.HeldError
	if errors.Is(err, lock.ErrUnavailable) { // its end had no answer in time
		err = e.answered(func() error { return by.Release(e.ctx, r, q.ID) })
		if err == nil || errors.Is(err, lock.ErrNotHolder) {
			return -1
		}
	}
	if !errors.As(err, &held) {
		e.Fatalf("Acquire behind a crowd: got %v, want a HeldError", err)
	}
	if held.Position == 0 { // the store does not tell places as far behind
		return len(e.get(by.b, r).Waiters)
	}
	return held.Position - 1
}

// crowdOfWaiters begins to acquire a resource many times, and returns when the
// store has all of them in the queue, as another sidecar finds out. All must end with want.
func (e *env) crowdOfWaiters(s, by *sidecar, r lock.Resource, m lock.Mode, want error) (n int, ended *sync.WaitGroup) {
	e.Helper()
	n = e.crowd()
	ended = new(sync.WaitGroup)
	began := time.Now()
	var complain sync.Once // of many the same
	for range n {
		q := request(r, m)
		ended.Go(func() {
			err := persist(e.ctx, func() error { _, err := s.Acquire(e.ctx, q); return err })
			if !errors.Is(err, want) && e.ctx.Err() == nil {
				complain.Do(func() { e.Errorf("Acquire by one of a crowd: got %v, want %v", err, want) })
			}
		})
	}
	for wait := 200 * time.Millisecond; ; {
		there := e.waiters(by, r, m, wait)
		if there >= n {
			break
		}
		if there < 0 {
			wait = min(2*wait, slack)
		}
		e.goOn()
		if time.Since(began) > 3*patience {
			e.Fatalf("after %s the store has only %d of %d waiters", time.Since(began), there, n)
		}
	}
	e.Logf("%d waiters were in the queue after %s", n, time.Since(began))
	return n, ended
}

// testCrowdOnOne: many readers hold a resource and as many writers wait for it.
// Whoever has to do with it, or with another, does not wait for them.
func testCrowdOnOne(e *env) {
	readers, waiters, b := e.sidecar(), e.sidecar(), e.sidecar()
	r := e.name("r")
	first := e.acquire(readers, r, lock.Shared)
	e.several(e.crowd()-1, func(int) error {
		return e.take(readers, r, lock.Shared)
	})
	stop := e.pulse()
	_, ended := e.crowdOfWaiters(waiters, b, r, lock.Exclusive, lock.ErrLeaseLost)
	e.quick("a refused try", func() { e.refused(b, r, lock.Exclusive) })
	e.quick("a release by a reader", func() { e.release(readers, first) })
	began := time.Now()
	e.get(b.b, r) // which is as long as the queue
	e.Logf("a look took %s", time.Since(began))
	last := e.start(b, request(r, lock.Exclusive))
	last.queued()
	e.quick("a cancelled wait", func() {
		last.cancel()
		<-last.done
	})
	for _, s := range []*sidecar{waiters, readers} {
		began = time.Now()
		if err := s.Close(e.ctx); err != nil {
			e.Errorf("Close: %v", err)
		}
		e.Logf("Close took %s", time.Since(began))
	}
	ended.Wait()
	e.release(b, e.start(b, request(r, lock.Exclusive)).granted())
	stop()
}

// testCrowdGranted: one release grants many readers.
func testCrowdGranted(e *env) {
	a, readers := e.sidecar(), e.sidecar()
	r := e.name("r")
	g := e.acquire(a, r, lock.Exclusive)
	stop := e.pulse()
	n, ended := e.crowdOfWaiters(readers, a, r, lock.Shared, nil)
	began := time.Now()
	e.quick("the release", func() { e.release(a, g) })
	ended.Wait()
	e.Logf("%d readers were granted in %s", n, time.Since(began))
	e.refused(a, r, lock.Exclusive)
	if err := readers.Close(e.ctx); err != nil {
		e.Errorf("Close: %v", err)
	}
	e.release(a, e.acquire(a, r, lock.Exclusive))
	stop()
}
