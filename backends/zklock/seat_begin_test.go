package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestLeaseWhileTheServerTidies: the node above those of the leases is empty, and the
// server removes it just before ours comes: when a lease is opened, and when its node is
// made again.
func TestLeaseWhileTheServerTidies(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	c := stranger(t, s.URL())
	b := openAt(t, url+"/tidied-"+string(unique()))
	t.Cleanup(func() { _ = b.Close() })
	var tidied, lost atomic.Int32
	tidy := func() {
		var once sync.Once
		tidied.Store(0)
		way.set(func(r *road) {
			r.request = func(op int32, body string) action {
				if op == opCreate && contains(body, b.tree.leases()+"/") {
					once.Do(func() {
						err := c.Delete(b.tree.leases(), -1)
						for end := time.Now().Add(patience); errors.Is(err, zk.ErrConnectionClosed) && time.Now().Before(end); {
							err = c.Delete(b.tree.leases(), -1)
						}
						if err == nil || errors.Is(err, zk.ErrNoNode) || // the server was faster
							errors.Is(err, zk.ErrNotEmpty) && lost.Load() > 0 { // a node of another attempt is left
							tidied.Add(1)
						}
					})
				}
				return pass
			}
		})
	}
	// inSpite is for what must come through at once, but where the machine is so busy that
	// the connection is lost.
	inSpite := func(what string, f func() error) {
		t.Helper()
		eventually(t, what, func() error {
			tidy()
			err := f()
			if err != nil && !errors.Is(err, lock.ErrUnavailable) {
				t.Fatalf("%s: %v", what, err)
			}
			if err != nil {
				lost.Add(1)
			}
			return err
		})
		if tidied.Load() != 1 {
			t.Errorf("%s: the node was not removed meanwhile", what)
		}
	}
	var l lock.Lease
	inSpite("a lease is opened", func() (err error) {
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second})
		return err
	})
	defer func() { _ = l.Close(context.WithoutCancel(t.Context())) }()
	inSpite("it is renewed", func() error {
		if err := c.Delete(b.tree.lease(l.ID()), -1); err != nil && !errors.Is(err, zk.ErrNoNode) { // as in the attempt before
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
		}
		return beat(t.Context(), l)
	})
	if ok, _, err := c.Exists(b.tree.lease(l.ID())); !ok || err != nil {
		t.Errorf("the node of the lease is not there again: %v", err)
	}
}

// TestLeaseInFewTrips: what gives a lease its node is sent without waiting for the answers in
// between, so that a store which is slow, but answers, has leases for those who need one.
func TestLeaseInFewTrips(t *testing.T) {
	t.Parallel()
	r, url := newRoad(t, testengine.Shared(t, testengine.ZooKeeper).URL())
	b := openAt(t, url+"/trips?timeout=5s")
	read := make(chan struct{})
	var once sync.Once
	r.set(func(r *road) {
		r.request = func(op int32, _ string) action {
			const opGet = 4
			r.set(func(r *road) { r.deaf = true })
			if op == opGet {
				once.Do(func() { close(read) })
			}
			return pass
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	opened := make(chan error, 1)
	go func() {
		_, err := b.OpenLease(ctx, lock.LeaseOptions{TTL: 20 * time.Second})
		opened <- err
	}()
	select {
	case <-read:
	case err := <-opened:
		t.Fatalf("OpenLease without an answer: %v", err)
	case <-time.After(patience):
		t.Error("its node is not read before another request was answered")
	}
	cancel()
	if err := <-opened; err == nil {
		t.Error("a lease is open without an answer")
	}
}
