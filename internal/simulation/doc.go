// Package simulation runs small worlds of sidecars and apps in fake time. They use the real
// session, heartbeat, leasekit and embedded packages. Apps take some locks with a min_hold, and
// detach some for others to attach. The roads between them lose, delay and
// copy messages. Sidecars freeze, crash and drain. Clocks start at different times and run at
// different speeds. One seed makes one world.
//
// A witness knows who relies on which lock at each moment, and complains when a law
// of docs/guarantees.md is broken. Breaks are faults that no store and no sidecar may
// have. The tests show that the witness sees them.
//
// `make simulate` runs one world after the other, on a Go runtime that also takes its own
// random choices from the seed (tools/simulate). So a seed gives the same steps in the
// same order each time.
package simulation
