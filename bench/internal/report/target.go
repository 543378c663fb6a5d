package report

import "github.com/locksidecar/locksidecar/bench/internal/measure"

// Target is a promise about one number, as a ratio to another of the same run,
// so that it means the same on a slow machine as on a fast one.
type Target struct {
	Name     string         `json:"name"`
	Unit     string         `json:"unit"`
	AtLeast  bool           `json:"at_least"` // else at most
	Factor   float64        `json:"factor"`   // allowed ratio of measured to reference
	Measured float64        `json:"measured"` // median of the rounds
	Against  float64        `json:"against"`  // what it is compared with: median of the rounds
	Ratio    measure.Spread `json:"ratio"`    // of the rounds; each compares what was measured one after the other
	Met      bool           `json:"met"`      // the median of the ratios is within the factor
}

// NewTarget compares two numbers round by round.
func NewTarget(name, unit string, atLeast bool, factor float64, measured, against []float64) Target {
	var ratios []float64
	for i := range measured {
		ratios = append(ratios, measured[i]/against[i])
	}
	t := Target{
		Name: name, Unit: unit, AtLeast: atLeast, Factor: factor,
		Measured: measure.SpreadOf(measured).Median, Against: measure.SpreadOf(against).Median, Ratio: measure.SpreadOf(ratios),
	}
	if atLeast {
		t.Met = t.Ratio.Median >= factor
	} else {
		t.Met = t.Ratio.Median <= factor
	}
	return t
}

// AtMost is a target with a fixed limit, for what was measured once.
func AtMost(name, unit string, measured, limit float64) Target {
	return NewTarget(name, unit, false, 1, []float64{measured}, []float64{limit})
}
