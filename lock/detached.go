package lock

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// The bounds of a detached hold's time. Less than a second would be over before its handle has
// reached anybody. More than a day would keep others out for too long when the handle is lost.
const (
	MinDetach = time.Second
	MaxDetach = 24 * time.Hour
)

// ErrNoHandle: there is no hold of that handle (any more). It was released or forced, its time
// is over, it was detached under another handle, or the handle is forged.
var ErrNoHandle = errors.New("no such handle")

// Secret is what the handle of a detached hold proves: whoever has it may attach, extend and
// release the hold. A store never sees it.
type Secret string

// NewSecret returns 128 random bits.
func NewSecret() Secret { return Secret(rand.Text()) }

// Key is what a store keeps of a Secret.
func (s Secret) Key() HandleKey {
	sum := sha256.Sum256([]byte(s))
	return HandleKey(hex.EncodeToString(sum[:]))
}

// HandleKey is the SHA-256 of a Secret, as 64 hex digits. Nobody can make the Secret of it.
type HandleKey string

// Detacher is a Lease whose holds can outlive it. A hold that was detached lives until a moment
// of its own, by the store's clock. Acquire with Request.Handle attaches it: it is
// a hold of that lease too then, under a new HoldID and with the same fence. When it leaves that lease, by
// Release or with the end of the lease, it is what it was, until its time is over. As long as the
// lease lives it stays with it, also longer.
//
// A hold that is attached elsewhere at that moment is taken from there. The lease that had it gets
// the news of a forced release without a grace.
type Detacher interface {
	Lease

	// Detach takes a hold off the lease: the store keeps others out for ttl from now, and
	// knows it by key from now on, and by no earlier one. It has no
	// MinHold. With ttl 0 the hold ends, attached or not; that may be asked of another lease, too, when the
	// one that had it is over: id says that nobody has attached it since. One call at a time for a HoldID, as for
	// Release.
	//   nil: it is so. A second call of the same changes nothing.
	//   ErrNotHolder: the lease has no such hold; nothing has changed.
	//   ErrUnsupported: the store has no detached holds.
	//   ErrLeaseLost, ErrUnavailable: as for Release.
	Detach(ctx context.Context, r Resource, id HoldID, key HandleKey, ttl time.Duration) error
}

// Handles is a Backend that knows detached holds by their handles.
type Handles interface {
	// SetHandle makes the time of a hold end ttl from now, attached or not. With ttl 0 the hold
	// ends at once, and the lease that it is attached to gets the news of a forced
	// release without a grace. Calling it again is safe.
	//   ErrNoHandle: see there; nothing has changed.
	//   ErrUnsupported: the store has no detached holds.
	//   ErrUnavailable: the outcome is unknown.
	SetHandle(ctx context.Context, r Resource, key HandleKey, ttl time.Duration) (Detached, error)
}

// Detached is a hold that a handle names.
type Detached struct {
	ID    HoldID // that it has now
	Mode  Mode
	Fence Fence
}

// CheckDetach finds a time that no store takes. The error is an *InvalidError.
func CheckDetach(ttl time.Duration) error {
	if ttl < MinDetach || ttl > MaxDetach {
		return &InvalidError{Field: "ttl", Problem: fmt.Sprintf("is %s, must be %s to %s", ttl, MinDetach, MaxDetach)}
	}
	return nil
}

// NoHandles is for a store that has no detached holds. It is an ErrUnsupported.
func NoHandles() error {
	return &UnsupportedError{Problem: "this store has no detached holds: here a lock that somebody has ends with the lease of its sidecar"}
}

// HandlesOf finds the Handles of a Backend, also behind those that stand in front of it
// and have a method Unwrap() Backend.
func HandlesOf(b Backend) (Handles, bool) { return behind[Handles](b) }

// behind finds what a Backend is besides.
func behind[T any](b Backend) (T, bool) {
	for {
		if found, ok := b.(T); ok {
			return found, true
		}
		front, ok := b.(interface{ Unwrap() Backend })
		if !ok {
			var none T
			return none, false
		}
		b = front.Unwrap()
	}
}
