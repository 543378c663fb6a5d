package zklock

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// makeNode makes a node as another program would.
func makeNode(t testing.TB, c *zk.Conn, path string, flags int32) {
	t.Helper()
	if _, err := c.Create(path, []byte("10.0.0.7"), flags, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatalf("create %s: %v", path, err)
	}
}

// TestForeignChildren: what is no request for a lock is nobody's business.
func TestForeignChildren(t *testing.T) { again(t, testForeignChildren) }

func testForeignChildren(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	root := "/foreign-" + string(unique())
	b, l := sidecar(t, s.URL()+root+"?layout="+layoutCurator, 30*time.Second)
	g := hold(t, l, "orders", lock.Exclusive)
	makeNode(t, c, root+"/orders/config", 0)
	makeNode(t, c, root+"/orders/block-7", 0)
	makeNode(t, c, root+"/orders/%zz", 0)
	release(t, l, g)
	g = hold(t, l, "orders", lock.Exclusive)
	below := hold(t, l, "orders/config", lock.Shared) // a name as good as another
	all, err := b.List(t.Context(), "", lock.Page{Limit: 10})
	if err != nil || len(all) != 2 || all[0].Resource != "orders" || all[1].Resource != "orders/config" {
		t.Errorf("List has %+v, %v", all, err)
	}
	refused(t, l, "orders", lock.Shared)
	if err := b.ForceRelease(t.Context(), "orders", "config", 0); !errors.Is(err, lock.ErrNotHolder) {
		t.Errorf("ForceRelease of what is no hold: %v", err)
	}
	release(t, l, g)
	release(t, l, below)
	var invalid *lock.InvalidError
	ephemeral := hold(t, l, "leaf", lock.Exclusive)
	makeNode(t, c, root+"/leaf/worker", zk.FlagEphemeral)
	if _, err := l.Acquire(t.Context(), request("leaf/worker", lock.Exclusive)); !errors.As(err, &invalid) {
		t.Errorf("a lock below a node that can have no children: %v", err)
	}
	release(t, l, ephemeral)
}

// TestForeignLocks: locks of others who use the same names count.
func TestForeignLocks(t *testing.T) { again(t, testForeignLocks) }

func testForeignLocks(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	b, l := sidecar(t, s.URL()+"/locks-of-others?layout="+layoutCurator, 30*time.Second)
	const path = "/locks-of-others/r"

	// The recipe of the Go library.
	recipe := zk.NewLock(c, path, zk.WorldACL(zk.PermAll))
	if err := recipe.Lock(); err != nil {
		t.Fatal(err)
	}
	refused(t, l, "r", lock.Shared)
	st, err := b.Get(t.Context(), "r")
	if err != nil || len(st.Holders) != 1 || st.Holders[0].Mode != lock.Exclusive || st.Holders[0].Fence <= 0 || st.Holders[0].Sidecar != "" {
		t.Errorf("Get has %+v, %v", st, err)
	}
	w := queue(t, b, l, request("r", lock.Shared))
	if err := recipe.Unlock(); err != nil {
		t.Fatal(err)
	}
	g := w.granted()
	locked := make(chan error, 1)
	go func() { locked <- recipe.Lock() }()
	eventually(t, "the recipe is in the queue", func() error {
		if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Waiters) != 1 {
			return errors.Join(errors.New("it is not"), err)
		}
		return nil
	})
	select {
	case err := <-locked:
		t.Fatalf("the recipe has the lock beside ours: %v", err)
	default:
	}
	release(t, l, g)
	if err := <-locked; err != nil {
		t.Fatal(err)
	}

	// It can be ended by force: at once, and after a grace that it is not told of.
	w = queue(t, b, l, request("r", lock.Exclusive))
	st, err = b.Get(t.Context(), "r")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := b.ForceRelease(t.Context(), "r", st.Holders[0].ID, 200*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	g = w.granted()
	if took := w.at.Sub(began); took < 200*time.Millisecond {
		t.Errorf("granted %s after the release was forced", took)
	}
	release(t, l, g)
}

// TestDeletedByHand: somebody deletes nodes of ours.
func TestDeletedByHand(t *testing.T) { again(t, testDeletedByHand) }

func testDeletedByHand(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	b, l := sidecar(t, s.URL(), 30*time.Second)
	r := lock.Resource("by-hand")
	path, _ := b.tree.lockPath(r)
	g := hold(t, l, r, lock.Exclusive)
	w := queue(t, b, l, request(r, lock.Exclusive))
	for _, child := range nodes(t, b, s.URL(), r) {
		if err := c.Delete(path+"/"+child, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			t.Fatal(err)
		}
	}
	if e := event(t, l, g.ID); e.Until != 0 {
		t.Errorf("event %+v", e)
	}
	<-w.done
	if w.err != nil && !errors.Is(w.err, lock.ErrNotHolder) { // which one was deleted first is left open
		t.Errorf("the waiter's Acquire: %v", w.err)
	}
	if err := c.Delete(l.driver.leaseNode.path, -1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := beat(t.Context(), l); err != nil {
			t.Errorf("Heartbeat without the node of the lease: %v", err)
		}
	}
	if ok, _, err := c.Exists(l.driver.leaseNode.path); !ok || err != nil {
		t.Errorf("the node of the lease is not there again: %v", err)
	}
}

// TestReaderWithTheNumberOfAWriter: a thread that has Curator's write lock takes the
// read lock, too. That makes a node with the number of the first one, after we have
// listed the queue, and stays when the first one goes.
func TestReaderWithTheNumberOfAWriter(t *testing.T) { again(t, testReaderWithTheNumberOfAWriter) }

func testReaderWithTheNumberOfAWriter(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	c := stranger(t, s.URL())
	b, l := sidecar(t, s.URL()+"/same-number?layout=curator", 20*time.Second)
	b.shortQueue = -1 // as with a long queue
	live(t, l)
	const path = "/same-number/r"
	writer, err := "", zk.ErrNoNode
	for errors.Is(err, zk.ErrNoNode) { // the server removes what is empty
		release(t, l, hold(t, l, "r", lock.Exclusive))
		writer, err = c.Create(path+"/_c_x-__WRIT__", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	}
	if err != nil {
		t.Fatal(err)
	}
	w := queue(t, b, l, request("r", lock.Exclusive))
	reader := path + "/_c_y-__READ__" + writer[len(writer)-10:]
	makeNode(t, c, reader, zk.FlagEphemeral)
	if err := c.Delete(writer, -1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.done:
		t.Fatalf("granted beside a reader: %+v, %v", w.g, w.err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := c.Delete(reader, -1); err != nil {
		t.Fatal(err)
	}
	release(t, l, w.granted())
}
