package session

import (
	"time"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
)

// Observer is told what metrics are made of. Its methods are called on hot
// paths and under locks: they count and return. What is a level and not a count
// (sessions, holds, waiters, time left) is read from Manager.Info.
type Observer interface {
	// Acquired is called once for each Acquire that passed the checks of its fields. The
	// resource is as the app named it; of several, the one that was waited for last.
	Acquired(resource string, mode lock.Mode, result AcquireResult, took time.Duration)
	// Deadlock is called once for each that was found. Where it was broken, one of its waits
	// has ended.
	Deadlock(broken bool)
	// HoldLost is called once for each hold that is lost.
	HoldLost(reason LostReason)
	// Heartbeat is called for each heartbeat of the lease.
	Heartbeat(b heartbeat.Beat)
	// LeaseOpened is called for each attempt to open a lease.
	LeaseOpened(err error)
}

// AcquireResult says how an Acquire ended.
type AcquireResult uint8

// The results of an Acquire.
const (
	Granted     AcquireResult = iota + 1
	Reentered                 // counted on a hold that was there
	Held                      // a try found it taken
	TimedOut                  // the wait was over
	Cancelled                 // the caller gave up
	Ended                     // the session ended, or an administrator took the waiter away
	Refused                   // an upgrade, or a limit
	Deadlocked                // it was part of a deadlock
	Done                      // once: it has succeeded before
	Exhausted                 // once: it was tried as often as it may be
	Unavailable               // the store did not answer
)

// String gives the name used in metrics.
func (r AcquireResult) String() string {
	switch r {
	case Granted:
		return "granted"
	case Reentered:
		return "reentered"
	case Held:
		return "held"
	case TimedOut:
		return "timed_out"
	case Cancelled:
		return "cancelled"
	case Ended:
		return "ended"
	case Refused:
		return "refused"
	case Deadlocked:
		return "deadlock"
	case Done:
		return "done"
	case Exhausted:
		return "exhausted"
	case Unavailable:
		return "unavailable"
	default:
		return "unknown"
	}
}

type noObserver struct{}

func (noObserver) Acquired(string, lock.Mode, AcquireResult, time.Duration) {}
func (noObserver) Deadlock(bool)                                            {}
func (noObserver) HoldLost(LostReason)                                      {}
func (noObserver) Heartbeat(heartbeat.Beat)                                 {}
func (noObserver) LeaseOpened(error)                                        {}
