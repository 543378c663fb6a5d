package zklock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// TestForcedBeforeItKnowsOfItsGrant: a waiter is granted in the store, and its release
// is forced before its sidecar has heard of either. Where it hears of that first, nobody
// was told of the grant, and it is given back at once. Else its holder is told.
func TestForcedBeforeItKnowsOfItsGrant(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		way, through := newRoad(t, url)
		_, l := sidecar(t, through+options, 15*time.Second)
		b, o := sidecar(t, url+options, 15*time.Second)
		waits := live(t, l)
		live(t, o)
		r := unique()
		first := hold(t, o, r, lock.Exclusive)
		q := request(r, lock.Exclusive)
		w := queue(t, b, l, q)
		next := queue(t, b, o, request(r, lock.Exclusive))
		way.silent(true)
		release(t, o, first)
		forced, _ := force(t, b, lock.Grant{ID: q.ID, Resource: r}, time.Hour)
		way.silent(false)
		<-w.done
		switch {
		case w.err == nil:
			waits.revoked(q.ID, lock.BootTime()+2*time.Hour)
			release(t, l, w.g)
		case !errors.Is(w.err, lock.ErrNotHolder):
			t.Errorf("Acquire: %+v, %v; want that it was forced", w.g, w.err)
		}
		release(t, o, next.granted())
		if err := <-forced; err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
	})
}

// TestGraceIsCountedOnce: the release of a hold is forced before its sidecar has
// written how long it waited. What it writes does not make the grace begin again.
func TestGraceIsCountedOnce(t *testing.T) {
	const grace = time.Second
	eachLayout(t, func(t testing.TB, url, options string) {
		_, l := sidecar(t, url+options, 15*time.Second)
		b, o := sidecar(t, url+options, 15*time.Second)
		holder := live(t, l)
		live(t, o)
		r := unique()
		first := hold(t, o, r, lock.Exclusive)
		w := queue(t, b, l, request(r, lock.Exclusive))
		next := queue(t, b, o, request(r, lock.Exclusive))
		time.Sleep(2 * lastsAfter)
		release(t, o, first)
		g := w.granted()
		forced, _ := force(t, b, g, grace)
		told := holder.revoked(g.ID, lock.BootTime()+time.Hour)
		release(t, o, next.grantedAfter(holder, g.ID))
		if again := holder.revoked(g.ID, lock.BootTime()+time.Hour); again.until != told.until {
			t.Errorf("the grace ends at %s, after it was said to end at %s", again.until, told.until)
		}
		if err := <-forced; err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
	})
}

// TestNumbersAreUsedUp: the counter of a lock's node comes near its end, where it
// sticks. Requests are refused then until nobody holds the lock, and after that
// numbers begin at zero again.
func TestNumbersAreUsedUp(t *testing.T) { again(t, testNumbersAreUsedUp) }

func testNumbersAreUsedUp(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 20*time.Second)
	b.maxSeq = 20
	r := unique()
	last := hold(t, l, r, lock.Shared) // so that the node stays
	for {
		g, err := l.Acquire(t.Context(), request(r, lock.Shared))
		if err != nil {
			if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "used up") {
				t.Fatalf("Acquire: %v", err)
			}
			break
		}
		if g.Fence <= last.Fence {
			t.Errorf("broken law: fence %d after %d", g.Fence, last.Fence)
		}
		release(t, l, last)
		last = g
	}
	if left := nodes(t, b, s.URL(), r); len(left) != 1 {
		t.Errorf("beside the holder's there are nodes: %v", left)
	}
	release(t, l, last)
	g := hold(t, l, r, lock.Exclusive)
	if n, _ := parseNode(nodes(t, b, s.URL(), r)[0]); n.seq > 5 || g.Fence <= last.Fence {
		t.Errorf("the number %d and the fence %d after %d", n.seq, g.Fence, last.Fence)
	}
	release(t, l, g)
}

// now is the fence of another store at this moment.
func now() lock.Fence { return lock.FenceOf(time.Now().UnixMicro()) }

// TestFencesGoOnFromAnotherStore: the first fence is larger than what a store that
// counts by time has given, in whatever layout, and so it is after such a store has
// taken over for some time. What it gives then is larger, too.
func TestFencesGoOnFromAnotherStore(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		options = strings.Replace(options, "/force", "/fences-"+string(unique()), 1)
		last := lock.Fence(0)
		for range 3 {
			other := now()
			b := openAt(t, url+options)
			var l *lease
			eventually(t, "no other lease is there", func() error {
				l = newLease(t, b, 5*time.Second)
				c := stranger(t, url)
				if all, _, err := c.Children(b.tree.leases()); err != nil || len(all) > 1 {
					return errors.Join(errors.New("it is"), err, l.Close(t.Context()))
				}
				return nil
			})
			g := hold(t, l, "r", lock.Exclusive)
			if g.Fence <= other || g.Fence <= last {
				t.Errorf("broken law: fence %d after %d by another store and %d by us", g.Fence, other, last)
			}
			last = g.Fence
			release(t, l, g)
			if later := now() + lock.FenceOf(time.Second.Microseconds()); later <= last {
				t.Errorf("another store gives %d after %d", later, last)
			}
			if err := errors.Join(l.Close(t.Context()), b.Close()); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestFencesOfANewEnsemble: the ensemble has lost all its data.
func TestFencesOfANewEnsemble(t *testing.T) { again(t, testFencesOfANewEnsemble) }

func testFencesOfANewEnsemble(t testing.TB) {
	s := testengine.New(t, testengine.ZooKeeper)
	b, l := sidecar(t, s.URL(), 6*time.Second)
	stop := beating(t, l, 500*time.Millisecond)
	g := hold(t, l, "r", lock.Exclusive)
	stop()
	testengine.Restart(t, s, testengine.DropData)
	again := newLease(t, b, 10*time.Second)
	if g2 := hold(t, again, "r", lock.Exclusive); g2.Fence <= g.Fence {
		t.Errorf("broken law: fence %d after %d", g2.Fence, g.Fence)
	}
}

// TestAllAgreeOnTheBase: many sidecars open at the same time, on a new chroot and on
// one that all others have left.
func TestAllAgreeOnTheBase(t *testing.T) { again(t, testAllAgreeOnTheBase) }

func testAllAgreeOnTheBase(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	url := s.URL() + "/base-" + string(unique())
	for range 2 {
		const sidecars = 8
		var wg sync.WaitGroup
		var mu sync.Mutex
		var all []lock.Lease
		bases := make(map[int64]int)
		for range sidecars {
			wg.Go(func() {
				b := openAt(t, url)
				l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Second})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				all = append(all, l)
				bases[b.drivers[0].leaseNode.base]++
			})
		}
		wg.Wait()
		goOn(t)
		if len(bases) != 1 {
			t.Errorf("they have the bases %v", bases)
		}
		for _, l := range all {
			_ = l.Close(t.Context())
		}
	}
}

// TestBaseIsDeleted: somebody has deleted the node of the base, and another sidecar opens.
// Both go on with the same base.
func TestBaseIsDeleted(t *testing.T) { again(t, testBaseIsDeleted) }

func testBaseIsDeleted(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	url := s.URL() + "/base-" + string(unique())
	b, l := sidecar(t, url, 30*time.Second)
	if err := beat(t.Context(), l); err != nil { // it writes the base again
		t.Fatal(err)
	}
	if err := stranger(t, s.URL()).Delete(b.tree.base(), -1); err != nil {
		t.Fatal(err)
	}
	_, other := sidecar(t, url, 30*time.Second)
	first := hold(t, other, "r", lock.Exclusive)
	release(t, other, first)
	if g := hold(t, l, "r", lock.Exclusive); g.Fence <= first.Fence {
		t.Errorf("broken law: fence %d after %d", g.Fence, first.Fence)
	}
}

// TestFencesOfReadersWokenTogether: readers that are granted by one release hear of it
// in any order. Their fences are larger than that of every writer before them, and
// smaller than that of every writer after them.
func TestFencesOfReadersWokenTogether(t *testing.T) { again(t, testFencesOfReadersWokenTogether) }

func testFencesOfReadersWokenTogether(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b, o := sidecar(t, s.URL(), 15*time.Second)
	_, slow := sidecar(t, url, 15*time.Second)
	r := unique()
	before := hold(t, o, r, lock.Exclusive)
	late, early := queue(t, b, slow, request(r, lock.Shared)), queue(t, b, o, request(r, lock.Shared))
	writer := queue(t, b, o, request(r, lock.Exclusive))
	way.set(func(r *road) { r.mute = true })
	release(t, o, before)
	g2 := early.granted()
	late.pending()
	way.set(func(r *road) { r.mute = false })
	g1 := late.granted()
	release(t, o, g2)
	release(t, slow, g1)
	after := writer.granted()
	for _, g := range []lock.Grant{g1, g2} {
		if g.Fence <= before.Fence || g.Fence >= after.Fence {
			t.Errorf("a reader's fence %d is not between %d and %d", g.Fence, before.Fence, after.Fence)
		}
	}
	release(t, o, after)
}

// write overwrites a node's data until the test is over or stop is called.
func write(t testing.TB, c *zk.Conn, path string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			_, _ = c.Set(path, []byte("__REVOKE__"), -1)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

// TestDowngradeWhileOthersWrite: another program writes into the node of a hold, as
// Curator's Revoker does. Downgrade comes to an end, and in the end it is done.
func TestDowngradeWhileOthersWrite(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		b, l := sidecar(t, url+options, 15*time.Second)
		live(t, l)
		r := unique()
		g := hold(t, l, r, lock.Exclusive)
		path, _ := b.tree.lockPath(r)
		names := nodes(t, b, url, r)
		i := slices.IndexFunc(names, func(n string) bool { _, ok := parseNode(n); return ok })
		stop := write(t, stranger(t, url), path+"/"+names[i])
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 300*time.Millisecond)
			defer cancel()
			done <- l.Downgrade(ctx, r, g.ID)
		}()
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Downgrade: %v", err)
			}
		case <-time.After(patience):
			t.Fatal("Downgrade does not come to an end")
		}
		stop()
		if err := l.Downgrade(t.Context(), r, g.ID); err != nil {
			t.Errorf("Downgrade: %v", err)
		}
		reader := hold(t, l, r, lock.Shared)
		release(t, l, reader)
		release(t, l, g)
	})
}

// TestGuardGoesWithItsRequest: somebody deletes the node of a hold by hand, in the
// layout of Curator. The node beside it, for which Curator's mutex waits, goes too, also
// when the connection ends instead.
func TestGuardGoesWithItsRequest(t *testing.T) { again(t, testGuardGoesWithItsRequest) }

func testGuardGoesWithItsRequest(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b, l := sidecar(t, url+"/guard?layout=curator", 15*time.Second)
	live(t, l)
	r := unique()
	g := hold(t, l, r, lock.Exclusive)
	cut := way.once(opDelete, "guard-", cutBefore)
	path, _ := b.tree.lockPath(r)
	time.Sleep(2 * lastsAfter)
	c := stranger(t, s.URL())
	for _, n := range nodes(t, b, s.URL(), r) {
		if _, request := parseNode(n); request {
			if err := c.Delete(path+"/"+n, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	<-cut
	eventually(t, "the guard is gone", func() error {
		if left := nodes(t, b, s.URL(), r); len(left) > 0 {
			return errors.New(strings.Join(left, ", "))
		}
		return nil
	})
	if err := l.Release(t.Context(), r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("Release: %v", err)
	}
}

// TestListTellsWhatItMayNotRead: a list that is not complete says so.
func TestListTellsWhatItMayNotRead(t *testing.T) {
	eachLayout(t, func(t testing.TB, url, options string) {
		options = strings.Replace(options, "/force", "/partial-"+string(unique()), 1)
		b, l := sidecar(t, url+options, 15*time.Second)
		live(t, l)
		g := hold(t, l, "r", lock.Exclusive)
		path, _ := b.tree.lockPath("r")
		c := stranger(t, url)
		if _, err := c.SetACL(path, zk.WorldACL(zk.PermCreate|zk.PermDelete|zk.PermAdmin), -1); err != nil {
			t.Fatal(err)
		}
		if all, err := b.List(t.Context(), "", lock.Page{Limit: 10}); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "may not") {
			t.Errorf("List: %+v, %v", all, err)
		}
		if _, err := c.SetACL(path, zk.WorldACL(zk.PermAll), -1); err != nil {
			t.Fatal(err)
		}
		release(t, l, g)
	})
}

// TestLostCreateIsLookedForBehindAWrite: what became of a create without an answer is
// asked for behind a write, and not a sync, which a leader answers that was deposed.
func TestLostCreateIsLookedForBehindAWrite(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	_, l := sidecar(t, url, 15*time.Second)
	r := unique()
	release(t, l, hold(t, l, r, lock.Exclusive))
	q := request(r, lock.Exclusive)
	var mu sync.Mutex
	var ops []int32
	cut := way.once(opCreate, string(q.ID), cutAfter)
	way.set(func(w *road) {
		f := w.request
		w.request = func(op int32, body string) action {
			mu.Lock()
			defer mu.Unlock()
			ops = append(ops, op)
			return f(op, body)
		}
	})
	g, err := l.Acquire(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	<-cut
	mu.Lock()
	const opChildren = 12
	created := slices.Index(ops, opCreate)
	barrier, list := slices.Index(ops, opMulti), -1
	for i, op := range ops {
		if op == opChildren && i > created && i > barrier {
			list = i
			break
		}
	}
	if barrier < created || list < barrier {
		t.Errorf("the requests were %v", ops)
	}
	mu.Unlock()
	release(t, l, g)
}
