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

// TestLeftsAreBounded: holds with a MinHold are released, and detached ones are ended elsewhere long before their time is over. Their
// sidecar remembers no more than so many of them, and all are ended in time.
func TestLeftsAreBounded(t *testing.T) { again(t, testLeftsAreBounded) }

func testLeftsAreBounded(t testing.TB) {
	const most, least = 3, 2 * time.Second
	s := testengine.Shared(t, testengine.ZooKeeper)
	b := openAt(t, s.URL())
	t.Cleanup(func() { _ = b.Close() })
	b.maxLefts, b.sweepEvery = most, 100*time.Millisecond
	l := newLease(t, b, 40*time.Second)
	beating(t, l, 50*time.Millisecond) // which the sweep stands behind
	ob, _ := sidecar(t, s.URL(), 40*time.Second)
	d := l.driver
	remembered := func() {
		t.Helper()
		d.mu.Lock()
		defer d.mu.Unlock()
		if n, m := len(d.lefts.of), len(d.lefts.all); n > most || m > n {
			t.Errorf("%d are remembered, and %d in order, want at most %d", n, m, most)
		}
	}
	for range 2 * most {
		g, key := granted(t, l, detachable(unique(), lock.Exclusive)), lock.NewSecret().Key()
		err := answered(t, func() error { return l.detach(t.Context(), g, key, time.Hour) })
		if err != nil {
			t.Fatalf("Detach: %v", err)
		}
		err = answered(t, func() error { _, err := ob.SetHandle(t.Context(), g.Resource, key, 0); return err })
		if err != nil && !errors.Is(err, lock.ErrNoHandle) { // an attempt without an answer
			t.Fatalf("SetHandle: %v", err)
		}
		remembered()
	}
	for range 2 {
		g := granted(t, l, keeping(unique(), lock.Permits(1), least))
		release(t, l, g)
		remembered()
		noTrace(t, ob, s.URL(), g.Resource, g.ID)
	}
}

// TestLeftsOfOthersAreForgotten: detached holds of another sidecar are waited for, and are ended long before their time is over. Who has waited
// remembers none of them.
func TestLeftsOfOthersAreForgotten(t *testing.T) { again(t, testLeftsOfOthersAreForgotten) }

func testLeftsOfOthersAreForgotten(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 40*time.Second)
	live(t, l)
	ob, o := sidecar(t, s.URL(), 40*time.Second)
	live(t, o)
	for _, m := range []lock.Mode{lock.Exclusive, lock.Permits(1)} {
		for range 3 {
			g, key := granted(t, l, detachable(unique(), m)), lock.NewSecret().Key()
			if err := answered(t, func() error { return l.detach(t.Context(), g, key, time.Hour) }); err != nil {
				t.Fatalf("Detach: %v", err)
			}
			w := queue(t, ob, o, request(g.Resource, m))
			remembers := func() bool {
				o.driver.mu.Lock()
				defer o.driver.mu.Unlock()
				return o.driver.lefts.of[g.ID] != nil
			}
			eventually(t, "it is seen", func() error {
				if !remembers() {
					return errors.New("it is not")
				}
				return nil
			})
			err := answered(t, func() error { _, err := b.SetHandle(t.Context(), g.Resource, key, 0); return err })
			if err != nil && !errors.Is(err, lock.ErrNoHandle) { // an attempt without an answer
				t.Fatalf("SetHandle: %v", err)
			}
			next := w.granted()
			if remembers() {
				t.Errorf("%s: what is gone is remembered for an hour", m)
			}
			release(t, o, next)
		}
	}
}
