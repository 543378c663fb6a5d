package embedded

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

// Fences grow while the wall clock stands still, is set back, and goes on; and in
// a new store that begins when the wall clock has gone on.
func TestFencesGrowWhateverTheClockDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		clock := lock.GoTime()
		start := func() (*Store, lock.Lease) {
			s := New(WithClock(clock))
			s.wall = func() time.Time { return wall }
			return s, open(t, s)
		}
		s, l := start()
		var last lock.Fence
		next := func(what string) {
			t.Helper()
			g := acquire(t, l, "r", lock.Exclusive)
			if g.Fence <= last || g.Fence%lock.FenceRange != 0 {
				t.Errorf("%s: the fence %d follows %d", what, g.Fence, last)
			}
			last = g.Fence
			if err := l.Release(t.Context(), "r", g.ID); err != nil {
				t.Fatal(err)
			}
			if err := beat(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
		next("the first")
		if want := lock.FenceOf(wall.UnixMicro()); last != want {
			t.Errorf("the first fence is %d, want that of the wall clock, %d", last, want)
		}
		for range 3 {
			next("the clock stands still")
		}
		wall = wall.Add(-time.Hour)
		for range 3 {
			time.Sleep(time.Millisecond)
			next("an hour back")
		}
		wall = wall.Add(2 * time.Hour)
		next("on the way on")
		next("on")
		if want := lock.FenceOf(wall.UnixMicro()); last < want {
			t.Errorf("the fence %d is behind the wall clock, %d", last, want)
		}
		shut(t, l)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		s, l = start()
		before := last
		for range 3 {
			wall = time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC)
			if err := beat(t.Context(), l); err != nil {
				t.Fatal(err)
			}
			next("a clock that has lost its mind")
			wall = time.Date(2026, 1, 2, 5, 0, 0, 0, time.UTC)
			next("that comes back")
		}
		last = before
		shut(t, l)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wall = wall.Add(time.Second)
		s, l = start()
		next("after a restart")
		shut(t, l)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// crowd is a writer's hold with many readers behind it, or many readers with
// writers behind them.
const crowd = 10_000

// Law 10: everything works beside ten thousand, and all of them are served.
func TestCrowd(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		var wg sync.WaitGroup
		readers := make([]lock.Grant, crowd)
		for i := range readers {
			wg.Go(func() { readers[i] = acquire(t, b, "r", lock.Shared) })
		}
		synctest.Wait()
		st, err := s.Get(t.Context(), "r")
		if err != nil || len(st.Waiters) != crowd || len(st.Holders) != 1 {
			t.Fatalf("%d wait, %d hold, %v", len(st.Waiters), len(st.Holders), err)
		}
		if err := a.Release(t.Context(), "r", g.ID); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		for i := 1; i < crowd; i++ {
			if readers[i].Fence == readers[i-1].Fence {
				t.Fatal("broken law: a fence is there twice")
			}
		}
		for _, g := range readers[:crowd/2] {
			if err := b.Release(t.Context(), "r", g.ID); err != nil {
				t.Fatal(err)
			}
		}
		next := granted(t, s, a, "r")
		shut(t, b)
		at(t, "granted", next, s.clock())
		shut(t, a)
	})
}

// List never misses what is there all the time, whatever comes and goes beside it.
func TestListWhileOthersComeAndGo(t *testing.T) {
	s := New()
	defer s.Close()
	l, other := open(t, s), open(t, s)
	const n = 3 * listStep
	var fleeting []lock.Grant
	for i := range n {
		fleeting = append(fleeting, acquire(t, other, lock.Resource(fmt.Sprintf("fleeting/%d", i)), lock.Shared))
		acquire(t, l, lock.Resource(fmt.Sprintf("kept/%04d", i)), lock.Shared)
	}
	stop := make(chan struct{})
	var churn sync.WaitGroup
	churn.Go(func() {
		for i := 0; ; i = (i + 1) % n {
			select {
			case <-stop:
				return
			default:
			}
			if err := other.Release(t.Context(), fleeting[i].Resource, fleeting[i].ID); err != nil {
				t.Error(err)
				return
			}
			g, err := other.Acquire(t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: fleeting[i].Resource, Mode: lock.Shared})
			if err != nil {
				t.Error(err)
				return
			}
			fleeting[i] = g
		}
	})
	for range 10 {
		found, err := names(s, &s.listed, "kept/", "")
		if err != nil || len(found) != n {
			t.Errorf("%d of %d names, %v", len(found), n, err)
		}
	}
	close(stop)
	churn.Wait()
	shut(t, l)
	shut(t, other)
	s.empty(t)
}

// BenchmarkCrowd is what one call costs beside 10,000 readers and 10,000 waiters.
func BenchmarkCrowd(b *testing.B) {
	s := New()
	defer s.Close()
	store, err := s.OpenLease(b.Context(), lock.LeaseOptions{TTL: lock.MaxTTL})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close(b.Context())
	l := &lease{store: s, ttl: lock.MaxTTL}
	s.mu.Lock()
	var last *entry
	for i := range 2 * crowd {
		mode := lock.Shared
		if i >= crowd {
			mode = lock.Exclusive
		}
		last = s.put(s.resources["r"], l, lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: mode}, s.clock())
	}
	s.mu.Unlock()
	b.Run("Get", func(b *testing.B) {
		for b.Loop() {
			_, _ = s.look("r") // what is done under the mutex
		}
	})
	b.Run("Try", func(b *testing.B) {
		for b.Loop() {
			_, _ = store.Acquire(b.Context(), lock.Request{ID: "try", Resource: "r", Mode: lock.Exclusive, Try: true})
		}
	})
	b.Run("Withdraw", func(b *testing.B) {
		for b.Loop() {
			r := ref(last)
			if w, err := l.withdrawAndBack(r); err != nil || w != crowd {
				b.Fatal(w, err)
			}
			last = s.resources["r"].find(r.ID)
		}
	})
}

// withdrawAndBack gives up a place and takes the last one.
func (l *lease) withdrawAndBack(r leasekit.Ref) (position int, err error) {
	w, _, err := l.withdraw(r)
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	l.store.put(l.store.resources["r"], l, lock.Request{ID: r.ID, Resource: "r", Mode: lock.Exclusive}, l.store.clock())
	return w.Position, err
}

// Law 10: a release that grants thousands does it in steps, and lets others in
// between. Whoever comes meanwhile stands behind them.
func TestManyAreGrantedInSteps(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		g := acquire(t, a, "r", lock.Exclusive)
		var wg sync.WaitGroup
		for range crowd {
			wg.Go(func() { acquire(t, b, "r", lock.Shared) })
		}
		synctest.Wait()
		s.mu.Lock()
		r := s.resources["r"]
		s.remove(r.find(g.ID), s.clock())
		if n, _ := r.Len(); n == 0 || n > crowd/10 {
			t.Errorf("%d are granted at a time", n)
		}
		if r.Free(queue.Unlimited) {
			t.Error("who comes now overtakes the others")
		}
		s.mu.Unlock()
		wg.Wait()
		shut(t, b)
		shut(t, a)
	})
}

// Law 10: a lease that ends with thousands of holds lets others in between. What is
// left of it nobody sees or forces, and it goes by itself.
func TestManyEndInSteps(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a, b := open(t, s), open(t, s)
		name := func(i int) lock.Resource { return lock.Resource(fmt.Sprintf("r%d", i)) }
		var first lock.Grant
		for i := range crowd {
			if g := acquire(t, a, name(i), lock.Exclusive); i == 0 {
				first = g
			}
		}
		next := granted(t, s, b, first.Resource)
		s.mu.Lock()
		for l := range s.leases {
			if l.id == a.ID() {
				s.drop(l, s.clock())
				if l.count < crowd-crowd/10 {
					t.Errorf("%d holds end at a time", crowd-l.count)
				}
			}
		}
		if len(s.resources) < crowd-crowd/10 {
			t.Errorf("%d of %d resources are left", len(s.resources), crowd)
		}
		e := s.resources[first.Resource].find(first.ID)
		if v := s.resources[first.Resource].view(first.Resource, s.clock()); e == nil || len(v.holders) != 0 {
			t.Errorf("the hold of a lease that is over is shown: %+v", v)
		}
		s.mu.Unlock()
		for i := 1; i < 100; i++ { // in nobody's way
			g, err := b.Acquire(t.Context(), lock.Request{ID: lock.NewHoldID(), Resource: name(i), Mode: lock.Exclusive, Try: true})
			if err != nil {
				t.Fatalf("a try of what is free: %v", err)
			}
			if err := b.Release(t.Context(), g.Resource, g.ID); err != nil {
				t.Error(err)
			}
		}
		<-next
		synctest.Wait()
		s.mu.Lock()
		if n := len(s.resources); n != 1 {
			t.Errorf("%d resources are left", n)
		}
		s.mu.Unlock()
		shut(t, a)
		shut(t, b)
	})
}

// All is gone when Close returns, however much it was.
func TestCloseLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a := open(t, s)
		for i := range crowd {
			acquire(t, a, lock.Resource(fmt.Sprintf("r%d", i)), lock.Exclusive)
		}
		shut(t, a)
		s.mu.Lock()
		if n := len(s.resources); n != 0 {
			t.Errorf("%d resources are left", n)
		}
		s.mu.Unlock()
	})
}
