package session

import (
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

const (
	// closeLimit bounds how long Close waits for the store.
	closeLimit = 2 * time.Second
	// maxStep bounds one sleep of a session's timer: Go's timers stand still while
	// the machine is suspended, and the clock of deadlines does not.
	maxStep = 5 * time.Second
	// refLength is that of a session's public name: 60 random bits, so that no two of all
	// sidecars' sessions have the same.
	refLength = 12
)

// Session is one app's liveness at the sidecar, and what the app holds. When it
// ends, all its holds are released and all its waits are cancelled. Its methods
// may be called at the same time by many goroutines.
//
// What becomes of a request, a hold or a loss is decided by its ledger. The
// session tells the ledger the time and what the store says, between enter and
// exit, and carries out what follows.
type Session struct {
	space   *Space
	id      ID
	owner   lock.Owner
	who     Principal
	encoded string   // owner, for requests without an owner label
	usages  []*usage // that it counts for: its principal's, and those of the service account and the space that it has
	done    chan struct{}
	looked  atomic.Bool // it was asked for by its id, see Lookup

	mu       sync.Mutex // never held while anything blocks; m.mu may be taken under it, so not the other way round
	ledger   *ledger.Ledger
	now      time.Duration // when it was looked at the clock last
	lease    *generation   // on which all holds hang; nil while there are none
	lanes    lanes         // what is on the way to the store
	parting  int32         // requests among it that nobody wants any more
	errands  int32         // what else is in flight for it
	counted  levels
	timer    *time.Timer
	armed    time.Duration // when the timer fires, on the clock; 0: it does not
	told     uint64        // how often there were news of the lease
	draining bool
	bell     chan struct{} // closed when there are news; nil while nobody waits for them
	farewell *batch        // the releases at the end
}

// levels are what a session adds to the counts of those who have limits, and of the sidecar.
type levels struct{ size, kept, waits, flights int32 }

// levelsOf are those of now. s.mu is held.
func levelsOf(s *Session) levels {
	waits := int32(s.ledger.Waits())                                                                                       //nolint:gosec // as all here, far below its limit
	return levels{int32(s.ledger.Size() + s.ledger.Given()), int32(s.ledger.Kept()), waits, waits + s.parting + s.errands} //nolint:gosec // the same
}

func (l *levels) follow(now levels, m *Manager, all []*usage) {
	if d := now.size - l.size; d != 0 {
		for _, u := range all {
			u.holds.Add(int64(d))
		}
	}
	if d := now.flights - l.flights; d != 0 {
		m.flights.Add(int64(d))
		for _, u := range all {
			u.flights.Add(int64(d))
		}
	}
	if d := now.waits - l.waits; d != 0 {
		m.waiters.Add(int64(d))
		for _, u := range all {
			u.waits.Add(int64(d))
		}
	}
	if d := now.kept - l.kept; d != 0 {
		for _, u := range all {
			u.kept.Add(int64(d))
		}
		if m.holds.Add(int64(d)) == 0 {
			m.signalIdle()
		}
	}
	*l = now
}

func newSession(sp *Space, r OpenRequest) *Session {
	m := sp.m
	owner := lock.Owner{
		PID:       r.Peer.PID,
		UID:       r.Peer.UID,
		GID:       r.Peer.GID,
		Principal: r.Peer.Principal,
		Ref:       rand.Text()[:refLength],
		Session:   r.Name,
		Metadata:  r.Metadata,
	}
	now, who := m.o.Clock(), r.Peer.Who()
	return &Session{
		space:   sp,
		id:      ID(rand.Text()),
		owner:   owner,
		who:     who,
		encoded: owner.Encode(),
		done:    make(chan struct{}),
		now:     now,
		ledger: ledger.New(ledger.Options{
			Holds:     m.o.Limits.HoldsPerSession,
			Waits:     m.o.Limits.WaitersPerSession,
			LostGrace: m.o.LostGrace,
			Answer:    answerLimit,
			TTL:       r.TTL,
			NewID:     lock.NewHoldID,
		}, now),
	}
}

// watch ends a session when the process behind it has ended. With liveness TTL
// the process that opens the session need not be the one that keeps it alive: a
// shell script opens it with curl. m.mu is held, so the manager does not stop
// meanwhile.
func watch(s *Session, r OpenRequest) {
	gone := r.Peer.Gone
	if gone == nil || r.Liveness == TTL {
		return
	}
	s.space.m.wg.Go(func() {
		select {
		case <-gone:
			s.space.m.log.Debug("the app's process has ended", keySession, s.id, keyPID, s.owner.PID)
			s.change((*ledger.Ledger).Close)
		case <-s.done:
		}
	})
}

// ID is the name of the session.
func (s *Session) ID() ID { return s.id }

// Done is closed when the session has ended: by Close, with its process, after
// a missed keep-alive, or with the sidecar.
func (s *Session) Done() <-chan struct{} { return s.done }

// KeepAlive pushes the end of a session with a TTL forward, and tells the moment
// on Options.Clock at which it ends without another; 0 for a session without a
// TTL, which needs none. ErrSessionClosed: it came too late.
func (s *Session) KeepAlive() (time.Duration, error) {
	s.enter()
	defer s.exit()
	end, err := s.ledger.KeepAlive()
	if end != 0 && s.ledger.Holds() { // the validity of holds contains the session's end
		s.told++
		s.ring()
	}
	return end, err
}

// Close ends the session: it cancels its waits and releases its holds. It
// returns when the store has confirmed the releases, or after two seconds: then
// they go on in the background.
func (s *Session) Close() {
	s.enter()
	s.ledger.Close()
	waits := errand(s)
	s.exit()
	if !waits {
		return
	}
	t := time.NewTimer(closeLimit)
	defer t.Stop()
	select {
	case <-s.farewell.done:
	case <-t.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	landed(s)
	recount(s)
}

// EndAt ends a session whose app cannot be told, because it does not read its stream, and which may rely on its holds until that moment on
// Options.Clock: others are kept out until then, or until Close. Where the session was looked up, other calls may have told the app more,
// and it relies on that until elsewhere.
func EndAt(s *Session, at, elsewhere time.Duration) {
	s.change(func(l *ledger.Ledger) { // a call that looks it up after this finds that it has ended
		if s.looked.Load() {
			at = elsewhere
		}
		if at > s.now {
			l.WindUntil(SessionExpired, at)
		} else {
			l.Close()
		}
	})
}

// change lets f tell the ledger something.
func (s *Session) change(f func(*ledger.Ledger)) {
	s.enter()
	f(s.ledger)
	s.exit()
}

// enter locks the session and looks at all clocks: what is over is over for
// everything that follows, however long the program stood still before.
func (s *Session) enter() {
	s.mu.Lock()
	m := ledger.Moment{Now: s.space.m.o.Clock()}
	if g := s.lease; g != nil {
		if m.Until, m.Kept = g.keeper.Until(m.Now); m.Until == 0 {
			s.ledger.LeaseOver(g, g.reason(), m)
			s.lease = nil
		}
	}
	s.now = m.Now
	s.ledger.Look(m)
}

// exit carries out what the ledger has decided, and unlocks the session. Nothing
// here blocks.
func (s *Session) exit() {
	_, calls := s.settle(nil)
	tell(s, calls)
}

// tell tells calls, on other goroutines, that they are answered.
func tell(s *Session, calls []*ledger.Call) {
	for _, c := range calls {
		s.space.m.workers.Run(func() { c.Then(c) })
	}
}

// settle is exit for who may block: it leaves to the caller to ask the store for
// own, by running ask where it is not nil, and to tell calls that they are answered.
//
//nolint:contextcheck,nolintlint // a hold has brought the ctx of the call that asked first; contextcheck reads this, and nolintlint does not see it
func (s *Session) settle(own *ledger.Hold) (ask *asking, calls []*ledger.Call) {
	effects := s.ledger.Effects()
	for _, e := range effects {
		switch e.Kind {
		case ledger.Request:
			switch a := s.request(e.Hold, e.ID); {
			case a == nil:
			case e.Hold == own:
				ask = a
			default:
				s.space.m.workers.Run(a.run)
			}
		case ledger.Stop:
			e.Stop.Stop()
		case ledger.Clean:
			c := chore{session: s.id, resource: e.Resource, id: e.ID, key: e.Key, former: e.Former, done: e.Done}
			switch {
			case e.Farewell:
				c.batch, c.gone = s.farewell, leaves(s)
			case s.ledger.State() == ledger.Closed:
				s.ledger.Cleaned()
				c.gone = leaves(s)
			default:
				c.tried, c.gone = givesUp(s, e.Resource)
			}
			e.Lease.(*generation).janitors.add(c)
		case ledger.Unregister:
			e.Lease.(*generation).drop(e.ID)
		case ledger.Peek:
			h := e.Call.Hold()
			ctx := valuesOf(h)
			s.space.m.workers.Run(func() { peek(ctx, s, e.Call, h.Resource()) })
		case ledger.Tell:
			s.ring()
			if e.Reason != 0 {
				s.space.m.o.Observer.HoldLost(e.Reason)
				s.space.m.log.Debug("lock lost", keySession, s.id, keyResource, e.Hold.Resource(), keyLockID, e.Hold.ID(), keyReason, e.Reason)
			}
		case ledger.End:
			s.farewell = newBatch(e.Farewells)
			if s.timer != nil {
				s.timer.Stop()
				s.armed = 0
			}
			s.ring()
			close(s.done)
			s.space.m.remove(s)
		}
	}
	clear(effects) // what is over can be forgotten
	recount(s)
	answers := s.ledger.Answers()
	for _, c := range answers { // who has an answer finds it counted
		if c.Then == nil {
			close(c.Ready)
		} else {
			calls = append(calls, c)
		}
	}
	clear(answers)
	// A timer that is overdue was set before the program stood still.
	if next := s.ledger.Next(); next != 0 && (s.armed <= s.now || next < s.armed) {
		arm(s, next)
	}
	s.mu.Unlock()
	return ask, calls
}

// arm sets the timer for a moment, or for an earlier one.
func arm(s *Session, next time.Duration) {
	step := min(max(next-s.now, 0), maxStep)
	s.armed = s.now + step
	if s.timer != nil {
		s.timer.Reset(step)
		return
	}
	s.timer = time.AfterFunc(step, func() {
		s.change(func(*ledger.Ledger) { s.armed = 0 })
	})
}
