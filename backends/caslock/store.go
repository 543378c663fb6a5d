package caslock

import (
	"context"
	"errors"
)

// Store is a server that keeps keys with versions. Its methods may be called at the same
// time by many goroutines. It has no clock, and it does not know what a lock is.
type Store interface {
	// Do carries out a transaction in one step, seen by everybody who asks later.
	// An error leaves the outcome open, unless nothing was to be written. When the store
	// had its time, ctx ends with the cause ErrNoAnswer; with any other, the caller has given up.
	Do(ctx context.Context, t Txn) (Result, error)

	// Watch calls ready when changes will be told from now on, and then changed for each
	// change of a key that begins with prefix, in order. It returns when ctx ends, or with
	// an error when changes may have been missed. Neither function blocks.
	Watch(ctx context.Context, prefix string, ready func(), changed func(KV)) error

	// Hint is what a person can do about an error, in brackets; empty: nothing is known.
	Hint(err error) string

	// Close frees connections.
	Close() error
}

// ErrNoAnswer is why the ctx of a transaction ends that the store has not answered in time.
var ErrNoAnswer = errors.New("no answer in time")

// MaxParts is how many conditions a Txn has at most, and how many writes and reads together.
const MaxParts = 128

// Txn reads, and writes if all of its conditions hold.
type Txn struct {
	If   []Cond
	Then []Write // each key once
	// Else is what is carried out where a condition does not hold, if its own conditions do; nil: nothing. It reads nothing, and has no
	// Else.
	Else *Txn
	// Read is what is read after that, also where the conditions do not hold.
	Read []Range
}

// Cond is a condition on one key.
type Cond struct {
	Key     string
	Version int64 // that it still has; 0: it is not there
	There   bool  // it is there, whatever its version; then Version says nothing
}

// Write changes one key.
type Write struct {
	Key    string
	Value  []byte
	Delete bool
}

// Range is one key, or many.
type Range struct {
	Key   string
	End   string // the first key that is not meant; empty: Key alone
	Limit int    // how many are read at most; 0: all
	Count bool   // only how many there are
}

// KV is a key with what it has. Version 0: it was deleted.
type KV struct {
	Key     string
	Value   []byte
	Version int64 // grows with each change of the key; the revision of that change
}

// Result is the answer to a Txn.
type Result struct {
	// Done: all conditions did hold.
	Done bool
	// Else: those of Txn.Else did, where not all did.
	Else bool
	// Revision counts the changes of the store. It grows with each Txn that has written,
	// and is what the reads have seen.
	Revision int64
	// Server names who keeps the data: another name means other data.
	Server string
	Reads  []Found // as in Txn.Read
}

// Found is what one Range has found.
type Found struct {
	KVs   []KV // in the order of their keys
	Count int  // where that was asked for
}

// one is the key of a Range without an End.
func (f Found) one() (KV, bool) {
	if len(f.KVs) == 0 {
		return KV{}, false
	}
	return f.KVs[0], true
}
