package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// keeping is a request with a MinHold.
func keeping(r lock.Resource, m lock.Mode, least time.Duration) lock.Request {
	q := request(r, m)
	q.MinHold = least
	return q
}

// noTrace checks that nothing is there of a hold, in the end, without a look by a sidecar.
func noTrace(t testing.TB, b *Backend, url string, r lock.Resource, id lock.HoldID) {
	t.Helper()
	empty(t, b, url, r)
	c := stranger(t, url)
	eventually(t, "it is not found as kept", func() error {
		switch _, _, err := c.Get(b.tree.kept(id)); {
		case errors.Is(err, zk.ErrNoNode):
			return nil
		case err != nil:
			return err
		}
		return errors.New("it is")
	})
}

// TestKeptIsSwept: the sidecar of a hold with a MinHold has ended, and nobody asks for the lock. When its time is
// over, and no sooner, another sidecar deletes all that is left of it.
func TestKeptIsSwept(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(2)} {
			subtest(t, fmt.Sprint(layout, m), func(t testing.TB) {
				const least = 3 * time.Second
				url := s.URL() + "?layout=" + layout
				gone, l := sidecar(t, url, 30*time.Second)
				b := openAt(t, url)
				b.sweepEvery = 100 * time.Millisecond
				t.Cleanup(func() { _ = b.Close() })
				beating(t, newLease(t, b, 30*time.Second), 50*time.Millisecond)
				r := unique()
				asked := time.Now()
				g := granted(t, l, keeping(r, m, least))
				if err := l.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				all := nodes(t, gone, s.URL(), r)
				if len(all) == 0 && time.Since(asked) < least {
					t.Error("nothing is left of the hold")
				}
				noTrace(t, b, s.URL(), r, g.ID)
				if took := time.Since(asked); took < least-least/200 {
					t.Errorf("it was deleted %s after the grant", took)
				}
			})
		}
	}
}

// TestKeptIsMarked: the release of a hold with a MinHold is forced with a grace, and both who has forced it and
// its holder's sidecar are gone. Then others are kept out no more, and the first who asks clears it away.
func TestKeptIsMarked(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(1)} {
		subtest(t, m.String(), func(t testing.TB) {
			_, l := sidecar(t, s.URL(), 30*time.Second)
			b, o := sidecar(t, s.URL(), 30*time.Second)
			r := unique()
			g := granted(t, l, keeping(r, m, time.Hour))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- b.ForceRelease(ctx, r, g.ID, time.Hour) }()
			event(t, l, g.ID)
			cancel()
			if err := <-done; err == nil {
				t.Error("ForceRelease returned although the hold is there")
			}
			if err := l.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if st, err := b.Get(t.Context(), r); err != nil || len(st.Holders) != 0 {
				t.Errorf("holders %+v, %v", st.Holders, err)
			}
			q := request(r, lock.Exclusive)
			if m.Limit() > 0 {
				q.Mode = lock.Permits(2) // another number, which is asked for only while none is held
			}
			q.Try = true
			next := granted(t, o, q)
			release(t, o, next)
			noTrace(t, b, s.URL(), r, g.ID)
		})
	}
}

// TestConnectionLostWhenKept ends the connection with the very packet that grants a request with a MinHold, right
// before and right after it has reached the server. It is granted once, and ends as always.
func TestConnectionLostWhenKept(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		for name, do := range map[string]action{"after": cutAfter, "before": cutBefore} {
			t.Run(layout+" "+name, func(t *testing.T) {
				t.Parallel()
				way, url := newRoad(t, s.URL())
				b, l := sidecar(t, url+"?layout="+layout, 30*time.Second)
				r := unique()
				first := hold(t, l, r, lock.Exclusive)
				w := queue(t, b, l, keeping(r, lock.Exclusive, time.Hour))
				cut := way.once(opMulti, "/"+home+"/kept/", do)
				_ = l.Release(t.Context(), r, first.ID)
				g := w.granted()
				select {
				case <-cut:
				default:
					t.Error("nothing was cut")
				}
				release(t, l, g)
				if st, err := b.Get(t.Context(), r); err != nil || len(st.Holders) != 1 || st.Holders[0].Kept <= 0 || st.Holders[0].Fence != g.Fence {
					t.Errorf("kept are %+v, %v", st.Holders, err)
				}
				if err := b.ForceRelease(t.Context(), r, g.ID, 0); err != nil {
					t.Error(err)
				}
				noTrace(t, b, s.URL(), r, g.ID)
			})
		}
	}
}

// TestKeptDeletedByHand: with the node of its request a hold with a MinHold has ended, as every hold has.
func TestKeptDeletedByHand(t *testing.T) { again(t, testKeptDeletedByHand) }

func testKeptDeletedByHand(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 30*time.Second)
	told := live(t, l)
	r := unique()
	g := granted(t, l, keeping(r, lock.Permits(1), time.Hour))
	path, _ := b.tree.lockPath(r)
	c := stranger(t, s.URL())
	for _, child := range nodes(t, b, s.URL(), r) {
		if n, ok := parseNode(child); ok && !n.kept {
			if err := c.Delete(path+"/"+child, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	told.revoked(g.ID, 1<<62)
	noTrace(t, b, s.URL(), r, g.ID)
}

// TestKeptSlotOfTheDead: what is left of a permit keeps its slot, though the session is over that took it.
func TestKeptSlotOfTheDead(t *testing.T) { again(t, testKeptSlotOfTheDead) }

func testKeptSlotOfTheDead(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	_, l := sidecar(t, s.URL(), 30*time.Second)
	b, o := sidecar(t, s.URL(), 30*time.Second)
	r, two := unique(), lock.Permits(2)
	g := granted(t, l, keeping(r, two, time.Hour))
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := hold(t, o, r, two)
	if next.Fence.Slot() == g.Fence.Slot() {
		t.Errorf("broken law: slot %d is kept, and granted", g.Fence.Slot())
	}
	refused(t, o, r, two)
	w := queue(t, b, o, request(r, two))
	if err := b.ForceRelease(t.Context(), r, g.ID, time.Hour); err != nil {
		t.Fatal(err)
	}
	third := w.granted()
	release(t, o, next)
	release(t, o, third)
	noTrace(t, b, s.URL(), r, g.ID)
}

// TestKeptInALongQueue: more permits are kept than a short queue has, and their sidecar is gone. Those who wait end them when their time is
// over: the sweep may come much later.
func TestKeptInALongQueue(t *testing.T) { again(t, testKeptInALongQueue) }

func testKeptInALongQueue(t testing.TB) {
	const n = 4
	url := testengine.Shared(t, testengine.ZooKeeper).URL() + "/long" // where nobody else sweeps
	_, l := sidecar(t, url, 30*time.Second)
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	b.shortQueue, b.sweepEvery = n/2, time.Hour
	o := newLease(t, b, 40*time.Second)
	live(t, o)
	r := unique()
	for range n {
		granted(t, l, keeping(r, lock.Permits(n), time.Second))
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range n {
		q := request(r, lock.Permits(n))
		if err := answered(t, func() error { _, err := o.Acquire(ctx, q); return err }); err != nil {
			t.Fatalf("permit %d of %d: %v", i+1, n, err)
		}
		defer func() {
			if err := released(t, o, r, q.ID); err != nil {
				t.Errorf("Release: %v", err)
			}
		}()
	}
}

// TestKeptPermitDeletedByHand: somebody deletes what may be left of a permit from the queue. When its time is over,
// the slot is free.
func TestKeptPermitDeletedByHand(t *testing.T) { again(t, testKeptPermitDeletedByHand) }

func testKeptPermitDeletedByHand(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 30*time.Second)
	r, one := unique(), lock.Permits(1)
	g := granted(t, l, keeping(r, one, time.Second))
	path, _ := b.tree.lockPath(r)
	c := stranger(t, s.URL())
	for _, child := range nodes(t, b, s.URL(), r) {
		if n, ok := parseNode(child); ok && n.kept {
			if err := c.Delete(path+"/"+child, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	release(t, l, g)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next, err := l.Acquire(ctx, request(r, one))
	if err != nil {
		t.Fatalf("the slot is never free: %v", err)
	}
	release(t, l, next)
	noTrace(t, b, s.URL(), r, g.ID)
}

// TestKeptIndexDeletedByHand: somebody deletes the node by which what is left of a permit is found. Two sidecars clear it away at the same
// time, and another permit takes its slot just then. Nobody else gets that slot as well.
func TestKeptIndexDeletedByHand(t *testing.T) { again(t, testKeptIndexDeletedByHand) }

func testKeptIndexDeletedByHand(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	_, l := sidecar(t, url+"?timeout=20s", 40*time.Second)
	live(t, l)
	b, o := sidecar(t, s.URL(), 40*time.Second)
	live(t, o)
	r, two := unique(), lock.Permits(2)
	g := granted(t, l, keeping(r, two, time.Second))
	if err := stranger(t, s.URL()).Delete(b.tree.kept(g.ID), -1); err != nil {
		t.Fatal(err)
	}
	reached, next := make(chan struct{}), make(chan struct{})
	var once sync.Once
	way.set(func(w *road) {
		w.request = func(op int32, body string) action {
			if op == opDelete && strings.Contains(body, wordKept) && strings.Contains(body, string(g.ID)) {
				once.Do(func() {
					close(reached)
					select {
					case <-next:
					case <-time.After(10 * time.Second):
					}
				})
			}
			return pass
		}
	})
	release(t, l, g)
	eventually(t, "what is left is being cleared away", func() error {
		select {
		case <-reached:
			return nil
		default:
		}
		if len(nodes(t, b, s.URL(), r)) > 0 {
			return errors.New("it is not")
		}
		return nil
	})
	release(t, o, hold(t, o, r, lock.Exclusive))
	first := hold(t, o, r, two)
	close(next)
	eventually(t, "it was cleared away", func() error {
		d := l.driver
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.lefts.of[g.ID] != nil {
			return errors.New("it was not")
		}
		return nil
	})
	second := hold(t, l, r, two)
	if first.Fence.Slot() == second.Fence.Slot() {
		t.Errorf("broken law: two have the slot %d", first.Fence.Slot())
	}
	release(t, l, second)
	release(t, o, first)
	noTrace(t, b, s.URL(), r, g.ID)
}
