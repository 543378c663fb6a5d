package mysqllock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestStrategiesExcludeEachOther: sidecars of all strategies on one database, one lock,
// and holds that come, go, wait, are given up and are forced. There is never more than
// one hold that its app may rely on, and fences grow. (Issue 10, part 3.)
func TestStrategiesExcludeEachOther(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.MariaDB, testengine.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			again(t, func(t testing.TB) { excludeEachOther(t, testengine.Shared(t, kind)) })
		})
	}
}

func excludeEachOther(t testing.TB, server testengine.Server) {
	const workers, rounds = 3, 12
	r := unique()
	var m model
	var all sync.WaitGroup
	for _, strategy := range Strategies {
		s := newWorld(t, server, strategy).sidecar(15 * time.Second).lives()
		for range workers {
			all.Go(func() {
				for range rounds {
					m.turn(s, strategy, r)
				}
			})
		}
	}
	all.Wait()
	if m.grants.Load() == 0 {
		t.Error("nobody was granted anything")
	}
}

// model is what may be true of the holders of one resource.
type model struct {
	mu     sync.Mutex
	holder string
	fence  lock.Fence
	grants atomic.Int64
}

// turn is one request of a sidecar, with whatever becomes of it.
func (m *model) turn(s *sidecar, strategy string, r lock.Resource) {
	q := request(r)
	q.Try = rand.N(4) == 0
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	if rand.N(4) == 0 { // its wait ends soon
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.N(int64(50*time.Millisecond))))
	}
	defer cancel()
	g, err := s.l.Acquire(ctx, q)
	switch {
	case errors.Is(err, lock.ErrHeld), errors.Is(err, context.DeadlineExceeded):
		return
	case err != nil:
		s.Errorf("%s: Acquire: %v", strategy, err)
		return
	}
	m.grants.Add(1)
	m.enter(s, strategy, g)
	time.Sleep(time.Duration(rand.N(int64(10 * time.Millisecond))))
	if st, err := s.b.Get(context.Background(), r); err != nil || len(st.Holders) != 1 || st.Holders[0].ID != g.ID {
		s.Errorf("%s: the holder sees %+v, %v", strategy, st.Holders, err)
	}
	m.leave(s, strategy)
	if err := s.l.Release(context.Background(), r, g.ID); err != nil {
		s.Errorf("%s: Release: %v", strategy, err)
	}
}

func (m *model) enter(s *sidecar, who string, g lock.Grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder != "" {
		s.Errorf("%s was granted %d beside %s", who, g.Fence, m.holder)
	}
	if g.Fence <= m.fence {
		s.Errorf("%s was granted the fence %d after %d", who, g.Fence, m.fence)
	}
	m.holder, m.fence = who, g.Fence
}

func (m *model) leave(s *sidecar, who string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.holder != who {
		s.Errorf("%s held, and the holder is %s", who, m.holder)
	}
	m.holder = ""
}

// TestForceAcrossStrategies: a sidecar of one strategy forces what one of another holds.
func TestForceAcrossStrategies(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.MariaDB, testengine.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			again(t, func(t testing.TB) { forceAcrossStrategies(t, testengine.Shared(t, kind)) })
		})
	}
}

func forceAcrossStrategies(t testing.TB, server testengine.Server) {
	for i, strategy := range Strategies {
		a := newWorld(t, server, strategy).sidecar(15 * time.Second).lives()
		b := newWorld(t, server, Strategies[(i+1)%len(Strategies)]).sidecar(15 * time.Second).lives()
		r := unique()
		g := a.hold(r)
		next := b.queue(r)
		force := b.force(g, 200*time.Millisecond)
		a.revoked(g.ID, lock.BootTime()+patience)
		if got := next.ok(); got.Fence <= g.Fence {
			t.Errorf("broken law: %s: fence %d after %d", strategy, got.Fence, g.Fence)
		}
		next.after(a, g)
		force.ok()
	}
}
