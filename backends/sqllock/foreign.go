package sqllock

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/lock"
)

// Foreign is a lock that others use too, who know nothing of the engine: strangers. A
// hold has it beside the engine's own, takes it after the engine's grant, and gives it
// back before the engine's hold ends. So there is never more than one sidecar that
// wants it, or several that share it, and whoever else has it is a stranger.
//
// It is that of one lease. Its methods may be called by many goroutines, but Take and
// Give only one at a time for one hold.
type Foreign interface {
	// Check refuses requests for what there is not: lock.ErrUnsupported, lock.ErrInvalid.
	Check(q lock.Request) error

	// Take takes the lock for a hold, or makes sure of one that it has. Then it lasts
	// for the lease's TTL from before the call, unless Events.Lost is called.
	//   false: a stranger has it, or ctx ended before that was known. A waiter is to call
	//     Take again when it is woken, or soon; after a try nothing is left.
	//   *lock.LimitError: the lease can have no more such locks. Nothing is left.
	//   lock.ErrUnavailable: the outcome is unknown. Give clears it away.
	Take(ctx context.Context, q lock.Request) (bool, error)

	// Give gives the lock of a hold back, whatever has become of it. nil promises that
	// it ends by itself at the latest a TTL after the last Take or Keep, and that no
	// stranger has to wait for that where the server is reached.
	//   lock.ErrUnavailable: not known. It is called again.
	Give(ctx context.Context, r leasekit.Ref) error

	// Keep makes locks last for a TTL. server is the one that answers the heartbeats, as
	// Conn.Server names it: locks on another exclude nobody, and no request goes there any
	// more. kept says from when on those last for a TTL of which it has succeeded, by
	// Events.Now; lost are those that are not there any more; of the others nothing is known.
	// There may be many: it begins with the first, in any order that is the same each time,
	// and goes on until ctx ends. For what a stranger keeps locked it waits a sixth of the
	// TTL at most. It is called one at a time.
	Keep(ctx context.Context, server string, holds []leasekit.Ref) (kept map[lock.HoldID]time.Duration, lost []lock.HoldID)

	// Lapse: the lease was not renewed for a TTL, so nobody relies on what was taken. What
	// would last for longer ends now. It does not block.
	Lapse()

	// Strangers tells who has a resource without the engine, as far as that is known.
	Strangers(ctx context.Context, r lock.Resource) lock.Status

	// Close gives all back, as far as the server can be reached before ctx ends.
	Close(ctx context.Context, holds []leasekit.Ref) error
}

// Lasting is a Foreign that may last beyond its hold, as Request.MinHold asks for: from Take on, for so long at least,
// also where nobody keeps it. Give ends it all the same.
type Lasting interface {
	Foreign

	// Leave is Give for a hold whose release nobody forces: what its MinHold has left of it lasts on.
	Leave(ctx context.Context, r leasekit.Ref) error
}

// Events are what a Foreign tells its lease unasked. They do not block.
type Events struct {
	Now  lock.Clock           // the clock of the lease
	Wake func(id lock.HoldID) // a stranger has let go
	Lost func(id lock.HoldID) // what was taken is taken away
}

// Beside is what has a backend take foreign locks.
type Beside struct {
	Look   string // a statement that fails where the tables of the foreign locks are not there,
	Tables string // and those that make them
	// Recheck is when a waiter asks again at the latest for what a stranger has.
	Recheck time.Duration
	Open    func(o lock.LeaseOptions, server string, ev Events) (Foreign, error)
}
