package ledger

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The errors of a Ledger, beside those of lock: *lock.HeldError,
// lock.ErrNotHolder and *lock.InvalidError.
var (
	// ErrClosed: the session has ended, or ends.
	ErrClosed = errors.New("the session has ended")
	// ErrOver: the time of a call is over. Why, its Farewell may know.
	ErrOver = errors.New("the wait is over")
	// ErrUpgradeRefused: the owner holds the resource SHARED and asked for EXCLUSIVE.
	ErrUpgradeRefused = errors.New("a SHARED hold cannot be turned into an EXCLUSIVE one: release it first")
	// ErrLimit: a limit is reached. See LimitError.
	ErrLimit = lock.ErrLimit
	// ErrLost: the hold is over though nobody released it. See LostError.
	ErrLost = errors.New("the lock is lost")
)

// LimitError is ErrLimit with the name of the limit: "holds" or "waiters" here, what
// Ask has, such as "holds per uid", or one of the store.
type LimitError = lock.LimitError

// LostError is ErrLost with what was lost and why.
type LostError struct{ Lost Lost }

func (e *LostError) Error() string {
	return fmt.Sprintf("the lock on %q is lost: %s", e.Lost.Resource, e.Lost.Reason.Explain())
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Lost says that a hold is over. It is never undone.
type Lost struct {
	LockID   lock.HoldID
	Resource string
	Fence    lock.Fence
	Reason   LostReason
	GraceEnd time.Duration // on the clock: others are kept out until then; 0: not any more
}

// LostReason says why a hold is over though nobody released it.
type LostReason uint8

// The reasons of a Lost.
const (
	LeaseExpired   LostReason = iota + 1 // the store did not answer until valid_for was over
	LeaseLost                            // the store said that the lease is over
	Forced                               // an administrator forced the release
	MaxHold                              // the hold outlived its max_hold
	SessionExpired                       // the app sent no keep-alive in time
	StoreLost                            // the store lost the hold
	Stopping                             // the sidecar stops and its drain time is over
	TakenOver                            // somebody with its handle has attached it elsewhere, or released it
	ShardExpired                         // as LeaseExpired, but of the part of the store that has it, see lock.Expired
)

// String gives the name used in the API and in metrics.
func (r LostReason) String() string {
	switch r {
	case LeaseExpired, ShardExpired:
		return "LEASE_EXPIRED"
	case LeaseLost:
		return "LEASE_LOST"
	case Forced:
		return "FORCED"
	case MaxHold:
		return "MAX_HOLD"
	case SessionExpired:
		return "SESSION_EXPIRED"
	case StoreLost:
		return "STORE_LOST"
	case Stopping:
		return "STOPPING"
	case TakenOver:
		return "TAKEN_OVER"
	default:
		return "LostReason(" + strconv.Itoa(int(r)) + ")"
	}
}

// Explain says it in a sentence for people.
func (r LostReason) Explain() string {
	switch r {
	case LeaseExpired, ShardExpired:
		return "the store did not answer in time"
	case LeaseLost:
		return "the store ended the sidecar's lease"
	case Forced:
		return "an administrator forced its release"
	case MaxHold:
		return "it was held longer than its max_hold"
	case SessionExpired:
		return "the app sent no keep-alive in time"
	case StoreLost:
		return "the store no longer knows it"
	case Stopping:
		return "the sidecar stops"
	case TakenOver:
		return "somebody with its handle has attached it elsewhere, or released it"
	default:
		return r.String()
	}
}

// ours tells that the sidecar decides when others are let in.
func (r LostReason) ours() bool {
	return r == MaxHold || r == SessionExpired || r == Stopping
}
