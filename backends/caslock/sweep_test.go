package caslock

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
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

// Somebody deletes what a lease has, and leaves the places in the lines. They do not stay there: whoever waits, tries again and again, or
// forces a release, gets on, whether the lease lives or is over.
func TestHalfIsDeletedByHand(t *testing.T) {
	for what, gets := range map[string]func(t *testing.T, b *Backend, l lock.Lease, of lock.HoldID){
		"waits": func(t *testing.T, _ *Backend, l lock.Lease, _ lock.HoldID) { mustHave(t, l, request("r")) },
		"tries": func(t *testing.T, _ *Backend, l lock.Lease, _ lock.HoldID) {
			eventually(t, "a try is granted", func() bool {
				q := request("r")
				q.Try = true
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, err := l.Acquire(ctx, q)
				if err != nil && !errors.Is(err, lock.ErrHeld) || ctx.Err() != nil {
					t.Fatal(err)
				}
				return err == nil
			})
		},
		"forces": func(t *testing.T, b *Backend, l lock.Lease, of lock.HoldID) {
			_ = b.ForceRelease(t.Context(), "r", of, 0) // where the lease is over, nobody has it
			mustHave(t, l, request("r"))
		},
	} {
		for _, lives := range []bool{true, false} {
			if lives && what == "tries" { // which sees nothing of that
				continue
			}
			t.Run(what+", the lease lives: "+strconv.FormatBool(lives), func(t *testing.T) {
				t.Parallel()
				m := newMemory()
				b, l, _, _ := sidecar(t, m, time.Minute)
				_, other, _, _ := sidecar(t, m, time.Minute)
				q := request("r")
				mustHave(t, other, q)
				own := m.do(Txn{Read: []Range{all(ownPrefix(string(other.ID())), 0)}}).Reads[0].KVs
				var x Txn
				for _, kv := range own {
					x.Then = append(x.Then, Write{Key: kv.Key, Delete: true})
				}
				m.do(x)
				if lives {
					eventually(t, "the lease is told", func() bool { // or it would have its hold again
						news, err := other.Heartbeat(t.Context())
						return err == nil && len(news) == 1 && news[0].Kind == lock.Vanished
					})
					beats, stop := context.WithCancel(t.Context())
					var done sync.WaitGroup
					done.Go(func() {
						for beats.Err() == nil {
							_, _ = other.Heartbeat(beats)
							time.Sleep(20 * time.Millisecond)
						}
					})
					t.Cleanup(func() { stop(); done.Wait() })
				} else {
					m.do(Txn{Then: []Write{{Key: leaseKey(string(other.ID())), Delete: true}, {Key: beatKey(string(other.ID())), Delete: true}}})
				}
				gets(t, b, l, q.ID)
				eventually(t, "nothing of it is left", func() bool {
					left := m.do(Txn{Read: []Range{all(ownPrefix(string(other.ID())), 0)}}).Reads[0].KVs
					return len(left) == 0
				})
			})
		}
	}
}
