// Package heartbeat keeps things alive, and says in time when they no longer are.
//
// A [Keeper] renews the sidecar's lease in the store. A [Deadline] is the other
// side of the same coin: a moment that an app's keep-alives push forward.
//
// Every moment is on one [lock.Clock] and is counted from before a request was
// sent, so what is said to be valid here is valid in the store too.
package heartbeat
