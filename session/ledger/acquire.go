package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// Ask is a request for a hold, with its fields checked.
type Ask struct {
	RequestID  string
	Resource   lock.Resource // in the store
	Name       string        // of the resource, for the app
	Parts      []Part        // of several, in the order in which all take them; Resource and Name are those of the first
	Owner      string
	Mode       lock.Mode
	Try        bool
	Wait       time.Duration // how long an answer is waited for; 0: until Leave
	Reentrant  bool
	Direct     bool
	Guard      lock.GuardWish
	Once       *outcome.Wish // nil: it is an ordinary lock
	MaxHold    time.Duration
	MinHold    time.Duration
	Detachable bool
	Handle     lock.HandleKey // attach the hold that it names
	Full       *LimitError    // not nil: those whose limits the session counts for may have no more holds
	Busy       *LimitError    // the error where it would have to wait for an answer; nil: it may
	Tag        any            // the Hold has it until it is granted
	Then       func(*Call)
}

// Call is one caller who waits for an answer. Who takes it from Ledger.Answers calls
// Then, or closes Ready where there is no Then; from that on Grant and Err are its
// answer. ErrOver says that its time is over.
type Call struct {
	Ready chan struct{}
	Then  func(*Call)
	Grant Grant
	Err   error

	hold      *Hold
	claim     *claim // nil when the request has no id
	next      *Call
	due       due
	maxHold   time.Duration
	at        time.Duration
	try       bool
	answered  bool
	leaseless bool
	farewell  *Farewell
}

// At is when it was answered.
func (c *Call) At() time.Duration { return c.at }

// Hold is what the call waits for.
func (c *Call) Hold() *Hold { return c.hold }

// Farewell is for a call that was not granted in time: what the driver says when
// nobody waits any more; nil when others do, or when the store is not being asked.
func (c *Call) Farewell() *Farewell { return c.farewell }

// Leaseless tells that there was no lease to ask on when the time was over.
func (c *Call) Leaseless() bool { return c.leaseless }

// Farewell is what the driver says when the last call has left: who holds the
// resource, and the place in the queue. After Done is closed, Err is what its
// Acquire has returned.
type Farewell struct {
	Done chan struct{}
	Err  error
}

// Acquire answers at once, with a grant or an error, or gives a Call that waits.
//
// A request with the id of one that waits, or of one whose hold lives, shares its
// answer. A reentrant request enters the hold, or the wait, of another reentrant
// request of the same resource and owner. Any other gets a hold of its own.
//
//	*lock.HeldError with context.Canceled: it was cancelled before it came.
//	ErrUpgradeRefused: EXCLUSIVE was asked for, and the hold to be entered is SHARED.
//	*LostError: the hold of that id was taken over by its handle, and that loss is not acknowledged.
//	*LimitError, ErrClosed, *lock.InvalidError.
func (l *Ledger) Acquire(a *Ask) (Grant, *Call, error) {
	if l.state != Open || l.refuse {
		return Grant{}, nil, ErrClosed
	}
	if a.RequestID != "" {
		if _, ok := l.cancelled.get(a.RequestID); ok {
			return Grant{}, nil, heldError(a.Name, context.Canceled)
		}
		if c := l.claims[a.RequestID]; c != nil {
			return l.repeat(a, c)
		}
	}
	if a.Reentrant {
		if h := l.keys[Key{a.Resource, a.Owner}]; h != nil {
			return l.reenter(a, h)
		}
	}
	if err := l.mayWait(a); err != nil {
		return Grant{}, nil, err
	}
	if err := l.room(a); err != nil {
		return Grant{}, nil, err
	}
	l.number++
	h := &Hold{
		key: Key{a.Resource, a.Owner}, name: a.Name, mode: a.Mode, reentrant: a.Reentrant, direct: a.Direct || a.Once != nil, wish: a.Guard, once: a.Once, minHold: a.MinHold, detachable: a.Detachable || a.Handle != "", handle: a.Handle,
		state: asking, try: a.Try, id: l.o.NewID(), tag: a.Tag, began: l.at.Now, number: l.number,
	}
	h.due.hold = h
	l.asks[h.id] = h
	if len(a.Parts) > 0 {
		l.form(h, a.Parts)
	}
	if a.Reentrant {
		if l.keys == nil {
			l.keys = make(map[Key]*Hold)
		}
		l.keys[h.key] = h
	}
	c := l.join(a, h, l.claim(a, h))
	l.emit(Effect{Kind: Request, Hold: h, ID: h.id})
	return Grant{}, c, nil
}

// mayWait is nil when there may be one more call that waits.
func (l *Ledger) mayWait(a *Ask) error {
	switch {
	case l.waits >= l.o.Waits:
		return &LimitError{Limit: "waiters", Max: l.o.Waits}
	case a.Busy != nil:
		return a.Busy
	}
	return nil
}

// room is nil when there is room for what is asked.
func (l *Ledger) room(a *Ask) error {
	switch {
	case l.Size()+l.Given()+max(len(a.Parts), 1) > l.o.Holds:
		return &LimitError{Limit: "holds", Max: l.o.Holds}
	case a.Full != nil:
		return a.Full
	}
	return nil
}

// repeat is for a request whose id is known.
func (l *Ledger) repeat(a *Ask, c *claim) (Grant, *Call, error) {
	h := c.hold
	if h.handle != a.Handle || h.detachable != (a.Detachable || a.Handle != "") {
		return Grant{}, nil, &lock.InvalidError{Field: "request_id", Problem: "is that of another request"}
	}
	if !h.sameResources(a) || h.key.Owner != a.Owner || c.mode != a.Mode || h.reentrant != a.Reentrant || (h.once == nil) != (a.Once == nil) {
		return Grant{}, nil, &lock.InvalidError{Field: "request_id", Problem: "is that of another request"}
	}
	if err := h.keepsFor(a); err != nil {
		return Grant{}, nil, err
	}
	switch h.state {
	case held:
		c.answered++
		return l.grant(h), nil, nil
	case grace, over: // it was taken over, and its app has not acknowledged that
		return Grant{}, nil, l.missing(h.id)
	default:
		return l.follow(a, h, c)
	}
}

// reenter is for a request that shares the hold of others.
func (l *Ledger) reenter(a *Ask, h *Hold) (Grant, *Call, error) {
	if a.Mode == lock.Exclusive && h.mode == lock.Shared {
		return Grant{}, nil, ErrUpgradeRefused
	}
	if err := h.keepsFor(a); err != nil {
		return Grant{}, nil, err
	}
	if h.state == asking {
		return l.follow(a, h, nil)
	}
	if err := l.room(a); err != nil {
		return Grant{}, nil, err
	}
	h.count++
	l.entered++
	l.bound(h, a.MaxHold)
	l.claim(a, h)
	return l.grant(h), nil, nil
}

// keepsFor is nil when the store keeps others out for as long as a request wants that shares h:
// it was told when h was asked for.
func (h *Hold) keepsFor(a *Ask) error {
	if a.MinHold > h.minHold {
		return &lock.InvalidError{Field: "min_hold", Problem: fmt.Sprintf("is %s, longer than that of the hold that it enters, %s", a.MinHold, h.minHold)}
	}
	return nil
}

// follow waits with others. Its claim is nil when the request is not a repeated one.
func (l *Ledger) follow(a *Ask, h *Hold, c *claim) (Grant, *Call, error) {
	if err := l.mayWait(a); err != nil {
		return Grant{}, nil, err
	}
	if c == nil {
		c = l.claim(a, h)
	}
	call := l.join(a, h, c)
	if a.Try && !h.try { // the others may stand in the queue for long, and a try does not
		l.emit(Effect{Kind: Peek, Call: call})
	}
	return Grant{}, call, nil
}

func (l *Ledger) join(a *Ask, h *Hold, c *claim) *Call {
	call := &Call{Then: a.Then, hold: h, claim: c, next: h.calls, maxHold: a.MaxHold, try: a.Try}
	if a.Then == nil {
		call.Ready = make(chan struct{})
	}
	call.due.call = call
	if a.Wait > 0 {
		l.dues.set(&call.due, l.at.Now+a.Wait)
	}
	h.calls = call
	l.waits++
	if c != nil {
		c.waiting++
	}
	return call
}

// claim notes the request's id, when it has one.
func (l *Ledger) claim(a *Ask, h *Hold) *claim {
	if a.RequestID == "" {
		return nil
	}
	if l.claims == nil {
		l.claims = make(map[string]*claim)
	}
	c := &claim{requestID: a.RequestID, hold: h, mode: a.Mode}
	l.claims[a.RequestID] = c
	h.claims = append(h.claims, c)
	return c
}

// drop answers one call with an error; the others wait on.
func (l *Ledger) drop(c *Call, err error) {
	h := c.hold
	for at := &h.calls; *at != nil; at = &(*at).next {
		if *at == c {
			*at = c.next
			break
		}
	}
	l.answer(c, Grant{}, err)
	if c.claim != nil && c.claim.waiting == 0 {
		l.unclaim(c.claim)
	}
	if h.calls == nil {
		l.abandon(h)
	}
}

// leave takes a call out of its wait. When it was the last that waited, the
// driver's word on the wait comes by its Farewell.
func (l *Ledger) leave(c *Call, err error) {
	c.leaseless = c.hold.lease == nil
	if c.hold.asked && c.hold.calls == c && c.next == nil {
		c.farewell = &Farewell{Done: make(chan struct{})}
		c.hold.told = c.farewell
	}
	l.drop(c, err)
}

// GiveUp ends the wait of a call with err. It reports false where the call was
// answered already, and keeps its answer.
func (l *Ledger) GiveUp(c *Call, err error) bool {
	if c.answered {
		return false
	}
	l.leave(c, err)
	return true
}

// Gone is for a caller that cannot take an answer any more: its wait ends with
// err, or, when it was answered with a grant just now, its share is given back,
// unless another caller was answered with it.
func (l *Ledger) Gone(c *Call, err error) {
	if !l.GiveUp(c, err) && c.Err == nil {
		c.Err = err
		l.giveBack(c)
	}
}

// giveBack takes the share of a caller off a hold, unless others have it too.
func (l *Ledger) giveBack(c *Call) {
	h := c.hold
	if c.claim != nil {
		c.claim.answered--
		if c.claim.answered > 0 || l.claims[c.claim.requestID] != c.claim {
			return
		}
		l.unclaim(c.claim)
	}
	if h.state != held {
		return
	}
	if h.count--; h.count > 0 {
		l.entered--
		return
	}
	l.forget(h)
	l.unregister(h)
	h.state = over
	l.clean(h, false)
	l.dropFollowers(h)
}

func heldError(name string, cause error) error {
	return &lock.HeldError{Cause: cause, Status: lock.Status{Resource: lock.Resource(name)}}
}

// nameOf is a status with the resource as the app names it.
func nameOf(st lock.Status, name string) lock.Status {
	st.Resource = lock.Resource(name)
	return st
}
