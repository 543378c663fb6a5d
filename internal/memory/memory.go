// Package memory gives a busy process room between two runs of Go's garbage collector, and
// gives the room back when the process is idle.
//
// The heap of a sidecar is small: 3 MiB and what its holds and sessions need. With Go's
// usual setting the collector runs when as much again was allocated, which under load is
// a hundred times a second, and took a third of the processor time of a request: each run
// marks the heap and halves stacks that the next request grows again.
package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// usual is Go's own setting.
	usual = 100
	// most is the setting for the smallest heaps: they get room for 16 MiB.
	most = 400
	room = 16 << 20

	look  = time.Second
	rare  = 16 * time.Second // between two looks at a process that stays idle: each wakes it
	busy  = 8 << 20          // bytes allocated from one look to the next
	quiet = 1 << 20          // the same
	// idleAfter is after how many quiet looks the room is given back, if since the last
	// time so much was allocated.
	idleAfter = 3
	worth     = 4 << 20
)

// Run looks after the memory of this process until ctx ends. Where GOGC is set, whoever
// has set it knows better, and Run does nothing.
func Run(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	k := &keeper{percent: usual, read: read, set: func(percent int) { debug.SetGCPercent(percent) }, free: debug.FreeOSMemory}
	k.run(ctx)
}

// keeper decides when there is how much room.
type keeper struct {
	read func() (allocated, live uint64) // bytes since the start, and those that the last run of the collector found
	set  func(percent int)
	free func()

	percent   int    // as set
	allocated uint64 // at the last look
	freed     uint64 // allocated, when memory was given back
	still     int    // quiet looks in a row
}

func (k *keeper) run(ctx context.Context) {
	pause := look
	t := time.NewTimer(pause)
	defer t.Stop()
	defer k.change(usual)
	for {
		select {
		case <-t.C:
			k.look()
			if pause = min(2*pause, rare); k.still <= idleAfter {
				pause = look
			}
			t.Reset(pause)
		case <-ctx.Done():
			return
		}
	}
}

func (k *keeper) look() {
	allocated, live := k.read()
	recent := allocated - k.allocated
	k.allocated = allocated
	if k.still++; recent >= quiet {
		k.still = 0
	}
	switch {
	case recent >= busy:
		k.change(percentFor(live))
	case k.still == idleAfter:
		k.change(usual)
		if allocated-k.freed >= worth {
			k.freed = allocated
			k.free()
		}
	}
}

func (k *keeper) change(percent int) {
	if percent != k.percent {
		k.percent = percent
		k.set(percent)
	}
}

// percentFor is the setting that gives a heap room. It has few values, as a change stops
// the process for a moment.
func percentFor(live uint64) int {
	percent := most
	for percent > usual && live > room*100/uint64(percent) {
		percent /= 2
	}
	return percent
}

func read() (allocated, live uint64) {
	found := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(found)
	return found[0].Value.Uint64(), found[1].Value.Uint64()
}
