package zklock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestConnectionLostInCreate ends the connection with the very packet that makes
// a node, right before and right after it has reached the server. The request is
// granted all the same, with one node, and nothing is left after its release.
func TestConnectionLostInCreate(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		for name, do := range map[string]action{"after": cutAfter, "before": cutBefore} {
			for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
				t.Run(fmt.Sprint(layout, " ", name, " ", m), func(t *testing.T) {
					t.Parallel()
					r, url := newRoad(t, s.URL())
					b, l := sidecar(t, url+"?layout="+layout, 30*time.Second)
					name := lock.Resource("cut-" + string(lock.NewHoldID()))
					release(t, l, hold(t, l, name, m)) // its ancestors are there now
					op, want := opCreate, 1
					if layout == layoutCurator {
						op, want = opMulti, 2
					}
					q := request(name, m)
					cut := r.once(op, string(q.ID), do)
					g, err := l.Acquire(t.Context(), q)
					if err != nil {
						t.Fatalf("Acquire: %v", err)
					}
					select {
					case <-cut:
					default:
						t.Fatal("nothing was cut")
					}
					if all := nodes(t, b, s.URL(), name); len(all) != want {
						t.Errorf("it has the nodes %v", all)
					}
					again, err := l.Acquire(t.Context(), q)
					if err != nil || again != g {
						t.Errorf("asked again: %+v, %v; want %+v", again, err, g)
					}
					st, err := b.Get(t.Context(), name)
					if err != nil || len(st.Holders) != 1 || st.Holders[0].Fence != g.Fence {
						t.Errorf("Get has %+v, %v; want the fence %d", st, err, g.Fence)
					}
					release(t, l, g)
					if all := nodes(t, b, s.URL(), name); len(all) != 0 {
						t.Errorf("left behind: %v", all)
					}
				})
			}
		}
	}
}

// TestGivenUpInCreate: the wait ends while nobody knows whether there is a node.
func TestGivenUpInCreate(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for name, do := range map[string]action{"after": cutAfter, "before": cutBefore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, url := newRoad(t, s.URL())
			b, l := sidecar(t, url, 30*time.Second)
			_, other := sidecar(t, s.URL(), 30*time.Second)
			res := lock.Resource("given-up-" + string(lock.NewHoldID()))
			g := hold(t, other, res, lock.Exclusive)
			q := request(res, lock.Exclusive)
			ctx, cancel := context.WithCancel(t.Context())
			cut := r.once(opCreate, string(q.ID), do)
			go func() {
				<-cut
				cancel()
			}()
			if _, err := l.Acquire(ctx, q); !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire: %v, want that it was cancelled", err)
			}
			if all := nodes(t, b, s.URL(), res); len(all) != 1 {
				t.Errorf("beside the holder's there are nodes: %v", all)
			}
			release(t, other, g)
		})
	}
}

// TestReleaseIsCut: the connection ends with the packet that deletes the node.
func TestReleaseIsCut(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for name, do := range map[string]action{"after": cutAfter, "before": cutBefore} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, url := newRoad(t, s.URL())
			b, l := sidecar(t, url, 30*time.Second)
			res := lock.Resource("release-" + string(lock.NewHoldID()))
			g := hold(t, l, res, lock.Exclusive)
			cut := r.once(opDelete, string(g.ID), do)
			if err := l.Release(t.Context(), res, g.ID); err != nil {
				t.Errorf("Release: %v", err)
			}
			if err := l.Release(t.Context(), res, g.ID); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("Release again: %v, want ErrNotHolder", err)
			}
			if all := nodes(t, b, s.URL(), res); len(all) != 0 {
				t.Errorf("left behind: %v", all)
			}
			<-cut
			noEvent(t, l) // it was us who deleted it
		})
	}
}

// TestReleaseIsCutTwice: a release is carried out unheard, and could not be sent again.
// The answer to the next one is lost, too: that one has found nothing all the same.
func TestReleaseIsCutTwice(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b, l := sidecar(t, url+"?timeout=1s", 30*time.Second)
	res := lock.Resource("release-" + string(lock.NewHoldID()))
	g := hold(t, l, res, lock.Exclusive)
	way.set(func(r *road) {
		r.request = func(op int32, _ string) action {
			if op == opDelete {
				r.set(func(r *road) { r.deaf = true })
			}
			return pass
		}
	})
	if err := l.Release(t.Context(), res, g.ID); !errors.Is(err, lock.ErrUnavailable) {
		t.Fatalf("Release without an answer: %v, want ErrUnavailable", err)
	}
	eventually(t, "the release is carried out", func() error {
		if all := nodes(t, b, s.URL(), res); len(all) > 0 {
			return fmt.Errorf("there are %v", all)
		}
		return nil
	})
	way.once(opDelete, string(g.ID), cutAfter)
	way.set(func(r *road) { r.deaf = false })
	way.sever()
	var err error
	eventually(t, "the store answers", func() error {
		if err = l.Release(t.Context(), res, g.ID); errors.Is(err, lock.ErrUnavailable) {
			return err
		}
		return nil
	})
	if !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("Release again: got %v, want ErrNotHolder", err)
	}
	noEvent(t, l) // it was us who deleted it
}

// TestAncestorsVanish: the server removes the empty node of a lock while others
// think that it is there.
func TestAncestorsVanish(t *testing.T) { again(t, testAncestorsVanish) }

func testAncestorsVanish(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	for _, layout := range []string{layoutOwn, layoutCurator} {
		b, l := sidecar(t, s.URL()+"/vanish?layout="+layout, 30*time.Second)
		r := lock.Resource("deep/er/" + layout)
		last := lock.Fence(0)
		for range 3 {
			g := hold(t, l, r, lock.Exclusive)
			if g.Fence <= last {
				t.Errorf("broken law: fence %d after %d", g.Fence, last)
			}
			last = g.Fence
			release(t, l, g)
			path, _ := b.tree.lockPath(r)
			_ = c.Delete(path, -1) // or the server has done it
		}
	}
}
