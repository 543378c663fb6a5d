package backendtest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// loadTime is how long a test puts load on the store.
const loadTime = 1500 * time.Millisecond

// witness detects, without the store, that a lock did not exclude. Whoever is
// granted enters, and exits before it lets go.
type witness struct {
	t                testing.TB
	readers, writers atomic.Int64
	together         atomic.Int64 // the most readers at a time
	fence            atomic.Int64 // the largest of an exclusive grant
	value            atomic.Int64 // counted up in two steps, so that a second writer would spoil it
	writes           atomic.Int64
}

func (g *witness) enter(grant lock.Grant) {
	if grant.Mode == lock.Shared {
		n := g.readers.Add(1)
		if w := g.writers.Load(); w != 0 {
			g.t.Errorf("broken law: a reader beside %d writers on %q", w, grant.Resource)
		}
		if n > g.together.Load() {
			g.together.Store(n)
		}
		if last := g.fence.Load(); int64(grant.Fence) < last {
			g.t.Errorf("broken law: a shared grant of %q has fence %d after %d", grant.Resource, grant.Fence, last)
		}
		return
	}
	if w, r := g.writers.Add(1), g.readers.Load(); w != 1 || r != 0 {
		g.t.Errorf("broken law: a writer beside %d writers and %d readers on %q", w-1, r, grant.Resource)
	}
	if last := g.fence.Swap(int64(grant.Fence)); int64(grant.Fence) <= last {
		g.t.Errorf("broken law: an exclusive grant of %q has fence %d after %d", grant.Resource, grant.Fence, last)
	}
	v := g.value.Load()
	runtime.Gosched()
	g.value.Store(v + 1)
	g.writes.Add(1)
}

func (g *witness) exit(m lock.Mode) {
	if m == lock.Shared {
		g.readers.Add(-1)
	} else {
		g.writers.Add(-1)
	}
}

// downgrade is for a writer that is about to become a reader.
func (g *witness) downgrade() {
	g.readers.Add(1)
	g.writers.Add(-1)
}

func (g *witness) check() {
	g.t.Helper()
	if v, n := g.value.Load(), g.writes.Load(); v != n {
		g.t.Errorf("%d increments under the lock made %d", n, v)
	}
}

// load runs workers, spread over the sidecars, until the time is over or one of
// them fails the test.
func (e *env) load(d time.Duration, ss []*sidecar, workers int, work func(s *sidecar, i int) error) {
	e.Helper()
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for w := range workers {
		wg.Go(func() {
			for i := 0; time.Now().Before(end) && !e.Failed(); i++ {
				if err := work(ss[w%len(ss)], w+i*workers); err != nil {
					e.Errorf("worker %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	e.goOn()
}

// persist does a request again, with the same id, for as long as the store gives no answer:
// with everything that runs beside, it may not come in time.
func persist(ctx context.Context, f func() error) error {
	for {
		err := f()
		if !errors.Is(err, lock.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// leave ends a hold, or what may have become one.
func (e *env) leave(s *sidecar, r lock.Resource, id lock.HoldID) error {
	ctx, cancel := context.WithTimeout(e.ctx, patience)
	defer cancel()
	unsure := false
	err := persist(ctx, func() error {
		err := s.Release(ctx, r, id)
		unsure = unsure || errors.Is(err, lock.ErrUnavailable)
		return err
	})
	if unsure && errors.Is(err, lock.ErrNotHolder) {
		return nil
	}
	return err
}

// testExclusionUnderLoad: many want to write the same.
func testExclusionUnderLoad(e *env) {
	r := e.name("r")
	g := &witness{t: e.TB}
	e.load(loadTime, e.sidecars(3), 12, func(s *sidecar, _ int) error {
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		q := request(r, lock.Exclusive)
		var grant lock.Grant
		if err := persist(ctx, func() (err error) { grant, err = s.Acquire(ctx, q); return err }); err != nil {
			return err
		}
		g.enter(grant)
		g.exit(lock.Exclusive)
		return e.leave(s, r, grant.ID)
	})
	g.check()
	if g.writes.Load() == 0 {
		e.Error("nobody was granted anything")
	}
	e.Logf("%d grants in %s", g.writes.Load(), loadTime)
}

// testSharingUnderLoad: many readers and some writers on a few resources, and
// some of them do not wait long.
func testSharingUnderLoad(e *env) {
	witnesses := []*witness{{t: e.TB}, {t: e.TB}, {t: e.TB}}
	var gaveUp atomic.Int64
	e.load(loadTime, e.sidecars(3), 18, func(s *sidecar, i int) error {
		k := i % len(witnesses)
		q := request(e.name(fmt.Sprint(k)), lock.Shared)
		if i%5 == 0 {
			q.Mode = lock.Exclusive
		}
		wait := patience
		if i%7 == 0 {
			wait = time.Duration(i%5) * time.Millisecond
		}
		q.Try = i%11 == 0
		ctx, cancel := context.WithTimeout(e.ctx, wait)
		defer cancel()
		var grant lock.Grant
		err := persist(ctx, func() (err error) { grant, err = s.Acquire(ctx, q); return err })
		if wait != patience && errors.Is(err, lock.ErrUnavailable) { // given up, and nobody has said that it is
			if err = e.leave(s, q.Resource, q.ID); err == nil || errors.Is(err, lock.ErrNotHolder) {
				err = context.DeadlineExceeded
			}
		}
		if wait != patience && errors.Is(err, context.DeadlineExceeded) || q.Try && errors.Is(err, lock.ErrHeld) {
			gaveUp.Add(1)
			return nil
		}
		if err != nil {
			return err
		}
		witnesses[k].enter(grant)
		time.Sleep(time.Millisecond)
		witnesses[k].exit(q.Mode)
		return e.leave(s, q.Resource, q.ID)
	})
	var together, writes int64
	for _, g := range witnesses {
		g.check()
		together = max(together, g.together.Load())
		writes += g.writes.Load()
	}
	if together < 2 || writes == 0 {
		e.slow("at most %d readers shared a resource, and %d writes were done", together, writes)
	}
	e.Logf("%d writes, up to %d readers together, %d gave up", writes, together, gaveUp.Load())
}

// testCancelRaces cancels waits at about the moment of their grant. Whichever
// comes first: the next in the queue gets the lock, and nothing is left.
func testCancelRaces(e *env) {
	ss := e.sidecars(2)
	var granted, cancelled atomic.Int64
	e.load(loadTime, ss, 4, func(s *sidecar, i int) error {
		r := e.name(fmt.Sprint(i % 4)) // each worker has its own
		ctx, cancel := context.WithTimeout(e.ctx, patience)
		defer cancel()
		q := request(r, lock.Exclusive)
		if err := persist(ctx, func() error { _, err := s.Acquire(ctx, q); return err }); err != nil {
			return fmt.Errorf("holder: %w", err)
		}
		racing, race := context.WithCancel(ctx)
		defer race()
		racer, next := make(chan error, 1), make(chan error, 1)
		go func() { racer <- e.takeAndRelease(racing, s, r, &granted, &cancelled) }()
		go func() { next <- e.takeAndRelease(ctx, ss[i/4%2], r, &granted, &cancelled) }()
		time.Sleep(time.Duration(i/4%4) * time.Millisecond / 2) // so that they are in the queue, or not yet
		released := make(chan error, 1)
		go func() { released <- e.leave(s, r, q.ID) }()
		if i/4%3 > 0 {
			time.Sleep(time.Duration(i%10) * 100 * time.Microsecond)
		}
		race()
		if err := errors.Join(<-released, <-racer, <-next); err != nil {
			return err
		}
		var st lock.Status
		err := persist(ctx, func() (err error) { st, err = s.b.Get(ctx, r); return err })
		if err != nil || len(st.Holders)+len(st.Waiters) > 0 {
			return fmt.Errorf("left behind: %+v, %w", st, err)
		}
		return nil
	})
	e.Logf("%d granted, %d cancelled", granted.Load(), cancelled.Load())
}

// takeAndRelease is content with a grant, and with the end of its wait.
func (e *env) takeAndRelease(waiting context.Context, s *sidecar, r lock.Resource, granted, cancelled *atomic.Int64) error {
	q := request(r, lock.Exclusive)
	err := persist(waiting, func() error { _, err := s.Acquire(waiting, q); return err })
	if waiting.Err() != nil && errors.Is(err, lock.ErrUnavailable) { // given up, and nobody has said that it is
		if err = e.leave(s, r, q.ID); err == nil || errors.Is(err, lock.ErrNotHolder) { //nolint:contextcheck // its own wait is over
			err = context.Canceled
		}
	}
	if waiting.Err() != nil && errors.Is(err, context.Canceled) {
		cancelled.Add(1)
		return nil
	}
	if err != nil {
		return fmt.Errorf("acquire: %w", err)
	}
	granted.Add(1)
	return e.leave(s, r, q.ID) //nolint:contextcheck // its own wait is over
}
