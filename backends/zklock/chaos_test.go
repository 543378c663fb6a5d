package zklock

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// fillUp leaves no room for the nodes of a request in a session of a lease. What it asks for next has its nodes in another one.
func fillUp(t testing.TB, l *lease, s *zksession.Session) {
	t.Helper()
	for size := zksession.MaxPaths / 2; size > 16; {
		var room *zksession.Room
		eventually(t, "there is room in some session", func() (err error) {
			room, err = l.driver.set.Room(t.Context(), strings.Repeat("x", size))
			return err
		})
		if room.Session() != s {
			room.Leave()
			size /= 2
		}
	}
}

// TestSeveredUnderLoad: connections break all the time, waits are cancelled, tries are
// refused, and waiters are forced out of the queue, on an ensemble whose servers do not
// know everything at the same moment. Nobody holds a lock beside another, fences grow,
// and nothing is left.
func TestSeveredUnderLoad(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeperEnsemble)
	t.Run("Lists", func(t *testing.T) { t.Parallel(); severedUnderLoad(t, s, shortQueue) })
	t.Run("SingleNodes", func(t *testing.T) { t.Parallel(); severedUnderLoad(t, s, -1) }) // as with a long queue
}

func severedUnderLoad(t testing.TB, s testengine.Server, short int) {
	const workers, lasts = 8, 6 * time.Second
	resources := []lock.Resource{unique(), unique()}
	var holders [2]atomic.Int64 // writers count 1000
	var fences [2]atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var grants, cut atomic.Int64
	watcher := openAt(t, s.URL())
	t.Cleanup(func() { _ = watcher.Close() })
	for i := range 3 {
		way, url := newRoad(t, s.URL())
		b, l := sidecar(t, url, 40*time.Second)
		b.shortQueue = short
		live(t, l)
		if i > 0 { // whose first session is full
			fillUp(t, l, l.driver.leaseNode.s)
		}
		wg.Go(func() {
			for leasekit.Sleep(ctx, time.Duration(50+rand.IntN(300))*time.Millisecond) {
				way.sever()
				cut.Add(1)
			}
		})
		for range workers {
			wg.Go(func() {
				for ctx.Err() == nil {
					i := rand.IntN(len(resources))
					q := request(resources[i], lock.Exclusive)
					weight := int64(1000)
					if rand.IntN(3) == 0 {
						q.Mode, weight = lock.Shared, 1
					}
					q.Try = rand.IntN(8) == 0
					wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(rand.IntN(400))*time.Millisecond)
					g, err := l.Acquire(wait, q)
					cancel()
					if err == nil {
						grants.Add(1)
						if n := holders[i].Add(weight); n >= 1000 && n != 1000 {
							t.Errorf("beside others: %d", n)
						}
						if last := fences[i].Load(); int64(g.Fence) < last {
							t.Errorf("broken law: fence %d after %d", g.Fence, last)
						}
						if weight == 1000 {
							fences[i].Store(int64(g.Fence))
						}
						holders[i].Add(-weight)
					}
					for {
						err := l.Release(context.WithoutCancel(ctx), q.Resource, q.ID)
						if err == nil || errors.Is(err, lock.ErrNotHolder) {
							break
						}
						if errors.Is(err, lock.ErrLeaseLost) {
							t.Errorf("Release: %v", err)
							return
						}
					}
				}
			})
		}
	}
	time.AfterFunc(lasts, stop)
	wg.Go(func() { // takes waiters out of the queue
		for leasekit.Sleep(ctx, 20*time.Millisecond) {
			for _, r := range resources {
				if st, err := watcher.Get(ctx, r); err == nil && len(st.Waiters) > 1 {
					w := st.Waiters[rand.IntN(len(st.Waiters))]
					_ = watcher.ForceRelease(ctx, r, w.ID, time.Hour)
				}
			}
		}
	})
	wg.Wait()
	for _, r := range resources {
		eventually(t, "nothing is left", func() error {
			if left := nodes(t, watcher, s.URL(), r); len(left) > 0 {
				return errors.New("there is")
			}
			return nil
		})
	}
	t.Logf("%d grants, %d cuts", grants.Load(), cut.Load())
}
