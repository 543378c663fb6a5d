package zklock

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestWatchersAreForgotten: a hold that lasts is watched. When it has ended, nothing of it is remembered.
func TestWatchersAreForgotten(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(2)} {
		subtest(t, m.String(), func(t testing.TB) {
			_, l := sidecar(t, s.URL(), 40*time.Second)
			live(t, l)
			node := l.driver.leaseNode
			watchers := func() int {
				node.mu.Lock()
				defer node.mu.Unlock()
				return len(node.watchers)
			}
			for range 3 {
				q := request(unique(), m)
				g := granted(t, l, q)
				eventually(t, "it is watched", func() error {
					d := l.driver
					d.mu.Lock()
					path := d.spots[q.ID].node
					d.mu.Unlock()
					node.mu.Lock()
					defer node.mu.Unlock()
					if len(node.watchers[path]) == 0 {
						return errors.New("it is not")
					}
					return nil
				})
				release(t, l, g)
				eventually(t, "nothing is remembered of it", func() error {
					if n := watchers(); n > 0 {
						return fmt.Errorf("%d paths have watchers", n)
					}
					return nil
				})
			}
		})
	}
}
