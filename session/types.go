package session

import (
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// ID names an app session. It is unguessable: whoever has it, under the same
// uid, can use the session.
type ID string

// Liveness says what an app session's life hangs on.
type Liveness uint8

// The zero Liveness is none, so that a forgotten one is refused.
const (
	Stream  Liveness = iota + 1 // the stream that carries it, and the process behind it
	Process                     // the process that opened it
	TTL                         // keep-alives alone
)

// Peer is who is at the other end of the socket.
type Peer struct {
	UID, GID uint32
	PID      int32           // 0 when it is in a PID namespace out of sight
	Gone     <-chan struct{} // closed when the process has ended; nil when that cannot be known
}

// OpenRequest asks for an app session.
type OpenRequest struct {
	Liveness Liveness
	TTL      time.Duration // keep-alive limit; 0: none (refused for liveness TTL)
	Name     string
	Metadata map[string]string
	Peer     Peer
}

// Forever is the AcquireRequest.Wait that ends only with the call.
const Forever time.Duration = -1

// AcquireRequest asks for a hold. Resource is as the app gave it: unchecked and
// without the namespace.
type AcquireRequest struct {
	RequestID string // optional: a retry with the id of a request in flight, or of a hold that lives, finds it
	Resource  string
	Mode      lock.Mode
	Wait      time.Duration // 0: try once; Forever: until ctx ends
	MaxHold   time.Duration // 0: no limit
	Owner     string        // who in the app asks
	Reentrant bool          // may enter the hold of another reentrant request of the same owner
}

// Grant is a hold as the app sees it.
type Grant struct {
	LockID   lock.HoldID
	Resource string // without the namespace
	Mode     lock.Mode
	Fence    lock.Fence
	Until    time.Duration // on Options.Clock: may be relied on up to then without further news
	Count    int
	Guard    *lock.Guard // nil where the store has none
}

// Event is news that the app did not ask for: exactly one field is set.
type Event struct {
	Lease    *LeaseNews
	Lost     *Lost
	Draining *Draining
}

// LeaseNews says how long all holds of the session may be relied on, except
// where a hold has a nearer end of its own.
type LeaseNews struct {
	Until    time.Duration // on Options.Clock
	Jeopardy bool          // the store does not answer
}

// Lost says that a hold is over. It is never undone.
type Lost struct {
	LockID   lock.HoldID
	Resource string
	Fence    lock.Fence
	Reason   LostReason
	GraceEnd time.Duration // on Options.Clock: others are kept out until then; 0: not any more
}

// Draining says that the sidecar stops.
type Draining struct{ End time.Time } // zero: unknown

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
)

// String gives the name used in the API and in metrics.
func (r LostReason) String() string {
	switch r {
	case LeaseExpired:
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
	default:
		return "LostReason(" + strconv.Itoa(int(r)) + ")"
	}
}

// Explain says it in a sentence for people.
func (r LostReason) Explain() string {
	switch r {
	case LeaseExpired:
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
	default:
		return r.String()
	}
}
