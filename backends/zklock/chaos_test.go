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
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// fill has a lease hold so much that what it asks for next has its node in another
// session than the first.
func fill(t testing.TB, l *lease) {
	t.Helper()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 60 {
				q := request(unique()+lock.Resource(strings.Repeat("x", 200)), lock.Exclusive)
				_, err := l.Acquire(t.Context(), q)
				for end := time.Now().Add(3 * patience); errors.Is(err, lock.ErrUnavailable) && time.Now().Before(end); {
					time.Sleep(10 * time.Millisecond) // the machine is busy
					_, err = l.Acquire(t.Context(), q)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
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
			fill(t, l)
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
