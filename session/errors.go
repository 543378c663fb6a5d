package session

import (
	"errors"
	"fmt"

	"github.com/locksidecar/locksidecar/session/ledger"
	"github.com/locksidecar/locksidecar/waitfor"
)

// The errors of this package, beside those of lock: *lock.HeldError,
// lock.ErrNotHolder, lock.ErrUnavailable and *lock.InvalidError.
var (
	// ErrSessionNotFound: there is no session of that id for that uid and principal.
	ErrSessionNotFound = errors.New("no such session")
	// ErrSessionClosed: the session has ended, or ends.
	ErrSessionClosed = ledger.ErrClosed
	// ErrUpgradeRefused: the owner holds the resource SHARED and asked for EXCLUSIVE.
	ErrUpgradeRefused = ledger.ErrUpgradeRefused
	// ErrDraining: the sidecar stops and takes no new sessions.
	ErrDraining = errors.New("the sidecar is stopping")
	// ErrLimit: a limit is reached. See LimitError.
	ErrLimit = ledger.ErrLimit
	// ErrDeadlock: owners wait for each other. See DeadlockError.
	ErrDeadlock = errors.New("deadlock")
	// ErrLost: the hold is over though nobody released it. See LostError.
	ErrLost = ledger.ErrLost
)

// LimitError is ErrLimit with the name of the limit.
type LimitError = ledger.LimitError

// LostError is ErrLost with what was lost and why.
type LostError = ledger.LostError

// DeadlockError is ErrDeadlock with who waits for whom. The request it answers is in the
// first edge.
type DeadlockError struct {
	Resource string
	Cycle    waitfor.Cycle
}

func (e *DeadlockError) Error() string {
	return fmt.Sprintf("the wait for the lock on %q would never end: %s", e.Resource, e.Cycle)
}

// Is makes errors.Is(err, ErrDeadlock) true.
func (e *DeadlockError) Is(target error) bool { return target == ErrDeadlock }
