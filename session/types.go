package session

import (
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// ID names an app session. It is unguessable: whoever has it, under the same
// uid and as the same principal, can use the session.
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
	PID      int32 // 0 when it is in a PID namespace out of sight
	// Principal names who it is, as a kind and a name ("unit:cron.service"). Empty: who it is is the uid.
	Principal string
	Account   string          // the service account of Kubernetes whose limits it counts for as well; empty: it has none
	Gone      <-chan struct{} // closed when the process has ended; nil when that cannot be known
}

// Principal is whose the limits are: who has a name, or else a uid.
type Principal struct {
	name string
	uid  uint32
}

// Who is the principal of a peer.
func (p Peer) Who() Principal {
	if p.Principal != "" {
		return Principal{name: p.Principal}
	}
	return Principal{uid: p.UID}
}

// Kind is the word for principals of this kind: "uid", or what comes before the name, as "unit".
func (p Principal) Kind() string {
	if kind, _, ok := strings.Cut(p.name, ":"); ok {
		return kind
	}
	return "uid"
}

// Name is the name; empty: it is a uid.
func (p Principal) Name() string { return p.name }

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
// without the namespace. Owner is for people, unless the request is Reentrant.
type AcquireRequest struct {
	RequestID string // optional: a retry with the id of a request in flight, or of a hold that lives, finds it
	Resource  string
	Resources []string // in place of Resource: several, all or none
	Mode      lock.Mode
	Wait      time.Duration // 0: try once; Forever: until ctx ends
	MaxHold   time.Duration // 0: no limit
	MinHold   time.Duration // the store keeps others out for so long at least, whatever becomes of the hold
	Owner     string        // who in the app asks
	Reentrant bool          // may enter the hold of another reentrant request of the same owner
	Direct    bool          // asks the store, also where the sidecar could answer by itself
	Guard     lock.GuardWish
	// Detachable: Session.Detach may take it. It asks the store.
	Detachable bool
	// Handle, in place of Resource and Mode, attaches the hold that it names, see Session.Detach.
	Handle string
	Once   *outcome.Wish // nil: an ordinary lock; see Session.Conclude
}

// Grant is a hold as the app sees it. Until is on Options.Clock.
type Grant = ledger.Grant

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

// Lost says that a hold is over. It is never undone. GraceEnd is on Options.Clock.
type Lost = ledger.Lost

// Draining says that the sidecar stops.
type Draining struct{ End time.Time } // zero: unknown

// LostReason says why a hold is over though nobody released it.
type LostReason = ledger.LostReason

// The reasons of a Lost.
const (
	LeaseExpired   = ledger.LeaseExpired   // the store did not answer until the lease was over
	LeaseLost      = ledger.LeaseLost      // the store said that the lease is over
	Forced         = ledger.Forced         // an administrator forced the release
	MaxHold        = ledger.MaxHold        // the hold outlived its max_hold
	SessionExpired = ledger.SessionExpired // the app sent no keep-alive in time
	StoreLost      = ledger.StoreLost      // the store lost the hold
	Stopping       = ledger.Stopping       // the sidecar stops and its drain time is over
	TakenOver      = ledger.TakenOver      // somebody with its handle has attached it elsewhere, or released it
)
