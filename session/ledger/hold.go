package ledger

import (
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

type holdState uint8

const (
	asking  holdState = iota + 1 // the store is asked, or will be
	held                         // calls were answered with it
	leaving                      // the store is asked to release it
	grace                        // lost for the app, and the store still keeps others out
	over                         // nothing is left of it but, perhaps, the news of its loss
)

// Hold is one lock of one session, from the request to the end. There may be
// tens of thousands, so it is small.
type Hold struct {
	key       Key
	name      string // of the resource, for the app
	mode      lock.Mode
	state     holdState
	reason    LostReason // why it was lost; while asking: the news that overtook the grant
	reentrant bool
	direct    bool // the store is asked, whatever the sidecar knows
	wish      lock.GuardWish
	try       bool // asking: only calls that do not wait want it
	unsure    bool // Shared, but the store has not confirmed the downgrade
	asked     bool // asking: the driver's Acquire is under way
	busy      bool // a downgrade is under way

	detachable bool // beside the others of a byte

	id    lock.HoldID // new for each lease that is asked
	lease Lease       // that was asked; nil while there is none
	stop  Stopper     // ends the driver's Acquire or Release
	fence lock.Fence
	guard *lock.Guard
	count int

	once    *outcome.Wish
	attempt *outcome.Attempt // the attempt that is made under it

	tag    any // asking: of the first call
	began  time.Duration
	number uint64   // of the request that has asked first, in the order in which they came
	calls  *Call    // asking: who waits, in no order
	claims []*claim // of requests that have an id, in their order

	group *group // nil: it is alone

	minHold time.Duration  // the store keeps others out for so long at least
	handle  lock.HandleKey // of a hold that is attached; "": it is not
	end     time.Duration  // held: when the time of its handle is over
	exit    *Exit          // leaving: how, where it is not just released

	kept     time.Duration // held: until then at the latest, by minHold; 0: there is none
	own      time.Duration // its own end, by max_hold; 0: none
	limit    time.Duration // that, or end, whichever is first; 0: neither
	due      due           // the end by max_hold, then that of the grace, or of the time for a release
	graceEnd time.Duration // of a lost hold; 0: none
	seq      uint64        // of a lost hold: when it was told

	newer, older *Hold // held, with a label: others of the same owner

	after *after // what follows the downgrade that is under way
	idle  chan struct{}
	told  *Farewell // the call that has left last waits for the driver's word
	reply *answer   // of the release with an id that is under way
}

// Exit is how a hold that can be detached leaves its lease: it lives for TTL under Key. With
// TTL 0 it ends.
type Exit struct {
	Key lock.HandleKey
	TTL time.Duration

	former lock.HandleKey // by which it was attached; "": it was not
}

// Detaches tells whether the hold lives on.
func (x *Exit) Detaches() bool { return x != nil && x.TTL > 0 }

// Exit tells how a hold leaves; nil: it is released.
func (h *Hold) Exit() *Exit { return h.exit }

// Attached tells whether it was attached by a handle, by which somebody else may take it over.
func (h *Hold) Attached() bool { return h.handle != "" }

// Mode is that of the hold.
func (h *Hold) Mode() lock.Mode { return h.mode }

// Fence is that of the hold.
func (h *Hold) Fence() lock.Fence { return h.fence }

// after is a release that waits for the end of a downgrade.
type after struct {
	farewell bool
	done     func()
}

// Number grows with the order in which requests came. All parts of one have its own.
func (h *Hold) Number() uint64 { return h.number }

// Try tells that only callers who do not wait want the hold that is asked for.
func (h *Hold) Try() bool { return h.try }

// Owner is the label of who asks.
func (h *Hold) Owner() string { return h.key.Owner }

// ID is the name of the hold.
func (h *Hold) ID() lock.HoldID { return h.id }

// Resource is its name in the store.
func (h *Hold) Resource() lock.Resource { return h.key.Resource }

// Once is how something is to be done once under it; nil: it is an ordinary lock.
func (h *Hold) Once() *outcome.Wish { return h.once }

// Tag is what the first request came with.
func (h *Hold) Tag() any { return h.tag }

// Lease is what the hold hangs on.
func (h *Hold) Lease() Lease { return h.lease }

// claim is a request with an id: one count of a hold, however often it is asked.
type claim struct {
	requestID string
	hold      *Hold
	mode      lock.Mode
	waiting   int // calls without an answer
	answered  int // calls that have the grant
}

// Grant is a hold as the app sees it.
type Grant struct {
	LockID   lock.HoldID
	Resource string // without the namespace
	Mode     lock.Mode
	Fence    lock.Fence
	Until    time.Duration // on the clock: may be relied on up to then without further news
	Count    int
	Guard    *lock.Guard      // nil where the store has none
	Attempt  *outcome.Attempt // nil: it is an ordinary lock
	End      time.Duration    // on the clock: its own end, by max_hold, or when the time of its handle is over; 0: there is none
	Parts    []PartGrant      // of several resources, which have no Resource, Fence and Guard together
}

func (l *Ledger) grant(h *Hold) Grant {
	until := l.Until()
	if h.limit != 0 {
		until = min(until, h.limit)
	}
	if h.group != nil {
		return Grant{LockID: h.id, Mode: h.mode, Until: until, Count: h.count, End: h.limit, Parts: partsOf(h)}
	}
	return Grant{LockID: h.id, Resource: h.name, Mode: h.mode, Fence: h.fence, Until: until, Count: h.count, Guard: h.guard, Attempt: h.attempt, End: h.limit}
}

// bound makes a hold end after d at the latest, when that is not 0.
func (l *Ledger) bound(h *Hold, d time.Duration) {
	if d == 0 {
		return
	}
	if own := l.at.Now + d; h.own == 0 || own < h.own {
		h.own = own
		l.limit(h)
	}
}

// limit sets when a hold ends by itself, of whose ends one has changed.
func (l *Ledger) limit(h *Hold) {
	h.limit = h.own
	if h.handle != "" && (h.own == 0 || h.end < h.own) {
		h.limit = h.end
	}
	l.dues.set(&h.due, h.limit)
}

// forget takes a hold out of everything where it can be found, except among the
// losses.
func (l *Ledger) forget(h *Hold) {
	delete(l.asks, h.id)
	if h.reentrant && l.keys[h.key] == h {
		delete(l.keys, h.key)
	}
	if h.state == held {
		l.live--
		l.entered -= max(h.count-1, 0)
		l.owners.remove(h)
	}
	l.dues.remove(&h.due)
	if h.attempt != nil {
		l.attempts.put(string(h.id), h.attempt)
	}
	if h.kept != 0 {
		l.kept.put(string(h.id), h.kept)
	}
	l.freeIDs(h)
}

// freeIDs: the ids of its requests are those of nobody any more.
func (l *Ledger) freeIDs(h *Hold) {
	for _, c := range h.claims {
		delete(l.claims, c.requestID)
	}
	h.claims = nil
}

// keepIDs keeps the ids of the requests of a lost hold, until the loss is acknowledged.
func (l *Ledger) keepIDs(h *Hold, claims []*claim) {
	for _, c := range claims {
		l.claims[c.requestID] = c
	}
	h.claims = claims
}

// KeptUntil is the moment on the clock up to which the store keeps others out at the latest, by
// the minHold of a hold that lives, or of one of the latest that do not; 0: there is none.
func (l *Ledger) KeptUntil(id lock.HoldID) time.Duration {
	if h := l.asks[id]; h != nil {
		return h.kept
	}
	until, _ := l.kept.get(string(id))
	return until
}

// unregister ends the news of a hold's id.
func (l *Ledger) unregister(h *Hold) {
	if h.lease != nil {
		l.emit(Effect{Kind: Unregister, Lease: h.lease, ID: h.id})
	}
}

// unclaim takes one claim off a hold.
func (l *Ledger) unclaim(c *claim) {
	delete(l.claims, c.requestID)
	for i, other := range c.hold.claims {
		if other == c {
			c.hold.claims = append(c.hold.claims[:i], c.hold.claims[i+1:]...)
			return
		}
	}
}

// clean releases an id in the background, or as soon as the downgrade that is
// under way has returned.
func (l *Ledger) clean(h *Hold, farewell bool) {
	if h.busy {
		if h.after == nil {
			h.after = &after{}
		}
		h.after.farewell = h.after.farewell || farewell
		return
	}
	e := Effect{Kind: Clean, Lease: h.lease, Resource: h.key.Resource, ID: h.id, Farewell: farewell}
	if h.exit != nil {
		e.Key, e.Former = h.exit.Key, h.exit.former
	}
	l.emit(e)
}
