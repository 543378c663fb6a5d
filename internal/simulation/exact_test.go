//go:build simulate

package simulation

import (
	"runtime"
	"runtime/debug"
	"testing"
	"testing/cryptotest"
	_ "unsafe" // for linkname
)

var worlds int

func init() {
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(1 << 30)
	runtime.GOMAXPROCS(1)
}

// exact tells whether a seed gives the same steps each time: tools/simulate has
// loaded the runtime's dice.
const exact = true

// simulated is the state of the runtime's dice, 0 for its own. See tools/simulate.
//
//go:linkname simulated runtime.simulated
var simulated uint64

// load loads all dice. The runtime must have one processor, and collect no garbage
// while a world runs.
func load(t *testing.T, seed uint64) {
	if worlds++; worlds%50 == 0 {
		simulated = 0
		runtime.GC()
	}
	cryptotest.SetGlobalRandom(t, seed)
	simulated = seed<<1 | 1
}
