package report

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What costs more than the limit in the median of the rounds is marked, whatever one round says.
func TestComparison(t *testing.T) {
	c := &Comparison{Base: "abc", Limit: 1.05}
	for _, round := range []struct{ before, now, other float64 }{{10, 30, 100}, {20, 20, 106}, {10, 10.4, 110}} {
		c.Note("steady", true, round.before)
		c.Note("steady", false, round.now)
		c.Note("costly", true, 100)
		c.Note("costly", false, round.other)
		c.Note("not counted", true, 0)
		c.Note("not counted", false, 0)
	}
	var b bytes.Buffer
	c.Text(&b)
	want := `              abc   now  ratio
steady       10.0  20.0   1.04
costly        100   106   1.06  worse
not counted     0     0   0.00
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}
