package testengine

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Most things that are waited for take 10 to 40 ms, and some a second, in which to look takes processor time from them.
const (
	pollInterval  = 5 * time.Millisecond
	pollLongAfter = 100 * time.Millisecond
	pollLong      = 20 * time.Millisecond
)

// poll tries f until it succeeds, ctx ends, or f returns an error of stop.
func poll(ctx context.Context, f func() error) error {
	began := time.Now()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	var last error // before ctx ended; f's error because of ctx says nothing
	for {
		err := f()
		if err == nil {
			return nil
		}
		if s := (stopped{}); errors.As(err, &s) {
			return s.error
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-tick.C:
		}
		if time.Since(began) > pollLongAfter {
			tick.Reset(pollLong)
		}
	}
}

// stopped ends a poll.
type stopped struct{ error }

func stop(err error) error { return stopped{err} }
