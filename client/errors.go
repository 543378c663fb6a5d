package client

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
)

// What the sidecar can answer. Compare with errors.Is; errors.As with *Error
// gives the details.
var (
	ErrLockHeld          = errors.New("the lock is held")                    // NoWait, and not free
	ErrWaitTimeout       = errors.New("the wait is over")                    // waited in vain
	ErrLockLost          = errors.New("the lock is lost")                    // the hold is over though nobody released it
	ErrSessionNotFound   = errors.New("no such session")                     // it has ended
	ErrNotHolder         = errors.New("not the holder")                      // released before
	ErrUpgradeRefused    = errors.New("upgrade refused")                     // SHARED cannot become EXCLUSIVE
	ErrDeadlock          = errors.New("deadlock")                            // owners wait for each other, and this one asked last; all holds stay
	ErrAlreadyDone       = errors.New("it was done before")                  // and has succeeded; see OutcomeOf
	ErrAttemptsExhausted = errors.New("it was tried as often as it may be")  // see OutcomeOf
	ErrUnsupported       = errors.New("not supported by the store")          // the message says what
	ErrStoreUnavailable  = errors.New("the store is unavailable")            // the sidecar answers, its store does not
	ErrLimitExceeded     = errors.New("limit reached")                       // of sessions, holds, waiters, sizes
	ErrInvalidRequest    = errors.New("invalid request")                     // a field is refused
	ErrPermissionDenied  = errors.New("permission denied")                   // by uid or gid
	ErrDraining          = errors.New("the sidecar is stopping")             // and takes no new work
	ErrCancelled         = errors.New("cancelled")                           // by Cancel, or as the call ended
	ErrSessionClosed     = errors.New("the session is closed")               // by this client
	ErrStreamEnded       = errors.New("the connection to the sidecar ended") // it died, or ended the session
)

// ErrReleased: the app itself has released the lock. It is ErrNotHolder, too.
var ErrReleased = fmt.Errorf("the lock was released before: %w", ErrNotHolder)

var byReason = map[string]error{
	"LOCK_HELD":          ErrLockHeld,
	"WAIT_TIMEOUT":       ErrWaitTimeout,
	"LOCK_LOST":          ErrLockLost,
	"SESSION_NOT_FOUND":  ErrSessionNotFound,
	"NOT_HOLDER":         ErrNotHolder,
	"UPGRADE_REFUSED":    ErrUpgradeRefused,
	"DEADLOCK":           ErrDeadlock,
	"ALREADY_DONE":       ErrAlreadyDone,
	"ATTEMPTS_EXHAUSTED": ErrAttemptsExhausted,
	"UNSUPPORTED":        ErrUnsupported,
	"STORE_UNAVAILABLE":  ErrStoreUnavailable,
	"LIMIT_EXCEEDED":     ErrLimitExceeded,
	"INVALID_REQUEST":    ErrInvalidRequest,
	"PERMISSION_DENIED":  ErrPermissionDenied,
	"DRAINING":           ErrDraining,
	"CANCELLED":          ErrCancelled,
}

// IncompleteError ends a list that lacks what some shards of the store have, which did not answer. It comes
// after all that the others have. It is ErrStoreUnavailable, too.
type IncompleteError struct {
	Missing []string // names of the shards
}

func (e *IncompleteError) Error() string {
	return "the list is not complete: these shards of the store do not answer: " + strings.Join(e.Missing, ", ")
}

// Unwrap gives ErrStoreUnavailable.
func (e *IncompleteError) Unwrap() error { return ErrStoreUnavailable }

// incomplete is nil where a list lacks nothing. A shard may have been away for some pages only.
func incomplete(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &IncompleteError{Missing: slices.Compact(missing)}
}

// Error is an answer of the sidecar that refuses something.
type Error struct {
	Reason   string // such as LOCK_HELD: stable, see docs/api.md
	Message  string
	Metadata map[string]string // such as holder_pid; see docs/api.md
}

func (e *Error) Error() string { return e.Message }

// Unwrap gives the sentinel of the reason.
func (e *Error) Unwrap() error { return byReason[e.Reason] }

// fromStatus reads an error of the API.
func fromStatus(st *statuspb.Status) error {
	for _, d := range st.GetDetails() {
		var info errdetails.ErrorInfo
		if d.UnmarshalTo(&info) == nil && info.GetDomain() == "locksidecar" {
			return &Error{Reason: info.GetReason(), Message: st.GetMessage(), Metadata: info.GetMetadata()}
		}
	}
	return &Error{Message: st.GetMessage()}
}
