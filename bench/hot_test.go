package main

import (
	"errors"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/bench/internal/report"
)

func TestHandOffs(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	one := func(sidecar int, fence int64, asked, granted, released int) turn {
		return turn{sidecar: sidecar, fence: fence, asked: at(asked), granted: at(granted), released: at(released)}
	}
	ms := func(x float64) measure.Times { return measure.Times{N: 1, P50: x * 1000, P99: x * 1000, Max: x * 1000} }

	for _, c := range []struct {
		name  string
		turns []turn
		want  report.HotRound
		err   error
	}{
		{name: "nothing"},
		{
			name:  "in the order of fences, not of callers",
			turns: []turn{one(1, 20, 1, 9, 10), one(0, 10, 0, 1, 4)},
			want:  report.HotRound{PerSecond: 2, HandOff: ms(5), Across: ms(5)},
		},
		{
			name:  "within one sidecar",
			turns: []turn{one(0, 10, 0, 1, 4), one(0, 20, 1, 6, 10)},
			want:  report.HotRound{PerSecond: 2, HandOff: ms(2)},
		},
		{
			name:  "who asks after the release was not waiting",
			turns: []turn{one(0, 10, 0, 1, 4), one(1, 20, 5, 9, 10)},
			want:  report.HotRound{PerSecond: 2},
		},
		{
			name:  "outside the window",
			turns: []turn{one(0, 10, -9, -8, -7), one(1, 20, 0, 2000, 2001)},
		},
		{
			name:  "from before the window into it",
			turns: []turn{one(0, 10, -9, -8, -1), one(1, 20, -8, 2, 3)},
			want:  report.HotRound{PerSecond: 1, HandOff: ms(3), Across: ms(3)},
		},
		{name: "held twice", turns: []turn{one(0, 10, 0, 1, 9), one(1, 20, 0, 5, 10)}, err: errTwoHolders},
		{name: "one fence twice", turns: []turn{one(0, 10, 0, 1, 2), one(1, 10, 0, 5, 10)}, err: errTwoHolders},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := handOffs(c.turns, start, start.Add(time.Second))
			if !errors.Is(err, c.err) {
				t.Fatalf("handOffs: %v, want %v", err, c.err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("handOffs (-want +got):\n%s", diff)
			}
		})
	}
}
