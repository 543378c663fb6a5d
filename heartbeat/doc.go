// Package heartbeat keeps the sidecar's lease in the store alive, and says in time
// when it no longer is: see [Keeper].
//
// Every moment is on one [lock.Clock] and is counted from before a request was
// sent, so what is said to be valid here is valid in the store too.
package heartbeat
