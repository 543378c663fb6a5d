package zklock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// counter counts requests by what they are.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) observe(command string, _ time.Duration, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[command]++
}

// take gives what was counted since it was called last.
func (c *counter) take() (all map[string]int, sum int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, c.n = c.n, nil
	for _, n := range all {
		sum += n
	}
	return all, sum
}

// counted opens a lease whose requests are counted.
func counted(t testing.TB, url string, ttl time.Duration) (*Backend, *lease, *counter) {
	t.Helper()
	return rechecked(t, url, ttl, leasekit.RecheckOf(ttl))
}

// rechecked is counted, with a time of its own between two looks at what is waited for: a
// lease with so short a TTL would be lost on a busy machine.
func rechecked(t testing.TB, url string, ttl, every time.Duration) (*Backend, *lease, *counter) {
	t.Helper()
	c := new(counter)
	b := openAt(t, url)
	b.observe = c.observe
	b.recheckOf = func(time.Duration) time.Duration { return every }
	t.Cleanup(func() { _ = b.Close() })
	return b, newLease(t, b, ttl), c
}

// crowd are many requests for one resource, by one sidecar.
type crowd struct {
	t      testing.TB
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	errs map[string]int
}

func newCrowd(t testing.TB, l *lease, r lock.Resource, n int) *crowd {
	ctx, cancel := context.WithCancel(t.Context())
	c := &crowd{t: t, cancel: cancel, errs: make(map[string]int)}
	for range n {
		c.wg.Go(func() {
			q := request(r, lock.Exclusive)
			err := lock.ErrUnavailable
			for errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil {
				_, err = l.Acquire(ctx, q)
			}
			for end := time.Now().Add(patience); errors.Is(err, lock.ErrUnavailable) && time.Now().Before(end); { // many leave at a time
				err = l.Release(context.WithoutCancel(ctx), r, q.ID)
			}
			if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, lock.ErrNotHolder) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.errs[err.Error()]++
			}
		})
	}
	t.Cleanup(func() { c.leave() })
	return c
}

func (c *crowd) leave() {
	c.t.Helper()
	c.cancel()
	c.wg.Wait()
	for err, n := range c.errs {
		c.t.Errorf("%d times: %s", n, err)
	}
}

// inQueue waits until a lock's node has so many children.
func inQueue(t testing.TB, b *Backend, url string, r lock.Resource, n int) {
	t.Helper()
	path, _ := b.tree.lockPath(r)
	c := stranger(t, url)
	for deadline := time.Now().Add(3 * patience); ; time.Sleep(20 * time.Millisecond) {
		_, st, err := c.Exists(path)
		if err != nil {
			t.Fatal(err)
		}
		if int(st.NumChildren) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("there are %d nodes, want %d", st.NumChildren, n)
		}
	}
}

// TestManyWaitersOfOneSidecar: each of thousands that wait for one lock costs one
// request to come and one to go. Neither the lease nor those who want another lock
// are held up: they come within five seconds, go within five, or longer where the machine is
// busy, and a neighbour's pair takes at most five times as long meanwhile. Issue 10, 1.10.
func TestManyWaitersOfOneSidecar(t *testing.T) { backendtest.Again(t, testManyWaitersOfOneSidecar) }

func testManyWaitersOfOneSidecar(t testing.TB) {
	s := testengine.New(t, testengine.ZooKeeper)
	const many = 5000
	b, l, requests := counted(t, s.URL()+"?timeout=3s", 10*time.Second)
	r := unique()
	g := hold(t, l, r, lock.Exclusive)

	ctx, stop := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	var pairMu sync.Mutex
	var pairs []time.Duration
	taken := func(when string) (n int, usual time.Duration) { // since the last time
		pairMu.Lock()
		defer pairMu.Unlock()
		slices.Sort(pairs)
		if n = len(pairs); n > 0 {
			usual = pairs[n/2]
			t.Logf("%s a neighbour's pair took %s, and one of a hundred %s or more", when, pairs[n/2], pairs[n*99/100])
		}
		pairs = nil
		return n, usual
	}
	beats, failed := 0, 0
	beside.Go(func() {
		for ; ctx.Err() == nil; leasekit.Sleep(ctx, 500*time.Millisecond) {
			err := beat(ctx, l)
			if beats++; err != nil && ctx.Err() == nil {
				failed++
			}
		}
	})
	beside.Go(func() { // a neighbour, in the same sidecar
		neighbour := unique()
		for ; ctx.Err() == nil; leasekit.Sleep(ctx, 5*time.Millisecond) {
			began := time.Now()
			q := request(neighbour, lock.Exclusive)
			if _, err := l.Acquire(ctx, q); err == nil {
				_ = l.Release(ctx, neighbour, q.ID)
			}
			pairMu.Lock()
			pairs = append(pairs, time.Since(began))
			pairMu.Unlock()
		}
	})
	time.Sleep(time.Second)
	_, before := taken("before,")
	requests.take()
	began := time.Now()
	c := newCrowd(t, l, r, many)
	inQueue(t, b, s.URL(), r, many+1)
	came := time.Since(began)
	in, _ := requests.take()
	neighbours, besideComing := taken("while they came,")
	began = time.Now()
	c.leave()
	inQueue(t, b, s.URL(), r, 1)
	left := time.Since(began)
	out, _ := requests.take()
	more, besideLeaving := taken("while they left,")
	neighbours += more
	time.Sleep(time.Second)
	_, after := taken("afterwards,")
	const onADisk = 5 * time.Millisecond // is what a pair takes where each write waits for one, as this server's do not
	before = max(before, after, onADisk)
	stop()
	beside.Wait()
	release(t, l, g)
	if in["children"] > many/50+neighbours || in["get"] > many/50 || in["create"] > many+many/5+neighbours {
		t.Errorf("%d waiters came with %v", many, in)
	}
	if out["delete"] > many+many/5+neighbours || out["children"] > many/5+neighbours {
		t.Errorf("%d waiters left with %v", many, out)
	}
	if failed > beats/4 { // a busy machine may stand still for longer than one waits
		t.Errorf("%d of %d heartbeats failed", failed, beats)
	}
	t.Logf("%d waiters came in %s with %v and left in %s with %v", many, came, in, left, out)
	want := max(5*time.Second, 500*before) // a neighbour's pair takes a few milliseconds where nothing else runs
	if max(came, left) > want || max(besideComing, besideLeaving) > 5*before {
		t.Fatal(backendtest.Busy(fmt.Errorf("they came in %s and left in %s, want %s; a neighbour's pair took %s and %s, want %s", came, left, want, besideComing, besideLeaving, 5*before)))
	}
}

// TestIdleWaitersCostNothing: what is asked again and again is one node for each
// resource, however many wait.
func TestIdleWaitersCostNothing(t *testing.T) { again(t, testIdleWaitersCostNothing) }

func testIdleWaitersCostNothing(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	const many = 500
	b, l, requests := rechecked(t, s.URL()+"?timeout=5s", 30*time.Second, 500*time.Millisecond)
	live(t, l)
	_, o := sidecar(t, s.URL(), 30*time.Second)
	live(t, o)
	r := unique()
	g := hold(t, o, r, lock.Exclusive)
	c := newCrowd(t, l, r, many)
	inQueue(t, b, s.URL(), r, many+1)
	requests.take()
	began := time.Now()
	time.Sleep(3 * l.driver.recheck) // in which each would have asked again
	n, _ := requests.take()
	for end := time.Now().Add(patience); n["get"] == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		n, _ = requests.take()
	}
	if n["get"] > 10+int(time.Since(began)/l.driver.recheck) || n["children"] > 4 || n["create"] > 32 { // the last creates are counted after they are seen
		t.Errorf("while %d waited, there were %v", many, n)
	}
	if n["get"] == 0 {
		t.Error("nobody has looked again")
	}
	c.leave()
	release(t, o, g)
}

// TestIdleWaitersOfManyLocks: each lock that is waited for is looked at once in each recheck,
// with one request, and nothing else is asked.
func TestIdleWaitersOfManyLocks(t *testing.T) { again(t, testIdleWaitersOfManyLocks) }

func testIdleWaitersOfManyLocks(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	const many = 40
	b, l, requests := rechecked(t, s.URL()+"?timeout=5s", 30*time.Second, 700*time.Millisecond)
	live(t, l)
	_, o := sidecar(t, s.URL(), 30*time.Second)
	live(t, o)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := range many {
		r := lock.Resource(fmt.Sprintf("idle-%s-%d", l.ID(), i))
		hold(t, o, r, lock.Exclusive)
		q := request(r, lock.Exclusive)
		all.Go(func() { _, _ = l.Acquire(ctx, q) })
		eventually(t, "it waits", func() error {
			if st, err := b.Get(t.Context(), r); err != nil || len(st.Waiters) != 1 {
				return errors.Join(errors.New("it does not"), err)
			}
			return nil
		})
	}
	time.Sleep(lastsAfter)
	requests.take()
	began := time.Now()
	time.Sleep(l.driver.recheck)
	n, _ := requests.take()
	for end := time.Now().Add(patience); n["get"] == 0 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		n, _ = requests.take()
	}
	rechecks := int(time.Since(began)/(l.driver.recheck*7/8)) + 1
	if n["get"] > many*rechecks || n["children"]+n["create"] > many/4 {
		t.Errorf("while %d locks were waited for, there were %v in %d rechecks", many, n, rechecks)
	}
	if n["get"] == 0 {
		t.Error("nobody has looked again")
	}
	cancel()
	all.Wait()
}

// TestContendedPairs: sidecars that take turns need no more requests than Curator
// does, which are five a pair, and those of one sidecar need fewer.
func TestContendedPairs(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.ZooKeeper)
	for _, sidecars := range []int{1, 2} {
		subtest(t, fmt.Sprint(sidecars), func(t testing.TB) {
			const workers, pairs = 4, 50
			var leases []*lease
			var counters []*counter
			for range sidecars {
				_, l, c := counted(t, s.URL(), 30*time.Second)
				leases, counters = append(leases, l), append(counters, c)
			}
			r := unique()
			release(t, leases[0], hold(t, leases[0], r, lock.Exclusive))
			for _, l := range leases {
				beating(t, l, 5*time.Second) // few requests, where the machine is so busy that the leases would end
			}
			for _, c := range counters {
				c.take()
			}
			var wg sync.WaitGroup
			for i := range workers {
				l := leases[i%sidecars]
				wg.Go(func() {
					for range pairs {
						q := request(r, lock.Exclusive)
						err := answered(t, func() error { _, err := l.Acquire(t.Context(), q); return err })
						if err == nil {
							err = released(t, l, r, q.ID)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			sum := 0
			all := make(map[string]int)
			for _, c := range counters {
				by, n := c.take()
				sum += n
				for k, v := range by {
					all[k] += v
				}
			}
			if most := 5 * workers * pairs; sum > most {
				t.Errorf("%d pairs took %d requests, want at most %d: %v", workers*pairs, sum, most, all)
			}
			t.Logf("%.1f requests a pair: %v", float64(sum)/(workers*pairs), all)
		})
	}
}

// TestOneWatchANode: a node that is waited for is watched once, however often it is read.
func TestOneWatchANode(t *testing.T) { again(t, testOneWatchANode) }

func testOneWatchANode(t testing.TB) {
	s := testengine.Shared(t, testengine.ZooKeeper)
	way, url := newRoad(t, s.URL())
	b, l, _ := rechecked(t, url, 30*time.Second, 300*time.Millisecond)
	live(t, l)
	_, o := sidecar(t, s.URL(), 30*time.Second)
	live(t, o)
	r := unique()
	g := hold(t, o, r, lock.Exclusive)
	var mu sync.Mutex
	reads, watches := 0, 0
	way.set(func(w *road) {
		w.request = func(op int32, body string) action {
			const opGet = 4
			if op == opGet && len(body) > 0 && contains(body, string(g.ID)) {
				mu.Lock()
				defer mu.Unlock()
				reads++
				watches += int(body[len(body)-1])
			}
			return pass
		}
	})
	queue(t, b, l, request(r, lock.Exclusive))
	// It sets one again when an answer was lost, or when the node was read for a list meanwhile.
	eventually(t, "it has looked several times, and seldom set a watch", func() error {
		mu.Lock()
		defer mu.Unlock()
		if reads < 8 || watches == 0 || watches > reads/3 {
			return fmt.Errorf("of %d reads %d have set a watch", reads, watches)
		}
		return nil
	})
}

// TestMemoryOfAHold: a sidecar keeps little of each hold.
func TestMemoryOfAHold(t *testing.T) {
	s := testengine.New(t, testengine.ZooKeeper)
	const many = 2000
	_, l := sidecar(t, s.URL(), 30*time.Second)
	release(t, l, hold(t, l, unique(), lock.Exclusive))
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range many / 16 {
				if _, err := l.Acquire(t.Context(), request(unique(), lock.Exclusive)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(2 * lastsAfter)
	var each int64
	eventually(t, "a hold takes at most 2 KiB", func() error { // with its watch, and without what is under way
		each = (heap() - before) / many
		if each > 2048 {
			return fmt.Errorf("%d bytes a hold", each)
		}
		return nil
	})
	t.Logf("%d bytes a hold", each)
}
