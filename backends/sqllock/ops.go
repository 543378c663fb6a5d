package sqllock

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// op is one request about a resource, on its way through a desk.
type op struct {
	kind    opKind
	id      string
	lease   string // whose request it is, which must live; "": the engine's own
	of      string // opSweep: the lease that is over
	mode    lock.Mode
	owner   string
	try     bool
	several bool          // it has a cohort
	fresh   bool          // opAsk: nothing is known of it in the store
	plain   bool          // opRemove: an exclusive hold, and no copy of any request is on its way
	tell    bool          // say who is in the way
	grace   time.Duration // opForce
	least   int64         // opAsk: microseconds for which it is to keep others out
	is      string        // opAttach: the id that the hold has
	key     string        // opAttach, opDetach, opHandle: what it is found by
	span    int64         // opDetach, opHandle: microseconds until its time is over; 0: it ends

	unsure bool  // opRemove: remember that the id was given up
	left   error // why its caller waits no longer; nil: it does
	from   any   // for whom it is; see lock.From
	orphan bool  // nobody waits for it any more
	hasty  bool  // not to be tried again where somebody has locked the row
	// blocked: another request, of the same task, has waited for its row in vain. Then this one does not wait.
	blocked *atomic.Bool

	ctx   context.Context // of opAsk and opAttach: when it ends, the request is not sent any more
	done  chan struct{}   // closed when it was carried out, or never will be
	since time.Duration   // when it came to the desk

	// The result.
	err      error
	by       string // the server that has carried it out
	fence    int64  // of the hold; opHandle: its mode, too
	at       int64  // opAsk, opAttach: what the guard finds it by
	queued   bool   // opAsk: it waits; opForce: the hold is still there
	found    bool
	position int
	status   lock.Status
	lasts    int64 // opAttach: microseconds until its time is over
}

// patient tells whether some request may wait for the row.
func patient(ops []*op) bool {
	return slices.ContainsFunc(ops, func(o *op) bool { return o.blocked == nil || !o.blocked.Load() })
}

type opKind uint8

const (
	opAsk opKind = iota
	opRemove
	opDowngrade
	opForce
	opEnd    // of a hold whose grace is over
	opSweep  // what a lease that is over has left
	opForget // a note whose time is over
	opSettle // look at the resource
	opLapse  // of a hold whose own time is over
	opAttach // a detached hold
	opDetach // a hold
	opHandle // what is to become of a detached hold
)

// String is what lock.Observe is told.
func (k opKind) String() string {
	return [...]string{
		opAsk: "acquire", opRemove: "release", opDowngrade: "downgrade", opForce: "force", opEnd: "force", opSweep: "sweep",
		opForget: "reap", opSettle: "settle", opLapse: "reap", opAttach: "attach", opDetach: "detach", opHandle: "handle",
	}[k]
}
