package etcd

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A server, or all members, go back to a backup that is younger than the last heartbeat of a sidecar. Others take its lock, and
// have changed more before its next heartbeat than the backup lacks. It is told with that heartbeat, and not minutes later.
func TestBackupSinceTheLastHeartbeat(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.Etcd, testengine.EtcdCluster} {
		for what, waits := range map[string]bool{"free in the backup": false, "waiting in the backup": true} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				s := testengine.New(t, kind)
				b, l := sidecar(t, s.URL()+"?timeout=1s", 10*time.Minute)
				_, rival := sidecar(t, s.URL()+"?timeout=1s", 10*time.Minute)
				old := hold(t, l, "old")
				var theirs lock.Grant
				granted, q := make(chan lock.Grant, 1), request("r")
				ask := func() {
					var g lock.Grant
					eventually(t, "it is granted", func() (err error) {
						g, err = l.Acquire(t.Context(), q)
						return err
					})
					granted <- g
				}
				if waits {
					theirs = hold(t, rival, "r")
					go ask()
				}
				time.Sleep(100 * time.Millisecond) // it may wait; where it does not yet, it is free in the backup
				eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
				restore := testengine.BackUp(t, s)
				if waits {
					release(t, rival, theirs)
				} else {
					go ask()
				}
				before := <-granted
				if !waits {
					release(t, l, old)
				}
				restore()
				after := theirs
				if !waits {
					after = hold(t, rival, "r")
				}
				for range 50 {
					release(t, rival, hold(t, rival, "other"))
				}
				var news []lock.Event
				eventually(t, "a heartbeat is answered", func() (err error) {
					news, err = l.Heartbeat(t.Context())
					return err
				})
				if len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != before.ID {
					st, err := b.Get(t.Context(), "r")
					t.Fatalf("two have the lock, %s with %d and %s with %d; the first is told %+v; the store has %+v, %v", before.ID, before.Fence, after.ID, after.Fence, news, st, err)
				}
				release(t, rival, after)
				if last := hold(t, l, "r"); last.Fence <= before.Fence || last.Fence <= after.Fence {
					t.Errorf("the fence %d after %d and %d", last.Fence, before.Fence, after.Fence)
				}
			})
		}
	}
}

// The server goes back to a backup, and a hundred sidecars notice it at the same moment. It takes them a few requests each: they do not keep each
// other from raising the base.
func TestManyFindABackup(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Etcd)
	const n = 100
	leases := make([]lock.Lease, n)
	for i := range leases {
		_, leases[i] = sidecar(t, s.URL()+"?timeout=20s", 10*time.Minute)
	}
	hold(t, leases[0], "first") // with which fences begin
	restore := testengine.BackUp(t, s)
	last := make([]lock.Grant, n)
	for i, l := range leases {
		last[i] = hold(t, l, lock.Resource(fmt.Sprint(i)))
	}
	restore()
	before, began := metrics(t, s)["grpc_server_started_total"], time.Now()
	var all sync.WaitGroup
	for i, l := range leases {
		all.Go(func() {
			var news []lock.Event
			eventually(t, "a heartbeat is answered", func() (err error) {
				news, err = l.Heartbeat(t.Context())
				return err
			})
			if len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != last[i].ID {
				t.Errorf("%+v, want that %s has vanished", news, last[i].ID)
			}
		})
	}
	all.Wait()
	got := metrics(t, s)["grpc_server_started_total"] - before
	t.Logf("%.0f requests for %d, in %s", got, n, time.Since(began))
	if got > 15*n {
		t.Errorf("%.0f requests for %d", got, n)
	}
	for _, was := range last {
		if g := hold(t, leases[0], was.Resource); g.Fence <= was.Fence {
			t.Errorf("the fence %d after %d", g.Fence, was.Fence)
		}
	}
}

// between does something before a transaction is sent.
type between struct {
	*store
	before func(caslock.Txn)
}

func (b *between) Do(ctx context.Context, x caslock.Txn) (caslock.Result, error) {
	b.before(x)
	return b.store.Do(context.WithoutCancel(ctx), x) // the time that the other thing takes does not count
}

// The server goes back to a backup between the two trips of a request with a min_hold, which is not noticed before its grant is answered. The
// grant has no fence that there was before.
func TestMinHoldWhileTheServerGoesBack(t *testing.T) {
	t.Parallel()
	s := testengine.New(t, testengine.Etcd)
	cfg, err := parseURL(s.URL() + "?timeout=1m")
	if err != nil {
		t.Fatal(err)
	}
	var armed atomic.Bool
	restore := func() {}
	w := &between{newStore(cfg), func(x caslock.Txn) {
		if len(x.If) > 0 && x.If[0].Key == "head/r" && len(x.Then) > 1 && armed.CompareAndSwap(true, false) {
			restore()
		}
	}}
	b := caslock.Open(w, caslock.Options{Timeout: cfg.timeout})
	t.Cleanup(func() { _ = b.Close() })
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Minute, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	release(t, l, hold(t, l, "r")) // with which fences begin
	restore = testengine.BackUp(t, s)
	var before lock.Grant
	for range 50 {
		before = hold(t, l, "r")
		release(t, l, before)
	}
	armed.Store(true)
	q := request("r")
	q.MinHold = time.Hour
	g, err := l.Acquire(t.Context(), q)
	if err != nil || armed.Load() {
		t.Fatalf("%v; the server went back: %t", err, !armed.Load())
	}
	if g.Fence <= before.Fence {
		t.Errorf("broken law: fence %d after %d", g.Fence, before.Fence)
	}
	if err := l.Release(t.Context(), "r", q.ID); err != nil {
		t.Error(err)
	}
}
