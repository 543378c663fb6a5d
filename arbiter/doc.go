// Package arbiter answers requests in the sidecar, where the store need not be asked. It
// stands between the session and the lease of a store, and is a lock.Backend over another
// one.
//
// Requests for one resource and mode that come together are a cohort. A cohort has one
// request in the store, and then one hold. Its members have that hold in turn, readers
// together. When no app of this sidecar wants the hold any more, and apps ask for its
// resource often, the hold stays in the store for a moment: it is parked.
//
// When the arbiter learns that another sidecar waits behind a cohort, the cohort takes no
// more members. The members that it has are served, and then the hold goes back to the
// store. That news is a hint of the store and can be lost. So a cohort also ends when it
// has had the hold for a third of the TTL, or has used up its turns or the fences of its
// range. Only the last cohort of a resource takes members, so the order is that of arrival.
//
// News of the hold in the store, such as a forced release or a hold that has vanished,
// goes to the member that has the hold at that moment.
package arbiter
