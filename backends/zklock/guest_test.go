package zklock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestGuestLeaves: what was opened to ask without a lease goes when there is one, and so
// does its node.
func TestGuestLeaves(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b := openAt(t, url+"/guest")
	t.Cleanup(func() { _ = b.Close() })
	b.guestTimeout = 3 * time.Second
	if _, err := b.Get(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	l := newLease(t, b, 10*time.Second)
	live(t, l)
	c := stranger(t, s.URL())
	eventually(t, "the lease is all there is", func() error {
		leases, _, err := c.Children(b.tree.leases())
		if n := len(way.Targets()); err == nil && (n != 1 || len(leases) != 1) {
			err = fmt.Errorf("%d connections, leases %v", n, leases)
		}
		return err
	})
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Get(t.Context(), "r"); err != nil {
		t.Errorf("without a lease again: %v", err)
	}
}

// TestGuestWhoseSessionEnds: a look is under way while the servers cannot be reached, and they end the session
// that it is made through. It is made through another one.
func TestGuestWhoseSessionEnds(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b := openAt(t, url+"/guest-ends?timeout=60s")
	t.Cleanup(func() { _ = b.Close() })
	b.guestTimeout = 3 * time.Second
	if _, err := b.Get(t.Context(), "r"); err != nil {
		t.Fatal(err)
	}
	c := stranger(t, s.URL())
	if leases, _, err := c.Children(b.tree.leases()); err != nil || len(leases) != 1 {
		t.Fatalf("before it ends: leases %v, %v, want one", leases, err)
	}
	server := way.Targets()[0]
	way.Shut(server)
	way.sever()
	looked := make(chan error, 1)
	go func() {
		_, err := b.Get(t.Context(), "r")
		looked <- err
	}()
	eventually(t, "its session has ended", func() error {
		leases, _, err := c.Children(b.tree.leases())
		switch {
		case errors.Is(err, zk.ErrNoNode): // the server has removed the empty container too
			return nil
		case err == nil && len(leases) > 0:
			err = fmt.Errorf("leases %v", leases)
		}
		return err
	})
	way.Shut("")
	if err := <-looked; err != nil {
		t.Error(err)
	}
}

// TestNobodyWaitsForTheGuestOfAnother: servers accept connections and nothing more. Who gives
// up does so while others still try.
func TestNobodyWaitsForTheGuestOfAnother(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{}, 16)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			called <- struct{}{}
		}
	})
	defer all.Wait()
	defer silent.Close()
	b := openAt(t, "zk://"+silent.Addr().String()+"?timeout=30s")
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() { _, _ = b.Get(ctx, "r") })
	defer cancel()
	<-called
	soon, enough := context.WithCancel(t.Context())
	enough()
	left := make(chan error, 1)
	all.Go(func() {
		_, err := b.Get(soon, "r")
		left <- err
	})
	select {
	case err := <-left:
		if !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Get: %v, want ErrUnavailable", err)
		}
	case <-time.After(patience):
		t.Error("it waits for the other one")
	}
}
