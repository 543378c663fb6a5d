// Package arbiter answers in the sidecar what need not be asked in the store. It stands
// between the session and the lease of a store, and is a lock.Backend over another one.
//
// Requests of one resource and mode that come together are a cohort: it has one
// request, and then one hold, in the store, whose members have it in turn, readers
// together. A hold that nobody here wants any more stays for a moment where its
// resource comes back often: it is parked.
//
// As soon as somebody else is known to stand behind a cohort it takes no more members;
// those that it has are served, and then the store is. That news is a hint of the
// store, so a cohort also ends when it has had the hold for a third of the TTL, or
// has used up its turns or the fences of its range. Only the last cohort of a resource takes
// members, so the order is that of arrival.
//
// What is true of the hold in the store is true of each member that has it: news of
// a forced release, or of a hold that has vanished, go to whoever has it now.
package arbiter
