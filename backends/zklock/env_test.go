package zklock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

// again runs a test beside others, and once more where the machine was too busy for it. It is not for
// tests of what happens without an answer.
func again(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	t.Parallel()
	backendtest.Again(t, test, zk.ErrConnectionClosed, zk.ErrSessionExpired, os.ErrDeadlineExceeded)
}

// subtest is again for a part of a test.
func subtest(t *testing.T, name string, test func(t testing.TB)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { again(t, test) })
}

// goOn ends a test in which something has failed already, so that what follows from that does not count.
func goOn(t testing.TB) {
	t.Helper()
	if t.Failed() {
		t.FailNow()
	}
}

// lease is a lease, and the driver below it.
type lease struct {
	*backendtest.TimedLease
	driver *driver
	ttl    time.Duration
}

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t testing.TB, url string, ttl time.Duration) (*Backend, *lease) {
	t.Helper()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	return b, newLease(t, b, ttl)
}

func newLease(t testing.TB, b *Backend, ttl time.Duration) *lease {
	t.Helper()
	var l lock.Lease
	var opened time.Duration
	eventually(t, "a lease is opened", func() (err error) {
		opened = lock.BootTime()
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx) // the server may be gone
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.drivers, func(d *driver) bool { return d.id == l.ID() })
	return &lease{backendtest.Timed(l, ttl, opened), b.drivers[i], ttl}
}

var eventually, within, beat = backendtest.Eventually, backendtest.Within, backendtest.Beat

func request(r lock.Resource, m lock.Mode) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: m, Owner: lock.Owner{Session: "test"}.Encode()}
}

func hold(t testing.TB, l *lease, r lock.Resource, m lock.Mode) lock.Grant {
	t.Helper()
	return granted(t, l, request(r, m))
}

func granted(t testing.TB, l *lease, q lock.Request) lock.Grant {
	t.Helper()
	var g lock.Grant
	eventually(t, "it is granted", func() (err error) {
		if g, err = l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) && err != nil {
			t.Fatalf("Acquire: %v", err)
		}
		return err
	})
	return g
}

func release(t testing.TB, l *lease, g lock.Grant) {
	t.Helper()
	if err := released(t, l, g.Resource, g.ID); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

// released releases, again and again where ZooKeeper does not answer in time.
func released(t testing.TB, l *lease, r lock.Resource, id lock.HoldID) error {
	unsure := false
	return answered(t, func() error {
		err := l.Release(t.Context(), r, id)
		if unsure && errors.Is(err, lock.ErrNotHolder) {
			return nil // it was released by an attempt whose answer did not come
		}
		unsure = unsure || errors.Is(err, lock.ErrUnavailable)
		return err
	})
}

// answered asks until ZooKeeper answers, on any goroutine.
func answered(t testing.TB, f func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if !errors.Is(err, lock.ErrUnavailable) || time.Now().After(end) || t.Context().Err() != nil {
			return err
		}
	}
}

// refused checks that a try is refused.
func refused(t testing.TB, l *lease, r lock.Resource, m lock.Mode) {
	t.Helper()
	q := request(r, m)
	q.Try = true
	if g, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("a try of what is held: %+v, %v", g, err)
	}
}

// wait is an Acquire under way.
type wait struct {
	t    testing.TB
	done chan struct{}
	g    lock.Grant
	err  error
	at   time.Time
}

// queue begins to acquire and returns when it is in the queue.
func queue(t testing.TB, b *Backend, l *lease, q lock.Request) *wait {
	t.Helper()
	w := &wait{t: t, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(w.done)
		w.g, w.err = l.Acquire(ctx, q)
		w.at = time.Now()
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	eventually(t, "it is in the queue", func() error {
		st, err := b.Get(t.Context(), q.Resource)
		if err != nil {
			return err
		}
		for _, h := range st.Waiters {
			if h.ID == q.ID {
				return nil
			}
		}
		return errors.New("it is not")
	})
	return w
}

func (w *wait) granted() lock.Grant {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		goOn(w.t)
		w.t.Fatalf("no grant after %s", patience)
	}
	if w.err != nil {
		w.t.Fatalf("Acquire: %v", w.err)
	}
	return w.g
}

func (w *wait) pending() {
	w.t.Helper()
	select {
	case <-w.done:
		w.t.Fatalf("Acquire returned %+v, %v", w.g, w.err)
	default:
	}
}

// beating renews a lease until the test is over or stop is called. It tells when
// the last heartbeat was sent that renewed it.
func beating(t testing.TB, l *lease, every time.Duration) (stop func() time.Time) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	var renewed time.Time
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			sent := time.Now()
			if beat(ctx, l) == nil {
				renewed = sent
			}
			select {
			case <-time.After(every):
			case <-ctx.Done():
			}
		}
	}()
	stop = func() time.Time {
		cancel()
		<-done
		return renewed
	}
	t.Cleanup(func() { stop() })
	return stop
}

// noEvent checks that a lease was told nothing.
func noEvent(t testing.TB, l *lease) {
	t.Helper()
	select {
	case e := <-l.Events():
		t.Errorf("event %+v", e)
	default:
	}
}

// event waits for news about a hold.
func event(t testing.TB, l *lease, id lock.HoldID) lock.Event {
	t.Helper()
	select {
	case e := <-l.Events():
		if e.Kind != lock.Revoked || e.ID != id {
			t.Fatalf("event %+v, want that %s is revoked", e, id)
		}
		return e
	case <-time.After(patience):
		t.Fatal("no event")
	}
	return lock.Event{}
}

// nodes are the children of a lock's node, as another client sees them.
func nodes(t testing.TB, b *Backend, url string, r lock.Resource) []string {
	t.Helper()
	path, err := b.tree.lockPath(r)
	if err != nil {
		t.Fatal(err)
	}
	c := stranger(t, url)
	if _, err := c.Sync("/"); err != nil {
		t.Fatal(err)
	}
	children, _, err := c.Children(path)
	if err != nil && !strings.Contains(err.Error(), "does not exist") {
		t.Fatal(err)
	}
	return children
}

// leader is the node of an ensemble that leads, and the others, once they all
// agree on it.
func leader(t testing.TB, s testengine.Server) (lead testengine.Node, rest []testengine.Node) {
	t.Helper()
	eventually(t, "one leads and the others follow", func() error {
		lead, rest = nil, nil
		nodes := testengine.Nodes(t, s)
		for _, n := range nodes {
			switch mode, err := said(n.Addr(), "srvr"); {
			case err != nil:
				return err
			case strings.Contains(mode, "Mode: leader"):
				lead = n
			case strings.Contains(mode, "Mode: follower"):
				rest = append(rest, n)
			}
		}
		if lead == nil || len(rest) != len(nodes)-1 {
			return fmt.Errorf("%d of %d follow", len(rest), len(nodes))
		}
		return nil
	})
	return lead, rest
}
