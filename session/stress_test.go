package session

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// witness is what the locks protect: it knows who uses each resource at the
// moment, from the grant to the end of what was told.
type witness struct {
	mu    sync.Mutex
	users map[string]map[lock.HoldID]lock.Mode
	fence map[string]lock.Fence // of the last exclusive grant
}

func (w *witness) enter(t *testing.T, g Grant) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users[g.Resource] == nil {
		w.users[g.Resource] = map[lock.HoldID]lock.Mode{}
	}
	if _, ok := w.users[g.Resource][g.LockID]; ok {
		return // the same request again
	}
	for _, m := range w.users[g.Resource] {
		if m == lock.Exclusive || g.Mode == lock.Exclusive {
			t.Errorf("broken law: %s: %v granted beside %v", g.Resource, g.Mode, m)
		}
	}
	if g.Fence < w.fence[g.Resource] || g.Mode == lock.Exclusive && g.Fence == w.fence[g.Resource] {
		t.Errorf("broken law: %s: fence %d after %d", g.Resource, g.Fence, w.fence[g.Resource])
	}
	if g.Mode == lock.Exclusive { // readers may learn of their grants in any order
		w.fence[g.Resource] = g.Fence
	}
	w.users[g.Resource][g.LockID] = g.Mode
}

func (w *witness) leave(resource string, id lock.HoldID) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.users[resource], id)
}

// TestStress lets apps of several sidecars fight for a few locks while the way
// to the store breaks in all ways at once. Nobody is ever let in beside another,
// and nothing is left behind at the end.
func TestStress(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				w := &witness{users: map[string]map[lock.HoldID]lock.Mode{}, fence: map[string]lock.Fence{}}
				stress(t, e, seed, w, down, hang, mute)
			})
		})
	}
	// A store that ends leases on its own word lets others in while the notice is
	// still on its way, so there is no witness of exclusion. The rest holds.
	t.Run("leases lost", func(t *testing.T) {
		bubble(t, func(t *testing.T, e *env) { stress(t, e, 100, nil, down, hang, mute, leaseLost) })
	})
}

func stress(t *testing.T, e *env, seed uint64, w *witness, faults ...fault) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var granted, lost sync.Map
	var sidecars []*sidecar
	for n := range 3 {
		sc := e.sidecar(func(o *Options) { o.TTL = 2 * time.Second })
		sidecars = append(sidecars, sc)
		wg.Go(func() { breakWay(ctx, sc, rand.New(rand.NewPCG(seed, uint64(n))), faults) })
		for a := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(100*n+a)))
				for ctx.Err() == nil {
					app(ctx, t, sc, w, r, &granted, &lost)
				}
			})
		}
	}
	wg.Wait()
	for _, sc := range sidecars {
		sc.way.on(nil, opOpen, opAcquire, opRelease, opDowngrade, opHeartbeat)
	}
	time.Sleep(20 * time.Second) // leases that were given up, releases that were retried
	e.free()
	for _, sc := range sidecars {
		if i := sc.Info(); i.Holds != 0 || i.Waiters != 0 || i.Sessions != 0 || !i.Ready {
			t.Errorf("Info = %+v", i)
		}
		if g := sc.lease.Load(); len(g.holds) != 0 {
			t.Errorf("%d holds are still known to the lease", len(g.holds))
		}
	}
	count := func(m *sync.Map) (n int) {
		m.Range(func(any, any) bool { n++; return true })
		return n
	}
	if g, l := count(&granted), count(&lost); g < 100 || l < 5 {
		t.Errorf("only %d grants and %d losses: the test tests little", g, l)
	}
}

// breakWay makes things go wrong, some for longer than a lease lives.
func breakWay(ctx context.Context, sc *sidecar, r *rand.Rand, faults []fault) {
	ops := []string{opOpen, opAcquire, opRelease, opDowngrade, opHeartbeat}
	for pause(ctx, time.Duration(r.IntN(2000))*time.Millisecond) {
		op := ops[r.IntN(len(ops))]
		f := faults[r.IntN(len(faults))]
		if op == opOpen {
			f = down
		}
		sc.way.on(f, op)
		pause(ctx, time.Duration(r.IntN(4000))*time.Millisecond)
		sc.way.on(nil, op)
	}
}

// app is one app session that uses some locks and dies.
func app(ctx context.Context, t *testing.T, sc *sidecar, w *witness, r *rand.Rand, granted, lost *sync.Map) {
	s := sc.session()
	var wg sync.WaitGroup
	wg.Go(func() { // an app that listens
		for {
			ev, err := news(s).Next(context.Background())
			if err != nil {
				return
			}
			if l := ev.Lost; l != nil {
				lost.Store(l.LockID, true)
				w.leave(l.Resource, l.LockID)
				_, err := s.Release(context.Background(), l.LockID, "")
				if !errors.Is(err, ErrLost) && !errors.Is(err, ErrSessionClosed) {
					t.Errorf("Release of a lost hold = %v", err)
				}
			}
		}
	})
	mine := map[lock.HoldID]string{}
	for range r.IntN(8) {
		q := AcquireRequest{
			RequestID: fmt.Sprint(r.IntN(1000)),
			Resource:  fmt.Sprint("r", r.IntN(4)),
			Mode:      lock.Exclusive,
			Wait:      time.Duration(r.IntN(3)) * time.Second,
			Owner:     fmt.Sprint(r.IntN(2)),
			Reentrant: r.IntN(3) > 0,
		}
		if r.IntN(3) == 0 {
			q.Mode = lock.Shared
		}
		if r.IntN(4) == 0 {
			q.MaxHold = time.Duration(100+r.IntN(900)) * time.Millisecond
		}
		call, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(5000))*time.Millisecond)
		g, err := s.Acquire(call, q)
		cancel()
		if err != nil {
			continue
		}
		if g.Until-s.space.m.o.Clock() <= 0 {
			t.Errorf("granted for %v", g.Until-s.space.m.o.Clock())
		}
		granted.Store(g.LockID, true)
		mine[g.LockID] = g.Resource
		if g.Count == 1 {
			enterUnlessLost(t, s, w, g)
		}
		pause(ctx, time.Duration(r.IntN(500))*time.Millisecond)
		if r.IntN(3) == 0 {
			continue // kept until the session ends
		}
		// Where the hold is lost in this moment, the answer is the notice, for all of
		// its counts: no event follows.
		w.leave(g.Resource, g.LockID)
		left, err := s.Release(ctx, g.LockID, "")
		if err != nil && !errors.Is(err, ErrLost) {
			t.Errorf("Release = %v", err)
		}
		if left > 0 {
			stayUnlessLost(s, w, g)
		}
	}
	for id, resource := range mine { // the app dies
		w.leave(resource, id)
	}
	s.Close()
	wg.Wait()
}

// stayUnlessLost is for an app that has let go of one count of more.
func stayUnlessLost(s *Session, w *witness, g Grant) {
	if w == nil {
		return
	}
	s.enter()
	defer s.exit()
	if s.ledger.Lives(g.LockID) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.users[g.Resource][g.LockID] = g.Mode
	}
}

// enterUnlessLost is the app's first look at its lock. It is lost already when
// the notice came with the grant.
func enterUnlessLost(t *testing.T, s *Session, w *witness, g Grant) {
	s.enter()
	defer s.exit()
	if s.ledger.Lives(g.LockID) {
		w.enter(t, g)
	}
}
