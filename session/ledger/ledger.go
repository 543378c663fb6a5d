package ledger

import (
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// Options are what a Ledger needs to know.
type Options struct {
	Holds     int                // limit of holds, requests for holds and losses that are not acknowledged
	Waits     int                // limit of calls that wait
	LostGrace time.Duration      // how long others are kept out when the sidecar ends a hold
	TTL       time.Duration      // between keep-alives; 0: none are needed
	Answer    time.Duration      // how long the store has to answer a release
	NewID     func() lock.HoldID // a new id for each request to the store
}

// Moment is what was just read off the clock, and off the lease that the holds
// hang on.
type Moment struct {
	Now   time.Duration
	Until time.Duration // the lease may be relied on up to then
	Kept  time.Duration // the store keeps others out up to then
}

// Lease is the lease that a hold hangs on. The ledger hands it back and compares it.
type Lease any

// State is how far a session is on its way.
type State uint8

// A session goes from Open to Closed, with Ending between them while holds are
// in their grace.
const (
	Open   State = iota + 1
	Ending       // its holds are lost, and some are in their grace
	Closed
)

// Key is whose hold a reentrant request enters.
type Key struct {
	Resource lock.Resource
	Owner    string
}

// Ledger is the state of one session. Every method but Effects, Answers, Size,
// Kept and Waits may add to the effects.
type Ledger struct {
	o      Options
	at     Moment
	state  State
	refuse bool          // no more requests: the sidecar stops
	ttlEnd time.Duration // 0: never

	asks    map[lock.HoldID]*Hold // that are asked for and that live
	keys    map[Key]*Hold         // those of reentrant requests
	claims  map[string]*claim
	number  uint64 // of the latest request
	owners  owners
	leaving int // holds whose release is under way
	given   int // what is released in the background, see Given
	waits   int
	live    int // holds that live
	entered int // their counts beyond the first
	untaken int // parts of groups that are yet to be asked for
	dues    dues

	losses losses
	parts  map[lock.HoldID]*Hold // that follow the head of a lost group, and still keep others out
	graces int                   // losses whose hold still keeps others out

	cancelled memory[struct{}]
	released  memory[*answer]
	attempts  memory[*outcome.Attempt] // of holds that are over
	kept      memory[time.Duration]    // the same: until when the store keeps others out

	effects []Effect
	answers []*Call
}

// New gives the ledger of a session that was just opened.
func New(o Options, now time.Duration) *Ledger {
	l := &Ledger{
		o:         o,
		state:     Open,
		asks:      make(map[lock.HoldID]*Hold),
		cancelled: memory[struct{}]{size: MaxCancelled},
		released:  memory[*answer]{size: MaxReleases},
		attempts:  memory[*outcome.Attempt]{size: MaxAttempts},
		kept:      memory[time.Duration]{size: MaxKept},
		losses:    losses{acked: memory[*Hold]{size: MaxAcknowledged}},
	}
	if o.TTL > 0 {
		l.ttlEnd = now + o.TTL
	}
	return l
}

// Stopper is a call of the driver. Stop does not block.
type Stopper interface{ Stop() }

// Effect is what the owner of a Ledger must do.
type Effect struct {
	Kind     EffectKind
	Reason   LostReason
	Farewell bool // of Clean: one of those that End has counted
	Hold     *Hold
	Call     *Call
	Lease    Lease
	Resource lock.Resource
	ID       lock.HoldID
	Key      lock.HandleKey // of Clean: release it also where it is detached; may be empty
	Former   lock.HandleKey // of Clean: release it also where it is detached under this one still; may be empty
	Stop     Stopper        // of Stop
	Done     func()         // of Clean: somebody waits for it; may be nil

	Farewells int // of End: how many Clean with Farewell follow, now or when a downgrade has returned
}

// EffectKind says what an Effect is.
type EffectKind uint8

// The kinds of an Effect.
const (
	Request    EffectKind = iota + 1 // ask the store for Hold under ID, see Asked; it may be given up already
	Stop                             // end the driver's call that is under way
	Clean                            // release ID in the background, until the store has answered or Lease is over; with a Key, until the store has answered. Without Farewell, Cleaned is to be called when that is so
	Unregister                       // news of ID are not wanted any more
	Peek                             // Call is a try that shares the wait of another: see who holds it, see Peeked
	Tell                             // there is a loss for the app to hear of, for Reason
	End                              // the session is closed
)

func (l *Ledger) emit(e Effect) {
	l.effects = append(l.effects, e)
	if e.Kind == Clean && !e.Farewell {
		l.given++
	}
}

// Effects gives what is to be done, in this order, and forgets it. The slice is
// good until the next call of another method.
func (l *Ledger) Effects() []Effect {
	e := l.effects
	l.effects = l.effects[:0]
	if cap(l.effects) > 64 { // once in the life of a large session
		l.effects = nil
	}
	return e
}

// Answers gives the calls that were answered, who are to be told after Size, Kept
// and Waits were read, and forgets them. The slice is good until the next
// call of another method.
func (l *Ledger) Answers() []*Call {
	a := l.answers
	l.answers = l.answers[:0]
	if cap(l.answers) > 64 {
		l.answers = nil
	}
	return a
}

// Look tells the time, and how the lease does; it comes before every other call,
// unless that is sure to have come at the same moment. What is found to be over
// is over from then on.
func (l *Ledger) Look(m Moment) {
	l.at = m
	if l.ttlEnd != 0 && m.Now >= l.ttlEnd && l.state == Open {
		l.Wind(SessionExpired)
	}
	for {
		d := l.dues.first()
		if d == nil || d.at > m.Now {
			return
		}
		l.dues.remove(d)
		switch {
		case d.call != nil:
			l.leave(d.call, ErrOver)
		case d.hold.state == held:
			l.lose(d.hold, MaxHold, m.Now+l.o.LostGrace)
		case d.hold.state == grace:
			l.outlast(d.hold)
		case d.hold.state == leaving:
			l.stop(d.hold)
		}
	}
}

// Next is when Look must come at the latest, 0 when it need not.
func (l *Ledger) Next() time.Duration {
	var next time.Duration
	if l.state == Open {
		next = l.ttlEnd
	}
	if d := l.dues.first(); d != nil && (next == 0 || d.at < next) {
		next = d.at
	}
	return next
}

// Size is what counts toward the limit of holds: each count of a hold, what is
// asked for, and losses that nobody has acknowledged. 0 when closed.
func (l *Ledger) Size() int {
	if l.state == Closed {
		return 0
	}
	return len(l.asks) + l.untaken + l.entered + l.leaving + len(l.losses.order)
}

// Given is how much is released in the background, beyond the losses that Size has. It counts toward the limit of holds,
// too: while the store does not answer, there is more of it with each request that is given up. When closed, it is without
// what Close has left.
func (l *Ledger) Given() int {
	if l.state == Closed {
		return l.given
	}
	return max(0, l.given-len(l.losses.order))
}

// Cleaned notes that one of those is released, or that its lease is over.
func (l *Ledger) Cleaned() { l.given-- }

// Kept is how many holds the store has for the session, those in their grace and
// those that are being released included.
func (l *Ledger) Kept() int { return l.live + l.leaving + l.graces }

// Waits is how many calls have no answer yet.
func (l *Ledger) Waits() int { return l.waits }

// EachWait tells the name and the age of each request that waits.
func (l *Ledger) EachWait(f func(name string, age time.Duration)) {
	if l.waits == 0 {
		return
	}
	for _, h := range l.asks {
		if h.state == asking && !h.try {
			f(h.name, l.at.Now-h.began)
		}
	}
}

// Holds tells whether the session holds anything.
func (l *Ledger) Holds() bool { return l.live > 0 }

// Lives tells whether that is a hold that lives.
func (l *Ledger) Lives(id lock.HoldID) bool {
	return l.lives(id) != nil
}

// Resources are those that the store has of a hold that lives, or that is lost and not acknowledged.
func (l *Ledger) Resources(id lock.HoldID) (all []lock.Resource) {
	h := l.lives(id)
	if h == nil {
		h = l.losses.known[id]
	}
	if h == nil {
		return nil
	}
	for p := range h.Parts {
		if p.state != over {
			all = append(all, p.Resource())
		}
	}
	return all
}

// lives gives a hold that lives, by the id under which the app knows it.
func (l *Ledger) lives(id lock.HoldID) *Hold {
	if h := l.asks[id]; h != nil && h.state == held && !h.follows() {
		return h
	}
	return nil
}

// State tells how far the session is.
func (l *Ledger) State() State { return l.state }

// Until is the moment up to which all holds may be relied on, but those with a
// nearer end of their own.
func (l *Ledger) Until() time.Duration {
	if l.ttlEnd != 0 {
		return min(l.at.Until, l.ttlEnd)
	}
	return l.at.Until
}

// Check is nil while the session is open.
func (l *Ledger) Check() error {
	if l.state != Open {
		return ErrClosed
	}
	return nil
}

// KeepAlive moves the end of the session forward and tells where it is; 0 where
// none is needed. ErrClosed: it came too late.
func (l *Ledger) KeepAlive() (time.Duration, error) {
	if l.state != Open {
		return 0, ErrClosed
	}
	if l.ttlEnd != 0 {
		l.ttlEnd = max(l.ttlEnd, l.at.Now+l.o.TTL)
	}
	return l.ttlEnd, nil
}

// Refuse ends all waits with ErrClosed, and takes no more requests. Holds stay.
func (l *Ledger) Refuse() {
	l.refuse = true
	for _, h := range l.asks {
		if h.state == asking {
			l.fail(h, ErrClosed)
		}
	}
}

// Wind ends a session whose app may still work: its holds are lost, but others
// are kept out until the app has released them or the grace is over. Those that
// were lost before keep their graces, as far as these are not longer.
func (l *Ledger) Wind(reason LostReason) { l.WindUntil(reason, l.at.Now+l.o.LostGrace) }

// WindUntil is Wind with another end of the graces. They last no longer than they would have if the session, or a hold with an end of
// its own, had ended in its time.
func (l *Ledger) WindUntil(reason LostReason, end time.Duration) {
	if l.state != Open {
		return
	}
	l.state = Ending
	l.Refuse()
	end = l.atMost(end, l.ttlEnd)
	l.hasten(end)
	for _, h := range l.asks {
		limit := h.limit
		if h.group != nil {
			limit = h.group.head.limit
		}
		l.lose(h, reason, l.atMost(end, limit))
	}
	l.closeIfDone()
}

// atMost is end, or when the grace after limit ends. 0: there is no limit.
func (l *Ledger) atMost(end, limit time.Duration) time.Duration {
	if limit == 0 {
		return end
	}
	return min(end, max(limit, l.at.Now)+l.o.LostGrace)
}

func (l *Ledger) closeIfDone() {
	if l.state == Ending && l.graces == 0 {
		l.Close()
	}
}

// Close ends the session: waits end, and holds are released in the background.
func (l *Ledger) Close() {
	if l.state == Closed {
		return
	}
	l.state = Closed
	l.emit(Effect{Kind: End, Farewells: l.live + l.graces})
	l.Refuse()
	var left []*Hold
	for _, h := range l.asks {
		l.forget(h)
		h.state = over
		left = append(left, h)
	}
	for _, h := range l.losses.order {
		for p := range h.Parts {
			if p.state == grace {
				l.ungrace(p)
				left = append(left, p)
			}
		}
	}
	for _, h := range left {
		l.unregister(h)
		l.clean(h, true)
	}
	for _, h := range l.losses.order {
		l.unregister(h)
	}
}
