// Package caslock keeps locks in a store that changes a few keys in one step, if each of
// them still has the version that was read. It is an engine for all such stores; what
// differs between them is a [Store]. docs/design/caslock.md says why it is made like this.
//
// # Who decides
//
// All that is kept of a resource changes together with one key, its head. Whoever changes
// something reads the head first, and writes on the condition that the head is still the
// one that was read. So of two sidecars at the same resource one comes through, and the
// other reads again. state.go decides, and queue.Queue says who is next.
//
// # Who decides that a sidecar is dead
//
// The store has no clock. A lease has two keys. One, the beat, gets another version with
// each heartbeat. An observer that has seen the version of the beat stand still for the
// whole TTL, by its own boot-time clock, takes both keys away, on the condition that the
// version is still the same. The holder counts its TTL from before it sent the beat, and
// the observer from after it has read it, so the holder always knows first. Every request
// of a lease has the condition that the other key is there, so a lease that is over never
// comes back. One sidecar, the keeper, observes all leases. Who waits for a resource
// observes the leases in its way itself.
//
// # Late copies
//
// A request whose answer was lost may still be carried out later. The other key of a lease
// also has a version, and every request has the condition that this is still the one that
// the lease knows. When a request is given up whose answer was lost, the lease writes that
// key, unless it was written since the answer was lost: from then on no earlier request is carried out.
package caslock
