// Package sqllock keeps locks in tables of an SQL database: leases, holds and queues
// are rows, and every change is one short transaction. It is an engine for all
// servers; what differs between them is a [Dialect].
//
// # Who decides that a sidecar is dead
//
// No clock of the server does. The row of a lease has a number, the beat, which each
// heartbeat replaces by another. Who observes a lease notes, on its own boot-time
// clock, when it had read a beat for the first time. A lease whose beat is the same a
// TTL later has not been renewed for a TTL, whatever any clock says, and is marked as
// ended, provided that the beat is still the same. The holder counts its TTL from
// before it sent the beat, and the observer from after it read it, so the holder
// always knows first. An ended lease is never renewed. One sidecar, the keeper,
// observes all leases; the others observe the keeper, with their heartbeats, and who
// waits observes who is in the way.
//
// # What is on a row
//
// Whoever changes anything about a resource locks its row in the table lock first,
// and reads everything else by later statements: a statement sees other rows as they
// were when it began, and it may have waited for the lock. The row of lock is written
// by grants and ends of exclusive holds alone, and the rows of hold by those of shared
// holds: an app's guard writes them too, and must not collide with who only waits.
// (Describe writes them for holds with a cohort, which have no guard.)
// So the flag crowd, which closes the quick ways to a grant and a release, says nothing
// of those who wait while somebody holds the resource exclusively:
//
//	there is a row of note for the name                              => crowd = 1
//	x_id IS NULL, and there is a row of hold or queue for the name   => crowd = 1
//
// A quick release looks for the queue itself.
package sqllock
