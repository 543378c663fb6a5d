// Package lock is the domain of locksidecar and the contract of a store.
//
// It imports nothing else of the project. Everything above it (session,
// heartbeat, localapi) speaks in its words; everything below it (the stores in
// backends/) implements [Backend] and [Lease] and passes the conformance suite
// in backends/backendtest.
//
// The words, in one paragraph: a [Resource] is what is locked, in a [Mode]. A
// [Lease] is one sidecar's session in the store; all holds of the sidecar hang
// on it and die with it. A hold is one granted lock, named by its [HoldID]. A
// waiter is a queued request; it is named by the HoldID that it will have when
// it is granted. A [Fence] is the fencing token of a grant.
package lock
