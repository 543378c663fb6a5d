package history

import (
	"testing"
	"time"
)

// together is a grant of r and q at once. Lists show the hold on r as name, and that on q as name-q.
func together(name string, fence int64, call, at, until time.Duration) Record {
	r := x(name, 0, call, at, until)
	r.Resource, r.Parts = "", []Part{{"q", name + "-q", fence}, {"r", name, fence}}
	return r
}

// onQ is a record of another resource than r.
func onQ(all []Record) []Record {
	for i := range all {
		all[i].Resource = "q"
	}
	return all
}

// lostPart is the loss of several of which one was lost.
func lostPart(name, reason, resource string, at, until time.Duration) Record {
	r := lost(name, reason, at, until)
	r.Resource = resource
	return r
}

// TestSeveral: each of several that were granted at once is judged like one, and the rest ends with one.
func TestSeveral(t *testing.T) {
	b := func(at time.Duration) []Record { return j(x("b", 2, 2*s, at, 9*s), left("b", at+s, at+2*s, 9*s)) }
	for _, tt := range []judged{
		{"one after the other", j(together("a", 1, 1*s, 2*s, 9*s), left("a", 3*s, 5*s, 9*s), b(4*s)), "", "", true},
		{"another one has one of them", j(together("a", 1, 1*s, 2*s, 9*s), left("a", 6*s, 7*s, 9*s), b(4*s)), "two had r at 4.000000–5.000000", "", false},
		{"another one has the other of them", j(together("a", 1, 1*s, 2*s, 9*s), left("a", 6*s, 7*s, 9*s), onQ(b(4*s))), "two had q at 4.000000–5.000000", "", false},
		{"the fence of one has fallen", j(together("a", 3, 1*s, 2*s, 9*s), left("a", 3*s, 4*s, 9*s), onQ(j(x("b", 2, 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)))), "", "the fence has not grown on q", false},
		{
			"readers of one, and a writer of the other, after a downgrade",
			j(together("a", 1, 1*s, 2*s, 9*s), of(Downgraded, "a", 3*s, 4*s, 0), j(shared(x("b", 1, 1*s, 5*s, 9*s)), left("b", 7*s, 8*s, 9*s)),
				onQ(j(x("c", 2, 1*s, 5*s, 9*s), left("c", 6*s, 7*s, 9*s))), left("a", 8*s, 8*s, 9*s)),
			"two had q at 5.000000–6.000000", "", false,
		},
		{"one is forced at once, and another has it", j(together("a", 1, 1*s, 2*s, 9*s), forced("a-q", 3*s, 0), onQ(b(4*s)), of(Checked, "a", 0, 5*s, 9*s), lostPart("a", "FORCED", "q", 6*s, 0)), "", "", true},
		{
			"one is forced at once, and another has the rest while the app is told that all is good",
			j(together("a", 1, 1*s, 2*s, 9*s), forced("a-q", 3*s, 0), b(4*s), of(Checked, "a", 0, 5*s, 14*s), lostPart("a", "FORCED", "q", 7*s, 0)),
			"two had r at 4.000000–5.000000", "", false,
		},
		{"one is forced, and another has the rest when the frozen app wakes up", j(together("a", 1, 1*s, 2*s, 9*s), forced("a-q", 3*s, s), b(4*s), lostPart("a", "FORCED", "q", 6*s, 0)), "", "", true},
		{"one is forced, and the app is killed when another has the rest", j(together("a", 1, 1*s, 2*s, 9*s), forced("a-q", 3*s, s), b(4*s), Record{Kind: Killed, App: "a", At: 6 * s}), "", "", true},
		{
			"one is forced, and another has the rest before the grace is over",
			j(together("a", 1, 1*s, 2*s, 9*s), forced("a-q", 3*s, 3*s), lostPart("a", "FORCED", "q", 3*s, 6*s), b(4*s)), "two had r at 4.000000–5.000000", "", false,
		},
		{"the store has lost one, and another has the rest", j(together("a", 1, 1*s, 2*s, 9*s), b(4*s), lostPart("a", "STORE_LOST", "q", 6*s, 0)), "", "", true},
		{
			"the store has lost one, and another has it before the app must know",
			j(together("a", 1, 1*s, 2*s, 9*s), onQ(b(4*s)), lostPart("a", "STORE_LOST", "q", 6*s, 0)), "two had q at 4.000000–5.000000", "", false,
		},
	} {
		t.Run(tt.name, tt.run)
	}
}
