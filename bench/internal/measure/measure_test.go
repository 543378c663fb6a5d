package measure

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sleeper(d time.Duration, after error) Subject {
	s := Each("sleeper", func(int) Pair {
		return func(context.Context) error { time.Sleep(d); return after }
	})
	s.Server = 7
	return s
}

// clock meters as if this process were always busy, the store on two cores, and the
// server on as many as its number says.
func clock(_ context.Context, server int) (CPU, error) {
	now := float64(time.Now().UnixMicro())
	return CPU{App: now, Server: float64(server) * now, Store: 2 * now}, nil
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got, err := sleeper(10*time.Millisecond, nil).Run(t.Context(), 4, Window{WarmUp: 50 * time.Millisecond, Measure: time.Second}, clock)
		if err != nil {
			t.Fatal(err)
		}
		want := Round{PerSecond: 400, Times: Times{N: 400, P50: 10_000, P99: 10_000, Max: 10_000}, CPU: CPU{App: 2500, Server: 17500, Store: 5000}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Run (-want +got):\n%s", diff)
		}
	})
}

func TestRunFails(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name    string
		subject Subject
		want    error
	}{
		{"pair", sleeper(time.Millisecond, broken), broken},
		{"open", Subject{Open: func(context.Context, int) ([]Pair, func() error, error) { return nil, nil, broken }}, broken},
		{"close", Subject{Open: func(context.Context, int) ([]Pair, func() error, error) {
			pair := func(context.Context) error { time.Sleep(time.Millisecond); return nil }
			return []Pair{pair}, func() error { return broken }, nil
		}}, broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := c.subject.Run(t.Context(), 1, Window{Measure: time.Second}, clock)
				if !errors.Is(err, c.want) {
					t.Errorf("Run: %v, want %v", err, c.want)
				}
			})
		})
	}
	t.Run("meter", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			meter := func(context.Context, int) (CPU, error) { return CPU{}, broken }
			_, err := sleeper(time.Millisecond, nil).Run(t.Context(), 1, Window{Measure: time.Second}, meter)
			if !errors.Is(err, broken) {
				t.Errorf("Run: %v, want %v", err, broken)
			}
		})
	})
	t.Run("no pair in time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			if r, err := sleeper(time.Minute, nil).Run(t.Context(), 1, Window{Measure: time.Second}, clock); err == nil {
				t.Errorf("Run = %+v, want an error", r)
			}
		})
	})
}
