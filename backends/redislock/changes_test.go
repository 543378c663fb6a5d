package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// All sidecars are led from one server to another and back, again and again, while servers are restarted, emptied and
// copied. Each comes when it does, and some are cut off for longer than their leases live. No two may rely on what
// excludes each other. REDISLOCK_CHANGES=100 has more of them, and REDISLOCK_SEED the same ones again.
func TestHoldersWhileServersChange(t *testing.T) {
	t.Parallel() // it has servers of its own, and waits

	changes, seed := 5, rand.Uint64()
	if n, err := strconv.Atoi(os.Getenv("REDISLOCK_CHANGES")); err == nil {
		changes = n
	}
	if n, err := strconv.ParseUint(os.Getenv("REDISLOCK_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("REDISLOCK_SEED=%d", seed)
	again(t, func(t testing.TB) { newChanges(t, seed).run(changes) })
}

const (
	changesTTL      = time.Second
	changesSidecars = 5
)

// changes is a world of sidecars and two servers.
type changes struct {
	testing.TB
	rnd     *rand.Rand // of the goroutine of the test
	servers [2]testengine.Server
	now     int // which of them all are led to
	all     []*wanderer

	mu    sync.Mutex
	holds []*reliance
	epoch int           // of the last change
	back  chan struct{} // closed when somebody has looked at the server of this epoch
	open  bool          // back is not closed yet
}

// reliance is for how long one app relied on one hold.
type reliance struct {
	resource   lock.Resource
	mode       lock.Mode
	fence      lock.Fence
	who        string
	from, till time.Time
}

func newChanges(t testing.TB, seed uint64) *changes {
	t.Helper()
	c := &changes{TB: t, rnd: rand.New(rand.NewPCG(seed, 0)), back: make(chan struct{}), open: true}
	for i := range c.servers {
		c.servers[i] = testengine.New(t, testengine.Redis)
	}
	for i := range changesSidecars {
		w := &wanderer{c: c, rnd: rand.New(rand.NewPCG(seed, uint64(i+1))), name: fmt.Sprintf("sidecar %d", i)}
		w.road = testengine.Through(t, c.servers[0])
		w.fresh.Store(true)
		c.all = append(c.all, w)
	}
	return c
}

func (c *changes) run(n int) {
	c.Helper()
	ctx, cancel := context.WithCancel(c.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, w := range c.all {
		all.Go(func() { w.live(ctx) })
	}
	for i := range n {
		time.Sleep(c.between(changesTTL/2, 4*changesTTL))
		c.change(i)
	}
	time.Sleep(3 * changesTTL)
	cancel()
	all.Wait()
	c.check(n)
}

func (c *changes) between(least, most time.Duration) time.Duration {
	return least + time.Duration(c.rnd.Int64N(int64(most-least)))
}

// change cuts all off, so that no answer of the server comes after that, does something to the servers, and leads all
// to the one or the other.
func (c *changes) change(n int) {
	c.Helper()
	c.cut()
	what, to := "led to the other", 1-c.now
	switch c.rnd.IntN(8) {
	case 0:
		what, to = "restarted with its data", c.now
		testengine.Restart(c.TB, c.servers[to], testengine.KeepData)
	case 1:
		what, to = "restarted without its data", c.now
		testengine.Restart(c.TB, c.servers[to], testengine.DropData)
	case 2:
		what, to = "emptied", c.now
		if err := plain(c.TB, c.addr(to)).FlushAll(c.Context()).Err(); err != nil {
			c.Fatal(err)
		}
	case 3:
		what = "led to a copy"
		copyData(c.TB, c.addr(c.now), c.addr(to))
	case 4:
		what, to = "led to the other and soon back", c.now
		c.lead(1 - to)
		time.Sleep(c.between(0, changesTTL))
		c.cut()
	}
	c.now = to
	c.Logf("%d: %s", n, what)
	c.lead(to)
}

func (c *changes) addr(i int) string { return testengine.Nodes(c.TB, c.servers[i])[0].Addr() }

func (c *changes) cut() {
	for _, w := range c.all {
		w.road.Inject(testengine.Cut)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	if !c.open {
		c.back, c.open = make(chan struct{}), true
	}
}

// lead leads all to a server: each when it comes, and who knows no other server after one who does.
func (c *changes) lead(to int) {
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
		if c.rnd.IntN(3) == 0 {
			time.Sleep(c.between(0, changesTTL*3/4))
		}
	}
	c.awaitOne(c.Context())
	c.heal(last...)
}

func (c *changes) heal(all ...*wanderer) {
	for _, w := range all {
		if err := w.road.Heal(); err != nil {
			c.Error(err)
		}
	}
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
	case <-time.After(2 * changesTTL):
	case <-ctx.Done():
	}
}

func (c *changes) check(n int) {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortFunc(c.holds, func(a, b *reliance) int { return a.from.Compare(b.from) })
	exclusive := make(map[lock.Resource]*reliance)
	for i, h := range c.holds {
		for _, other := range c.holds[:i] {
			if excludes(h, other) && h.from.Before(other.till) {
				c.Errorf("broken law: two holders of %q for %s: %s (%v, fence %d) and %s (%v, fence %d)", h.resource,
					earlier(h.till, other.till).Sub(h.from), other.who, other.mode, other.fence, h.who, h.mode, h.fence)
			}
		}
		if before := exclusive[h.resource]; before != nil && (h.fence < before.fence || h.fence == before.fence && h.mode == lock.Exclusive) {
			c.Errorf("broken law: %q: fence %d of %s after %d of %s", h.resource, h.fence, h.who, before.fence, before.who)
		}
		if h.mode == lock.Exclusive {
			exclusive[h.resource] = h
		}
	}
	c.Logf("%d holds in %d changes", len(c.holds), n)
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

// wanderer is one sidecar after the other, on one road.
type wanderer struct {
	c     *changes
	rnd   *rand.Rand
	name  string
	no    int
	road  *testengine.Proxy
	fresh atomic.Bool // it has looked at no server yet
}

func (w *wanderer) live(ctx context.Context) {
	for ctx.Err() == nil {
		w.no++
		w.one(ctx)
		w.fresh.Store(true)
		w.c.awaitOne(ctx) // who knows nothing of the other server comes after one who does
	}
}

// looked notes that it has looked at the server to which all are led since that epoch began.
func (w *wanderer) looked(epoch int) {
	w.fresh.Store(false)
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open && epoch == c.epoch {
		close(c.back)
		c.open = false
	}
}

// one is one process: a lease after the other.
func (w *wanderer) one(ctx context.Context) {
	b, err := Open(w.road.URL()+"?timeout=300ms", nil)
	if err != nil {
		w.c.Error(err)
		return
	}
	defer func() { _ = b.Close() }()
	end := time.Now().Add(time.Duration(w.rnd.Int64N(int64(10 * changesTTL))))
	for ctx.Err() == nil && time.Now().Before(end) {
		call, cancel := context.WithTimeout(ctx, changesTTL)
		epoch, opened := w.c.inEpoch(), time.Now()
		l, err := b.OpenLease(call, lock.LeaseOptions{TTL: changesTTL, Sidecar: w.name})
		cancel()
		if err == nil || strings.Contains(err.Error(), "granted again in") {
			w.looked(epoch)
		}
		if err != nil {
			time.Sleep(30 * time.Millisecond)
			continue
		}
		(&term{w: w, l: l, b: b, renewed: opened}).serve(ctx, end)
	}
}

// term is the life of a lease.
type term struct {
	w *wanderer
	l lock.Lease
	b *Backend

	mu      sync.Mutex
	renewed time.Time
	lost    time.Time // zero: it is not
	gone    map[lock.HoldID]time.Time
	has     map[lock.HoldID]*reliance
}

// till is until when the lease may be relied on, as far as is known. t.mu is held.
func (t *term) till() time.Time {
	till := t.renewed.Add(changesTTL * 9 / 10)
	if !t.lost.IsZero() {
		till = earlier(till, t.lost)
	}
	return till
}

func (t *term) serve(ctx context.Context, end time.Time) {
	t.gone, t.has = make(map[lock.HoldID]time.Time), make(map[lock.HoldID]*reliance)
	var all sync.WaitGroup
	all.Go(func() {
		for e := range t.l.Events() {
			t.told(e)
		}
	})
	var apps sync.WaitGroup
	life, cancel := context.WithCancel(ctx)
	for range 3 {
		rnd := rand.New(rand.NewPCG(t.w.rnd.Uint64(), 1))
		apps.Go(func() { t.app(life, rnd) })
	}
	for life.Err() == nil && time.Now().Before(end) && t.beat(life) {
		select {
		case <-time.After(changesTTL / 6):
		case <-life.Done():
		}
	}
	cancel()
	t.mu.Lock()
	if t.lost.IsZero() && time.Now().Before(t.till()) { // it closes: from now on nobody relies on it
		t.lost = time.Now()
	}
	for _, h := range t.has {
		h.till = earlier(h.till, t.till())
	}
	t.mu.Unlock()
	apps.Wait()
	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), changesTTL/2)
	_ = t.l.Close(closing) // the server may be gone
	stop()
	all.Wait()
}

func (t *term) told(e lock.Event) {
	if e.Kind != lock.Vanished {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := earlier(time.Now(), t.till())
	t.gone[e.ID] = now
	if h := t.has[e.ID]; h != nil {
		h.till = earlier(h.till, now)
	}
}

// beat sends a heartbeat, and reports whether the lease lives.
func (t *term) beat(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, changesTTL/2)
	defer cancel()
	epoch, sent := t.w.c.inEpoch(), time.Now()
	news, err := t.l.Heartbeat(call)
	for _, e := range news {
		t.told(e)
	}
	if !t.renews(sent, err) {
		return false
	}
	if err == nil {
		if _, err := driverNamed(t.b, t.l.ID()).lookAround(call); err == nil { // as its chores do
			t.w.looked(epoch)
		}
	}
	return true
}

func (t *term) renews(sent time.Time, err error) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case !now.Before(t.till()):
		return false
	case err == nil:
		t.renewed = sent
	case errors.Is(err, lock.ErrLeaseLost):
		t.lost = now
		return false
	}
	return true
}

var changesModes = []lock.Mode{lock.Exclusive, lock.Exclusive, lock.Shared, lock.Permits(2)}

// app asks for locks, one after the other.
func (t *term) app(ctx context.Context, rnd *rand.Rand) {
	for ctx.Err() == nil {
		q := exclusive(lock.Resource("r" + strconv.Itoa(rnd.IntN(3))))
		q.Mode, q.Try = changesModes[rnd.IntN(len(changesModes))], rnd.IntN(4) == 0
		wait, cancel := context.WithTimeout(ctx, time.Duration(rnd.Int64N(int64(2*changesTTL))))
		g, err := t.l.Acquire(wait, q)
		cancel()
		if errors.Is(err, lock.ErrLeaseLost) {
			return
		}
		if err == nil && t.relies(g) {
			held := time.Duration(rnd.Int64N(int64(2 * changesTTL)))
			select {
			case <-time.After(held):
			case <-ctx.Done():
			}
			if g.Mode == lock.Exclusive && rnd.IntN(4) == 0 {
				t.downgrade(ctx, g)
			}
			t.lets(g)
		}
		if err == nil || errors.Is(err, lock.ErrUnavailable) {
			call, cancel := context.WithTimeout(ctx, changesTTL)
			_ = release(call, t.l, q.Resource, q.ID)
			cancel()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// relies notes that an app relies on a hold from now on, if it may.
func (t *term) relies(g lock.Grant) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if _, gone := t.gone[g.ID]; gone || !now.Before(t.till()) {
		return false
	}
	h := &reliance{resource: g.Resource, mode: g.Mode, fence: g.Fence, who: fmt.Sprintf("%s.%d", t.w.name, t.w.no), from: now, till: now.Add(time.Hour)}
	t.has[g.ID] = h
	t.w.c.mu.Lock()
	t.w.c.holds = append(t.w.c.holds, h)
	t.w.c.mu.Unlock()
	return true
}

// lets notes that the app relies on it no more.
func (t *term) lets(g lock.Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.has[g.ID]; h != nil {
		h.till = earlier(h.till, earlier(time.Now(), t.till()))
		delete(t.has, g.ID)
	}
}

func (t *term) downgrade(ctx context.Context, g lock.Grant) {
	t.lets(g)
	call, cancel := context.WithTimeout(ctx, changesTTL/2)
	defer cancel()
	if t.l.Downgrade(call, g.Resource, g.ID) != nil {
		return
	}
	g.Mode = lock.Shared
	if t.relies(g) {
		select {
		case <-time.After(changesTTL / 4):
		case <-ctx.Done():
		}
	}
}
