package zklock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// absent waits until a node is not there, as another client sees it. The server would not remove one that has had nothing
// below.
func absent(t testing.TB, c *zk.Conn, path string) {
	t.Helper()
	eventually(t, path+" is not there", func() error {
		if _, err := c.Sync("/"); err != nil {
			return err
		}
		there, stat, err := c.Exists(path)
		if err == nil && there {
			err = fmt.Errorf("it has had %d changes below", stat.Cversion)
		}
		return err
	})
}

// appears waits until a node is there.
func appears(c *zk.Conn, path string) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if there, _, err := c.Exists(path); err == nil && there {
			return true
		}
	}
	return false
}

// TestPermitThatNeverHadASlot: a permit waits behind a hold of the whole lock, and then it, its lease or its sidecar ends. No
// empty node stays where its slot would have been.
func TestPermitThatNeverHadASlot(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 30*time.Second)
	live(t, l)
	hold(t, l, unique(), lock.Permits(1)) // what is above all slots is there
	c := stranger(t, s.URL())
	for what, end := range map[string]func(t testing.TB, w *road, l *lease, q lock.Request, cancel func()){
		"given up": func(_ testing.TB, _ *road, _ *lease, _ lock.Request, cancel func()) { cancel() },
		"forced out": func(t testing.TB, _ *road, l *lease, q lock.Request, _ func()) {
			eventually(t, "it is forced out", func() error { return b.ForceRelease(t.Context(), q.Resource, q.ID, 0) })
			eventually(t, "its sidecar knows", func() error { return beat(t.Context(), l) })
		},
		"closed": func(t testing.TB, _ *road, l *lease, _ lock.Request, _ func()) {
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"expired": func(_ testing.TB, w *road, _ *lease, _ lock.Request, _ func()) {
			w.set(func(w *road) { w.lost = true })
		},
	} {
		subtest(t, what, func(t testing.TB) {
			g := hold(t, l, unique(), lock.Exclusive)
			way, url := newRoad(t, s.URL())
			ob, other := sidecar(t, url, 5*time.Second)
			beating(t, other, 200*time.Millisecond)
			q := request(g.Resource, lock.Permits(2))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := make(chan error, 1)
			go func() { _, err := other.Acquire(ctx, q); over <- err }()
			eventually(t, "it waits", func() error {
				if st, err := b.Get(t.Context(), q.Resource); err != nil || len(st.Waiters) != 1 {
					return errors.Join(errors.New("it does not"), err)
				}
				return nil
			})
			end(t, way, other, q, cancel)
			eventually(t, "it waits no more", func() error {
				if all := nodes(t, ob, s.URL(), q.Resource); len(all) != 1 {
					return fmt.Errorf("there are %v", all)
				}
				return nil
			})
			absent(t, c, b.tree.slots(q.Resource))
			release(t, l, g)
			way.set(func(w *road) { w.lost = false })
			cancel()
			if err := <-over; err == nil {
				t.Error("it was granted beside the whole lock")
			}
			release(t, l, hold(t, l, q.Resource, lock.Permits(2)))
			empty(t, b, s.URL(), q.Resource)
		})
	}
}

// TestSlotRefused: a permit is forced out just before it would take its slot. The node above the slots, which comes with
// the same packets, does not stay.
func TestSlotRefused(t *testing.T) { again(t, testSlotRefused) }

func testSlotRefused(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	way, url := newRoad(t, s.URL())
	b, l := sidecar(t, url, 30*time.Second)
	live(t, l)
	_, o := sidecar(t, s.URL(), 30*time.Second)
	r := unique()
	path, _ := b.tree.lockPath(r)
	hold(t, o, unique(), lock.Permits(1)) // what is above all slots is there
	x := hold(t, o, r, lock.Exclusive)
	q := request(r, lock.Permits(2))
	w := queue(t, b, l, q)
	var once sync.Once
	var refused error
	way.set(func(w *road) {
		w.request = func(op int32, body string) action {
			if op == opMulti && strings.Contains(body, slotsWord) {
				once.Do(func() {
					if !appears(c, b.tree.slots(r)) {
						refused = errors.New("what is above its slot is not there")
					}
					all, _, err := c.Children(path)
					for _, name := range namesOf(all, node{id: q.ID, name: idPrefix(q.ID)}) {
						err = errors.Join(err, c.Delete(path+"/"+name, -1))
					}
					refused = errors.Join(refused, err)
				})
			}
			return pass
		}
	})
	release(t, o, x)
	<-w.done
	if !errors.Is(w.err, lock.ErrNotHolder) {
		t.Errorf("Acquire of a permit that was forced out: %+v, %v", w.g, w.err)
	}
	way.set(func(w *road) { w.request = nil })
	if refused != nil {
		t.Fatal(refused)
	}
	absent(t, c, b.tree.slots(r))
	release(t, l, hold(t, l, r, lock.Permits(2)))
	empty(t, b, s.URL(), r)
}

// TestLockThatNeverHadARequest: the connection ends when the node of a lock is there, and no request below it yet, each time that
// it is tried. The request is given up, and the node does not stay.
func TestLockThatNeverHadARequest(t *testing.T) { again(t, testLockThatNeverHadARequest) }

func testLockThatNeverHadARequest(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	way, url := newRoad(t, s.URL())
	b, l := sidecar(t, url, 30*time.Second)
	live(t, l)
	q := request(unique(), lock.Exclusive)
	path, _ := b.tree.lockPath(q.Resource)
	neverPlaced(t, c, way, l, q, path, func(int32, string) action { return pass })
	absent(t, c, path)
	release(t, l, hold(t, l, q.Resource, lock.Exclusive))
}

// neverPlaced has a request given up: each time that its node would be made below that of its lock, which is there by then, the connection
// ends before. judge says what becomes of all else that is sent.
func neverPlaced(t testing.TB, c *zk.Conn, way *road, l *lease, q lock.Request, path string, judge func(op int32, body string) action) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var cuts atomic.Int32
	way.set(func(w *road) {
		w.request = func(op int32, body string) action {
			if op != opCreate && op != opMulti || !strings.Contains(body, string(q.ID)) {
				return judge(op, body)
			}
			if appears(c, path) {
				cuts.Add(1)
			}
			cancel()
			return cutBefore
		}
	})
	if g, err := l.Acquire(ctx, q); err == nil {
		t.Errorf("Acquire without a node: %+v", g)
	}
	if cuts.Load() == 0 {
		t.Fatal("nothing was cut behind the node of the lock")
	}
	way.set(func(w *road) { w.request = judge })
	if err := released(t, l, q.Resource, q.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
		t.Fatalf("Release: %v", err)
	}
}

// wasCut waits until something was cut.
func wasCut(t testing.TB, cut <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-cut:
	case <-time.After(patience):
		t.Fatalf("nothing was cut %s", what)
	}
}
