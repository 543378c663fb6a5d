package zklock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestGivenUpBeforeItsSlot: a permit is given up while its slot is on its way, on another connection than the end of its request, which
// is faster. The node above the slots, which comes before the slot, does not stay.
func TestGivenUpBeforeItsSlot(t *testing.T) { again(t, testGivenUpBeforeItsSlot) }

func testGivenUpBeforeItsSlot(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	way, url := newRoad(t, s.URL())
	b, l := sidecar(t, url+"?timeout=10s", 40*time.Second)
	live(t, l)
	_, o := sidecar(t, s.URL(), 40*time.Second)
	live(t, o)
	hold(t, o, unique(), lock.Permits(1)) // what is above all slots is there
	fillUp(t, l, l.driver.leaseNode.s)
	r := unique()
	path, _ := b.tree.lockPath(r)
	x := hold(t, o, r, lock.Exclusive)
	q := request(r, lock.Permits(2))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error, 1)
	go func() { _, err := l.Acquire(ctx, q); over <- err }()
	d := l.driver
	eventually(t, "it waits", func() error {
		d.mu.Lock()
		defer d.mu.Unlock()
		if w := d.lines[path]; w == nil || len(w.waiting) != 1 || w.busy || w.watching == "" {
			return errors.New("it does not")
		}
		return nil
	})
	reached, gone := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	way.set(func(w *road) {
		w.request = func(op int32, body string) action {
			if op == opContainer && strings.Contains(body, b.tree.slots(r)) {
				once.Do(func() {
					close(reached)
					cancel()
					forgotten := func() bool {
						d.mu.Lock()
						defer d.mu.Unlock()
						return d.lines[path] == nil
					}
					for end := time.Now().Add(8 * time.Second); !forgotten(); time.Sleep(time.Millisecond) {
						if time.Now().After(end) {
							gone <- lock.ErrUnavailable
							return
						}
					}
					gone <- nil
				})
			}
			return pass
		}
	})
	release(t, o, x)
	select {
	case <-reached:
	case err := <-over:
		t.Fatalf("it ended before its slot was on its way: %v", err)
	}
	if err := <-over; err == nil {
		t.Error("granted, when nobody waits any more")
	}
	if err := <-gone; err != nil {
		t.Fatalf("its request was not given up in time: %v", err)
	}
	way.set(func(w *road) { w.request = nil })
	absent(t, c, b.tree.slots(r))
	release(t, l, hold(t, l, r, lock.Permits(2)))
	empty(t, b, s.URL(), r)
}

// TestNodeOfALockWithoutAnswer: the answer to what makes the node of a lock does not come, and the request is given up before there
// is anything below. The node does not stay.
func TestNodeOfALockWithoutAnswer(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		subtest(t, layout, func(t testing.TB) {
			c := stranger(t, s.URL())
			l, path, q := lostNode(t, s.URL(), layout, func(string) {})
			absent(t, c, path)
			release(t, l, hold(t, l, q.Resource, lock.Exclusive))
		})
	}
}

// TestNodeOfAnotherWithoutAnswer: as before, but another program's node is there. It stays, though it is empty.
func TestNodeOfAnotherWithoutAnswer(t *testing.T) { again(t, testNodeOfAnotherWithoutAnswer) }

func testNodeOfAnotherWithoutAnswer(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	var before *zk.Stat
	l, path, q := lostNode(t, s.URL(), layoutCurator, func(path string) {
		_, err := c.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
		if err == nil {
			_, before, err = c.Exists(path)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	for range 10 { // as long as it may take to be cleared
		release(t, l, hold(t, l, q.Resource, lock.Exclusive))
	}
	if there, now, err := c.Exists(path); err != nil || !there || now.Czxid != before.Czxid {
		t.Errorf("another program's node is there: %t, %+v, %v; want %+v", there, now, err, before)
	}
}

// lostNode has a request given up of which nothing but the node of its lock can have been made, without an answer.
func lostNode(t testing.TB, server, layout string, before func(path string)) (l *lease, path string, q lock.Request) {
	t.Helper()
	way, url := newRoad(t, server)
	b, l := sidecar(t, url+"?layout="+layout, 30*time.Second)
	live(t, l)
	release(t, l, hold(t, l, unique(), lock.Exclusive)) // what is above all locks is there
	q = request(unique(), lock.Exclusive)
	path, _ = b.tree.lockPath(q.Resource)
	before(path)
	cut, judge := onceCut(opContainer, path, cutAfter)
	neverPlaced(t, stranger(t, server), way, l, q, path, judge)
	wasCut(t, cut, "behind the node of the lock")
	return l, path, q
}

// TestCutAsItIsCleared: the connection ends with the very packet that deletes an empty node. It does not stay.
func TestCutAsItIsCleared(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	for name, do := range map[string]action{"after": cutAfter, "before": cutBefore} {
		subtest(t, name, func(t testing.TB) {
			way, url := newRoad(t, s.URL())
			b, l := sidecar(t, url, 30*time.Second)
			live(t, l)
			q := request(unique(), lock.Exclusive)
			path, _ := b.tree.lockPath(q.Resource)
			release(t, l, hold(t, l, unique(), lock.Exclusive))
			cut, judge := onceCut(opDelete, path, do)
			neverPlaced(t, c, way, l, q, path, judge)
			wasCut(t, cut, "as it was cleared")
			absent(t, c, path)
		})
	}
}
