// Package ledger is what one app session has asked for, what it holds, and what
// it has lost. It only decides: it has no context, no store, no mutex, no
// goroutine and no clock. The owner of a [Ledger] tells it the time and what the
// store has said, one call after the other. Then the owner carries out the effects that
// [Ledger.Effects] lists.
//
// For each HoldID it lists at most one request to the store at a time. When an id
// is given up, its release waits until the driver's Acquire has returned. A release
// that comes during a downgrade waits until the downgrade is done.
package ledger
