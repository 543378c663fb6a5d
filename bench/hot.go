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

// taker takes the one lock that all want, and gives what releases it.
type taker func(context.Context) (fence int64, release func(context.Context) error, err error)

// hot measures one lock that all callers of two sidecars want all the time.
func (s *section) hot(ctx context.Context) error {
	if err := s.hotWith(ctx, "", nil); err != nil {
		return err
	}
	if !s.plan.turns {
		return nil
	}
	if err := s.hotWith(ctx, "with local turns", localTurns); err != nil {
		return err
	}
	if s.plan.turnsHot != nil {
		s.aim(s.plan.turnsHot(s.report.Hot[0].Rounds, s.report.Hot[1].Rounds)...)
	}
	return nil
}

// hotWith is hot with more flags for the sidecars.
func (s *section) hotWith(ctx context.Context, how string, flags []string) (err error) {
	var sides []*sidecar.Sidecar
	for i := range hotSidecars {
		side, startErr := s.sidecar(ctx, fmt.Sprintf("hot-%d", i), flags...)
		if startErr != nil {
			return startErr
		}
		defer closeAfter(&err, side.Close)
		sides = append(sides, side)
	}
	h := &report.Hot{How: how, Sidecars: hotSidecars, CallersPerSidecar: hotCallers}
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
		s.progress("hot lock %s, round %d of %d: %.0f pairs/s, hand-off %.0f µs, after a hold of %s %.0f µs, message %.0f µs",
			how, round+1, s.rounds, one.PerSecond, one.HandOff.P50, longHold, one.Held.P50, one.Notified.P50)
		h.Rounds = append(h.Rounds, one)
	}
	s.report.Hot = append(s.report.Hot, h)
	if how == "" && s.plan.hot != nil {
		s.aim(s.plan.hot(h.Rounds)...)
	}
	return nil
}

// hotRound lets each caller take the lock, hold it, and release it, over and over.
func (s *section) hotRound(ctx context.Context, sides []*sidecar.Sidecar, hold time.Duration) (_ report.HotRound, err error) {
	var takers []taker
	for i := range hotSidecars * hotCallers {
		app, err := sides[i%hotSidecars].Open(ctx)
		if err != nil {
			return report.HotRound{}, err
		}
		defer closeAfter(&err, app.Close)
		takers = append(takers, ofApp(app, "bench/hot"))
	}
	from := time.Now().Add(s.window.WarmUp)
	to := from.Add(s.window.Measure)
	turns, err := takeTurns(ctx, takers, hold, to)
	if err != nil {
		return report.HotRound{}, err
	}
	return handOffs(turns, from, to)
}

func ofApp(app *sidecar.App, resource string) taker {
	return func(ctx context.Context) (int64, func(context.Context) error, error) {
		l, err := app.Acquire(ctx, resource)
		if err != nil {
			return 0, nil, err
		}
		return l.Fence, l.Release, nil
	}
}

// takeTurns has each taker take the lock, hold it for that time, and release it, over
// and over. The number of its sidecar is its own modulo hotSidecars.
func takeTurns(ctx context.Context, takers []taker, hold time.Duration, until time.Time) ([]turn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turns := make([][]turn, len(takers))
	var all sync.WaitGroup
	for i, take := range takers {
		all.Go(func() {
			for asked := time.Now(); asked.Before(until) && ctx.Err() == nil; asked = time.Now() {
				fence, release, err := take(ctx)
				if err != nil {
					cancel(fmt.Errorf("take the hot lock: %w", err))
					return
				}
				t := turn{sidecar: i % hotSidecars, fence: fence, asked: asked, granted: time.Now()}
				if hold > 0 {
					time.Sleep(hold)
				}
				t.released = time.Now()
				if err := release(ctx); err != nil {
					cancel(fmt.Errorf("release the hot lock: %w", err))
					return
				}
				turns[i] = append(turns[i], t)
			}
		})
	}
	all.Wait()
	return slices.Concat(turns...), context.Cause(ctx)
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
