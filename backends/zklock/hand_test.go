package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// deleteByHand deletes the node of a request, and nothing that belongs to it.
func deleteByHand(t testing.TB, b *Backend, url string, g lock.Grant) {
	t.Helper()
	path, _ := b.tree.lockPath(g.Resource)
	c := stranger(t, url)
	for _, child := range nodes(t, b, url, g.Resource) {
		if n, ok := parseNode(child); ok && n.id == g.ID && !n.kept {
			if err := c.Delete(path+"/"+child, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPermitEndsAsItIsDeletedByHand: somebody deletes the node of a permit's request, and before its sidecar hears of that, the permit
// ends: it is released, or the grace of its forced release is over. Its slot is free all the same.
func TestPermitEndsAsItIsDeletedByHand(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	const grace = 3 * time.Second
	for _, layout := range []string{layoutOwn, layoutCurator} {
		for name, forced := range map[string]bool{" released": false, " forced": true} {
			subtest(t, layout+name, func(t testing.TB) {
				way, url := newRoad(t, s.URL())
				_, l := sidecar(t, url+"?layout="+layout, 30*time.Second)
				told := live(t, l)
				b, o := sidecar(t, s.URL()+"?layout="+layout, 30*time.Second)
				live(t, o)
				r, one := unique(), lock.Permits(1)
				way.set(func(w *road) { w.mute = true }) // no watch tells
				g := hold(t, l, r, one)
				if forced {
					ended, _ := force(t, b, g, grace)
					told.revoked(g.ID, 1<<62)
					eventually(t, "its grace counts", func() error {
						d := l.driver
						d.mu.Lock()
						defer d.mu.Unlock()
						if s := d.spots[g.ID]; s != nil && s.ends == 0 {
							return errors.New("it does not")
						}
						return nil
					})
					deleteByHand(t, b, s.URL(), g)
					t.Logf("who forces it is told: %v", <-ended) // it may be in time or not
				} else {
					deleteByHand(t, b, s.URL(), g)
					if err := released(t, l, r, g.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
						t.Fatalf("Release: %v", err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				next, err := o.Acquire(ctx, request(r, one))
				if ctx.Err() != nil {
					t.Fatalf("the slot is never free: %v; there are %v", context.Cause(ctx), taken(t, b, s.URL(), r))
				}
				if err != nil {
					t.Fatalf("Acquire: %v", err)
				}
				fences(t, b, r, next)
				release(t, o, next)
				empty(t, b, s.URL(), r)
			})
		}
	}
}

// TestPermitEndsAsItIsOverwritten: another program writes into the node of a permit, which is released before its sidecar hears
// of that. Its slot is free.
func TestPermitEndsAsItIsOverwritten(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, least := range []time.Duration{0, time.Millisecond} {
		subtest(t, least.String(), func(t testing.TB) {
			way, url := newRoad(t, s.URL())
			_, l := sidecar(t, url, 30*time.Second)
			live(t, l)
			b, o := sidecar(t, s.URL(), 30*time.Second)
			r, one := unique(), lock.Permits(1)
			way.set(func(w *road) { w.mute = true }) // no watch tells
			q := request(r, one)
			q.MinHold = least
			g := granted(t, l, q)
			overwrite(t, b, stranger(t, s.URL()), s.URL(), r, g.ID)
			release(t, l, g)
			release(t, o, hold(t, o, r, one))
			noTrace(t, b, s.URL(), r, g.ID)
		})
	}
}

// TestClaimIsOverwritten: the connection ends before a permit hears of its slot, and another program writes into its node before there is
// another one. It has that slot, and no other, also where it is given up then.
func TestClaimIsOverwritten(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.ZooKeeper) // its own: others' sidecars clear away the node above its hold's note
	for _, least := range []time.Duration{0, 100 * time.Millisecond} {
		for _, givenUp := range []bool{false, true} {
			subtest(t, fmt.Sprint(least, " given up ", givenUp), func(t testing.TB) {
				way, url := newRoad(t, s.URL())
				_, l := sidecar(t, url, 30*time.Second)
				live(t, l)
				b, o := sidecar(t, s.URL(), 30*time.Second)
				live(t, o)
				r, two := unique(), lock.Permits(2)
				first := hold(t, o, r, two)
				q := request(r, two)
				if q.MinHold = least; least > 0 { // nothing that is above its nodes is missing
					if err := l.driver.makeContainer(t.Context(), l.driver.leaseNode.s, above(b.tree.kept(q.ID))); err != nil {
						t.Fatal(err)
					}
				}
				way.set(func(w *road) {
					w.request = func(op int32, body string) action {
						if op != opMulti || !strings.Contains(body, slotsWord) {
							return pass
						}
						w.set(func(w *road) { w.lost, w.request = true, nil })
						return cutAfter
					}
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := make(chan error, 1)
				var g lock.Grant
				go func() { var err error; g, err = l.Acquire(ctx, q); done <- err }()
				eventually(t, "the slot is taken", func() error {
					if all := taken(t, b, s.URL(), r); len(all) != 2 {
						return fmt.Errorf("there are %v", all)
					}
					return nil
				})
				overwrite(t, b, stranger(t, s.URL()), s.URL(), r, q.ID)
				if givenUp {
					cancel()
					if err := <-done; err == nil {
						t.Error("granted, when nobody waits any more")
					}
				}
				way.set(func(w *road) { w.lost = false })
				if !givenUp {
					select {
					case err := <-done:
						if err != nil {
							t.Fatalf("Acquire: %v", err)
						}
					case <-time.After(patience):
						goOn(t)
						t.Fatal("it is not granted")
					}
					eventually(t, "its node says that it has a slot", func() error {
						st, err := b.Get(t.Context(), r)
						if err == nil && len(st.Holders) != 2 {
							err = fmt.Errorf("holders %+v", st.Holders)
						}
						return err
					})
					fences(t, b, r, first, g)
				}
				if err := released(t, l, r, q.ID); err != nil && (!givenUp || !errors.Is(err, lock.ErrNotHolder)) {
					t.Fatalf("Release: %v", err)
				}
				release(t, o, first)
				noTrace(t, b, s.URL(), r, q.ID)
			})
		}
	}
}

// TestClaimIsOverwrittenBeforeItsAnswer: another program writes into the node of a permit that has just got its slot, and that is read
// before the answer to the claim is taken, as with two sessions it may be.
func TestClaimIsOverwrittenBeforeItsAnswer(t *testing.T) {
	again(t, testClaimIsOverwrittenBeforeItsAnswer)
}

func testClaimIsOverwrittenBeforeItsAnswer(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 30*time.Second)
	_, o := sidecar(t, s.URL(), 30*time.Second)
	r := unique()
	x := hold(t, o, r, lock.Exclusive)
	q := request(r, lock.Permits(1))
	w := queue(t, b, l, q)
	d := l.driver
	d.mu.Lock()
	p := d.spots[q.ID]
	c := p.l.claimOf(p, 0)
	d.mu.Unlock()
	overwrite(t, b, stranger(t, s.URL()), s.URL(), r, q.ID) // version 1
	overwrite(t, b, stranger(t, s.URL()), s.URL(), r, q.ID)
	get := zksession.Get(c.path)
	if err := d.ask(t.Context(), get); err != nil || get.Stat.Version != 2 {
		t.Fatalf("version %d, %v", get.Stat.Version, err)
	}
	d.mu.Lock()
	d.saw(p, get)
	c.set.Stat.Version, c.set.Stat.Czxid = 1, get.Stat.Czxid
	p.l.took(c)
	d.mu.Unlock()
	if g := w.granted(); g.Fence.Slot() != 0 {
		t.Errorf("slot %d", g.Fence.Slot())
	}
	release(t, l, w.g)
	release(t, o, x)
	empty(t, b, s.URL(), r)
}
