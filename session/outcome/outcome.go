// Package outcome decides what becomes of a resource that is done once: who may try it,
// which record each attempt leaves, and what a record that somebody else has written
// means. Records and answers of the store go in and come out. It has no clock, no I/O and
// no goroutine.
//
// An attempt writes its record over the one before it, as UNKNOWN, when it has the lock
// and before the app hears of that. The end of the attempt is written over exactly that
// record. So there is one line of records, each of which names the one before it by its
// version, and whoever finds another in its place knows that it has been overtaken.
package outcome

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// State is what is known of an attempt.
type State uint8

// The states. The zero State is none.
const (
	Unknown   State = iota + 1 // it is at work, or has ended without saying how
	Failed                     // its app has said so
	Succeeded                  // its app has said so: it is never done again
)

var names = [...]string{Unknown: "UNKNOWN", Failed: "FAILED", Succeeded: "SUCCEEDED"}

// String gives the name used in the API and in records.
func (s State) String() string {
	if s == 0 || int(s) >= len(names) {
		return "State(" + strconv.Itoa(int(s)) + ")"
	}
	return names[s]
}

// ParseState is the opposite of String.
func ParseState(name string) (State, bool) {
	for s, n := range names {
		if s > 0 && n == name {
			return State(s), true
		}
	}
	return 0, false
}

// Outcome is what became of a resource: of its newest attempt.
type Outcome struct {
	State   State
	Attempt int // 1 is the first
	Note    string
	Age     time.Duration // since it was recorded, by the store's clock
	By      By
}

// By is who has recorded an Outcome.
type By struct {
	LockID  lock.HoldID
	Fence   lock.Fence
	Sidecar string
	Owner   lock.Owner
}

// Wish is how something is to be done once.
type Wish struct {
	Keep        time.Duration // how long its outcome is remembered
	MaxAttempts int           // 0: no limit
}

// The errors of this package.
var (
	// ErrAlreadyDone: it has succeeded before. See RefusedError.
	ErrAlreadyDone = errors.New("it has succeeded before")
	// ErrAttemptsExhausted: it was tried as often as it may be. See RefusedError.
	ErrAttemptsExhausted = errors.New("it was tried as often as it may be")
	// ErrOvertaken: somebody else has been granted the lock since, and has started.
	ErrOvertaken = errors.New("somebody else has started since")
	// ErrOtherwise: the attempt has ended before, and otherwise.
	ErrOtherwise = errors.New("the attempt was recorded with another outcome")
	// ErrForeign: what the store has under this name is not a record of this package.
	ErrForeign = errors.New("not a record of an outcome")
)

// RefusedError is ErrAlreadyDone or ErrAttemptsExhausted, with what was found.
type RefusedError struct {
	Cause    error
	Resource string
	Found    Outcome
}

func (e *RefusedError) Error() string { return fmt.Sprintf("%q: %v", e.Resource, e.Cause) }

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Cause }

// record is how an Outcome is kept in a store.
type record struct {
	State   string      `json:"state"`
	Attempt int         `json:"attempt"`
	Note    string      `json:"note,omitempty"`
	LockID  lock.HoldID `json:"lock"`
	Fence   lock.Fence  `json:"fence"`
	Sidecar string      `json:"sidecar,omitempty"`
	Owner   lock.Owner  `json:"owner"`
}

// Read gives the Outcome of a record; nil: there is none. ErrForeign.
func Read(r lock.Record) (*Outcome, error) {
	if r.Version == "" {
		return nil, nil //nolint:nilnil // said above
	}
	var v record
	if err := json.Unmarshal(r.Value, &v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrForeign, err)
	}
	state, ok := ParseState(v.State)
	if !ok || v.Attempt < 1 {
		return nil, fmt.Errorf("%w: attempt %d is %q", ErrForeign, v.Attempt, v.State)
	}
	return &Outcome{
		State: state, Attempt: v.Attempt, Note: v.Note, Age: r.Age,
		By: By{LockID: v.LockID, Fence: v.Fence, Sidecar: v.Sidecar, Owner: v.Owner},
	}, nil
}

// encode gives the value of a record. What is only for people is left out where it
// would be too long: first the metadata, then the names.
func (o Outcome) encode() []byte {
	v := record{
		State: o.State.String(), Attempt: o.Attempt, Note: o.Note,
		LockID: o.By.LockID, Fence: o.By.Fence, Sidecar: o.By.Sidecar, Owner: o.By.Owner,
	}
	for _, shorten := range []func(){
		func() { v.Owner.Metadata = nil },
		func() { v.Owner.Session, v.Owner.Label, v.Sidecar = "", "", "" },
		func() { panic(fmt.Sprintf("a note of %d bytes", len(o.Note))) }, // CheckNote was not asked
	} {
		b, err := json.Marshal(v)
		if err != nil { // strings, integers and a map of strings always marshal
			panic(fmt.Sprintf("encode outcome: %v", err))
		}
		if len(b) <= lock.MaxRecord {
			return b
		}
		shorten()
	}
	return nil
}
