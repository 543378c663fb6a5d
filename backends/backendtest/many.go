package backendtest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// many is how many holds a lease has in tests of large numbers.
const many = 2000

// acquireMany takes n resources, several at a time.
func (e *env) acquireMany(s *sidecar, n int) {
	e.Helper()
	e.several(n, func(i int) error {
		return e.take(s, e.name(fmt.Sprintf("many/%05d", i)), lock.Exclusive)
	})
}

// take acquires one of many, and asks again where the store gave no answer: it may be busy
// with the others.
func (e *env) take(s *sidecar, r lock.Resource, m lock.Mode) error {
	q := request(r, m)
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		_, err := s.Acquire(e.ctx, q)
		if !errors.Is(err, lock.ErrUnavailable) || time.Now().After(end) {
			return s.blame(err)
		}
	}
}

// several does something n times, several at a time, and ends the test when it fails.
func (e *env) several(n int, do func(i int) error) {
	e.Helper()
	var wg sync.WaitGroup
	const at = 32
	for w := range at {
		wg.Go(func() {
			for i := w; i < n && !e.Failed(); i += at {
				if err := do(i); err != nil {
					e.Errorf("request %d of %d: %v", i, n, err)
				}
			}
		})
	}
	wg.Wait()
	if e.Failed() {
		e.FailNow()
	}
}

// testManyHolds: all holds of a lease live by one heartbeat, and end with one Close.
func testManyHolds(e *env) {
	a, b := e.sidecar(), e.sidecar()
	many := e.holdsOf(many)
	e.acquireMany(a, many)
	if err := e.answered(func() error { return a.beat(e.ctx) }); err != nil {
		e.Errorf("Heartbeat: %v", err)
	}
	var seen int
	var after lock.Resource
	for {
		page := e.list(b.b, e.prefix, lock.Page{After: after, Limit: lock.MaxPage})
		if len(page) == 0 {
			break
		}
		for _, st := range page {
			if st.Resource <= after || len(st.Holders) != 1 || st.Holders[0].Lease != a.idAt(st.Resource) {
				e.Fatalf("List has %+v after %q", st, after)
			}
			after = st.Resource
			seen++
		}
	}
	if seen != many {
		e.Errorf("List has %d of %d resources", seen, many)
	}
	w := e.queue(b, after, lock.Exclusive)
	start := time.Now()
	if err := a.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
	e.Logf("Close of %d holds took %s", many, time.Since(start))
	e.release(b, w.granted())
	e.release(b, e.acquire(b, e.name("many/00000"), lock.Exclusive))
}

// testHeartbeatCost: a heartbeat costs the store the same for some holds and for
// many. It begins with some and not with one, because a store that is made of
// several may need a request for each part that is in use.
func testHeartbeatCost(e *env) {
	counter := e.h.(CommandCounter)
	a := e.sidecar()
	const beats = 10
	cost := func() int64 {
		before := counter.Commands(e.TB)
		for range beats {
			if err := a.beat(e.ctx); err != nil {
				e.Fatalf("Heartbeat: %v", err)
			}
		}
		return counter.Commands(e.TB) - before
	}
	e.release(a, e.acquire(a, e.name("first"), lock.Exclusive)) // whatever is done only once
	many := e.holdsOf(many)
	some := many / 4
	e.acquireMany(a, some)
	few := min(cost(), cost()) // the first may have what is still done for those requests
	if err := a.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
	a = e.sidecar()
	e.acquireMany(a, many)
	// Background work of server and driver may add a little, and more just after the requests.
	var all int64
	pause := 50 * time.Millisecond
	for end := time.Now().Add(patience); ; pause = min(2*pause, time.Second) {
		if all = cost(); all <= 3*few/2+50 {
			break
		}
		if time.Now().After(end) {
			e.Errorf("%d heartbeats cost %d store commands with %d holds and %d with %d", beats, few, some, all, many)
			break
		}
		time.Sleep(pause)
	}
	e.Logf("%d heartbeats cost %d store commands with %d holds and %d with %d", beats, few, some, all, many)
	if err := a.Close(e.ctx); err != nil {
		e.Fatalf("Close: %v", err)
	}
}
