package simulation

import (
	"bytes"
	"flag"
	"io"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var (
	seedFlag  = flag.Int64("seed", -1, "run the world of this `seed` alone, and print what happens")
	firstFlag = flag.Uint64("first", 0, "the first `seed`")
	seedsFlag = flag.Uint64("seeds", 0, "how `many` seeds to run; 0: a few")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fewSeeds are for every run of the tests.
const fewSeeds = 100

// TestSimulation: no world sees a law broken.
func TestSimulation(t *testing.T) {
	if exact {
		simulate(t, 0, nothing, nil) // the first world of a process makes what all others find
	}
	if *seedFlag >= 0 {
		var trace bytes.Buffer // a write to a file would let the runtime change the order of things
		r := simulate(t, uint64(*seedFlag), nothing, &trace)
		_, _ = os.Stdout.Write(trace.Bytes())
		report(t, uint64(*seedFlag), r)
		return
	}
	n := *seedsFlag
	if n == 0 {
		n = fewSeeds
	}
	var all counts
	var took time.Duration
	for seed := *firstFlag; seed < *firstFlag+n; seed++ {
		r := simulate(t, seed, nothing, nil)
		report(t, seed, r)
		all.add(r.seen)
		took += r.took
	}
	t.Logf("%d worlds, %v in them: %+v", n, took.Round(time.Second), all)
	if all.granted < 20*int(n) || all.lost < int(n) || all.forced < int(n)/5 || all.crashes < int(n)/10 || all.attached < int(n)/2 {
		t.Errorf("%d worlds have seen only %+v", n, all)
	}
}

func (c *counts) add(d counts) {
	c.granted += d.granted
	c.lost += d.lost
	c.refused += d.refused
	c.forced += d.forced
	c.crashes += d.crashes
	c.freezes += d.freezes
	c.detached += d.detached
	c.attached += d.attached
}

func report(t *testing.T, seed uint64, r result) {
	t.Helper()
	for _, b := range r.broken[:min(len(r.broken), 5)] {
		t.Errorf("seed %d (make simulate WORLD=%d): %s", seed, seed, b)
	}
}

// TestBreaks: the witness sees what no store and no sidecar may do, within a few worlds.
func TestBreaks(t *testing.T) {
	for broken, name := range map[breakOf]string{
		answersForTheStore: "a heartbeat without an answer counts",
		acknowledgesUnread: "a forced release is acknowledged unread",
		shortLeases:        "leases end too soon",
		grantsBlindly:      "who waits is granted",
		lowFences:          "fences fall",
		keepsReleased:      "a release does nothing",
		tellsNobody:        "nobody is told of a loss",
		slowClock:          "a clock at half the speed",
		keepsTheDead:       "dead apps keep their locks",
		ignoresMinHold:     "min_hold is ignored",
		freesDetached:      "a detached lock is free too soon",
		entersUnasked:      "who has a lock is let in again unasked",
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(400) { // most are seen in the first ten
				if r := simulate(t, seed, broken, nil); len(r.broken) > 0 {
					t.Logf("seed %d: %s", seed, r.broken[0])
					return
				}
			}
			t.Error("nobody has seen it")
		})
	}
}

// TestReplay: one seed, the same steps.
func TestReplay(t *testing.T) {
	if !exact {
		t.Skip("the order of goroutines is Go's own choice here; see make simulate")
	}
	for seed := range uint64(20) {
		first, second := simulate(t, seed, nothing, io.Discard), simulate(t, seed, nothing, io.Discard)
		if first.sum != second.sum {
			t.Errorf("seed %d gives two traces", seed)
		}
	}
}
