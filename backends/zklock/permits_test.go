package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// fences checks that the store shows permits with the fences that their holders were told.
func fences(t testing.TB, b *Backend, r lock.Resource, want ...lock.Grant) {
	t.Helper()
	st, err := b.Get(t.Context(), r)
	if err != nil || len(st.Holders) != len(want) {
		t.Fatalf("Get has %+v, %v; want %d holders", st, err, len(want))
	}
	for _, g := range want {
		if !slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return h.ID == g.ID && h.Fence == g.Fence && h.Mode == g.Mode }) {
			t.Errorf("Get has the holders %+v, not slot %d of %s", st.Holders, g.Fence.Slot(), g.ID)
		}
	}
}

// slotsWord is in the packet that takes a slot.
const slotsWord = "/slots/"

// taken are the nodes of slots, as another client sees them.
func taken(t testing.TB, b *Backend, url string, r lock.Resource) []string {
	t.Helper()
	c := stranger(t, url)
	if _, err := c.Sync("/"); err != nil {
		t.Fatal(err)
	}
	all, _, err := c.Children(b.tree.slots(r))
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return all
}

// empty checks that a lock has no nodes, in the end.
func empty(t testing.TB, b *Backend, url string, r lock.Resource) {
	t.Helper()
	eventually(t, "nothing is left", func() error {
		if all := append(nodes(t, b, url, r), taken(t, b, url, r)...); len(all) != 0 {
			return fmt.Errorf("there are %v", all)
		}
		return nil
	})
}

// TestConnectionLostInClaim ends the connection with the very packet that takes a slot, right before
// and right after it has reached the server. The permit is granted all the same, with one slot.
func TestConnectionLostInClaim(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		for name, do := range map[string]action{"after": cutAfter, "before": cutBefore} {
			t.Run(layout+" "+name, func(t *testing.T) {
				t.Parallel()
				way, url := newRoad(t, s.URL())
				b, l := sidecar(t, url+"?layout="+layout, 30*time.Second)
				r, two := unique(), lock.Permits(2)
				first := hold(t, l, r, two)
				cut := way.once(opMulti, slotsWord, do)
				g := hold(t, l, r, two)
				select {
				case <-cut:
				default:
					t.Fatal("nothing was cut")
				}
				if g.Fence.Slot() != 1 {
					t.Errorf("slot %d, want 1, which is free", g.Fence.Slot())
				}
				fences(t, b, r, first, g)
				refused(t, l, r, two)
				release(t, l, g)
				release(t, l, first)
				empty(t, b, s.URL(), r)
			})
		}
	}
}

// TestGivenUpInClaim: a wait ends while its slot is on the way. Nothing is left, whichever comes first.
func TestGivenUpInClaim(t *testing.T) { again(t, testGivenUpInClaim) }

func testGivenUpInClaim(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b, l := sidecar(t, url+"?timeout=1s", 30*time.Second)
	live(t, l)
	_, o := sidecar(t, s.URL(), 30*time.Second)
	r, two := unique(), lock.Permits(2)
	other := hold(t, o, r, two) // so nothing that is above the slots is missing
	q := request(r, two)
	way.set(func(w *road) {
		w.request = func(op int32, body string) action {
			if op == opMulti && strings.Contains(body, slotsWord) {
				w.set(func(w *road) { w.deaf = true })
			}
			return pass
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, q)
		done <- err
	}()
	eventually(t, "the slot is taken", func() error {
		if all := taken(t, b, s.URL(), r); len(all) != 2 {
			return fmt.Errorf("there are %v", all)
		}
		return nil
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("granted, when nobody waits any more")
	}
	way.set(func(w *road) { w.deaf, w.request = false, nil })
	way.sever()
	eventually(t, "it is given up", func() error {
		err := l.Release(t.Context(), r, q.ID)
		if errors.Is(err, lock.ErrNotHolder) {
			return nil
		}
		return err
	})
	release(t, o, other)
	empty(t, b, s.URL(), r)
}

// TestPermitsTakeSlotsInOrder: who comes first may be slow to take its slot, because its sidecar is cut
// off. Who comes next waits for it, though there are permits for both: so fences grow with
// each grant. What is behind them has a larger one, too.
func TestPermitsTakeSlotsInOrder(t *testing.T) { again(t, testPermitsTakeSlotsInOrder) }

func testPermitsTakeSlotsInOrder(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b, slow := sidecar(t, url+"?timeout=1s", 40*time.Second)
	ob, quick := sidecar(t, s.URL(), 40*time.Second)
	r, two := unique(), lock.Permits(2)
	x := hold(t, quick, r, lock.Exclusive)
	reached := make(chan struct{})
	var once sync.Once
	way.set(func(w *road) { // as soon as it would take its slot, nothing comes through
		w.request = func(op int32, body string) action {
			if op != opMulti || !strings.Contains(body, slotsWord) {
				return pass
			}
			w.set(func(w *road) { w.lost = true })
			once.Do(func() { close(reached) })
			return drop
		}
	})
	first := queue(t, b, slow, request(r, two))
	next := request(r, two)
	second := queue(t, ob, quick, next)
	last := queue(t, ob, quick, request(r, lock.Exclusive))
	release(t, quick, x)
	<-reached
	q := request(r, two)
	q.Try = true // it looks at the queue, so that quick does
	if g, err := quick.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("a try: %+v, %v", g, err)
	}
	d := quick.driver
	d.mu.Lock()
	behind := d.spots[next.ID]
	d.mu.Unlock()
	if err := behind.l.settled(behind); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	if d.spots[next.ID].held {
		t.Error("the second has a slot before the first")
	}
	d.mu.Unlock()
	way.set(func(w *road) { w.lost, w.request = false, nil })
	g1, g2 := first.granted(), second.granted()
	if g1.Fence >= g2.Fence || g1.Fence.Slot() == g2.Fence.Slot() {
		t.Errorf("fences %d and then %d", g1.Fence, g2.Fence)
	}
	fences(t, b, r, g1, g2)
	release(t, slow, g1)
	release(t, quick, g2)
	if g := last.granted(); g.Fence <= g2.Fence {
		t.Errorf("fence %d of a lock after %d of a permit", g.Fence, g2.Fence)
	} else {
		release(t, quick, g)
	}
}

// TestTriesForPermitsTogether: as many tries as there are permits are granted, at whatever sidecars, also
// when none of them has its slot yet when the next comes.
func TestTriesForPermitsTogether(t *testing.T) { again(t, testTriesForPermitsTogether) }

func testTriesForPermitsTogether(t testing.TB) {
	const limit = 6
	s := testengine.Shared(t, testengine.ZooKeeper)
	var ls []*lease
	for range 3 {
		_, l := sidecar(t, s.URL()+"?timeout=20s", 40*time.Second)
		live(t, l)
		ls = append(ls, l)
	}
	r := unique()
	for range 5 {
		grants := make(chan func(), limit)
		var all sync.WaitGroup
		for i := range limit {
			all.Go(func() {
				q := request(r, lock.Permits(limit))
				q.Try = true
				g, err := ls[i%3].Acquire(t.Context(), q)
				if err != nil {
					t.Errorf("a try for one of %d permits, of which fewer are asked for: %v", limit, err)
					return
				}
				grants <- func() { release(t, ls[i%3], g) }
			})
		}
		all.Wait()
		close(grants)
		for end := range grants {
			end()
		}
	}
}

// TestPermitDeletedByHand: with the node of its request a permit has ended, and its slot is
// free, also when who has deleted it has left the node of the slot.
func TestPermitDeletedByHand(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	for _, layout := range []string{layoutOwn, layoutCurator} {
		subtest(t, layout, func(t testing.TB) {
			b, l := sidecar(t, s.URL()+"?layout="+layout, 30*time.Second)
			told := live(t, l)
			ob, o := sidecar(t, s.URL()+"?layout="+layout, 30*time.Second)
			r, two := unique(), lock.Permits(2)
			g, other := hold(t, l, r, two), hold(t, o, r, two)
			w := queue(t, ob, o, request(r, two))
			path, _ := b.tree.lockPath(r)
			for _, child := range nodes(t, b, s.URL(), r) {
				if n, ok := parseNode(child); ok && n.id == g.ID {
					if err := c.Delete(path+"/"+child, -1); err != nil {
						t.Fatal(err)
					}
				}
			}
			told.revoked(g.ID, 1<<62)
			next := w.granted()
			if next.Fence.Slot() != g.Fence.Slot() {
				t.Errorf("slot %d, want %d", next.Fence.Slot(), g.Fence.Slot())
			}
			fences(t, b, r, other, next)
			release(t, o, next)
			release(t, o, other)
			empty(t, b, s.URL(), r)
		})
	}
}

// TestSlotOfAnother: a permit is gone, and another one has its slot. Whoever clears away after the
// first one does not touch that.
func TestSlotOfAnother(t *testing.T) { again(t, testSlotOfAnother) }

func testSlotOfAnother(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 30*time.Second)
	r, one := unique(), lock.Permits(1)
	g := hold(t, l, r, one)
	d := l.driver
	d.mu.Lock()
	p := claimed{path: d.spots[g.ID].l.path, slots: b.tree.slots(r), id: g.ID, name: d.spots[g.ID].name, slot: d.spots[g.ID].rec.Slot, version: 1}
	d.mu.Unlock()
	release(t, l, g)
	next := hold(t, l, r, one)
	if there, err := d.leaseNode.removeClaimed(t.Context(), p); there || err != nil {
		t.Errorf("a delete once more: %t, %v", there, err)
	}
	if err := d.leaseNode.freeSlot(t.Context(), p.path, p.slots, g.ID, *p.slot); err != nil {
		t.Errorf("freeSlot: %v", err)
	}
	fences(t, b, r, next)
	if all := taken(t, b, s.URL(), r); len(all) != 1 {
		t.Errorf("the slots %v are taken, want that of the permit that is held", all)
	}
	release(t, l, next)
}

// TestManyPermits: a thousand permits of one sidecar, which have their nodes in several sessions. It does
// not list the queue for each of them.
func TestManyPermits(t *testing.T) { again(t, testManyPermits) }

func testManyPermits(t testing.TB) {
	const limit = 1000
	server := testengine.New(t, testengine.ZooKeeper)
	b := openAt(t, server.URL()+"?timeout=10s")
	t.Cleanup(func() { _ = b.Close() })
	var mu sync.Mutex
	asked := make(map[string]int)
	b.observe = func(command string, _ time.Duration, _ error) {
		mu.Lock()
		defer mu.Unlock()
		asked[command]++
	}
	l := newLease(t, b, 30*time.Second)
	live(t, l)
	r, m := lock.Resource(strings.Repeat("x", 100)), lock.Permits(limit)
	grants := make(chan lock.Grant, limit)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range limit / 20 {
				g, err := l.Acquire(t.Context(), request(r, m))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				grants <- g
			}
		})
	}
	all.Wait()
	goOn(t)
	close(grants)
	mu.Lock()
	t.Logf("%d permits took %v", limit, asked)
	if lists := asked["children"]; lists > limit/2 {
		t.Errorf("the queue was listed %d times for %d permits", lists, limit)
	}
	mu.Unlock()
	slots := make(map[int]bool)
	var held []lock.Grant
	for g := range grants {
		slots[g.Fence.Slot()] = true
		held = append(held, g)
	}
	if len(slots) != limit || len(held) != limit {
		t.Fatalf("%d grants have %d slots", len(held), len(slots))
	}
	sessions := pathsOf(t, hosts(server.URL())[0])
	if len(sessions) < 2 {
		t.Errorf("all nodes are in %d session", len(sessions))
	}
	for s, n := range sessions {
		if n > zksession.MaxPaths {
			t.Errorf("session %s has %d bytes of paths, want at most %d", s, n, zksession.MaxPaths)
		}
	}
	refused(t, l, r, m)
	w := queue(t, b, l, request(r, m))
	release(t, l, held[limit/2])
	if g := w.granted(); g.Fence.Slot() != held[limit/2].Fence.Slot() {
		t.Errorf("slot %d, want %d", g.Fence.Slot(), held[limit/2].Fence.Slot())
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := newLease(t, b, 30*time.Second)
	eventually(t, "all are free", func() error {
		if all := append(nodes(t, b, server.URL(), r), taken(t, b, server.URL(), r)...); len(all) > 0 {
			return fmt.Errorf("there are %d nodes", len(all))
		}
		return nil
	})
	release(t, other, hold(t, other, r, m))
}

// TestPermitsAndForeignLocks: a lock of another program and permits exclude each other.
func TestPermitsAndForeignLocks(t *testing.T) { again(t, testPermitsAndForeignLocks) }

func testPermitsAndForeignLocks(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	b, l := sidecar(t, s.URL()+"/permits-of-others?layout="+layoutCurator, 30*time.Second)
	live(t, l)
	const path = "/permits-of-others/r"
	two := lock.Permits(2)
	recipe := zk.NewLock(c, path, zk.WorldACL(zk.PermAll))
	if err := recipe.Lock(); err != nil {
		t.Fatal(err)
	}
	refused(t, l, "r", two)
	w := queue(t, b, l, request("r", two))
	if err := recipe.Unlock(); err != nil {
		t.Fatal(err)
	}
	first := w.granted()
	second := hold(t, l, "r", two)
	locked := make(chan error, 1)
	go func() { locked <- recipe.Lock() }()
	eventually(t, "the recipe is in the queue", func() error {
		if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Waiters) != 1 {
			return errors.Join(errors.New("it is not"), err)
		}
		return nil
	})
	release(t, l, first)
	refused(t, l, "r", two) // it is behind the recipe
	select {
	case err := <-locked:
		t.Fatalf("the recipe has the lock beside a permit: %v", err)
	default:
	}
	if all, err := b.List(t.Context(), "", lock.Page{Limit: 10}); err != nil || len(all) != 1 || all[0].Resource != "r" {
		t.Errorf("List has %+v, %v", all, err)
	}
	release(t, l, second)
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	if err := recipe.Unlock(); err != nil {
		t.Fatal(err)
	}
}
