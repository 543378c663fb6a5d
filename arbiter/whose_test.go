package arbiter

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// whose notes for whom a lease is asked to release what nobody here has.
type whose struct {
	lock.Contender
	from []any
}

func (w *whose) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	w.from = append(w.from, lock.From(ctx))
	return w.Contender.Release(ctx, r, id)
}

// What is let go of because somebody else waits for it has a turn of its own in the store; what nobody needs has none.
func TestWhatOthersWaitForHasATurn(t *testing.T) {
	inHouse(t, func(h *house) {
		a, b := h.side(Options{Turns: 9, Park: time.Second}), h.side(Options{Turns: 9})
		w := &whose{Contender: a.way.Lease.(lock.Contender)}
		synctest.Wait() // the lease's goroutine has read what is replaced here
		a.way.Lease = w
		time.Sleep(time.Second) // the clock begins at 0, which is no moment
		a.parks()
		w.from = nil
		other := b.ask(exclusive())
		h.granted(other)(other)
		b.give(other.g)
		a.parks()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(w.from); n < 2 || w.from[0] == nil || w.from[n-1] != nil {
			t.Errorf("released for %v", w.from)
		}
		a.close()
		b.close()
	})
}
