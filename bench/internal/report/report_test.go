package report

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/bench/internal/measure"
)

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		name string
		got  Target
		want Target
	}{
		{
			"at most, met by the median of the ratios",
			NewTarget("n", "µs", false, 1.25, []float64{10, 12, 30}, []float64{10, 10, 20}),
			Target{Name: "n", Unit: "µs", Factor: 1.25, Measured: 12, Against: 10, Ratio: measure.Spread{Median: 1.2, Min: 1, Max: 1.5}, Met: true},
		},
		{
			"at most, not met",
			NewTarget("n", "µs", false, 1, []float64{11}, []float64{10}),
			Target{Name: "n", Unit: "µs", Factor: 1, Measured: 11, Against: 10, Ratio: measure.Spread{Median: 1.1, Min: 1.1, Max: 1.1}},
		},
		{
			"at least, met at the limit",
			NewTarget("n", "/s", true, 1, []float64{10}, []float64{10}),
			Target{Name: "n", Unit: "/s", AtLeast: true, Factor: 1, Measured: 10, Against: 10, Ratio: measure.Spread{Median: 1, Min: 1, Max: 1}, Met: true},
		},
		{
			"at least, not met",
			NewTarget("n", "/s", true, 1, []float64{9}, []float64{10}),
			Target{Name: "n", Unit: "/s", AtLeast: true, Factor: 1, Measured: 9, Against: 10, Ratio: measure.Spread{Median: 0.9, Min: 0.9, Max: 0.9}},
		},
		{
			"a fixed limit",
			AtMost("n", "MiB", 20, 25),
			Target{Name: "n", Unit: "MiB", Factor: 1, Measured: 20, Against: 25, Ratio: measure.Spread{Median: 0.8, Min: 0.8, Max: 0.8}, Met: true},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.got); diff != "" {
				t.Errorf("target (-want +got):\n%s", diff)
			}
		})
	}
}

func TestText(t *testing.T) {
	round := func(perSecond, p50, p99 float64) measure.Round {
		return measure.Round{PerSecond: perSecond, Times: measure.Times{P50: p50, P99: p99}, CPU: measure.CPU{App: p50, Server: 20, Store: 30.04}}
	}
	words := measure.Words{
		Name: "Redis", Steps: "commands", Memory: "in Redis",
		Notified: "EVALSHA that publishes, to its subscriber", Answered: "EVALSHA, round trip",
	}
	times := func(p50 float64) measure.Times { return measure.Times{P50: p50, P99: 2 * p50} }
	r := Report{
		Setup: Setup{
			Began: "2026-01-02T03:04:05Z", CPU: "a CPU", Cores: 2, Kernel: "6.1", Go: "go1.26",
			Sidecar: "1.0", LoadBefore: "0.1", LoadAfter: "1.9", Rounds: 2, Quick: true,
		},
		Stores: []*Store{{Words: words, Server: "redis-server 7", Pairs: []Pairs{
			{Subject: "short", Callers: 1, Rounds: []measure.Round{round(90, 1, 2), round(110, 3, 4)}},
			{Subject: "short", Callers: 16, Rounds: []measure.Round{round(1000, 12.34, 5000)}},
			{Subject: "longer µ name", Callers: 1, Rounds: []measure.Round{round(12345, 0.5, 99.95)}},
			{Subject: "longer µ name", Callers: 16, Rounds: []measure.Round{round(1, 1, 1)}},
		},
			Hot:  []*Hot{{Sidecars: 2, CallersPerSidecar: 8, Rounds: []HotRound{{PerSecond: 5000, HandOff: times(100), Across: times(110), Held: times(90), Notified: times(50), Answered: times(40)}}}},
			Kill: &Kill{Repeats: 100, Grant: measure.Times{P50: 1500, P99: 2500, Max: 12000}},
			Lead: &Kill{Repeats: 100, Grant: measure.Times{P50: 3500, P99: 4500, Max: 9000}},
			Idle: &Idle{
				Holds: 10000, LeaseTTL: 10, Window: 20,
				Start:  Memory{RSS: 20 * mib, Anonymous: 8 * mib, Heap: 2 * mib, Store: mib},
				Before: Memory{RSS: 21 * mib}, With: Memory{RSS: 31 * mib}, PerHold: Memory{RSS: 1048.576},
				CommandsAt: []Commands{{Holds: 100, Beats: 6, Renewing: 1, Sent: 1.5, Requests: 1.17, Steps: 5}, {Holds: 10000, Beats: 6, Renewing: 1, Sent: 2, Steps: 5}},
			},
			Contenders: &Contenders{Workers: 64, Hold: 1, Seconds: 20, Rows: []Contender{
				{Subject: "ours", Waits: WaitsOf([]time.Duration{time.Millisecond, 3 * time.Millisecond}, time.Second)},
				{Subject: "none", Waits: WaitsOf(nil, time.Second)},
			}},
			Sessions: &Sessions{Sessions: 1000, FirstGrant: measure.Times{P50: 20000, Max: 31000}, Used: Memory{RSS: 20 * mib}, With: Memory{RSS: 44 * mib}},
			Scale:    &Scale{Leases: 1000, LeaseTTL: 10, Loads: []Load{{What: "idle", Requests: 300, Steps: 900, CPU: 0.02}, {What: "busy", Steps: 2}}},
			Targets: []Target{
				NewTarget("fast", "µs", false, 1.25, []float64{10, 12}, []float64{10, 10}),
				AtMost("small", "MiB", 30, 25),
				NewTarget("many", "pairs/s", true, 1, []float64{200}, []float64{100}),
			}}, {
			Words: measure.Words{Name: "Silent", Answered: "request, round trip"}, Server: "silentd 1",
			Hot: []*Hot{{How: "with local turns", Sidecars: 2, CallersPerSidecar: 8, Rounds: []HotRound{{Answered: times(40)}}}},
		}, {
			Words: measure.Words{Name: "Other"}, Server: "otherd 1", Targets: []Target{AtMost("small", "MiB", 20, 25)},
		}},
	}
	want, err := os.ReadFile("testdata/report.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), r.Text()); diff != "" {
		t.Errorf("Text (-testdata/report.txt +got):\n%s", diff)
	}
}

func TestTextOfNothing(t *testing.T) {
	if got := (&Report{}).Text(); strings.Contains(got, "TARGETS") || strings.Contains(got, "KILL") {
		t.Errorf("Text of an empty report has tables:\n%s", got)
	}
}

func TestReplaceTable(t *testing.T) {
	got, err := replaceTable([]byte("before\n"+docBegin+"old\n"+docEnd+"after\n"), "new\n")
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + docBegin + "\n```text\nnew\n```\n\n" + docEnd + "after\n"
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("replaceTable (-want +got):\n%s", diff)
	}
	for _, doc := range []string{"", docBegin, docEnd + docBegin} {
		if _, err := replaceTable([]byte(doc), "new\n"); !errors.Is(err, errNoMarks) {
			t.Errorf("replaceTable(%q): %v, want %v", doc, err, errNoMarks)
		}
	}
}
