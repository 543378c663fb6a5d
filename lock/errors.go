package lock

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// The errors of the contract. "Lost" and "unknown" are different: only a
// store's own answer is ErrLeaseLost, everything that leaves the outcome open
// is ErrUnavailable.
var (
	// ErrHeld: a try-once request found the resource taken, and left nothing behind.
	ErrHeld = errors.New("the lock is held")
	// ErrNotHolder: there is no hold and no waiter of that id on that resource.
	// Either it never was, or it was released, or it was lost.
	ErrNotHolder = errors.New("not the holder of the lock")
	// ErrLeaseLost: the store itself says that the lease is over, and with it
	// every hold and waiter on it.
	ErrLeaseLost = errors.New("the lease in the store is lost")
	// ErrPartLost: the part of the lease that was asked is over, and what it may still be granted ends
	// with it. The request can be made again under another id.
	ErrPartLost = errors.New("the lease at a part of the store is over")
	// ErrUnavailable: the store did not answer, or not in a way that tells what
	// happened. The request may have been carried out, or may be yet.
	ErrUnavailable = errors.New("the store is unavailable")
	// ErrInvalid: a value from outside is refused. See InvalidError.
	ErrInvalid = errors.New("invalid")
	// ErrLimit: a limit is reached. See LimitError.
	ErrLimit = errors.New("limit reached")
	// ErrUnsupported: this store cannot do it. See UnsupportedError.
	ErrUnsupported = errors.New("not supported by this store")
)

// InvalidError is ErrInvalid with the name of the field.
type InvalidError struct {
	Field   string // as named in the API: "resource", "wait", …
	Problem string // completes the sentence "<field> …"
}

func (e *InvalidError) Error() string { return e.Field + " " + e.Problem }

// Is makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// UnsupportedError is ErrUnsupported with what the store cannot do, and why.
type UnsupportedError struct{ Problem string } // such as "this store has no permits: …"

func (e *UnsupportedError) Error() string { return e.Problem }

// Is makes errors.Is(err, ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// LimitError is ErrLimit with the name of the limit.
type LimitError struct {
	Limit string // such as "holds", "waiters" or "sessions per uid"
	Max   int
	Do    string // what to do about it, as a part of a sentence; may be empty
}

func (e *LimitError) Error() string {
	if e.Do != "" {
		return fmt.Sprintf("limit reached: at most %d %s: %s", e.Max, e.Limit, e.Do)
	}
	return fmt.Sprintf("limit reached: at most %d %s", e.Max, e.Limit)
}

// Is makes errors.Is(err, ErrLimit) true.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// HeldError says why a request was not granted: it is ErrHeld when the request
// was a try, else the error of the context that ended the wait.
type HeldError struct {
	Cause    error  // ErrHeld, context.DeadlineExceeded, context.Canceled, or the context's cause
	Status   Status // the resource as the store saw it at that moment; may be empty
	Position int    // place in the queue when the wait ended, 1 is next; 0 for a try, or when unknown
}

func (e *HeldError) Error() string {
	s := fmt.Sprintf("acquire %q: %v", string(e.Status.Resource), e.Cause)
	if len(e.Status.Holders) > 0 {
		h := e.Status.Holders[0]
		if h.Parked {
			return s + fmt.Sprintf(" (parked at %s, free on request)", h.Sidecar)
		}
		if h.Detached {
			return s + fmt.Sprintf(" (detached %s for another %s, last held by pid %d on %s)", h.Mode, h.Kept.Round(time.Millisecond), h.Owner.PID, h.Sidecar)
		}
		if h.Kept > 0 {
			return s + fmt.Sprintf(" (kept for another %s after %s of pid %d on %s)", h.Kept.Round(time.Millisecond), h.Mode, h.Owner.PID, h.Sidecar)
		}
		s += fmt.Sprintf(" (held %s by pid %d on %s for %s)", h.Mode, h.Owner.PID, h.Sidecar, h.Age.Round(time.Millisecond))
	}
	return s
}

// Unwrap gives the cause.
func (e *HeldError) Unwrap() error { return e.Cause }

// PartialError is ErrUnavailable of some parts of a store. What comes with it is what the others have.
type PartialError struct {
	Missing []string            // names of the parts
	Lacks   func(Resource) bool // reports whether one of them has the resource
	Err     error               // of the parts
}

func (e *PartialError) Error() string { return e.Err.Error() }

// Unwrap gives the errors of the parts.
func (e *PartialError) Unwrap() error { return e.Err }

// Names are those of the parts; there are none where e is nil.
func (e *PartialError) Names() []string {
	if e == nil {
		return nil
	}
	return e.Missing
}

// And is what two pages of a list lack together. Each may be nil.
func (e *PartialError) And(other *PartialError) *PartialError {
	switch {
	case e == nil:
		return other
	case other == nil:
		return e
	}
	both := &PartialError{Missing: slices.Concat(e.Missing, other.Missing), Err: other.Err}
	slices.Sort(both.Missing)
	both.Missing = slices.Compact(both.Missing)
	both.Lacks = func(r Resource) bool { return e.Lacks(r) || other.Lacks(r) }
	return both
}
