// Package leasekit is the part of a lease that is the same on every store. It keeps the
// sidecar's own record of holds and waiters, waits and asks again, gives up, resolves
// unknown outcomes, receives news, and compares its record with the store's.
//
// A store implements [Driver]. A driver makes one trip to its server for each question,
// never waits for a lock, and does not remember holds. [Start] makes a lock.Lease of a
// driver.
package leasekit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Driver is what a store does for one lease. Its methods may be called at the
// same time by many goroutines, but Ask, Withdraw and Downgrade only one at a
// time for one HoldID.
//
// Errors: lock.ErrLeaseLost is the store's own word that the lease is over; every
// error that is not named at the method leaves the outcome open, and wraps
// lock.ErrUnavailable.
type Driver interface {
	// Ask asks for a hold, or asks again after one that waits or whose outcome is
	// unknown: the store knows it by its ID.
	//   *lock.HeldError with lock.ErrHeld: a try found it taken; nothing is left.
	//   lock.ErrNotHolder: the request was given up or forced out; nothing is left.
	//   *lock.LimitError: the store can take no more of this lease; nothing is left.
	//   OtherLimit: there are holds of another number of permits; nothing is left.
	//   ErrNotSent: ctx ended before this request was sent.
	Ask(ctx context.Context, q lock.Request) (Answer, error)

	// Withdraw ends a hold or takes a waiter out of the queue. Nothing there is
	// no error.
	Withdraw(ctx context.Context, w Withdrawal) (Withdrawn, error)

	// Downgrade turns an exclusive hold into a shared one.
	//   lock.ErrNotHolder: there is no such hold.
	Downgrade(ctx context.Context, r Ref) error

	// Renew renews the lease, and with the same request acknowledges revocations:
	// from then on the store counts their grace. An acknowledgement of a hold that is
	// gone only stops the news of it. News that come with an error, from
	// one server of several, are true all the same; only the number is not looked at.
	Renew(ctx context.Context, acks []Revocation) (Renewal, error)

	// Held calls each for every hold and waiter that the store has for the lease,
	// in bounded steps.
	Held(ctx context.Context, each func(Ref)) error

	// Listen passes pushes on until ctx ends, or the lease is over. push does not
	// block.
	Listen(ctx context.Context, push func(Push))

	// Close releases everything that hangs on the lease and ends it, as far as
	// the store can be reached before ctx ends. A call that was under way may
	// still reach the driver after it, and finds the lease over.
	Close(ctx context.Context) error
}

// Sorter is a Driver whose next server may have a hold as a waiter still, because it
// lacks what came last.
type Sorter interface {
	// Waiting gives those of the holds that the store does not have as holds, or with another
	// slot: it has granted them again. The lease asks it after Held, when a Stranger has answered.
	Waiting(ctx context.Context, holds []Hold) ([]Ref, error)
}

// Hold is a hold, with the fence that its caller was told.
type Hold struct {
	Ref
	Fence lock.Fence
}

// Teller is a Driver that pushes Contended.
type Teller interface {
	// Describe gives a hold another owner.
	//   lock.ErrNotHolder: there is no such hold.
	Describe(ctx context.Context, r Ref, owner string) error
}

// CostlyTeller is a Teller to which a request with a Cohort costs more than one without.
type CostlyTeller interface{ TellingCosts() }

// Deaf is a Teller that may have no way for its pushes.
type Deaf interface {
	// Deaf reports that no push will arrive. It is asked when the lease has been opened.
	Deaf() bool
}

// Guarder is a Driver whose grants may have guards.
type Guarder interface {
	// Guards reports whether the grant of a request has one.
	Guards(q lock.Request) bool
}

// Forgetter is a Driver that notes something of what it is asked for.
type Forgetter interface {
	// Forget says that the lease knows nothing of a hold or waiter any more: it was withdrawn or refused, or the store has
	// lost it. It does not block.
	Forget(id lock.HoldID)
}

// OtherLimit is Ask's: permits have another number now.
func OtherLimit(q lock.Request) error {
	return &lock.InvalidError{Field: "limit", Problem: fmt.Sprintf("is %d, but there are permits of another number while somebody has one", q.Mode.Limit())}
}

// NoPermits is for a store that has none.
func NoPermits(why string) error {
	return &lock.UnsupportedError{Problem: "this store has no permits: " + why}
}

// Keeper is a Driver that may know Request.MinHold. One that is none refuses it.
type Keeper interface {
	// KeepsMinHold is nil where it does, else NoMinHold.
	KeepsMinHold() error
}

// NoMinHold is for a store that has none.
func NoMinHold(why string) error {
	return &lock.UnsupportedError{Problem: "this store has no min_hold: " + why}
}

// Detacher is a Driver that may have detached holds. One that is none refuses them. Ask takes
// a Request.Handle then; beside the other errors it may give lock.ErrNoHandle: nothing is left, but
// what the lease has by an earlier request of the same id. Its time is over, and it stays until it is withdrawn.
type Detacher interface {
	// Detaches is nil where it has them, else lock.NoHandles.
	Detaches() error

	// Detach takes a hold off the lease, as lock.Detacher says. A hold that is detached under the
	// key already, and that nobody has attached since, is found; with ttl 0, also one that a lease has had
	// that is over for its sidecar, be it before the store knows. Nothing there is no error. ttl is 0, or within bounds.
	Detach(ctx context.Context, w Withdrawal, key lock.HandleKey, ttl time.Duration) (Withdrawn, error)
}

// ErrNotSent is Ask's: the store knows no more of the request than before.
var ErrNotSent = errors.New("ctx ended before the request was sent")

// Ref names one hold or waiter of the lease.
type Ref struct {
	Resource lock.Resource
	ID       lock.HoldID
}

// Answer is what the store says to Ask: granted, or in the queue.
type Answer struct {
	Granted bool
	Fence   lock.Fence
	Guard   *lock.Guard
	// Left is for how long the time of an attached hold is not over yet, from when the
	// store answered; 0: it is not one.
	Left time.Duration
	// Recheck is when to ask again at the latest although no push has come; 0, or
	// more than the kit's own bound: then. It is how a driver keeps a grant back
	// that it must not pass on yet: not Granted, and the time to wait.
	Recheck time.Duration
}

// Withdrawal is what to end.
type Withdrawal struct {
	Ref
	Mode lock.Mode // 0: unknown
	// Unsure: an earlier request for it had no answer, so that a copy may still
	// arrive. The store must remember that the id was given up.
	Unsure bool
	// Proven: it was granted in this Mode, no request for it is unanswered, and
	// the lease is proven to live at this moment.
	Proven bool
	// Plain: it was asked for with no MinHold and Handle, nor Detachable, so it ends here or
	// with its lease.
	Plain bool
}

// Withdrawn is what was there.
type Withdrawn struct {
	Found    bool
	Position int         // of a waiter in its queue, 1 is next; 0 for a hold
	Status   lock.Status // who stood in the way of a waiter; may be empty
}

// Revocation is a forced release of one hold, under way.
type Revocation struct {
	Ref
	Grace time.Duration // counted from when the store gets the acknowledgement; 0: it is gone already
	// Vanished: nobody has forced it, it was lost. Grace is 0.
	Vanished bool
}

// Renewal is the store's answer to a heartbeat.
type Renewal struct {
	// Revoked are the revocations that were not acknowledged yet. One with Grace 0 names
	// a hold that is gone already: the number of entries does not tell that while
	// another request is under way.
	Revoked []Revocation
	// Entries is how many holds and waiters the store has for the lease; negative
	// where it does not count.
	Entries int
	// Stranger: another server than last time has answered, and may know less. It is
	// enough to say so once: the lease asks for Held until it has read it through.
	Stranger bool
}

// Push is news that the store sent unasked. It is a hint, and may be lost.
type Push struct {
	Kind  PushKind
	Ref   // Resource is needed for Revoked only
	Fence lock.Fence
	Guard *lock.Guard
	Grace time.Duration // Revoked
	// Vanished is that of a Revocation.
	Vanished bool
}

// PushKind says what a Push tells.
type PushKind uint8

// The kinds of a Push.
const (
	// Woken: something has changed for the waiter; it asks again.
	Woken PushKind = iota + 1
	// Granted: the waiter has the hold. Only for a push that came on a connection
	// to the very server that is trusted with the resource: it is as good as the
	// answer to a request. Otherwise it is Woken.
	Granted
	// Revoked: somebody forces the release of a hold.
	Revoked
	// Missed: pushes may have been lost; all waiters ask again.
	Missed
	// Over: the lease is over. Only where it is the store's own word.
	Over
	// Contended: another request stands behind the hold or waiter, which has a Cohort.
	Contended
)
