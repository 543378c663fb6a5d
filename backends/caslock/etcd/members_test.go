package etcd

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// storeAt opens a store with these members.
func storeAt(t *testing.T, addrs, options string) *store {
	t.Helper()
	cfg, err := parseURL("etcd://" + addrs + options)
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(cfg)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// turn is the connection to the member whose turn it is; nil: it was not made yet.
func (s *store) turn() any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == nil {
		return nil
	}
	return s.client
}

var look = caslock.Txn{Read: []caslock.Range{{Key: "x"}}}

// A watch begins at a member that takes connections and says nothing. Requests move on to the next
// one, and so does the watch.
func TestWatchLeavesASilentMember(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := storeAt(t, silent.Addr().String()+","+testengine.Nodes(t, testengine.Shared(t, testengine.Etcd))[0].Addr(), "?timeout=1s")
	ctx, cancel := context.WithCancel(t.Context())
	ready, over := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(over)
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			_ = s.Watch(ctx, "x", func() {
				select {
				case ready <- struct{}{}:
				default:
				}
			}, func(caslock.KV) {})
		}
	}()
	defer func() {
		cancel()
		<-over
	}()
	eventually(t, "the watch begins", func() error {
		if s.turn() == nil {
			return errors.New("nobody has asked for a connection")
		}
		return nil
	})
	eventually(t, "a request is answered", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := s.Do(ctx, look)
		return err
	})
	select {
	case <-ready:
	case <-time.After(patience / 2):
		t.Errorf("the watch stays at the member that says nothing")
	}
}
