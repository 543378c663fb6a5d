// Package supervise runs a program that must not outlive its permission to run.
//
// A [Process] is the program with everything that it starts, in a process group of
// its own; a [Watchdog] kills it when this process cannot; the [Terminal] is lent to
// it as a shell would.
package supervise
