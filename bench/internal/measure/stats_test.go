package measure

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, c := range []struct {
		name   string
		values []int
		q      float64
		want   int
	}{
		{"one value", []int{7}, 0.99, 7},
		{"median of two is the lower", []int{1, 2}, 0.5, 1},
		{"median of three", []int{1, 2, 3}, 0.5, 2},
		{"p50 of hundred", hundred, 0.50, 50},
		{"p99 of hundred", hundred, 0.99, 99},
		{"p100", hundred, 1, 100},
		{"p0 is the smallest", hundred, 0, 1},
		{"p99 of few is the largest", []int{1, 2, 3}, 0.99, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Quantile(c.values, c.q); got != c.want {
				t.Errorf("Quantile(%v) = %d, want %d", c.q, got, c.want)
			}
		})
	}
}

func TestOf(t *testing.T) {
	got := TimesOf([]time.Duration{3 * time.Microsecond, 1500 * time.Nanosecond, time.Millisecond})
	want := Times{N: 3, P50: 3, P99: 1000, Max: 1000}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Of (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Times{}, TimesOf(nil)); diff != "" {
		t.Errorf("Of nothing (-want +got):\n%s", diff)
	}
}

func TestOver(t *testing.T) {
	for _, c := range []struct {
		name   string
		rounds []float64
		want   Spread
	}{
		{"none", nil, Spread{}},
		{"one", []float64{2}, Spread{2, 2, 2}},
		{"odd", []float64{9, 1, 4}, Spread{4, 1, 9}},
		{"even", []float64{4, 1, 2, 9}, Spread{3, 1, 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, SpreadOf(c.rounds)); diff != "" {
				t.Errorf("Over (-want +got):\n%s", diff)
			}
		})
	}
}

func TestColumn(t *testing.T) {
	got := Column([]Times{{P50: 1}, {P50: 2}}, func(t Times) float64 { return t.P50 })
	if diff := cmp.Diff([]float64{1, 2}, got); diff != "" {
		t.Errorf("Column (-want +got):\n%s", diff)
	}
}
