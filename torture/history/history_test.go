package history

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const s = time.Second

// x is an exclusive grant of a hold that is named like its app.
func x(name string, fence int64, call, at, until time.Duration) Record {
	return Record{Kind: Granted, App: name, Side: "side of " + name, Lock: name, Resource: "r", Fence: fence, Call: call, At: at, Until: until}
}

func shared(r Record) Record { r.Shared = true; return r }

// permit is an exclusive grant as one of two permits.
func permit(slot int, r Record) Record { r.Limit, r.Slot = 2, slot; return r }

func mortal(r Record) Record { r.Mortal = true; return r }

func of(k Kind, name string, call, at, until time.Duration) Record {
	return Record{Kind: k, App: name, Lock: name, Resource: "r", Call: call, At: at, Until: until}
}

func lost(name, reason string, at, until time.Duration) Record {
	r := of(Lost, name, 0, at, until)
	r.Reason = reason
	return r
}

func forced(name string, at, grace time.Duration) Record {
	return Record{Kind: Forced, Lock: name, At: at, Grace: grace}
}

// left is a release that was called when the hold had just been found good.
func left(name string, call, at, until time.Duration) []Record {
	return []Record{of(Leaving, name, 0, call, until), of(Left, name, call, at, 0)}
}

// j joins records, and slices of them.
func j(all ...any) (records []Record) {
	for _, a := range all {
		switch a := a.(type) {
		case Record:
			records = append(records, a)
		case []Record:
			records = append(records, a...)
		}
	}
	return records
}

// judged is a history, and what the checks must find in it.
type judged struct {
	name    string
	history []Record
	overlap string // part of the only complaint; empty: none
	fences  string
	linear  bool
}

func (tt judged) run(t *testing.T) {
	holds := Holds(tt.history, 8*s)
	one := func(what, want string, got []string) {
		t.Helper()
		if want == "" && len(got) != 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
			t.Errorf("%s: %q; want %q", what, got, want)
		}
	}
	one("overlaps", tt.overlap, Overlaps(holds))
	one("fences", tt.fences, Fences(holds))
	if got := Linear(holds, time.Minute); tt.linear != (len(got) == 0) {
		t.Errorf("linear: %q; want %t", got, tt.linear)
	}
}

// TestChecks: what is allowed passes, and what is not is found by each check that can.
func TestChecks(t *testing.T) {
	tests := []judged{
		{"one after the other", j(x("a", 1, 1*s, 2*s, 9*s), left("a", 3*s, 5*s, 9*s), x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s)), "", "", true},
		{
			"two at once", j(x("a", 1, 1*s, 2*s, 9*s), left("a", 6*s, 7*s, 9*s), x("b", 2, 2*s, 4*s, 9*s), left("b", 5*s, 7*s, 9*s)),
			"two had r at 4.000000–5.000000", "", false,
		},
		{"readers together", j(shared(x("a", 1, 1*s, 2*s, 9*s)), shared(x("b", 1, 1*s, 3*s, 9*s)), left("a", 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)), "", "", true},
		{
			"a reader beside a writer", j(x("a", 1, 1*s, 2*s, 9*s), shared(x("b", 1, 1*s, 3*s, 9*s)), left("a", 5*s, 6*s, 9*s), left("b", 4*s, 5*s, 9*s)),
			"at 3.000000–4.000000", "", false,
		},
		{
			"a writer beside a reader", j(shared(x("a", 1, 1*s, 2*s, 9*s)), x("b", 2, 1*s, 3*s, 9*s), left("a", 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"at 3.000000–5.000000", "", false,
		},
		{
			"permits in slots of their own, and one after the other in one",
			j(permit(0, x("a", 1, 1*s, 2*s, 9*s)), permit(1, x("b", 2, 1*s, 3*s, 9*s)), left("a", 4*s, 5*s, 9*s), permit(0, x("c", 3, 4*s, 5*s, 9*s)), left("b", 6*s, 7*s, 9*s), left("c", 6*s, 7*s, 9*s),
				x("d", 4, 4*s, 8*s, 12*s), left("d", 9*s, 10*s, 12*s), permit(1, x("e", 5, 9*s, 11*s, 15*s)), left("e", 12*s, 12*s, 15*s)),
			"", "", true,
		},
		{
			"two permits in one slot", j(permit(1, x("a", 1, 1*s, 2*s, 9*s)), permit(1, x("b", 2, 1*s, 3*s, 9*s)), left("a", 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"two had r at 3.000000–5.000000", "", false,
		},
		{
			"a writer beside a permit", j(permit(1, x("a", 1, 1*s, 2*s, 9*s)), x("b", 2, 1*s, 3*s, 9*s), left("a", 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"two had r at 3.000000–5.000000", "", false,
		},
		{
			"a reader beside a permit", j(permit(1, x("a", 1, 1*s, 2*s, 9*s)), shared(x("b", 2, 1*s, 3*s, 9*s)), left("a", 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"two had r at 3.000000–5.000000", "", false,
		},
		{
			"a permit whose fence does not grow", j(permit(0, x("a", 2, 1*s, 2*s, 9*s)), permit(1, x("b", 1, 3*s, 4*s, 9*s)), left("a", 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "the fence has not grown on r", false,
		},
		{
			"a reader after a downgrade", j(x("a", 1, 1*s, 2*s, 9*s), of(Downgraded, "a", 3*s, 5*s, 0), shared(x("b", 1, 1*s, 4*s, 9*s)), left("b", 6*s, 7*s, 9*s), left("a", 8*s, 8*s, 9*s)),
			"", "", true,
		},
		{
			"a writer after a downgrade", j(x("a", 1, 1*s, 2*s, 9*s), of(Downgraded, "a", 3*s, 4*s, 0), x("b", 2, 1*s, 5*s, 9*s), left("b", 6*s, 7*s, 9*s), left("a", 8*s, 8*s, 9*s)),
			"at 5.000000–6.000000", "", false,
		},
		{
			"a reader before a downgrade", j(x("a", 1, 1*s, 2*s, 9*s), shared(x("b", 1, 1*s, 3*s, 9*s)), of(Downgraded, "a", 4*s, 5*s, 0), left("b", 6*s, 7*s, 9*s), left("a", 8*s, 8*s, 9*s)),
			"at 3.000000–4.000000", "", false,
		},
		{
			"a reader beside an app that was killed while it downgraded",
			j(x("a", 1, 1*s, 2*s, 9*s), of(Downgrading, "a", 0, 3*s, 0), shared(x("b", 1, 1*s, 4*s, 9*s)), Record{Kind: Killed, App: "a", At: 5 * s}, left("b", 6*s, 7*s, 9*s)),
			"", "", true,
		},
		{
			"a writer beside such an app",
			j(x("a", 1, 1*s, 2*s, 9*s), of(Downgrading, "a", 0, 3*s, 0), x("b", 2, 1*s, 4*s, 9*s), Record{Kind: Killed, App: "a", At: 5 * s}, left("b", 6*s, 7*s, 9*s)),
			"at 4.000000–5.000000", "", false,
		},
		{
			"a frozen app that relies on what it was told", j(x("a", 1, 1*s, 2*s, 5*s), x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s), lost("a", "SIDECAR_SILENT", 8*s, 0)),
			"at 4.000000–5.000000", "", false,
		},
		{"a frozen app that woke up", j(x("a", 1, 1*s, 2*s, 4*s), x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s), lost("a", "SIDECAR_SILENT", 8*s, 0)), "", "", true},
		{"a frozen app whose session has a TTL", j(mortal(x("a", 1, 1*s, 2*s, 5*s)), x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s), lost("a", "SESSION_EXPIRED", 8*s, 0)), "", "", true},
		{"a killed app", j(x("a", 1, 1*s, 2*s, 9*s), Record{Kind: Killed, App: "a", At: 3 * s}, x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s)), "", "", true},
		{
			"before the app was killed", j(x("a", 1, 1*s, 2*s, 9*s), Record{Kind: Killed, App: "a", At: 5 * s}, x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s)),
			"at 4.000000–5.000000", "", false,
		},
		{
			"a killed sidecar, whose lease goes on", j(x("a", 1, 1*s, 2*s, 5*s), lost("a", "SIDECAR_GONE", 9*s, 0), x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s)),
			"at 4.000000–5.000000", "", false,
		},
		{"a sidecar that ended with its store", j(x("a", 1, 1*s, 2*s, 5*s), Record{Kind: Died, Side: "side of a", At: 3 * s}, lost("a", "SIDECAR_GONE", 9*s, 0), x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s)), "", "", true},
		{"a sidecar that was asked to end", j(x("a", 1, 1*s, 2*s, 5*s), Record{Kind: Stopped, Side: "side of a", At: 3 * s}, lost("a", "SIDECAR_GONE", 9*s, 0), x("b", 2, 2*s, 4*s, 9*s), left("b", 6*s, 7*s, 9*s)), "", "", true},
		{
			"a sidecar that ends and has not told", j(x("a", 1, 1*s, 2*s, 9*s), Record{Kind: Stopped, Side: "side of a", At: 3 * s}, x("b", 2, 2*s, 4*s, 9*s), of(Checked, "a", 0, 6*s, 13*s), lost("a", "STOPPING", 7*s, 0), left("b", 6*s, 7*s, 9*s)),
			"at 4.000000–5.000000", "", false,
		},
		{"forced at once", j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 3*s, 0), x("b", 2, 2*s, 4*s, 9*s), of(Checked, "a", 0, 5*s, 9*s), lost("a", "FORCED", 6*s, 0), left("b", 7*s, 8*s, 9*s)), "", "", true},
		{"forced at once, by the hold in the store", j(x("a", 1025, 1*s, 2*s, 9*s), Record{Kind: Forced, Lock: "of the store", Fence: 1024, At: 3 * s}, x("b", 2048, 2*s, 4*s, 9*s), of(Checked, "a", 0, 5*s, 9*s), lost("a", "FORCED", 6*s, 0), left("b", 7*s, 8*s, 9*s)), "", "", true},
		{
			"another hold in the store is forced", j(x("a", 1025, 1*s, 2*s, 9*s), Record{Kind: Forced, Lock: "of the store", Fence: 2048, At: 3 * s}, x("b", 3072, 2*s, 4*s, 9*s), of(Checked, "a", 0, 5*s, 9*s), left("a", 6*s, 7*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"at 4.000000", "", false,
		},
		{
			"forced, and not told", j(x("a", 1, 1*s, 2*s, 6*s), forced("a", 2*s, s), x("b", 2, 2*s, 4*s, 9*s), of(Checked, "a", 0, 6*s, 13*s), lost("a", "FORCED", 7*s, 0), left("b", 7*s, 8*s, 9*s)),
			"at 4.000000–5.000000", "", false,
		},
		{"forced, and told when it woke up", j(x("a", 1, 1*s, 2*s, 6*s), forced("a", 2*s, s), x("b", 2, 2*s, 4*s, 9*s), of(Checked, "a", 0, 5*s, 6*s), lost("a", "FORCED", 6*s, 0), left("b", 7*s, 8*s, 9*s)), "", "", true},
		{
			"forced, and let in before the grace can be over", j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 3*s, 3*s), x("b", 2, 2*s, 4*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"at 4.000000–6.000000", "", false,
		},
		{
			"forced, and released without a word", j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 3*s, s), x("b", 2, 2*s, 5*s, 9*s), left("a", 6*s, 7*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"at 5.000000–6.000000", "", false,
		},
		{"forced, and frozen", j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 3*s, s), x("b", 2, 2*s, 5*s, 9*s), lost("a", "FORCED", 6*s, 0), left("b", 7*s, 8*s, 9*s)), "", "", true},
		{
			"forced, and let in before the grace was over", j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 3*s, 2*s), lost("a", "FORCED", 4*s, 6*s), x("b", 2, 2*s, 5*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"at 5.000000–6.000000", "", false,
		},
		{"forced, and acknowledged", j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 3*s, 2*s), lost("a", "FORCED", 4*s, 6*s), of(Left, "a", 5*s, 7*s, 0), x("b", 2, 2*s, 5*s, 9*s), left("b", 7*s, 8*s, 9*s)), "", "", true},
		{
			"forced twice, sooner", j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 3*s, 5*s), forced("a", 3*s, s), x("b", 2, 2*s, 4*s, 9*s), lost("a", "FORCED", 8*s, 0), left("b", 7*s, 8*s, 9*s)),
			"", "", true,
		},
		{
			"forced while another grace runs", j(x("a", 1, 1*s, 2*s, 9*s), lost("a", "MAX_HOLD", 3*s, 9*s), forced("a", 4*s, s), x("b", 2, 2*s, 5*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "", true,
		},
		{
			"the grace of max_hold", j(x("a", 1, 1*s, 2*s, 3*s), lost("a", "MAX_HOLD", 3*s, 6*s), x("b", 2, 2*s, 5*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"at 5.000000–6.000000", "", false,
		},
		{
			"stopped while another grace runs", j(x("a", 1, 1*s, 2*s, 9*s), lost("a", "MAX_HOLD", 3*s, 9*s), Record{Kind: Stopped, Side: "side of a", At: 5 * s}, x("b", 2, 2*s, 5*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "", true,
		},
		{
			"stopped while the app had not read its grant", j(x("a", 1, 1*s, 6*s, 0), lost("a", "FORCED", 6*s, 9*s), forced("a", 2*s, 7*s), Record{Kind: Stopped, Side: "side of a", At: 3 * s}, x("b", 2, 2*s, 5*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "", true,
		},
		{
			"a release that has failed", j(x("a", 1, 1*s, 2*s, 9*s), of(Leaving, "a", 0, 3*s, 9*s), Record{Kind: Left, Lock: "a", Call: 3 * s, At: 4 * s, Err: "late"}, x("b", 2, 2*s, 8*s, 9*s), left("b", 9*s, 9*s, 0)),
			"", "", true,
		},
		{
			"a detach of what is forced, which releases it",
			j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 2*s, 9*s), of(Leaving, "a", 0, 3*s, 9*s), Record{Kind: Detached, Lock: "a", Call: 3 * s, At: 5 * s, Err: "lost"}, lost("a", "STORE_LOST", 6*s, 0), x("b", 2, 2*s, 4*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "", true,
		},
		{
			"others are let in before a detach",
			j(x("a", 1, 1*s, 2*s, 9*s), forced("a", 2*s, 9*s), x("b", 2, 2*s, 3*s, 9*s), of(Leaving, "a", 0, 4*s, 9*s), Record{Kind: Detached, Lock: "a", Call: 4 * s, At: 5 * s, Err: "lost"}, lost("a", "STORE_LOST", 6*s, 0), left("b", 7*s, 8*s, 9*s)),
			"two had r at 3.000000–4.000000", "", false,
		},
		{
			"a detach that is refused, and its app has it still",
			j(x("a", 1, 1*s, 2*s, 9*s), of(Leaving, "a", 0, 3*s, 9*s), Record{Kind: Detached, Lock: "a", Call: 3 * s, At: 4 * s, Err: "refused"}, of(Leaving, "a", 0, 4*s, 9*s), lost("a", "STORE_LOST", 6*s, 0), x("b", 2, 2*s, 5*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"two had r at 5.000000–6.000000", "", false,
		},
		{"silent, and entered again", j(x("a", 1, 1*s, 2*s, 0), x("a", 1, 2*s, 3*s, 4*s), lost("a", "SIDECAR_SILENT", 4*s, 0), x("b", 2, 2*s, 5*s, 9*s), left("b", 6*s, 7*s, 9*s)), "", "", true},
		{
			"silent, and another was let in before it was entered again",
			j(x("a", 1, 1*s, 2*s, 0), x("b", 2, 2*s, 3*s, 9*s), left("b", 4*s, 5*s, 9*s), x("a", 1, 5*s, 6*s, 7*s), lost("a", "SIDECAR_SILENT", 7*s, 0)),
			"two had r at 3.000000–4.000000", "", false,
		},
		{
			"a fence that has fallen", j(x("a", 2, 1*s, 2*s, 9*s), left("a", 3*s, 4*s, 9*s), x("b", 1, 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "has not grown", false,
		},
		{
			"a fence twice", j(x("a", 1, 1*s, 3*s, 9*s), left("a", 3*s, 4*s, 9*s), x("b", 1, 2*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "one fence twice", false,
		},
		{
			"a reader's fence that has fallen", j(x("a", 2, 1*s, 2*s, 9*s), left("a", 3*s, 4*s, 9*s), shared(x("b", 1, 5*s, 6*s, 9*s)), left("b", 7*s, 8*s, 9*s)),
			"", "has fallen", false,
		},
		{
			"a grant that came too late, and its fence", j(x("a", 2, 1*s, 2*s, 0), x("b", 1, 5*s, 6*s, 9*s), left("b", 7*s, 8*s, 9*s)),
			"", "has not grown", false,
		},
		// Only the whole order shows it: each fence may have been given before the other.
		{
			"fences in the wrong order of their ends", j(x("a", 2, 1*s, 4*s, 9*s), left("a", 5*s, 6*s, 9*s), x("b", 1, 3*s, 8*s, 9*s), left("b", 9*s, 9*s, 0)),
			"", "", false,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.run)
	}
}

// Grants counts those that were made within a time.
func TestGrants(t *testing.T) {
	records := j(x("a", 1, 1*s, 2*s, 9*s), left("a", 3*s, 3*s, 9*s), x("b", 2, 1*s, 3*s, 9*s), x("c", 3, 1*s, 4*s, 9*s))
	if n := Grants(records, 2*s, 4*s); n != 2 {
		t.Errorf("%d grants, and not those of a and b", n)
	}
}

// What was written is read again, and a file that is not there is empty.
func TestReadWhatWasWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h")
	w, err := Create(file)
	if err != nil {
		t.Fatal(err)
	}
	want := together("a", 1, Now(), Now(), 9*s)
	w.Write(want)
	w.Write(Record{Kind: Wrong, App: "a", Err: "no"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file, file+" that is not there")
	if err != nil || len(got) != 2 || !reflect.DeepEqual(got[0], want) {
		t.Errorf("read %v, %v", got, err)
	}
	if wrongs := Wrongs(got); len(wrongs) != 1 || !strings.Contains(wrongs[0], "no") {
		t.Errorf("wrongs: %q", wrongs)
	}
}
