package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
)

const (
	hotSidecars = 2
	hotCallers  = 8                // of each sidecar
	longHold    = time.Millisecond // time for who has released to stand in the queue again
)

// turn is one hold of the hot lock, in moments of this process' clock.
type turn struct {
	sidecar  int
	fence    int64
	asked    time.Time // just before the acquire was sent
	granted  time.Time // when it had returned
	released time.Time // just before the release was sent
}

// hot measures one lock that all callers of two sidecars want all the time.
func (s *section) hot(ctx context.Context) (err error) {
	var sides []*sidecar.Sidecar
	for i := range hotSidecars {
		side, startErr := s.sidecar(ctx, fmt.Sprintf("hot-%d", i))
		if startErr != nil {
			return startErr
		}
		defer closeAfter(&err, side.Close)
		sides = append(sides, side)
	}
	h := &report.Hot{Sidecars: hotSidecars, CallersPerSidecar: hotCallers}
	for round := range s.rounds {
		notices, err := s.store.Notify(ctx, s.floor)
		if err != nil {
			return fmt.Errorf("measure notices: %w", err)
		}
		one, err := s.hotRound(ctx, sides, 0)
		if err != nil {
			return err
		}
		held, err := s.hotRound(ctx, sides, longHold)
		if err != nil {
			return err
		}
		one.Held, one.Notified, one.Answered = held.HandOff, measure.TimesOf(notices.Delivered), measure.TimesOf(notices.Answered)
		s.progress("hot lock, round %d of %d: hand-off %.0f µs, after a hold of %s %.0f µs, message %.0f µs",
			round+1, s.rounds, one.HandOff.P50, longHold, one.Held.P50, one.Notified.P50)
		h.Rounds = append(h.Rounds, one)
	}
	s.report.Hot = h
	if s.plan.hot != nil {
		s.aim(s.plan.hot(h.Rounds)...)
	}
	return nil
}

// hotRound lets each caller take the lock, hold it, and release it, over and over.
func (s *section) hotRound(ctx context.Context, sides []*sidecar.Sidecar, hold time.Duration) (_ report.HotRound, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turns := make([][]turn, hotSidecars*hotCallers)
	var all sync.WaitGroup
	from := time.Now().Add(s.window.WarmUp)
	to := from.Add(s.window.Measure)
	for i := range turns {
		side := i % hotSidecars
		app, openErr := sides[side].Open(ctx)
		if openErr != nil {
			cancel(openErr)
			break
		}
		defer closeAfter(&err, app.Close)
		all.Go(func() {
			if err := takeTurns(ctx, app, side, hold, to, &turns[i]); err != nil {
				cancel(fmt.Errorf("a caller of the hot lock: %w", err))
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return report.HotRound{}, err
	}
	return handOffs(slices.Concat(turns...), from, to)
}

func takeTurns(ctx context.Context, app *sidecar.App, side int, hold time.Duration, until time.Time, turns *[]turn) error {
	for asked := time.Now(); asked.Before(until) && ctx.Err() == nil; asked = time.Now() {
		l, err := app.Acquire(ctx, "bench/hot")
		if err != nil {
			return err
		}
		t := turn{sidecar: side, fence: l.Fence, asked: asked, granted: time.Now()}
		if hold > 0 {
			time.Sleep(hold)
		}
		t.released = time.Now()
		if err := l.Release(ctx); err != nil {
			return err
		}
		*turns = append(*turns, t)
	}
	return nil
}

var errTwoHolders = errors.New("the lock was held twice at a time")

// handOffs puts the turns in the order of their fences and takes the times
// between one's release and the next one's grant, where the next one had asked
// before: else nobody was there to be handed the lock.
func handOffs(turns []turn, from, to time.Time) (report.HotRound, error) {
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.fence, b.fence) })
	var every, across []time.Duration
	pairs := 0
	for i, t := range turns {
		if t.granted.Before(from) || t.granted.After(to) {
			continue
		}
		pairs++
		if i == 0 {
			continue
		}
		before := turns[i-1]
		took := t.granted.Sub(before.released)
		if took < 0 || t.fence == before.fence {
			return report.HotRound{}, fmt.Errorf("fences %d and %d: %w", before.fence, t.fence, errTwoHolders)
		}
		if !t.asked.Before(before.released) {
			continue
		}
		every = append(every, took)
		if t.sidecar != before.sidecar {
			across = append(across, took)
		}
	}
	return report.HotRound{
		PerSecond: float64(pairs) / to.Sub(from).Seconds(),
		HandOff:   measure.TimesOf(every),
		Across:    measure.TimesOf(across),
	}, nil
}
