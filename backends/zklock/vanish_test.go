package zklock

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestNodesAboveVanish: as soon as nothing is below them, the nodes of a lock and above its slots are deleted, as the server and
// other sidecars do, while three sidecars take permits. Never are there more holders than permits, nor two in
// one slot, fences grow, and nobody asks for ever.
func TestNodesAboveVanish(t *testing.T) { again(t, testNodesAboveVanish) }

func testNodesAboveVanish(t testing.TB) {
	const limit, workers, each = 2, 3, 15
	s := testengine.Shared(t, testengine.ZooKeeper)
	r, m := unique(), lock.Permits(limit)
	var asked atomic.Int64
	var ls []*lease
	var b *Backend
	for range 3 {
		b = openAt(t, s.URL()+"?timeout=10s")
		t.Cleanup(func() { _ = b.Close() })
		b.observe = func(string, time.Duration, error) { asked.Add(1) }
		l := newLease(t, b, 40*time.Second)
		live(t, l)
		ls = append(ls, l)
	}
	c := stranger(t, s.URL())
	path, _ := b.tree.lockPath(r)
	stop, stopped := make(chan struct{}), make(chan struct{})
	deleted := make(map[string]int)
	go func() {
		defer close(stopped)
		for {
			for _, p := range []string{b.tree.slots(r), path} {
				switch err := c.Delete(p, -1); {
				case err == nil:
					deleted[p]++
				case !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNotEmpty):
					t.Errorf("delete %s: %v", p, err)
					return
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var mu sync.Mutex
	in, last := make(map[int]bool), make(map[int]lock.Fence)
	var all sync.WaitGroup
	for _, l := range ls {
		for range workers {
			all.Go(func() {
				for range each {
					g, err := l.Acquire(t.Context(), request(r, m))
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					slot := g.Fence.Slot()
					mu.Lock()
					if in[slot] || len(in) == limit || g.Fence <= last[slot] {
						t.Errorf("broken law: slot %d with fence %d beside %v, after %d", slot, g.Fence, in, last[slot])
					}
					in[slot], last[slot] = true, g.Fence
					mu.Unlock()
					time.Sleep(time.Millisecond)
					mu.Lock()
					delete(in, slot)
					mu.Unlock()
					if err := released(t, l, r, g.ID); err != nil {
						t.Errorf("Release: %v", err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	close(stop)
	<-stopped
	goOn(t)
	n := int64(3 * workers * each)
	t.Logf("%d permits took %d requests; %d times the node above the slots was deleted, %d times that of the lock", n, asked.Load(), deleted[b.tree.slots(r)], deleted[path])
	if most := 200 * n; asked.Load() > most {
		t.Errorf("%d permits took %d requests, want at most %d", n, asked.Load(), most)
	}
	empty(t, b, s.URL(), r)
}
