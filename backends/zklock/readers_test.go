package zklock

import (
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestManyReadersOfOneSidecar: each of many who read one lock side by side costs the same,
// however many there are already: nobody lists them.
func TestManyReadersOfOneSidecar(t *testing.T) {
	for _, layout := range []string{layoutOwn, layoutCurator} {
		subtest(t, layout, func(t testing.TB) {
			s := testengine.Shared(t, testengine.ZooKeeper)
			b, l, requests := counted(t, s.URL()+"/readers?layout="+layout, 20*time.Second)
			b.shortQueue = 8
			live(t, l)
			r := unique()
			first := hold(t, l, r, lock.Shared)
			requests.take()
			const many, atOnce = 400, 16
			grants := make([]lock.Grant, many)
			var all sync.WaitGroup
			for w := range atOnce {
				all.Go(func() {
					for i := w; i < many; i += atOnce {
						g, err := l.Acquire(t.Context(), request(r, lock.Shared))
						if err != nil {
							t.Errorf("Acquire: %v", err)
						}
						grants[i] = g
					}
				})
			}
			all.Wait()
			goOn(t)
			n, _ := requests.take()
			// Each makes its node, reads it before it is granted, perhaps twice, and is watched later.
			if n["children"] > many/10 || n["get"] > 4*many || n["create"]+n["multi"] > many+many/10 {
				t.Errorf("%d readers came with %v", many, n)
			}
			for _, g := range append(grants, first) {
				all.Go(func() { release(t, l, g) })
			}
			all.Wait()
		})
	}
}
