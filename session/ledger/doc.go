// Package ledger is what one app session has asked for, what it holds, and what
// it has lost. It decides and does nothing: no context, no store, no mutex, no
// goroutine, no clock. Whoever owns a [Ledger] tells it the time and what the
// store has said, one call after the other, and carries out the effects that
// [Ledger.Effects] lists.
//
// For each HoldID it lists at most one request to the store at a time: an id that
// is given up is released after the driver's Acquire has returned, and a release
// that comes while a downgrade is under way follows it.
package ledger
