package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// This file has the sidecars of TestHoldersWhileServersChange and the like, and their apps.

// wanderer is one sidecar after the other, on one road.
type wanderer struct {
	c     *changes
	rnd   *rand.Rand
	name  string
	no    int
	road  *testengine.Proxy
	fresh atomic.Bool // it has not looked at the server of the epoch before, nor at that of this one
	last  int         // the epoch in which it has looked last; under c.mu
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
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	w.last = max(w.last, epoch)
	if epoch != c.epoch {
		return
	}
	if knew := !w.fresh.Swap(false); knew && c.open {
		close(c.back)
		c.open = false
	}
}

func (w *wanderer) hasLooked(epoch int) bool {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return w.last == epoch && !w.fresh.Load()
}

// one is one process: a lease after the other.
func (w *wanderer) one(ctx context.Context) {
	b, err := Open(w.road.URL()+"?timeout=300ms", nil)
	if err != nil {
		w.c.Error(err)
		return
	}
	defer func() { _ = b.Close() }()
	end := time.Now().Add(time.Duration(w.rnd.Int64N(int64(10 * w.c.ttl))))
	for ctx.Err() == nil && time.Now().Before(end) {
		call, cancel := context.WithTimeout(ctx, w.c.ttl)
		epoch, opened := w.c.inEpoch(), time.Now()
		l, err := b.OpenLease(call, lock.LeaseOptions{TTL: w.c.ttl, Sidecar: w.name})
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
	gone    map[lock.HoldID]bool
	has     map[lock.HoldID]*reliance
}

// till is until when the lease may be relied on, as far as is known. t.mu is held.
func (t *term) till() time.Time {
	till := t.renewed.Add(t.w.c.ttl * 9 / 10)
	if !t.lost.IsZero() {
		till = earlier(till, t.lost)
	}
	return till
}

func (t *term) serve(ctx context.Context, end time.Time) {
	t.gone, t.has = make(map[lock.HoldID]bool), make(map[lock.HoldID]*reliance)
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
		case <-time.After(t.w.c.ttl / 6):
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
	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), t.w.c.ttl/2)
	_ = t.l.Close(closing) // the server may be gone
	stop()
	all.Wait()
}

func (t *term) told(e lock.Event) {
	end := time.Now()
	if e.Kind == lock.Revoked && e.Until != 0 { // until then the app may work on
		end = end.Add(e.Until - lock.BootTime())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if till := t.till(); !time.Now().Before(till) {
		end = till
	}
	t.gone[e.ID] = true
	if h := t.has[e.ID]; h != nil {
		h.till = earlier(h.till, end)
	}
}

// beat sends a heartbeat, and reports whether the lease lives.
func (t *term) beat(ctx context.Context) bool {
	call, cancel := context.WithTimeout(ctx, t.w.c.ttl/2)
	defer cancel()
	epoch, sent := t.w.c.inEpoch(), time.Now()
	news, err := t.l.Heartbeat(call)
	for _, e := range news {
		t.told(e)
	}
	if !t.renews(sent, err) {
		return false
	}
	if err == nil && !t.w.hasLooked(epoch) {
		if _, err := driverNamed(t.b, t.l.ID()).lookAround(call); err == nil { // as its chores do about now
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
		_, hushed := t.w.c.stirred()
		select {
		case <-hushed:
		case <-ctx.Done():
			return
		}
		q := exclusive(resourceNo(rnd.IntN(resources)))
		q.Mode, q.Try = changesModes[rnd.IntN(len(changesModes))], rnd.IntN(4) == 0
		wait, cancel := context.WithTimeout(ctx, time.Duration(rnd.Int64N(int64(2*t.w.c.ttl))))
		g, err := t.l.Acquire(wait, q)
		cancel()
		if errors.Is(err, lock.ErrLeaseLost) {
			return
		}
		if err == nil && t.relies(g) {
			held := time.Duration(rnd.Int64N(int64(2 * t.w.c.ttl)))
			if t.w.c.longer.Load() && rnd.IntN(2) == 0 {
				held += 2 * t.w.c.ttl
			}
			stirred, _ := t.w.c.stirred()
			select {
			case <-time.After(held):
			case <-stirred:
			case <-ctx.Done():
			}
			if g.Mode == lock.Exclusive && rnd.IntN(4) == 0 {
				t.downgrade(ctx, g)
			}
			t.lets(g)
		}
		if rnd.IntN(8) == 0 {
			t.force(ctx, q.Resource, time.Duration(rnd.Int64N(int64(t.w.c.ttl/2))))
		}
		if err == nil || errors.Is(err, lock.ErrUnavailable) {
			call, cancel := context.WithTimeout(ctx, t.w.c.ttl)
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
	// What it is granted before it has looked is known to be worth less, see the page of Redis.
	if t.gone[g.ID] || !now.Before(t.till()) || t.w.fresh.Load() {
		return false
	}
	h := &reliance{resource: g.Resource, id: g.ID, mode: g.Mode, fence: g.Fence, who: fmt.Sprintf("%s.%d", t.w.name, t.w.no), from: now, till: now.Add(time.Hour)}
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

// force forces the release of a hold, be it of the same sidecar.
func (t *term) force(ctx context.Context, r lock.Resource, grace time.Duration) {
	call, cancel := context.WithTimeout(ctx, 2*t.w.c.ttl)
	defer cancel()
	st, err := t.b.Get(call, r)
	if err != nil || len(st.Holders) == 0 {
		return
	}
	id := st.Holders[0].ID
	err = t.b.ForceRelease(call, r, id, max(grace, time.Millisecond)) // with 0 nobody is told in time
	if err != nil && !errors.Is(err, lock.ErrNotHolder) || t.w.fresh.Load() {
		return
	}
	at := time.Now()
	t.w.c.mu.Lock()
	defer t.w.c.mu.Unlock()
	t.w.c.forced = append(t.w.c.forced, told{id, at, err})
}

func (t *term) downgrade(ctx context.Context, g lock.Grant) {
	t.lets(g)
	call, cancel := context.WithTimeout(ctx, t.w.c.ttl/2)
	defer cancel()
	if t.l.Downgrade(call, g.Resource, g.ID) != nil {
		return
	}
	g.Mode = lock.Shared
	if t.relies(g) {
		select {
		case <-time.After(t.w.c.ttl / 4):
		case <-ctx.Done():
		}
	}
}
