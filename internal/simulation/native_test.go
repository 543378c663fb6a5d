//go:build !simulate

package simulation

import "testing"

// exact tells whether a seed gives the same steps each time. Go's own runtime chooses
// the order of goroutines, of timers that are due together, of maps and of the cases
// of a select by itself.
const exact = false

func load(*testing.T, uint64) {}
