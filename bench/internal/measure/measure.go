// Package measure runs operations in a closed loop, notes how long each took, and turns
// that into the few numbers that people compare. A [Store] is what it must know of a store.
package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Pair takes a lock and releases it, or does what that is compared with.
type Pair func(ctx context.Context) error

// Subject is something whose pairs are measured.
type Subject struct {
	Name string
	// Open makes one Pair for each caller. Each is used by one goroutine, and
	// works on a resource of its own. close ends what was opened.
	Open func(ctx context.Context, callers int) (pairs []Pair, closeAll func() error, err error)
	// Server is the process that the callers talk to; 0 if that is the store itself.
	Server int
}

// Each is a Subject with nothing to open and nothing to close.
func Each(name string, pair func(caller int) Pair) Subject {
	return Subject{Name: name, Open: func(_ context.Context, callers int) ([]Pair, func() error, error) {
		pairs := make([]Pair, callers)
		for i := range pairs {
			pairs[i] = pair(i)
		}
		return pairs, func() error { return nil }, nil
	}}
}

// Window says how long to measure.
type Window struct {
	WarmUp  time.Duration // not counted: connections are opened, caches filled, code paged in
	Measure time.Duration
}

// Round is what one round brought.
type Round struct {
	PerSecond float64 `json:"pairs_per_second"`
	Times
	CPU CPU `json:"cpu_us_per_pair"`
}

// Run opens the subject, lets all callers make pairs for the window, each as
// fast as it can, and closes it. The first error of a pair is an error of the
// round: numbers of a system that fails are worth nothing.
func (s Subject) Run(ctx context.Context, callers int, w Window, m Meter) (r Round, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pairs, closeAll, err := s.Open(ctx, callers)
	if err != nil {
		return Round{}, fmt.Errorf("open %s: %w", s.Name, err)
	}
	defer func() {
		if closeErr := closeAll(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close %s: %w", s.Name, closeErr))
		}
	}()

	from := time.Now().Add(w.WarmUp)
	to := from.Add(w.Measure)
	took := make([][]time.Duration, callers)
	var all sync.WaitGroup
	for i, pair := range pairs {
		all.Go(func() {
			d, err := loop(ctx, pair, from, to)
			if err != nil {
				cancel(fmt.Errorf("caller %d of %s: %w", i, s.Name, err))
			}
			took[i] = d
		})
	}
	used, err := m.between(ctx, s.Server, from, to)
	if err != nil {
		cancel(err)
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return Round{}, err
	}
	every := slices.Concat(took...)
	if len(every) == 0 {
		return Round{}, fmt.Errorf("%s: no pair was done in %s", s.Name, w.Measure)
	}
	return Round{
		PerSecond: float64(len(every)) / w.Measure.Seconds(),
		Times:     TimesOf(every),
		CPU:       used.per(len(every)),
	}, nil
}

// loop returns how long each pair took that began and ended between from and to.
func loop(ctx context.Context, pair Pair, from, to time.Time) ([]time.Duration, error) {
	took := make([]time.Duration, 0, 1<<12)
	start := time.Now()
	for start.Before(to) && ctx.Err() == nil {
		if err := pair(ctx); err != nil {
			return took, err
		}
		end := time.Now()
		if !start.Before(from) && !end.After(to) {
			took = append(took, end.Sub(start))
		}
		start = end
	}
	return took, nil
}
