// Package simulation runs small worlds of sidecars and apps in fake time: the real
// session, heartbeat, leasekit and embedded packages, on roads that lose, delay and
// copy what they carry, in sidecars that freeze, crash and drain, with clocks that
// neither start nor run alike. One seed makes one world.
//
// A witness knows who relies on which lock at each moment, and complains when a law
// of docs/guarantees.md is broken. Breaks are faults that no store and no sidecar may
// have; the tests show that the witness sees them.
//
// `make simulate` runs one world after the other on a Go runtime whose own dice are
// loaded as well (tools/simulate), so a seed gives the same steps in the same order
// each time.
package simulation
