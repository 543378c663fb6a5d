package session

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/lock"
)

// closeLimit bounds how long Close waits for the store.
const closeLimit = 2 * time.Second

type state uint8

const (
	open   state = iota + 1
	ending       // its holds are lost, and some are in their grace
	closed
)

// Session is one app's liveness at the sidecar, and what the app holds. When it
// ends, all its holds are released and all its waits are cancelled. Its methods
// may be called at the same time by many goroutines.
type Session struct {
	m       *Manager
	id      ID
	owner   lock.Owner
	encoded string              // owner, for requests without an owner label
	ttl     *heartbeat.Deadline // nil: no keep-alives are needed
	every   time.Duration       // of the keep-alives
	done    chan struct{}

	mu        sync.Mutex
	state     state
	holds     map[lock.HoldID]*hold
	keys      map[key]*hold // the same, and those for which the store is asked
	requests  map[string]*claim
	cancelled cancelledIDs
	callers   int // of Acquire, at the moment
	graces    int // lost holds that the sidecar still keeps in the store

	lost      map[lock.HoldID]*hold
	lostOrder []*hold

	mail     mailbox
	farewell *batch // the releases at the end
}

func newSession(m *Manager, r OpenRequest) *Session {
	owner := lock.Owner{
		PID:      r.Peer.PID,
		UID:      r.Peer.UID,
		GID:      r.Peer.GID,
		Session:  r.Name,
		Metadata: r.Metadata,
	}
	return &Session{
		m:        m,
		id:       ID(rand.Text()),
		owner:    owner,
		encoded:  owner.Encode(),
		done:     make(chan struct{}),
		state:    open,
		holds:    make(map[lock.HoldID]*hold),
		keys:     make(map[key]*hold),
		requests: make(map[string]*claim),
		mail:     mailbox{bell: make(chan struct{}, 1)},
	}
}

// start begins what the session's life hangs on. m.mu is held, so the manager
// does not stop meanwhile.
func (s *Session) start(r OpenRequest) {
	if r.TTL != 0 {
		s.every = r.TTL
		s.ttl = heartbeat.NewDeadline(s.m.o.Clock, r.TTL, func() { s.wind(SessionExpired) })
	}
	// With liveness TTL the process that opens the session need not be the one
	// that keeps it alive: a shell script opens it with curl.
	if gone := r.Peer.Gone; gone != nil && r.Liveness != TTL {
		s.m.wg.Go(func() {
			select {
			case <-gone:
				s.m.o.Logger.Debug("the app's process has ended", keySession, s.id, keyPID, s.owner.PID)
				s.end()
			case <-s.done:
			}
		})
	}
}

// ID is the name of the session.
func (s *Session) ID() ID { return s.id }

// Done is closed when the session has ended: by Close, with its process, after
// a missed keep-alive, or with the sidecar.
func (s *Session) Done() <-chan struct{} { return s.done }

// ownerOf is the owner of a request, as the store keeps it.
func (s *Session) ownerOf(label string) string {
	if label == "" {
		return s.encoded
	}
	o := s.owner
	o.Label = label
	return o.Encode()
}

// usable looks whether the session may still do something. s.mu is held.
func (s *Session) usable() error {
	if s.state == open && s.ttl != nil && s.ttl.Remaining() == 0 {
		s.windLocked(SessionExpired)
	}
	if s.state != open {
		return ErrSessionClosed
	}
	return nil
}

// KeepAlive pushes the end of a session with a TTL forward, and tells how long
// it lives from now without another; 0 for a session without a TTL, which needs
// none. ErrSessionClosed: it came too late.
func (s *Session) KeepAlive() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return 0, err
	}
	if s.ttl == nil {
		return 0, nil
	}
	if !s.ttl.Extend(s.every) {
		s.windLocked(SessionExpired)
		return 0, ErrSessionClosed
	}
	s.tellLeaseLocked() // it contains the session's own end
	return s.every, nil
}

// wind ends a session whose app may still work: its holds are lost, but the
// store is told only when the app has released them, or after the grace.
func (s *Session) wind(reason LostReason) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.windLocked(reason)
}

func (s *Session) windLocked(reason LostReason) {
	if s.state != open {
		return
	}
	s.state = ending
	s.m.o.Logger.Debug("session ends", keySession, s.id, keyPID, s.owner.PID, keyReason, reason)
	s.cancelFlights()
	for _, h := range s.holds {
		s.lose(h, reason, s.m.o.LostGrace)
	}
	if s.graces == 0 {
		s.endLocked()
		return
	}
	if s.ttl != nil {
		s.ttl.Stop()
	}
	s.ttl = heartbeat.NewDeadline(s.m.o.Clock, s.m.o.LostGrace, s.end)
}

// Close ends the session: it cancels its waits and releases its holds. It
// returns when the store has confirmed the releases, or after two seconds: then
// they go on in the background.
func (s *Session) Close() {
	s.end()
	t := time.NewTimer(closeLimit)
	defer t.Stop()
	select {
	case <-s.farewell.done:
	case <-t.C:
	}
}

// end is Close without waiting.
func (s *Session) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked()
}

func (s *Session) endLocked() {
	if s.state == closed {
		return
	}
	s.state = closed
	s.cancelFlights()
	if s.ttl != nil {
		s.ttl.Stop()
	}
	leases := make(map[*generation][]chore)
	n := 0
	give := func(h *hold) {
		h.state = over
		leases[h.lease] = append(leases[h.lease], chore{resource: h.key.resource, id: h.id})
		n++
	}
	for _, h := range s.holds {
		s.forget(h)
		s.m.uncountHold()
		give(h)
	}
	for _, h := range s.lost {
		if h.state != grace {
			continue
		}
		s.ungrace(h)
		give(h)
	}
	s.farewell = newBatch(n)
	for g, chores := range leases {
		g.janitor.add(s.farewell, chores...)
	}
	close(s.done)
	s.m.remove(s)
}
