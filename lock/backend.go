package lock

import (
	"context"
	"time"
)

// MinTTL and MaxTTL bound the time to live of a lease.
const (
	MinTTL = 500 * time.Millisecond
	MaxTTL = 10 * time.Minute
)

// Backend is a store that keeps locks for many sidecars. Its methods may be
// called at the same time by many goroutines.
//
// Every error of a Backend or Lease that is not one of the errors named at the
// method wraps ErrUnavailable.
type Backend interface {
	// OpenLease makes this sidecar known to the store. A nil error promises that
	// requests on the lease can be granted from now on.
	// ErrUnavailable: try again; the text says why, also where the store answers
	// but must not grant yet, because it recently lost data.
	OpenLease(ctx context.Context, o LeaseOptions) (Lease, error)

	// Get tells who holds and who waits for one resource, through whatever
	// sidecar. Holds and waiters of dead leases are left out, but for holds that
	// are Kept. A resource that
	// nobody holds or waits for is an empty Status with its name, not an error.
	Get(ctx context.Context, r Resource) (Status, error)

	// List does the same for all resources whose name starts with prefix and
	// that are held or waited for, in byte order of the names.
	// *PartialError: a part of the store did not answer; the list has what the others have.
	List(ctx context.Context, prefix string, p Page) ([]Status, error)

	// ForceRelease takes a hold from its holder, or a waiter out of the queue.
	// The holder's lease gets a Revoked event, and grace counts from when it knew.
	// The store grants the resource to the next waiter when the hold was released,
	// when grace is over, or when the holder's lease is, whichever is first. With
	// grace 0 it is free at once, before its holder is told. A second call for the
	// same hold can make its grace shorter, not longer, and is told as well.
	// ForceRelease returns when the hold is gone. One that is Kept is gone at once, and
	// Request.MinHold does not count from the first call on.
	// ErrNotHolder: nobody of that id is on that resource.
	// When ctx ends before that, the hold still ends.
	ForceRelease(ctx context.Context, r Resource, id HoldID, grace time.Duration) error

	// Ping asks the store for any sign of life.
	Ping(ctx context.Context) error

	// Close frees connections. Leases must be closed before.
	Close() error
}

// Lease is one sidecar's session in the store. It lives for its TTL after the
// store carried out the last Heartbeat, and every hold on it is valid as long
// as the lease is and the hold is not revoked. Its methods may be called at the
// same time by many goroutines.
//
// ErrLeaseLost from any method is final: the lease never comes back.
type Lease interface {
	// ID is the name of the lease, unique over all sidecars and restarts.
	ID() LeaseID

	// One call at a time: Acquire, Release and Downgrade of the same HoldID are
	// never called while another of them is under way for it.
	//
	// Acquire returns when the request is granted, or, where it has a Bell, may return
	// when it waits. The caller counts the validity of the grant from its heartbeats, not from the grant: a grant that
	// arrives after the lease's deadline is worth nothing.
	//
	//   *HeldError with ErrHeld: a try found it taken; nothing is left behind.
	//   *HeldError with ctx's error: the wait ended; nothing is left behind.
	//   ErrNotHolder: the waiter was taken out of the queue by ForceRelease, or
	//     the request was given up by Release before; nothing is left behind.
	//   *LimitError: the store can take no more of this lease; nothing is left behind.
	//   *InvalidError: a permit was asked for while there are holds of another number of
	//     permits; nothing is left behind.
	//   ErrUnsupported: the store has no shared locks, no permits, no Request.MinHold, or no
	//     detached holds; nothing is left behind.
	//   ErrNoHandle: there is no hold of Request.Handle; nothing is left behind.
	//   ErrLeaseLost: the store says that the lease is over; nothing is left behind.
	//   ErrPartLost: ask again with another ID. What this one may leave behind ends by itself.
	//   ErrWaiting: the request has a Bell, and waits. Acquire is still under way.
	//   ErrUnavailable: the outcome is unknown. Acquire again with the same
	//     Request.ID finds the grant or the place in the queue; Release with that
	//     ID gives up whichever it is. Until one of them answers, or the lease is
	//     over, something may be left behind.
	//
	// The same ID with another Resource or Mode is a mistake of the caller.
	Acquire(ctx context.Context, q Request) (Grant, error)

	// Release ends a hold, or takes a waiter out of the queue, and hands the
	// resource on to the head of the queue. It never touches another's hold. Where
	// Request.MinHold is not over, the store hands the resource on when it is.
	//   nil: it was there and is gone.
	//   ErrNotHolder: it was not there; nothing has changed.
	//   ErrLeaseLost, ErrUnavailable: as above. Calling it again is safe; after
	//     an unknown outcome ErrNotHolder means that the first call did it.
	Release(ctx context.Context, r Resource, id HoldID) error

	// Downgrade turns an exclusive hold into a shared one without letting go, and
	// grants the readers at the head of the queue. The fence of the hold stays.
	// A hold that is shared already is left as it is, with a nil error.
	// Errors as for Release, and *InvalidError for a permit.
	Downgrade(ctx context.Context, r Resource, id HoldID) error

	// Heartbeat renews the lease for its TTL, in a number of store requests that
	// does not depend on the number of holds, and brings all the news that the
	// holder must know: each hold that is revoked and not yet released, and each
	// that the store no longer has, whether or not Events has told it before.
	// The caller acts on the news before it relies on the renewal.
	//   nil: the lease lives for TTL after the moment before the call.
	//   ErrLeaseLost: only if the store says so.
	//   ErrUnavailable: unknown. The lease may live, or may be renewed yet. News
	//     that come with it are true all the same.
	Heartbeat(ctx context.Context) ([]Event, error)

	// Events brings the same news sooner, where a push of the store arrives. It
	// is a hint: what it misses stands in the answer of the next Heartbeat. The
	// receiver must keep reading; the channel is closed by Close.
	Events() <-chan Event

	// Close releases all holds, cancels all waits, and ends the lease in the
	// store at once, as far as the store can be reached before ctx ends; what it
	// could not reach ends with the TTL. Later calls return ErrLeaseLost.
	Close(ctx context.Context) error
}

// LeaseOptions are what a lease is opened with.
type LeaseOptions struct {
	TTL     time.Duration // MinTTL to MaxTTL
	Sidecar string        // name of the sidecar for people, such as the pod's name
}

// MaxMinHold bounds Request.MinHold.
const MaxMinHold = 24 * time.Hour

// Request asks for a hold.
type Request struct {
	ID       HoldID
	Resource Resource
	Mode     Mode
	Owner    string // Owner.Encode of who asks; kept for Get and List
	Try      bool   // do not queue
	Direct   bool   // ask the store, also where the sidecar could answer by itself
	Guard    GuardWish
	Cohort   Cohort // nil: one app has it to itself
	// MinHold is for how long after the grant, by its own clock, the store keeps others out
	// at least, as the hold does: also where it is released, or where its lease ends. Only a forced
	// release ends that. 0: as long as the hold lives. At most MaxMinHold.
	MinHold time.Duration
	// Detachable: the hold may be detached, see Detacher. It is Direct.
	Detachable bool
	// Handle attaches the hold that it names, in place of asking for one. Resource and Mode are
	// those of that hold. It is Direct, and does not wait. "": an ordinary request.
	Handle HandleKey
	Nested bool // who asks holds something already, see Owner.Nested: where it waits long, other sidecars must see it wait
	Bell   Bell // optional: the request may wait without a goroutine
}

// GuardWish says whether Grant.Guard is of use to who asks. Only stores that have
// guards read it.
type GuardWish uint8

// The wishes.
const (
	UsualGuard   GuardWish = iota // as the store's URL says
	WithGuard                     // it is of use
	WithoutGuard                  // it is not, so there is none, and the hold may be handed on
)

// Cohort is for whom a request asks that stands for several apps of one sidecar. The
// lease gets a Contended event when somebody stands behind it, where it is a Contender.
type Cohort interface {
	// Stay is asked when the ctx of Acquire ends in the queue: true leaves the request
	// where it is, and Acquire returns ErrUnavailable. The next Acquire with its ID
	// finds its place.
	Stay() bool
}

// Contender is a Lease that can tell that somebody waits behind a request of it.
type Contender interface {
	Lease
	TellsContended() bool

	// TellingCosts reports that a request with a Cohort costs the store more than one without.
	TellingCosts() bool

	// Guards reports whether the grant of a request has a Guard. Such a request stands
	// for one app: the guard would pass for who had the hold before, too.
	Guards(q Request) bool

	// Describe notes for people who has a hold with a Cohort now. It may be called
	// beside the other methods for the same HoldID, and nothing else depends on it.
	// ErrNotHolder, ErrLeaseLost, ErrUnavailable: it is not noted, or may not be.
	Describe(ctx context.Context, r Resource, id HoldID, owner string) error
}

// TellsContended reports whether a lease sends Contended events.
func TellsContended(l Lease) bool {
	c, ok := l.(Contender)
	return ok && c.TellsContended()
}

// Grant is a hold that was given.
type Grant struct {
	ID       HoldID
	Resource Resource
	Mode     Mode
	Fence    Fence
	Guard    *Guard // nil where the store has none
	// Until is the moment on BootTime at which the time of an attached hold is over: from then on
	// nothing but the lease keeps it. 0: it is not one.
	Until time.Duration
}

// Guard is one SQL statement with which an app, in its own transaction on the
// same database and just before the commit, finds out whether it still has the
// lock: one row, found or changed: commit; none: roll back. From then on, until that
// transaction ends, the store grants the resource to nobody who would be excluded.
type Guard struct {
	Dialect string   // "mysql", "mariadb" or "postgresql"
	SQL     string   // with a ? (postgres: $1, $2, …) for each argument, tables with the name of their database
	Args    []string // ASCII
}

// Event is news from the store about one hold of the lease.
type Event struct {
	Kind     EventKind
	Resource Resource
	ID       HoldID
	// Until is the moment on BootTime up to which the store keeps others out.
	// Revoked and Expired only; 0: others may be granted already.
	Until time.Duration
}

// EventKind says what happened.
type EventKind uint8

const (
	// Revoked: somebody forced the release of a hold. The store keeps others out
	// until Release is called or Until has come; also then Release is called, which
	// leaves nothing of the hold behind. (A waiter that is taken out of
	// the queue has no event: its Acquire returns ErrNotHolder.)
	Revoked EventKind = iota + 1
	// Vanished: the store has lost the hold, for example in a failover to a
	// replica that did not know it. Others may be granted already.
	Vanished
	// Contended: a request of another lease stands behind this one, or behind this hold,
	// which has a Cohort. It is a hint that may be lost, and the answer of Heartbeat does not
	// have it, though a store may push it again with each; it stays true for the hold, though
	// the other may have left.
	Contended
	// Expired: the part of the store that has the hold does not answer, and the lease has given it
	// up. The store keeps others out until Until. Release may be called, and need not.
	Expired
)

// Page bounds a listing.
type Page struct {
	After Resource // list only names after this one; empty: from the start
	Limit int      // at most so many resources; out of 1 to MaxPage: MaxPage
}

// MaxPage is the largest Page.Limit.
const MaxPage = 1000

// Most is how many resources the page has at most: Limit, or MaxPage where that is out of bounds.
func (p Page) Most() int {
	if p.Limit < 1 || p.Limit > MaxPage {
		return MaxPage
	}
	return p.Limit
}

// Status is who holds and who waits for one resource.
type Status struct {
	Resource Resource
	Holders  []Holding
	Waiters  []Holding // in the order in which they will be served; Fence is 0
}

// Holding is one hold or one waiter, told to people.
type Holding struct {
	ID      HoldID
	Mode    Mode
	Fence   Fence
	Age     time.Duration // since it was granted or queued, by the store's clock
	Lease   LeaseID
	Sidecar string
	Owner   Owner
	Revoked bool // forced release under way
	Cohort  bool // it stands for several apps of the sidecar, see Cohort
	Parked  bool // no app has it: the sidecar gives it to who asks
	// Kept is how much longer the store keeps others out for a hold that is released, or whose
	// lease is over: nobody has it any more, and its Request.MinHold is not over. 0: somebody has it.
	Kept time.Duration
	// Detached: it is Kept because it was detached and nobody has attached it, and not for a MinHold.
	Detached bool
}

// Observe is told of every request that a driver sends to its store: what it
// was (a short fixed name such as "acquire"), how long it took, and its error.
// It must be quick and may be called by many goroutines at the same time.
type Observe func(command string, took time.Duration, err error)
