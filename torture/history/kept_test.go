package history

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// atLeast is a grant with a min_hold.
func atLeast(r Record, d time.Duration) Record { r.Keep = d; return r }

// loose detaches a hold for ten seconds.
func loose(name, handle string, call, at time.Duration) []Record {
	r := of(Detached, name, call, at, 0)
	r.Handle, r.Keep = handle, 10*s
	return []Record{of(Leaving, name, 0, call, 9*s), r}
}

// again is a grant by a handle of the hold of a chain.
func again(name, chain, handle string, fence int64, call, at, until time.Duration) []Record {
	r := x(name, fence, call, at, until)
	r.Chain, r.Handle = chain, handle
	return []Record{by(Attaching, name, chain, handle, 0, call), r}
}

// by is a record about a handle.
func by(k Kind, app, chain, handle string, call, at time.Duration) Record {
	return Record{Kind: k, App: app, Chain: chain, Handle: handle, Resource: "r", Call: call, At: at}
}

func extended(chain, handle string, call, at time.Duration) Record {
	r := by(Extended, "", chain, handle, call, at)
	r.Keep = 10 * s
	return r
}

// stranger has the resource for a second, with a larger fence.
func stranger(at time.Duration) []Record {
	return j(x("stranger", 9, at-s, at, at+9*s), left("stranger", at+s, at+2*s, at+9*s))
}

// TestKept: what the store keeps for nobody keeps others out, until something may have ended it.
func TestKept(t *testing.T) {
	died := func(app string, at time.Duration) Record { return Record{Kind: Killed, App: app, At: at} }
	forgot := func(at time.Duration) Record { return Record{Kind: Forgot, At: at} }
	a := j(x("a", 1, 1*s, 2*s, 9*s), loose("a", "h1", 3*s, 4*s)) // kept until 12 s
	tests := []judged{
		// Min hold: a's is kept until 10 s.
		{"after a min_hold", j(atLeast(x("a", 1, 1*s, 2*s, 9*s), 10*s), left("a", 3*s, 4*s, 9*s), stranger(10*s)), "", "", true},
		{
			"within a min_hold", j(atLeast(x("a", 1, 1*s, 2*s, 9*s), 10*s), left("a", 3*s, 4*s, 9*s), stranger(8*s)),
			"two had r at 8.000000–9.000000", "", false,
		},
		{
			"within a min_hold of the dead", j(atLeast(x("a", 1, 1*s, 2*s, 9*s), 10*s), died("a", 3*s), stranger(8*s)),
			"two had r at 8.000000–9.000000", "", false,
		},
		{"a reader within a min_hold of a reader", j(shared(atLeast(x("a", 1, 1*s, 2*s, 9*s), 10*s)), left("a", 3*s, 4*s, 9*s), shared(x("b", 1, 1*s, 8*s, 9*s)), left("b", 9*s, 9*s, 9*s)), "", "", true},
		{"a min_hold that was forced", j(atLeast(x("a", 1, 1*s, 2*s, 9*s), 10*s), left("a", 3*s, 4*s, 9*s), forced("a", 5*s, s), stranger(6*s)), "", "", true},
		{"a min_hold that was forgotten", j(atLeast(x("a", 1, 1*s, 2*s, 9*s), 10*s), left("a", 3*s, 4*s, 9*s), forgot(5*s), stranger(6*s)), "", "", true},
		{
			"a min_hold from after the store forgot", j(forgot(s/2), atLeast(x("a", 1, 1*s, 2*s, 9*s), 10*s), left("a", 3*s, 4*s, 9*s), stranger(6*s)),
			"two had r", "", false,
		},

		{"after its time", j(a, stranger(12*s)), "", "", true},
		{"within its time", j(a, stranger(10*s)), "two had r at 10.000000–11.000000", "", false},
		{"within its time, of the dead", j(a, died("a", 5*s), stranger(10*s)), "two had r", "", false},
		{"nobody knows whether it was detached", j(x("a", 1, 1*s, 2*s, 9*s), of(Leaving, "a", 0, 3*s, 9*s), Record{Kind: Detached, Lock: "a", Call: 3 * s, At: 4 * s, Keep: 10 * s, Err: "late"}, stranger(5*s)), "", "", true},
		{"forced", j(a, forced("a", 5*s, s), stranger(6*s)), "", "", true},
		{"forgotten", j(a, forgot(5*s), stranger(6*s)), "", "", true},
		{"perhaps forgotten by then", j(a, Record{Kind: Forgot, Call: 5 * s, At: 8 * s}, stranger(6*s)), "", "", true},
		{"forgotten later", j(a, Record{Kind: Forgot, Call: 8 * s, At: 9 * s}, stranger(6*s)), "two had r at 6.000000–7.000000", "", false},
		{"extended", j(a, extended("a", "h1", 8*s, 9*s), stranger(16*s)), "two had r at 16.000000–17.000000", "", false},
		{"released by its handle", j(a, by(Freeing, "b", "a", "h1", 0, 5*s), by(Freed, "b", "a", "h1", 5*s, 6*s), stranger(6*s)), "", "", true},
		{"perhaps released by its handle", j(a, by(Freeing, "b", "a", "h1", 0, 5*s), stranger(6*s)), "", "", true},
		{
			"before it is released by its handle", j(a, by(Freeing, "b", "a", "h1", 0, 7*s), by(Freed, "b", "a", "h1", 7*s, 8*s), stranger(6*s)),
			"two had r at 6.000000–7.000000", "", false,
		},

		{"attached, with the same fence", j(a, again("b", "a", "h1", 1, 5*s, 6*s, 12*s), left("b", 7*s, 8*s, 12*s), stranger(8*s)), "", "", true},
		{"beside who has attached it", j(a, again("b", "a", "h1", 1, 5*s, 6*s, 12*s), left("b", 9*s, 9*s, 12*s), stranger(8*s)), "two had r at 8.000000–9.000000", "", false},
		{"who has attached it dies", j(a, again("b", "a", "h1", 1, 5*s, 6*s, 12*s), died("b", 7*s), stranger(10*s)), "two had r at 10.000000–11.000000", "", false},
		{"attached beyond its time", j(a, again("b", "a", "h1", 1, 5*s, 6*s, 16*s), lost("b", "SIDECAR_GONE", 18*s, 0), stranger(14*s)), "two had r at 14.000000–15.000000", "", false},
		{"attached, and detached again", j(a, again("b", "a", "h1", 1, 5*s, 6*s, 12*s), chained(loose("b", "h2", 7*s, 8*s), "a"), stranger(14*s)), "two had r at 14.000000–15.000000", "", false},
		{"attached after somebody else was let in", j(a, stranger(13*s), again("b", "a", "h1", 1, 16*s, 17*s, 18*s), left("b", 18*s, 19*s, 18*s)), "two had r", "", false},

		// Who takes it over ends what the one before may rely on, and the one after is as good.
		{
			"taken over, and released by the second",
			j(a, again("b", "a", "h1", 1, 5*s, 6*s, 20*s), again("c", "a", "h1", 1, 7*s, 8*s, 12*s), left("c", 9*s, 9*s, 12*s), stranger(10*s), lost("b", "TAKEN_OVER", 12*s, 0)),
			"", "", true,
		},
		{
			"taken over, and not told by news that are later",
			j(a, again("b", "a", "h1", 1, 5*s, 6*s, 12*s), again("c", "a", "h1", 1, 7*s, 8*s, 12*s), left("c", 9*s, 9*s, 12*s), stranger(10*s), of(Checked, "b", 0, 12*s, 19*s), lost("b", "TAKEN_OVER", 13*s, 0)),
			"two had r at 10.000000–11.000000", "", false,
		},
		{
			"the release of a hold that was taken over",
			j(a, again("b", "a", "h1", 1, 5*s, 6*s, 12*s), again("c", "a", "h1", 1, 6*s, 7*s, 12*s), lost("b", "TAKEN_OVER", 7*s, 0), of(Left, "b", 8*s, 8*s, 0), stranger(10*s), left("c", 11*s, 11*s, 12*s)),
			"two had r at 10.000000–11.000000", "", false,
		},
		{
			"released by its handle while it is attached",
			j(a, again("b", "a", "h1", 1, 5*s, 6*s, 20*s), by(Freeing, "c", "a", "h1", 0, 7*s), by(Freed, "c", "a", "h1", 7*s, 8*s), stranger(9*s), lost("b", "TAKEN_OVER", 12*s, 0)),
			"", "", true,
		},
		{
			"nobody knows who has it, and its time is not over",
			j(a, by(Attaching, "c", "a", "h1", 0, 5*s), again("b", "a", "h1", 1, 6*s, 7*s, 8*s), lost("b", "SIDECAR_GONE", 8*s, 0), stranger(10*s)),
			"two had r at 10.000000–11.000000", "", false,
		},
		{
			"nobody knows who has it",
			j(a, by(Attaching, "c", "a", "h1", 0, 5*s), again("b", "a", "h1", 1, 6*s, 7*s, 16*s), lost("b", "SIDECAR_GONE", 18*s, 0), stranger(13*s)),
			"", "", true,
		},
		{
			"a loss that its sidecar did not know of, and a release",
			j(a, again("b", "a", "h1", 1, 5*s, 6*s, 7*s), lost("b", "SIDECAR_SILENT", 7*s, 0), of(Left, "b", 8*s, 9*s, 0), stranger(10*s)),
			"", "", true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.run)
	}
}

// chained are records of a hold that was attached.
func chained(records []Record, chain string) []Record {
	for i := range records {
		records[i].Chain = chain
	}
	return records
}

// TestHandles: a handle is worth nothing when it was released, or another one is in its place.
func TestHandles(t *testing.T) {
	freed := j(by(Freeing, "b", "a", "h1", 0, 5*s), by(Freed, "b", "a", "h1", 5*s, 6*s))
	detached := j(again("b", "a", "h1", 1, 3*s, 4*s, 9*s), chained(loose("b", "h2", 5*s, 6*s), "a"))
	for name, tt := range map[string]struct {
		history []Record
		want    string
	}{
		"before it was released":    {j(freed, again("c", "a", "h1", 1, 5*s, 7*s, 9*s)), ""},
		"after it was released":     {j(freed, again("c", "a", "h1", 1, 7*s, 8*s, 9*s)), "which was freed by b at 6.000000"},
		"in a store that went back": {j(freed, Record{Kind: Forgot, At: 7 * s}, again("c", "a", "h1", 1, 7*s, 8*s, 9*s)), ""},
		"the handle before":         {j(detached, again("c", "a", "h1", 1, 7*s, 8*s, 9*s)), "which was detached by b at 6.000000"},
		"the new one":               {j(detached, again("c", "a", "h2", 1, 7*s, 8*s, 9*s)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := Handles(tt.history)
			if (tt.want == "") != (len(got) == 0) || slices.ContainsFunc(got, func(c string) bool { return !strings.Contains(c, tt.want) }) {
				t.Errorf("%q; want %q", got, tt.want)
			}
		})
	}
}
