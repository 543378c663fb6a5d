package zklock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// detachable is a request for a hold that may be detached.
func detachable(r lock.Resource, m lock.Mode) lock.Request {
	q := request(r, m)
	q.Detachable = true
	return q
}

// attaching is a request for the hold of a key.
func attaching(g lock.Grant, key lock.HandleKey) lock.Request {
	q := request(g.Resource, g.Mode)
	q.Handle = key
	return q
}

// detach is that of the lease.
func (l *lease) detach(ctx context.Context, g lock.Grant, key lock.HandleKey, ttl time.Duration) error {
	return l.Lease.(lock.Detacher).Detach(ctx, g.Resource, g.ID, key, ttl)
}

// detached detaches a hold, under a new key.
func detached(t *testing.T, l *lease, g lock.Grant, ttl time.Duration) lock.HandleKey {
	t.Helper()
	key := lock.NewSecret().Key()
	if err := answered(t, func() error { return l.detach(t.Context(), g, key, ttl) }); err != nil {
		t.Fatalf("Detach: %v", err)
	}
	return key
}

// attached attaches a hold, and checks that it is the same.
func attached(t *testing.T, l *lease, g lock.Grant, key lock.HandleKey) lock.Grant {
	t.Helper()
	got := granted(t, l, attaching(g, key))
	if got.Fence != g.Fence || got.Until <= lock.BootTime() {
		t.Fatalf("attached as %+v, want the fence of %+v and some time", got, g)
	}
	return got
}

// ended ends a hold by its handle.
func ended(t *testing.T, b *Backend, g lock.Grant, key lock.HandleKey) {
	t.Helper()
	err := answered(t, func() error {
		_, err := b.SetHandle(t.Context(), g.Resource, key, 0)
		return err
	})
	if err != nil {
		t.Fatalf("SetHandle(0): %v", err)
	}
}

// shown is the only holder of a lock.
func shown(t *testing.T, b *Backend, r lock.Resource) lock.Holding {
	t.Helper()
	st, err := b.Get(t.Context(), r)
	if err != nil || len(st.Holders) != 1 {
		t.Fatalf("holders %+v, %v", st.Holders, err)
	}
	return st.Holders[0]
}

// eachDetached is for each layout and mode.
func eachDetached(t *testing.T, test func(t *testing.T, url, layout string, m lock.Mode)) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, layout := range []string{layoutOwn, layoutCurator} {
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(1)} {
			t.Run(fmt.Sprint(layout, m), func(t *testing.T) {
				t.Parallel()
				test(t, s.URL(), "?layout="+layout, m)
			})
		}
	}
}

// TestDetachedIsSwept: the sidecar that has detached a hold has ended, and nobody asks for the lock. When its time is
// over, and no sooner, another sidecar deletes all that is left of it: also when its time was moved, and
// when it has been attached since.
func TestDetachedIsSwept(t *testing.T) {
	t.Parallel()
	eachDetached(t, func(t *testing.T, url, layout string, m lock.Mode) {
		const ttl = 3 * time.Second
		_, l := sidecar(t, url+layout, 30*time.Second)
		b := openAt(t, url+layout)
		b.sweepEvery = 100 * time.Millisecond
		t.Cleanup(func() { _ = b.Close() })
		beating(t, newLease(t, b, 30*time.Second), 50*time.Millisecond)
		g := granted(t, l, detachable(unique(), m))
		key := detached(t, l, g, time.Hour)
		asked := time.Now()
		err := answered(t, func() error {
			_, err := b.SetHandle(t.Context(), g.Resource, key, ttl)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := l.Acquire(t.Context(), attaching(g, key)); err == nil {
			g = got
		} else if !errors.Is(err, lock.ErrNoHandle) || time.Since(asked) < ttl {
			t.Fatal(err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		noTrace(t, b, url, g.Resource, g.ID)
		if took := time.Since(asked); took < ttl-ttl/200 {
			t.Errorf("it was deleted %s after its time was set", took)
		}
	})
}

// TestConnectionLostWhenDetached ends the connection with the very packet that detaches, attaches or ends a hold, right
// before and right after it has reached the server. It is done once, whoever asks again.
func TestConnectionLostWhenDetached(t *testing.T) {
	t.Parallel()
	eachDetached(t, func(t *testing.T, url, layout string, m lock.Mode) {
		for name, do := range map[string]action{"after": cutAfter, "before": cutBefore} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				behind := m
				if m == lock.Shared {
					behind = lock.Exclusive
				}
				way, through := newRoad(t, url)
				b, l := sidecar(t, through+layout, 30*time.Second)
				o, other := sidecar(t, url+layout, 30*time.Second)
				lost := func(word string, f func()) {
					t.Helper()
					cut := way.once(opMulti, word, do)
					f()
					select {
					case <-cut:
					default:
						t.Errorf("nothing with %q was cut", word)
					}
				}
				g := granted(t, l, detachable(unique(), m))
				w := queue(t, o, other, request(g.Resource, behind))
				var key lock.HandleKey
				lost(wordDetached, func() { key = detached(t, l, g, time.Hour) })
				if h := shown(t, o, g.Resource); h.ID != g.ID || !h.Detached || h.Fence != g.Fence || h.Mode != m {
					t.Errorf("detached is %+v, want %+v", h, g)
				}
				lost(wordHeld, func() { g = attached(t, l, g, key) })
				if h := shown(t, o, g.Resource); h.ID != g.ID || h.Kept != 0 || h.Fence != g.Fence || h.Mode != m {
					t.Errorf("attached is %+v, want %+v", h, g)
				}
				lost(wordHeld, func() { key = detached(t, l, g, time.Hour) })
				w.pending()
				lost(wordDetached, func() { ended(t, b, g, key) })
				got := w.granted()
				if got.Fence <= g.Fence {
					t.Errorf("fence %d after %d", got.Fence, g.Fence)
				}
				release(t, other, got)
				noTrace(t, o, url, g.Resource, g.ID)
			})
		}
	})
}

// TestExclusionWhileItMoves: sidecars hand a lock, or permits, over to each other by handles, and wait for it in the queue. Nobody
// else has it before it is ended: also where connections break all the time, on an ensemble whose servers do not know everything
// at the same moment.
func TestExclusionWhileItMoves(t *testing.T) {
	t.Parallel()
	for _, m := range []lock.Mode{lock.Exclusive, lock.Permits(2)} {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			exclusionWhileItMoves(t, testengine.ZooKeeper, m, func(url string) (string, func(*atomic.Int64)) { return url, func(*atomic.Int64) {} })
		})
		t.Run("Severed"+m.String(), func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			var all sync.WaitGroup
			exclusionWhileItMoves(t, testengine.ZooKeeperEnsemble, m, func(url string) (string, func(*atomic.Int64)) {
				way, url := newRoad(t, url)
				return url, func(steps *atomic.Int64) {
					all.Go(func() {
						// On a busy machine nothing may come through between two, and no heartbeat: the longer nothing
						// has, the rarer they are.
						done, vain := int64(0), 1
						for leasekit.Sleep(ctx, time.Duration(vain*(100+rand.IntN(400)))*time.Millisecond) {
							way.sever()
							if vain++; steps.Load() > done {
								done, vain = steps.Load(), 1
							}
						}
					})
				}
			})
			stop()
			all.Wait()
		})
	}
}

// exclusionWhileItMoves is that at one store. by gives the URL of each sidecar, and what begins when it is open, with how
// many steps were done so far.
func exclusionWhileItMoves(t *testing.T, kind *testengine.Kind, m lock.Mode, by func(url string) (string, func(*atomic.Int64))) {
	s := testengine.Shared(t, kind)
	const workers, rounds, moves = 4, 4, 3
	most := int32(max(1, m.Limit()))
	var leases []*lease
	var backends []*Backend
	var begin []func(*atomic.Int64)
	for i := range workers {
		url, then := by(s.URL())
		b := openAt(t, url)
		b.shortQueue = 0 // it reads single nodes, and lists only where it must
		t.Cleanup(func() { _ = b.Close() })
		l := newLease(t, b, 40*time.Second)
		beating(t, l, 5*time.Second)
		if i == 1 && kind == testengine.ZooKeeperEnsemble && m == lock.Exclusive { // whose first session is full
			fillUp(t, l, l.driver.leaseNode.s)
		}
		backends, leases, begin = append(backends, b), append(leases, l), append(begin, then)
	}
	var steps atomic.Int64
	for _, f := range begin {
		f(&steps)
	}
	r := unique()
	var inside atomic.Int32
	var slots [2]atomic.Int32
	var all sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	work := func(i int, end bool) error {
		q := detachable(r, m)
		var g lock.Grant
		if err := answered(t, func() (err error) { g, err = leases[i].Acquire(ctx, q); return err }); err != nil {
			return fmt.Errorf("acquire: %w", err)
		}
		steps.Add(1)
		if n, same := inside.Add(1), slots[g.Fence.Slot()].Add(1); n > most || same > 1 {
			t.Errorf("%d have it, and %d the slot %d", n, same, g.Fence.Slot())
		}
		at, key := i, lock.HandleKey("")
		for range moves {
			key = lock.NewSecret().Key()
			if err := answered(t, func() error { return leases[at].detach(ctx, g, key, time.Hour) }); err != nil {
				return fmt.Errorf("detach: %w", err)
			}
			steps.Add(1)
			at = (at + 1) % workers
			q := attaching(g, key)
			was := g.Fence
			if err := answered(t, func() (err error) { g, err = leases[at].Acquire(ctx, q); return err }); err != nil || g.Fence != was {
				return fmt.Errorf("attach: fence %d, want %d, %w", g.Fence, was, err)
			}
			steps.Add(1)
		}
		slots[g.Fence.Slot()].Add(-1)
		inside.Add(-1)
		unsure := false
		return answered(t, func() (err error) {
			if end {
				err = leases[at].detach(ctx, g, key, 0)
			} else {
				_, err = backends[i].SetHandle(ctx, r, key, 0)
			}
			if unsure && (errors.Is(err, lock.ErrNotHolder) || errors.Is(err, lock.ErrNoHandle)) {
				return nil // it was ended by an attempt whose answer did not come
			}
			unsure = unsure || errors.Is(err, lock.ErrUnavailable)
			return err
		})
	}
	for i := range workers {
		all.Go(func() {
			for round := range rounds {
				if err := work(i, round%2 == 0); err != nil {
					t.Errorf("round %d: %v", round, err)
					stop() // the others would wait for ever
					return
				}
			}
		})
	}
	all.Wait()
	empty(t, backends[0], s.URL(), r)
}

// TestDetachedDowngraded: others may read beside a detached hold that was downgraded, before or while it was attached.
func TestDetachedDowngraded(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, attach := range []bool{false, true} {
		t.Run(fmt.Sprint("attached ", attach), func(t *testing.T) {
			t.Parallel()
			_, l := sidecar(t, s.URL(), 30*time.Second)
			b, o := sidecar(t, s.URL(), 30*time.Second)
			g := granted(t, l, detachable(unique(), lock.Exclusive))
			var key lock.HandleKey
			if attach {
				key = detached(t, l, g, time.Hour)
				g = attached(t, l, g, key)
			}
			if err := l.Downgrade(t.Context(), g.Resource, g.ID); err != nil {
				t.Fatal(err)
			}
			if !attach {
				key = detached(t, l, g, time.Hour)
			}
			if err := l.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if h := shown(t, b, g.Resource); !h.Detached || h.Mode != lock.Shared || h.Kept > time.Hour {
				t.Errorf("detached is %+v", h)
			}
			release(t, o, hold(t, o, g.Resource, lock.Shared))
			refused(t, o, g.Resource, lock.Exclusive)
			if _, err := o.Acquire(t.Context(), attaching(g, key)); !errors.Is(err, lock.ErrNoHandle) {
				t.Errorf("attach as EXCLUSIVE: %v", err)
			}
			g.Mode = lock.Shared
			g = attached(t, o, g, key)
			release(t, o, hold(t, o, g.Resource, lock.Shared))
			if err := o.detach(t.Context(), g, key, 0); err != nil {
				t.Fatal(err)
			}
			noTrace(t, b, s.URL(), g.Resource, g.ID)
		})
	}
}

// TestDetachWhatIsForced: a hold whose release is forced is not kept by a Detach.
func TestDetachWhatIsForced(t *testing.T) {
	t.Parallel()
	eachDetached(t, func(t *testing.T, url, layout string, m lock.Mode) {
		_, l := sidecar(t, url+layout, 30*time.Second)
		b, _ := sidecar(t, url+layout, 30*time.Second)
		for _, attach := range []bool{false, true} {
			g := granted(t, l, detachable(unique(), m))
			if attach {
				g = attached(t, l, g, detached(t, l, g, time.Hour))
			}
			forced, _ := force(t, b, g, time.Hour)
			eventually(t, "it is marked", func() error {
				st, err := b.Get(t.Context(), g.Resource)
				if err == nil && (len(st.Holders) != 1 || !st.Holders[0].Revoked) {
					err = errors.New("it is not")
				}
				return err
			})
			if err := answered(t, func() error { return l.detach(t.Context(), g, lock.NewSecret().Key(), time.Hour) }); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("Detach of what is forced: %v", err)
			}
			if err := <-forced; err != nil {
				t.Error(err)
			}
			noTrace(t, b, url, g.Resource, g.ID)
		}
	})
}

// TestDetachedWithMinHold: who detaches a hold has its MinHold no more.
func TestDetachedWithMinHold(t *testing.T) {
	t.Parallel()
	eachDetached(t, func(t *testing.T, url, layout string, m lock.Mode) {
		b, l := sidecar(t, url+layout, 30*time.Second)
		q := detachable(unique(), m)
		q.MinHold = time.Hour
		g := granted(t, l, q)
		key := detached(t, l, g, time.Minute)
		if h := shown(t, b, g.Resource); !h.Detached || h.Fence != g.Fence || h.Kept > time.Minute {
			t.Errorf("detached is %+v, want %+v", h, g)
		}
		ended(t, b, g, key)
		noTrace(t, b, url, g.Resource, g.ID)
	})
}

// TestDetachedDeletedByHand: somebody deletes the node of a detached hold. The lock is free, and its handle is worth nothing; a
// permit's slot is free when the time is over.
func TestDetachedDeletedByHand(t *testing.T) {
	t.Parallel()
	eachDetached(t, func(t *testing.T, url, layout string, m lock.Mode) {
		b := openAt(t, url+layout)
		t.Cleanup(func() { _ = b.Close() })
		b.sweepEvery = 100 * time.Millisecond
		l := newLease(t, b, 30*time.Second)
		sweeper := newLease(t, b, 30*time.Second)
		beating(t, sweeper, 50*time.Millisecond)
		g := granted(t, l, detachable(unique(), m))
		key := detached(t, l, g, time.Second)
		path, _ := b.tree.lockPath(g.Resource)
		c := stranger(t, url)
		for _, child := range nodes(t, b, url, g.Resource) {
			if n, ok := parseNode(child); ok && n.kept {
				_ = c.Delete(path+"/"+child, -1) // its time may be over
			}
		}
		if _, err := b.SetHandle(t.Context(), g.Resource, key, time.Hour); !errors.Is(err, lock.ErrNoHandle) {
			t.Errorf("SetHandle: %v", err)
		}
		noTrace(t, b, url, g.Resource, g.ID)
	})
}

// TestNamesOfDetached: what is there for a detached hold is found from the name of the node to which it is attached, counts only when
// that is gone, and is told from nodes of other programs.
func TestNamesOfDetached(t *testing.T) {
	id, key := lock.NewHoldID(), lock.NewSecret().Key()
	for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(4)} {
		for _, n := range []node{
			{id: id, shared: m == lock.Shared, limit: m.Limit(), loose: true, seq: 8},
			{id: id, shared: m == lock.Shared, limit: m.Limit(), loose: true, least: time.Minute, seq: 8},
			{id: id, shared: m == lock.Shared, limit: m.Limit(), loose: true, key: key, seq: 8},
		} {
			n.name = n.numbered()
			got, ok := parseNode(n.name)
			if !ok || got != n || !n.bySidecar() || got.mode() != m {
				t.Errorf("%q is %+v, want %+v", n.name, got, n)
			}
			if n.key == "" && n.least == 0 {
				continue
			}
			left := n.left()
			if got, ok := parseNode(left.name); !ok || got != left || !left.kept || left.numbered() != left.name || !left.bySidecar() {
				t.Errorf("%q is %+v, want %+v", left.name, got, left)
			}
			if got := parseNodes([]string{n.name, left.name}); len(got) != 1 || got[0] != n {
				t.Errorf("the queue of a request and what is left of it: %+v", got)
			}
			other := node{id: lock.NewHoldID(), seq: 9}.numbered()
			if got := parseNodes([]string{other, left.name}); len(got) != 2 || got[0] != left {
				t.Errorf("the queue of what is left, and a request: %+v", got)
			}
		}
	}
	for _, name := range []string{"_c_a-held.0af3-__WRIT__0000000008", "_c_a-held." + string(key[1:]) + "G-__WRIT__0000000008"} {
		if n, ok := parseNode(name); !ok || n.loose || n.key != "" {
			t.Errorf("%q is %+v", name, n)
		}
	}
}
