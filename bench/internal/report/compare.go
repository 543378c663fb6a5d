package report

import (
	"bytes"
	"fmt"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

// Comparison is what two editions cost in the same rounds. Every figure is a cost: less is better.
type Comparison struct {
	Base  string
	Limit float64 // what costs more than so many times as much is marked

	rows []*compared
}

type compared struct {
	what      string
	base, now []float64
}

// Note notes a figure of a round.
func (c *Comparison) Note(what string, base bool, figure float64) {
	var row *compared
	for _, r := range c.rows {
		if r.what == what {
			row = r
		}
	}
	if row == nil {
		row = &compared{what: what}
		c.rows = append(c.rows, row)
	}
	if base {
		row.base = append(row.base, figure)
	} else {
		row.now = append(row.now, figure)
	}
}

// Text writes the table: medians, and the median of the ratios of the rounds.
func (c *Comparison) Text(b *bytes.Buffer) {
	rows := []string{fmt.Sprintf("\t%s\tnow\tratio\t", c.Base)}
	for _, r := range c.rows {
		ratio := measure.SpreadOf(ratios(r.now, r.base)).Median
		mark := ""
		if ratio > c.Limit {
			mark = "worse"
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%.2f\t%s", r.what,
			number(measure.SpreadOf(r.base).Median), number(measure.SpreadOf(r.now).Median), ratio, mark))
	}
	table(b, rows)
}

// ratios are those of the rounds in which there is something to compare with.
func ratios(now, base []float64) (all []float64) {
	for i := range min(len(now), len(base)) {
		if base[i] > 0 {
			all = append(all, now[i]/base[i])
		}
	}
	return all
}
