package session

import (
	"errors"
	"fmt"
)

// The errors of this package, beside those of lock: *lock.HeldError,
// lock.ErrNotHolder, lock.ErrUnavailable and *lock.InvalidError.
var (
	// ErrSessionNotFound: there is no session of that id for that uid.
	ErrSessionNotFound = errors.New("no such session")
	// ErrSessionClosed: the session has ended, or ends.
	ErrSessionClosed = errors.New("the session has ended")
	// ErrUpgradeRefused: the owner holds the resource SHARED and asked for EXCLUSIVE.
	ErrUpgradeRefused = errors.New("a SHARED hold cannot be turned into an EXCLUSIVE one: release it first")
	// ErrDraining: the sidecar stops and takes no new sessions.
	ErrDraining = errors.New("the sidecar is stopping")
	// ErrLimit: a limit is reached. See LimitError.
	ErrLimit = errors.New("limit reached")
	// ErrLost: the hold is over though nobody released it. See LostError.
	ErrLost = errors.New("the lock is lost")
)

// LimitError is ErrLimit with the name of the limit.
type LimitError struct {
	Limit string // "sessions", "holds" or "waiters"
	Max   int
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("limit reached: at most %d %s", e.Max, e.Limit)
}

// Is makes errors.Is(err, ErrLimit) true.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// LostError is ErrLost with what was lost and why.
type LostError struct{ Lost Lost }

func (e *LostError) Error() string {
	return fmt.Sprintf("the lock on %q is lost: %s", e.Lost.Resource, e.Lost.Reason.Explain())
}

// Is makes errors.Is(err, ErrLost) true.
func (e *LostError) Is(target error) bool { return target == ErrLost }
