package caslock

import (
	"context"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// op is one request about a resource, on its way through a desk.
type op struct {
	kind   opKind
	id     string
	lease  string // of the hold or waiter
	place  place  // opAsk: what is put into the line; opDescribe: the owner
	try    bool
	grace  time.Duration // opForce
	span   time.Duration // opAsk, opDetach, opHandle: for how long others are kept out at least; 0: as long as the hold lives
	key    string        // of a detached hold
	is     holder        // opAttach: who has it, or had it last
	mode   lock.Mode     // opDetach: that its caller knows, or 0; opHandle: a result
	again  bool          // opHandle: it is what another lease has detached, or had
	gen    int64         // opLapse: the generation that is over, or
	ends   int64         // when it was to be over
	unsure bool          // opRemove: no copy of an earlier request of the lease may be carried out any more

	ctx  context.Context // when it ends, the request is not sent any more; nil: never
	done chan struct{}   // closed when it was carried out, or never will be

	// What is known after an attempt whose transaction was overtaken. All else is the result of the last one.
	tried  bool // opRemove: to mark that it is given up, which is done once
	marked bool // opRemove: that it is given up stands in the store, so others may end it, too

	named string // opLapse: the id of the hold that has the key

	// The result.
	err error
	granted
	version  int64         // of the entry of its lease; 0: there is none
	came     bool          // opAsk: it was not there before
	doubtful bool          // opAsk: it has come while the store went back, so its fence may be one that there was before
	untold   int64         // opAsk: there are holders whom the head has not named, and who are to be told of it, before that seq
	queued   bool          // opAsk: it waits; opForce: the hold is still there
	kept     int64         // opAsk, opDetach, opAttach, opHandle: the generation of what is kept of it in the end; 0: nothing is
	left     time.Duration // for how long that is not over, at most
	had      string        // opDetach: the lease that has it, or had it last, where that is another one
	found    bool
	position int
	status   lock.Status // who is in the way
}

type opKind uint8

const (
	opAsk opKind = iota
	opRemove
	opDowngrade
	opDescribe // give a hold another owner
	opDetach   // take a hold off its lease
	opAttach   // put a detached hold to a lease
	opHandle   // move the end of a detached hold, or end it
	opForce    // begin a forced release
	opEnd      // of a hold whose grace is over
	opSweep    // what a lease that is over has left
	opLapse    // of what was kept for its time
	opSettle   // look at the resource
)

// String is what lock.Observe is told.
func (k opKind) String() string {
	return [...]string{
		opAsk: "acquire", opRemove: "release", opDowngrade: "downgrade", opDescribe: "describe", opDetach: "detach", opAttach: "attach", opHandle: "handle",
		opForce: "force", opEnd: "force", opSweep: "sweep", opLapse: "lapse", opSettle: "settle",
	}[k]
}

// own tells whether a lease asks for itself, which must live.
func (o *op) own() bool { return o.kind <= opAttach }

// writes is how many keys a request changes at most, beside those of who is granted something by that, and of the
// resource and its lease.
func (o *op) writes() int {
	switch o.kind {
	case opAsk:
		if o.span > 0 {
			return 5
		}
		return 2
	case opRemove, opEnd, opSweep:
		return 4
	case opDowngrade, opLapse:
		return 4
	case opDescribe:
		return 1
	case opSettle:
		return 0
	case opAttach, opDetach:
		return 10
	default:
		return 8
	}
}

// reads is how many parts of the first trip a request has.
func (o *op) reads() int {
	n := 4 * len(o.about()) // a lease, and three keys of the hold
	if o.kind == opRemove || o.kind == opLapse {
		n++
	}
	return n
}

// reset forgets the result of an attempt that came to nothing.
func (o *op) reset() {
	o.err, o.granted, o.version, o.came, o.doubtful, o.queued, o.kept, o.left = nil, granted{}, 0, false, false, false, 0, 0
	o.untold, o.had, o.found, o.position, o.status = 0, "", false, 0, lock.Status{}
}

// names is the hold or waiter that a request is about. Two leases may choose the same id.
func (o *op) names() string { return memberKey(o.lease, o.id) }

// holder is a hold of a lease.
type holder struct{ lease, id string }

// about are the holds that a request is about.
func (o *op) about() []holder {
	all := []holder{{o.lease, o.id}}
	if o.is.id != "" {
		all = append(all, o.is)
	}
	return all
}

func memberKey(lease, id string) string { return lease + "\x00" + id }
