package zklock

import (
	"context"
	"errors"
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
	var tidied atomic.Int32
	tidy := func() {
		var once sync.Once
		way.set(func(r *road) {
			r.request = func(op int32, body string) action {
				if op == opCreate && contains(body, b.tree.leases()+"/") {
					once.Do(func() {
						if err := c.Delete(b.tree.leases(), -1); err == nil || errors.Is(err, zk.ErrNoNode) { // the server was faster
							tidied.Add(1)
						}
					})
				}
				return pass
			}
		})
	}
	tidy()
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close(context.WithoutCancel(t.Context())) }()
	tidy()
	if err := c.Delete(b.tree.lease(l.ID()), -1); err != nil {
		t.Fatal(err)
	}
	if err := beat(t.Context(), l); err != nil {
		t.Errorf("Heartbeat: %v", err)
	}
	if ok, _, err := c.Exists(b.tree.lease(l.ID())); !ok || err != nil {
		t.Errorf("the node of the lease is not there again: %v", err)
	}
	if n := tidied.Load(); n != 2 {
		t.Errorf("the node was removed %d times, want 2", n)
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
