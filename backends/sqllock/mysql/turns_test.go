package mysql

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestTurns: where one session asks for more than there are connections, a request of another one does not wait for all of that.
func TestTurns(t *testing.T) { again(t, testTurns) }

func testTurns(t testing.TB) {
	_, l := sidecar(t, testengine.Shared(t, testengine.MariaDB).URL(), 10*time.Minute)
	from := func(who string) context.Context { return context.WithValue(t.Context(), lock.FromKey{}, who) }
	pair := func(ctx context.Context, r lock.Resource) error {
		g, err := l.Acquire(ctx, exclusive(r))
		if err == nil {
			err = l.Release(ctx, r, g.ID)
		}
		if err != nil {
			return fmt.Errorf("a pair: %w", err)
		}
		return nil
	}
	const many = 200
	var done atomic.Int64
	var over atomic.Bool
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			for !over.Load() {
				if err := pair(from("much"), lock.Resource(fmt.Sprint("turns/much/", i))); err != nil {
					t.Error(err)
					return
				}
				done.Add(1)
			}
		})
	}
	eventually(t, "all are under way", func() error {
		if n := done.Load(); n < 3*many {
			return fmt.Errorf("%d pairs", n)
		}
		return nil
	})
	var meanwhile []int64
	for range 11 {
		before := done.Load()
		if err := pair(from("little"), "turns/little"); err != nil {
			t.Error(err)
		}
		meanwhile = append(meanwhile, done.Load()-before)
	}
	over.Store(true)
	all.Wait()
	slices.Sort(meanwhile)
	if n := meanwhile[len(meanwhile)/2]; n > many/2 {
		t.Errorf("beside a pair, %d pairs of who asks for %d at a time: %v", n, many, meanwhile)
	}
}
