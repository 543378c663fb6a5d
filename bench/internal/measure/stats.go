package measure

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Times are what one round of a measurement took, in microseconds.
type Times struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
}

// TimesOf sorts d and summarises it. Of nothing it is the zero Times.
func TimesOf(d []time.Duration) Times {
	if len(d) == 0 {
		return Times{}
	}
	slices.Sort(d)
	return Times{
		N:   len(d),
		P50: micros(Quantile(d, 0.50)),
		P99: micros(Quantile(d, 0.99)),
		Max: micros(d[len(d)-1]),
	}
}

// Quantile is the smallest value that at least the fraction q of the sorted
// values does not exceed (nearest rank): always one that was measured.
func Quantile[T cmp.Ordered](sorted []T, q float64) T {
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// Spread is one number over several rounds.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf summarises rounds. Of nothing it is the zero Spread.
func SpreadOf(rounds []float64) Spread {
	if len(rounds) == 0 {
		return Spread{}
	}
	s := slices.Sorted(slices.Values(rounds))
	mid := len(s) / 2
	median := s[mid]
	if len(s)%2 == 0 {
		median = (s[mid-1] + s[mid]) / 2
	}
	return Spread{Median: median, Min: s[0], Max: s[len(s)-1]}
}

// Column takes one number out of each round.
func Column[R any](rounds []R, number func(R) float64) []float64 {
	c := make([]float64, 0, len(rounds))
	for _, r := range rounds {
		c = append(c, number(r))
	}
	return c
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
