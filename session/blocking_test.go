package session

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// TestWhoBlocksSaysSo: a goroutine that carries out requests is told before it blocks,
// and not where the store answers at once.
func TestWhoBlocksSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(e *env) func(*Options)
		blocking bool
	}{
		"a store at hand":            {func(e *env) func(*Options) { return func(o *Options) { o.Backend = e.store } }, false},
		"a lease that does not tell": {func(*env) func(*Options) { return func(*Options) {} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, e *env) {
				sc := e.sidecar(c.change(e))
				s := sc.session()
				var told atomic.Int32 // not of the case before, whose last request may still tell
				ctx := lock.WithBlocking(context.Background(), func() { told.Add(1) })
				said := func(what string, want bool) {
					t.Helper()
					if n := told.Swap(0); (n > 0) != want {
						t.Errorf("%s: told %d times that it may block, want any: %v", what, n, want)
					}
				}
				grants := make(chan Grant, 1)
				begin := func(r AcquireRequest) *Request {
					return s.Begin(ctx, r, func(g Grant, err error) {
						isErr(t, err, nil)
						grants <- g
					})
				}
				begin(exclusive).Run()
				g := <-grants
				said("acquire", c.blocking)

				begin(exclusive).Run() // it returns: who waits needs no goroutine
				said("acquire of what is held", c.blocking)

				_, err := s.Downgrade(ctx, g.LockID)
				isErr(t, err, nil)
				said("downgrade", c.blocking)
				_, err = s.Release(ctx, g.LockID, "")
				isErr(t, err, nil)
				said("release", c.blocking)
				<-grants
			})
		})
	}
}
