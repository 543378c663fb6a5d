package embedded

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The wall clock is believed when it is ahead of what was noted, and when it has gone
// back by more than a second; the year 2200 is as far as it goes.
func TestWallClock(t *testing.T) {
	const now = 10 * time.Second
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	last := time.UnixMicro(7_258_118_400_000_000) // 2200-01-01
	for _, c := range []struct {
		name  string
		first time.Time
		then  time.Duration // how much further it is at the second reading
		want  time.Time     // of the second reading, for the store
	}{
		{"it goes on", wall, time.Microsecond, wall.Add(time.Microsecond)},
		{"it stands still", wall, 0, wall},
		{"a little back", wall, -time.Microsecond, wall},
		{"a second back", wall, -time.Second, wall},
		{"more than a second back", wall, -time.Second - time.Microsecond, wall.Add(-time.Second - time.Microsecond)},
		{"an hour back", wall, -time.Hour, wall.Add(-time.Hour)},
		{"up to the year 2200", last.Add(-time.Hour), time.Hour, last},
		{"into the year 2200", last.Add(-time.Hour), time.Hour + time.Microsecond, last},
		{"far behind", last.AddDate(300, 0, 0), time.Hour, last},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(WithClock(func() time.Duration { return now }))
			at := c.first
			s.wall = func() time.Time { return at }
			s.mu.Lock()
			s.setWall(now)
			at = at.Add(c.then)
			s.setWall(now)
			got := s.nextFence(new(entry), now)
			s.mu.Unlock()
			if want := lock.FenceOf(c.want.UnixMicro()); got != want {
				t.Errorf("the fence is %d, want %d, of %v", got, want, c.want)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			select {
			case <-s.stopped:
			default:
				t.Error("Close has not waited for the goroutine of the store")
			}
		})
	}
}

// A refusal names eight holders at most, and a page has a thousand names at most.
func TestBoundsOfAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, s *Store) {
		a := open(t, s)
		for range 10 {
			acquire(t, a, "0", lock.Shared)
		}
		_, err := a.Acquire(t.Context(), lock.Request{ID: "try", Resource: "0", Mode: lock.Exclusive, Try: true})
		if held := (*lock.HeldError)(nil); !errors.As(err, &held) || len(held.Status.Holders) != 8 {
			t.Errorf("%v, want a refusal with eight holders", err)
		}
		for i := 1; i <= 1000; i++ {
			acquire(t, a, lock.Resource(fmt.Sprint(i)), lock.Exclusive)
		}
		for limit, want := range map[int]int{-1: 1000, 0: 1000, 1: 1, 999: 999, 1000: 1000, 1001: 1000} {
			list, err := s.List(t.Context(), "", lock.Page{Limit: limit})
			if err != nil || len(list) != want {
				t.Errorf("a page of %d: %d, %v, want %d", limit, len(list), err, want)
			}
		}
		shut(t, a)
	})
}
