package torture

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/torture/app"
	"github.com/locksidecar/locksidecar/torture/history"
	"github.com/locksidecar/locksidecar/torture/schedule"
)

var (
	seed   = flag.Uint64("seed", 0, "the seed of the run; 0: any")
	length = flag.Duration("for", 20*time.Second, "how long each store is tortured")
	long   = flag.Bool("long", false, "one store after the other, times that only a quiet machine keeps, and sidecars that break a law")
	keep   = flag.String("keep", "", "a folder for the histories and logs of what fails")
)

// roundLength is how long things are broken before they must heal.
const roundLength = 20 * time.Second

// sideBySide are the stores that are tortured at one time, where that is for short. Two processors bear
// them: each store has as many grants as it has alone.
const sideBySide = 7

// On a machine that is so busy that apps got fewer locks than enough while things were broken, there are some
// rounds more.
const (
	enough     = 40
	moreRounds = 3
)

var binary string // the sidecar

type tests struct{ m *testing.M }

func (t tests) Run() int {
	dir, err := os.MkdirTemp("", "locksidecar-torture-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "locksidecar")
	if err := build(binary); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return t.m.Run()
}

// build builds the sidecar with the versions of its own go.mod.
func build(path string, more ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-tags", "grpcnotrace", "-ldflags=-w", "-o", path}, more...), "./cmd/locksidecar")...)
	cmd.Dir, cmd.Env = "..", append(os.Environ(), "CGO_ENABLED=0") // as `make build` does
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the sidecar: %w\n%s", err, out)
	}
	return nil
}

func TestMain(m *testing.M) {
	app.Main() // if this process is an app
	testengine.SideBySide(sideBySide)
	goleak.VerifyTestMain(testengine.Main(tests{m}))
}

// TestTorture breaks apps, sidecars, roads and stores, and looks whether a promise was
// broken with them.
func TestTorture(t *testing.T) {
	s := *seed
	for s == 0 {
		s = rand.Uint64() >> 32
	}
	for _, p := range plans {
		t.Run(p.name, func(t *testing.T) {
			if !*long {
				t.Parallel()
			}
			t.Logf("seed %d; the same again: make torture STORE=%s SEED=%d FOR=%s", s, p.name, s, *length)
			w := newWorld(t, p, binary)
			w.torture(s, *length)
			w.gaveUp()
			for _, found := range w.found {
				t.Error(found)
			}
		})
	}
}

// torture runs rounds until the time is over and enough has happened, or something was found, and
// judges what was written down.
func (w *world) torture(s uint64, length time.Duration) {
	w.t.Helper()
	left := length
	for n, grants, more := uint64(0), 0, 0; len(w.found) == 0 && !w.t.Failed(); n++ {
		l := min(left, roundLength)
		if left -= l; l == 0 {
			if grants >= enough || more == moreRounds {
				return
			}
			more++
			l = min(length, roundLength)
			w.t.Logf("apps got only %d locks while things were broken: one more round", grants)
		}
		w.startApps(s + n)
		from := history.Now()
		w.breakThings(s+n, schedule.Make(schedule.Options{
			Seed: s + n, For: l, TTL: ttl, Apps: w.plan.apps, Sides: w.plan.sides, Roads: w.servers != nil,
			Mute: w.plan.mute != "", Store: w.plan.faults, Shift: w.plan.shift, Outages: w.plan.shards > 0,
		}), l)
		to := history.Now()
		took := w.settle()
		w.t.Logf("round %d: everybody had every lock %s after all was healed", n, took.Round(time.Millisecond))
		if *long && took > w.bound() {
			w.found = append(w.found, fmt.Sprintf("all was healed, and it took %s, which is more than %s", took, w.bound()))
		}
		if len(w.found) == 0 {
			w.empty()
			w.flat()
		}
		grants += history.Grants(w.judge(), from, to)
	}
}

// judge reads what was written down, finds each promise that was broken, and gives what it has read.
func (w *world) judge() []history.Record {
	w.t.Helper()
	records, err := history.Read(w.files...)
	if err != nil {
		w.t.Fatal(err)
	}
	holds := history.Holds(records, ttl-ttl/10)
	w.t.Log(history.Count(records))
	for _, found := range [][]string{
		history.Wrongs(records), history.Handles(records), history.Overlaps(holds), history.Fences(holds), history.Linear(holds, patience),
	} {
		const most = 4
		w.found = append(w.found, found[:min(most, len(found))]...)
		if more := len(found) - most; more > 0 {
			w.found = append(w.found, fmt.Sprintf("and %d more of that kind", more))
		}
	}
	return records
}
