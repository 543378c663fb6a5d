package session

import (
	"context"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// call is the ctx of a request to the store: with the values of the app's call, and ended
// by Stop alone. Few requests have to wait where the end of a ctx is waited for, too, so
// what that takes is made when somebody wants to know of the end. A call is not copied.
type call struct {
	values context.Context //nolint:containedctx // see above
	from   *Session        // see lock.From

	mu     sync.Mutex
	real   context.Context //nolint:containedctx // nil while nobody wants to know of the end
	cancel context.CancelFunc
}

// Stop ends the call.
func (c *call) Stop() {
	c.begin()
	c.end()
}

// begin makes the ctx that can end.
func (c *call) begin() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real == nil {
		c.real, c.cancel = context.WithCancel(context.WithoutCancel(c.values))
	}
	return c.real
}

// end is called when the store has answered: it lets go of what has waited for the end.
func (c *call) end() {
	c.mu.Lock()
	cancel := c.cancel
	c.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}

// Deadline implements context.Context.
func (c *call) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements context.Context.
func (c *call) Done() <-chan struct{} { return c.begin().Done() }

// Err implements context.Context.
func (c *call) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.real == nil {
		return nil
	}
	return c.real.Err()
}

// Value implements context.Context. What is made of a call that can end finds the ctx
// behind it, and needs no goroutine to end with it.
func (c *call) Value(key any) any {
	if _, from := key.(lock.FromKey); from {
		return c.from
	}
	c.mu.Lock()
	values := c.values
	if c.real != nil {
		values = c.real
	}
	c.mu.Unlock()
	return values.Value(key)
}
