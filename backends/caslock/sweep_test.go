package caslock

import (
	"context"
	"strconv"
	"sync"
	"testing"
)

// gated counts the requests that are under way. They wait for the gate.
type gated struct {
	Store
	gate chan struct{}

	mu        sync.Mutex
	now, most int
}

func (g *gated) Do(ctx context.Context, t Txn) (Result, error) {
	g.count(1)
	defer g.count(-1)
	select {
	case <-g.gate:
		return g.Store.Do(ctx, t)
	case <-ctx.Done():
		return Result{}, context.Cause(ctx)
	}
}

func (g *gated) count(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
}

// Many leases are over at the same moment. A few of them are swept at a time, and all in the end.
func TestFewAreSweptAtATime(t *testing.T) {
	const n = 20 * sweepers
	m := newMemory()
	for i := range n {
		m.do(Txn{Then: []Write{{Key: deadKey(strconv.Itoa(i))}}})
	}
	g := &gated{Store: &road{m: m}, gate: make(chan struct{})}
	b := Open(g, Options{Timeout: patience})
	for range 2 { // the keeper sees them again and again
		for i := range n {
			b.sweepSoon(strconv.Itoa(i))
		}
	}
	eventually(t, "they are being swept", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.now >= sweepers
	})
	close(g.gate)
	eventually(t, "nobody sweeps any more", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.sweepers == 0
	})
	if left := m.do(Txn{Read: []Range{all(deadPrefix, 0)}}).Reads[0].KVs; g.most > sweepers || len(left) > 0 || len(b.sweeping) > 0 {
		t.Errorf("%d at a time, and %d are left; want at most %d, and none", g.most, len(left), sweepers)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}
