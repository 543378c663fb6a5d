package memory

import (
	"context"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// TestKeeper: a busy process has room, an idle one gives it back once.
func TestKeeper(t *testing.T) {
	var allocated, live uint64
	var set []int
	freed := 0
	k := &keeper{
		percent: usual,
		read:    func() (uint64, uint64) { return allocated, live },
		set:     func(p int) { set = append(set, p) },
		free:    func() { freed++ },
	}
	for i, c := range []struct {
		bytes uint64
		live  uint64
		set   []int
		freed int
	}{
		{2 * mib, 3 * mib, nil, 0}, // some work
		{0, 3 * mib, nil, 0},
		{0, 3 * mib, nil, 0},
		{2 * mib, 3 * mib, nil, 0}, // not idle for long enough
		{0, 3 * mib, nil, 0},
		{0, 3 * mib, nil, 0},
		{0, 3 * mib, nil, 1}, // idle
		{0, 3 * mib, nil, 1},
		{busy, 3 * mib, []int{400}, 1},
		{busy - 1, 3 * mib, []int{400}, 1}, // a little less
		{busy, 5 * mib, []int{400, 200}, 1},
		{busy, 50 * mib, []int{400, 200, 100}, 1},
		{busy, 3 * mib, []int{400, 200, 100, 400}, 1},
		{0, 3 * mib, []int{400, 200, 100, 400}, 1},
		{0, 3 * mib, []int{400, 200, 100, 400}, 1},
		{quiet - 1, 3 * mib, []int{400, 200, 100, 400, 100}, 2},
		{quiet - 1, 3 * mib, []int{400, 200, 100, 400, 100}, 2}, // next to nothing since
		{busy, 3 * mib, []int{400, 200, 100, 400, 100, 400}, 2},
	} {
		allocated, live = allocated+c.bytes, c.live
		k.look()
		if !slices.Equal(set, c.set) || freed != c.freed {
			t.Errorf("look %d: set %v, freed %d times; want %v, %d", i, set, freed, c.set, c.freed)
		}
	}
}

// TestRun looks once a second, and leaves the process as it was.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var allocated atomic.Uint64
		var set []int
		k := &keeper{
			percent: usual,
			read:    func() (uint64, uint64) { return allocated.Add(busy), 0 },
			set:     func(p int) { set = append(set, p) },
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*look+look/2)
		defer cancel()
		k.run(ctx)
		if !slices.Equal(set, []int{most, usual}) || allocated.Load() != 10*busy {
			t.Errorf("set %v after %d looks", set, allocated.Load()/busy)
		}
	})
}

// TestRunOfAnIdleProcess looks rarely, and often again as soon as there is something to see.
func TestRunOfAnIdleProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		var allocated atomic.Uint64
		k := &keeper{
			percent: usual,
			read:    func() (uint64, uint64) { looks.Add(1); return allocated.Load(), 0 },
			set:     func(int) {},
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() { defer close(over); k.run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		if most := int64(time.Hour/rare) + 10; looks.Load() > most {
			t.Errorf("%d looks at an idle process in an hour, want %d at most", looks.Load(), most)
		}
		before := looks.Load()
		allocated.Add(quiet)
		time.Sleep(rare + idleAfter*look)
		synctest.Wait()
		if n := looks.Load() - before; n <= idleAfter {
			t.Errorf("%d looks in %s at one that is busy again", n, rare+idleAfter*look)
		}
		cancel()
		<-over
	})
}

// TestRead: the numbers are there, and those of this process.
func TestRead(t *testing.T) {
	before, _ := read()
	kept := make([]byte, 10*mib)
	debug.FreeOSMemory()
	after, live := read()
	if after-before < 10*mib || live < 10*mib {
		t.Errorf("allocated %d, then %d, of which %d live", before, after, live)
	}
	clear(kept)
}

// TestGOGC is left to whoever sets it.
func TestGOGC(t *testing.T) {
	t.Setenv("GOGC", "50")
	Run(t.Context()) // returns
}
