package schedule

import (
	"reflect"
	"testing"
	"time"
)

var options = Options{
	Seed: 1, For: time.Minute, TTL: 2 * time.Second, Apps: 3, Sides: 2, Roads: true, Mute: true,
	Store: []Kind{PauseStore, RestartStore, ShiftClock}, Shift: -time.Second,
}

// The same seed makes the same schedule, and another one another.
func TestSeed(t *testing.T) {
	a, b := Make(options), Make(options)
	if !reflect.DeepEqual(a, b) {
		t.Error("one seed has made two schedules")
	}
	other := options
	other.Seed = 2
	if reflect.DeepEqual(a, Make(other)) {
		t.Error("two seeds have made one schedule")
	}
}

// What is done to one of them is over before the next, all of it when the time is, and
// everything that can be done is done now and then.
func TestFaults(t *testing.T) {
	done := map[Kind]bool{}
	for seed := range uint64(20) {
		o := options
		o.Seed = seed
		s := Make(o)
		if len(s.Apps) != o.Apps || len(s.Sides) != o.Sides || len(s.Roads) != o.Sides {
			t.Fatalf("%d apps, %d sidecars, %d roads", len(s.Apps), len(s.Sides), len(s.Roads))
		}
		lanes := append(append(append([][]Fault{s.Store, s.Admin}, s.Apps...), s.Sides...), s.Roads...)
		for _, lane := range lanes {
			var free time.Duration
			for _, f := range lane {
				if f.At < free {
					t.Errorf("seed %d: %s, and the one before lasts until %s", seed, f, free)
				}
				if free = f.At + f.For; free > o.For {
					t.Errorf("seed %d: %s, and all is over after %s", seed, f, o.For)
				}
				if f.Kind == ShiftClock && (f.Amount > 0 || f.Amount < o.Shift) {
					t.Errorf("seed %d: %s", seed, f)
				}
				done[f.Kind] = true
			}
		}
	}
	for _, k := range append([]Kind{
		FreezeApp, KillApp, FreezeSide, KillSide, StopSide, Cut, Sever, HoldAll, HoldRequests, HoldReplies, Delay, Mute, Force,
	}, options.Store...) {
		if !done[k] {
			t.Errorf("%s never happens", k)
		}
	}
}
