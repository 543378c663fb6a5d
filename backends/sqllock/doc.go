// Package sqllock keeps locks in tables of an SQL database: leases, holds and queues
// are rows, and every change is one short transaction. It is an engine for all
// servers; what differs between them is a [Dialect].
//
// # Who decides that a sidecar is dead
//
// No clock of the server decides that. The row of a lease has a number, the beat, and each
// heartbeat replaces it by another number. A sidecar that observes a lease notes, on its
// own boot-time clock, when it read a beat for the first time. If the beat is the same a
// TTL later, the lease was not renewed for a TTL, whatever any clock says. The observer
// then marks it as ended, in a statement that checks once more that the beat is still the
// same. The holder counts its TTL from before it sent the beat, and the observer from after
// it read the beat, so the holder always knows first. An ended lease is never renewed. One
// sidecar, the keeper, observes all leases. The others observe the keeper, with their
// heartbeats. A sidecar that waits also observes the leases that are in its way.
//
// # What is on a row
//
// A transaction that changes anything about a resource first locks its row in the table
// lock, and reads everything else in later statements. The reason: a statement sees other
// rows as they were when it began, and it may have waited for the lock. Only grants and
// ends of exclusive holds write the row of lock. Only those of shared holds write the rows
// of hold. An app's guard writes these rows too, and must not collide with requests that
// only wait. (Describe also writes them, for holds with a cohort, which have no guard.) So the flag crowd, which closes the quick ways to a grant and a release, says
// nothing while somebody holds the resource exclusively:
//
//	x_id IS NULL, and there is a row of hold, queue or note for the name   => crowd = 1
//
// A quick release looks for the queue and for notes itself.
package sqllock
