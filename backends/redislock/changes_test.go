package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// All sidecars are led from one server to another and back, again and again, while servers are restarted, emptied,
// copied and frozen, and answers and messages are held back. Each comes when it does, and some are cut off for longer than their
// leases live. Apps force the release of each other's holds. No two may rely on what excludes each other, and in
// the end nothing is left. REDISLOCK_CHANGES=100 has more of them, and REDISLOCK_SEED the same ones again.
func TestHoldersWhileServersChange(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits
	changing(t, 4, func(t testing.TB, seed uint64, n int) {
		s := newSwitches(t, seed)
		s.run(n, s.change)
		for i := range s.servers {
			s.leavesNothing(s.servers[i])
		}
	})
}

// changing runs a test with so many changes, unless the environment says how many.
func changing(t *testing.T, n int, test func(t testing.TB, seed uint64, n int)) {
	t.Helper()
	seed := rand.Uint64()
	if more, err := strconv.Atoi(os.Getenv("REDISLOCK_CHANGES")); err == nil {
		n = more
	}
	if is, err := strconv.ParseUint(os.Getenv("REDISLOCK_SEED"), 10, 64); err == nil {
		seed = is
	}
	t.Logf("REDISLOCK_SEED=%d", seed)
	again(t, func(t testing.TB) { test(t, seed, n) })
}

const changesSidecars = 5

// changes is a world of sidecars, and of what their apps relied on.
type changes struct {
	testing.TB
	rnd *rand.Rand // of the goroutine of the test
	ttl time.Duration
	gap [2]time.Duration // between two changes, at least and at most
	all []*wanderer

	longer atomic.Bool // many of those who get something now keep it for longer than a grace

	mu     sync.Mutex
	stir   chan struct{} // closed while all are to let go
	hush   chan struct{} // closed when they may ask
	holds  []*reliance
	forced []told
	epoch  int           // of the last change of servers
	back   chan struct{} // closed when somebody who comes from the server before has looked at that of this epoch
	open   bool          // back is not closed yet
}

// reliance is for how long one app relied on one hold.
type reliance struct {
	resource   lock.Resource
	id         lock.HoldID
	mode       lock.Mode
	fence      lock.Fence
	who        string
	from, till time.Time
}

// told is that somebody who has forced a release was told that the hold is gone.
type told struct {
	id  lock.HoldID
	at  time.Time
	err error
}

func newChanges(t testing.TB, seed uint64, ttl time.Duration, s testengine.Server) *changes {
	t.Helper()
	c := &changes{TB: t, ttl: ttl, gap: [2]time.Duration{ttl / 2, 4 * ttl}, rnd: rand.New(rand.NewPCG(seed, 0)), stir: make(chan struct{}), hush: make(chan struct{}), back: make(chan struct{})}
	close(c.back)
	close(c.hush)
	for i := range changesSidecars {
		w := &wanderer{c: c, rnd: rand.New(rand.NewPCG(seed, uint64(i+1))), name: fmt.Sprintf("sidecar %d", i), last: -1}
		w.road = testengine.Through(t, s)
		w.fresh.Store(true)
		c.all = append(c.all, w)
	}
	return c
}

func (c *changes) run(n int, change func(i int) (what string)) {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, w := range c.all {
		all.Go(func() { w.live(ctx) })
	}
	time.Sleep(2 * c.ttl) // nothing is granted before
	for i := range n {
		c.Logf("%d: %s", i, change(i))
		time.Sleep(c.between(c.gap[0], c.gap[1]))
	}
	time.Sleep(2 * c.ttl)
	cancel()
	all.Wait()
	c.check(n)
}

func (c *changes) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.rnd.Int64N(int64(most-least)))
}

// one tells with a chance of one in n.
func (c *changes) one(n int) bool { return c.rnd.IntN(n) == 0 }

// stirs has all let go of what they have, and ask for it again after what was done. Many of those who get something then keep it
// for longer than a grace, until calms is called.
func (c *changes) stirs(what func()) (calms func()) {
	c.Helper()
	hush := make(chan struct{})
	defer close(hush)
	c.mu.Lock()
	close(c.stir)
	c.hush = hush
	c.mu.Unlock()
	time.Sleep(c.ttl / 8)
	what()
	c.longer.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stir = make(chan struct{})
	return func() { c.longer.Store(false) }
}

// stirred is closed while all are to let go, and hushed when they may ask.
func (c *changes) stirred() (stirred, hushed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stir, c.hush
}

// cutSome cuts some off, at least one, until back is called. What some of them have asked for is carried out, and they do
// not hear of it.
func (c *changes) cutSome() (back func()) {
	some := []*wanderer{c.all[c.rnd.IntN(len(c.all))]}
	for _, w := range c.all {
		if w != some[0] && c.one(3) {
			some = append(some, w)
		}
	}
	for _, w := range some {
		if c.one(2) {
			w.road.Inject(testengine.HoldReplies)
		} else {
			w.road.Inject(testengine.Cut)
		}
	}
	return func() {
		for _, w := range some {
			w.road.Inject(testengine.Sever)
		}
		c.heal(some...)
	}
}

// lags has a replica get nothing from its master any more, until joins is called.
func (c *changes) lags(replica string) (joins func()) {
	c.Helper()
	r := plain(c, replica)
	do := func(args ...any) {
		c.Helper()
		if err := r.Do(c.Context(), args...).Err(); err != nil {
			c.Fatalf("%v: %v", args, err)
		}
	}
	do("config", "set", "masterauth", "none") // that the master does not take
	do("client", "kill", "type", "master")
	eventually(c, "the replica has no master", func() error {
		text, err := r.Info(c.Context(), "replication").Result()
		if err == nil && parseInfo(text)["master_link_status"] == "up" {
			err = errors.New("the link is up")
		}
		return err
	})
	return func() { do("config", "set", "masterauth", "") }
}

func (c *changes) heal(all ...*wanderer) {
	for _, w := range all {
		if err := w.road.Heal(); err != nil {
			c.Error(err)
		}
	}
}

// resources are what the apps ask for.
const (
	resources      = 3
	resourcePrefix = "changes-"
)

func resourceNo(i int) lock.Resource { return lock.Resource(resourcePrefix + strconv.Itoa(i)) }

func (c *changes) check(n int) {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortFunc(c.holds, func(a, b *reliance) int { return a.from.Compare(b.from) })
	exclusive := make(map[lock.Resource]*reliance)
	till := make(map[lock.HoldID]time.Time)
	for i, h := range c.holds {
		for _, other := range c.holds[:i] {
			if excludes(h, other) && h.from.Before(other.till) {
				c.Errorf("broken law: two holders of %q for %s: %s (%v, fence %d) and %s (%v, fence %d)", h.resource,
					earlier(h.till, other.till).Sub(h.from), other.who, other.mode, other.fence, h.who, h.mode, h.fence)
			}
		}
		if before := exclusive[h.resource]; before != nil && (h.fence < before.fence || h.fence == before.fence && (h.mode == lock.Exclusive || h.id != before.id)) {
			c.Errorf("broken law: %q: fence %d of %s after %d of %s", h.resource, h.fence, h.who, before.fence, before.who)
		}
		if h.mode == lock.Exclusive {
			exclusive[h.resource] = h
		}
		if h.till.After(till[h.id]) {
			till[h.id] = h.till
		}
	}
	for _, f := range c.forced {
		if left := till[f.id].Sub(f.at); left > 0 {
			c.Errorf("broken law: who forces a release was told %v, and its app relied on the hold for %s", f.err, left)
		}
	}
	c.Logf("%d holds and %d forced releases in %d changes", len(c.holds), len(c.forced), n)
	if len(c.holds) < n {
		c.Fatal(backendtest.Busy(fmt.Errorf("%d holds in %d changes", len(c.holds), n)))
	}
}

func excludes(a, b *reliance) bool {
	switch {
	case a.resource != b.resource:
		return false
	case a.mode == lock.Shared && b.mode == lock.Shared:
		return false
	case a.mode.Limit() > 0 && a.mode == b.mode:
		return a.fence.Slot() == b.fence.Slot()
	default:
		return true
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// leavesNothing makes sure that all that dead sidecars have left on a server is cleared away, and keeps nobody out.
func (c *changes) leavesNothing(s testengine.Server) {
	c.Helper()
	_, l := sidecar(c, s.URL()+noGrace, 5*time.Minute)
	swallow(l)
	at := &harness{Store: &served.Store{Server: s}}
	for i := range resources {
		ctx, cancel := context.WithTimeout(c.Context(), patience)
		g, err := acquire(ctx, l, exclusive(resourceNo(i)))
		if err == nil {
			err = release(ctx, l, g.Resource, g.ID)
		}
		cancel()
		if err != nil {
			c.Errorf("broken law: what nobody has any more is not granted: %v", err)
		}
	}
	eventually(c, "nothing is left", func() error {
		if err := beat(c.Context(), l); err != nil {
			return err
		}
		if left := at.Leftovers(c, resourcePrefix); len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		return nil
	})
}

// switches is a world of two servers that know nothing of each other.
type switches struct {
	*changes
	servers [2]testengine.Server
	now     int // which of them all are led to
}

func newSwitches(t testing.TB, seed uint64) *switches {
	t.Helper()
	s := &switches{}
	for i := range s.servers {
		s.servers[i] = testengine.New(t, testengine.Redis)
	}
	s.changes = newChanges(t, seed, time.Second, s.servers[0])
	return s
}

// change cuts all off, so that no answer of the server comes after that, does something to the servers, and leads all
// to the one or the other.
func (c *switches) change(int) (what string) {
	c.Helper()
	kind, thaw := c.rnd.IntN(10), func() {}
	switch kind {
	case 5: // what has reached it is carried out later
		thaw = testengine.Pause(c, c.servers[c.now])
		time.Sleep(c.between(0, c.ttl))
	case 6:
		thaw = testengine.Pause(c, c.servers[c.now])
		time.Sleep(c.between(0, c.ttl*3/2))
		thaw()
		return "stood still"
	}
	copied := kind == 3 && c.one(2)
	if copied { // and what comes after that is not in it
		defer c.stirs(func() { copyData(c, c.addr(c.now), c.addr(1-c.now)) })()
		time.Sleep(c.between(0, c.ttl/4))
	}
	for _, w := range c.all {
		if c.one(3) {
			w.road.Inject(testengine.HoldReplies)
		}
	}
	time.Sleep(c.between(0, c.ttl/2))
	c.cut()
	what, to := "led to the other", 1-c.now
	switch kind {
	case 0:
		what, to = "restarted with its data", c.now
		testengine.Restart(c, c.servers[to], testengine.KeepData)
	case 1:
		what, to = "restarted without its data", c.now
		testengine.Restart(c, c.servers[to], testengine.DropData)
	case 2:
		what, to = "emptied", c.now
		empty(c, c.servers[to])
	case 3:
		what = "led to a copy of a moment ago"
		if !copied {
			what = "led to a copy"
			copyData(c, c.addr(c.now), c.addr(to))
		}
	case 4:
		what, to = "led to the other and soon back", c.now
		c.lead(1 - to)
		time.Sleep(c.between(0, c.ttl))
		c.cut()
	case 5:
		what = "led to the other, while it stood still"
	}
	c.now = to
	c.lead(to)
	thaw()
	return what
}

func (c *switches) addr(i int) string { return testengine.Nodes(c, c.servers[i])[0].Addr() }

// cut begins an epoch. Who has not looked at the server of the one before knows nothing of it.
func (c *switches) cut() {
	for _, w := range c.all {
		w.road.Inject(testengine.Cut)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.all {
		if w.last != c.epoch {
			w.fresh.Store(true)
		}
	}
	c.epoch++
	if !c.open {
		c.back, c.open = make(chan struct{}), true
	}
}

// lead leads all to a server: each when it comes, and who knows nothing of the server before comes after one who does.
func (c *switches) lead(to int) {
	var last []*wanderer
	order := slices.Clone(c.all)
	c.rnd.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, w := range order {
		w.road.Retarget(c.addr(to))
		if w.fresh.Load() {
			last = append(last, w)
			continue
		}
		c.heal(w)
		if c.one(4) {
			w.road.Mute("subscribe")
		}
		if c.one(3) {
			time.Sleep(c.between(0, c.ttl*3/4))
		}
	}
	c.awaitOne(c.Context())
	c.heal(last...)
}

func (c *changes) inEpoch() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

// awaitOne waits until somebody is back, or has nothing from before any more.
func (c *changes) awaitOne(ctx context.Context) {
	c.mu.Lock()
	back := c.back
	c.mu.Unlock()
	select {
	case <-back:
	case <-time.After(2 * c.ttl):
	case <-ctx.Done():
	}
}
