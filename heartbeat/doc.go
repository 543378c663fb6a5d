// Package heartbeat keeps the sidecar's lease in the store alive. It says in time when the
// lease is over: see [Keeper].
//
// Every moment is on one [lock.Clock] and counts from before a request was sent. So while
// a lease is valid here, it is valid in the store too.
package heartbeat
