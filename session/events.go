package session

import (
	"context"

	"github.com/locksidecar/locksidecar/heartbeat"
)

// mailbox holds the news that the app has not read. It cannot grow: lost holds
// are bounded, and of everything else only the latest counts.
type mailbox struct {
	lost     []*hold
	lease    bool
	draining bool
	bell     chan struct{} // has a value when there may be something
}

func (b *mailbox) ring() {
	select {
	case b.bell <- struct{}{}:
	default:
	}
}

// NextEvent waits for news and takes them. All durations are counted from its
// return, however long the news have waited to be read. At most one caller at a
// time should ask.
//
//	ErrSessionClosed: the session has ended, and the last news were taken.
//	the cause of ctx: it has ended; no news are lost.
func (s *Session) NextEvent(ctx context.Context) (Event, error) {
	for {
		s.mu.Lock()
		e, ok := s.take()
		if !ok && s.state == closed {
			s.mu.Unlock()
			return Event{}, ErrSessionClosed
		}
		s.mu.Unlock()
		if ok {
			return e, nil
		}
		select {
		case <-s.mail.bell:
		case <-s.done:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// take gives the most urgent news. s.mu is held.
func (s *Session) take() (Event, bool) {
	b := &s.mail
	if len(b.lost) > 0 {
		l := s.lostOf(b.lost[0])
		b.lost[0] = nil
		b.lost = b.lost[1:]
		b.ring() // there may be more, and another reader
		return Event{Lost: &l}, true
	}
	if s.state == closed {
		return Event{}, false
	}
	if b.draining {
		b.draining = false
		return Event{Draining: &Draining{End: s.m.drainingUntil()}}, true
	}
	if b.lease {
		b.lease = false
		if n, ok := s.leaseNews(); ok {
			return Event{Lease: &n}, true
		}
	}
	return Event{}, false
}

// leaseNews says how the lease does, for a session that holds something. When
// the lease is lost there are no news of it: the losses are the news.
func (s *Session) leaseNews() (LeaseNews, bool) {
	g := s.m.lease.Load()
	if g == nil || len(s.holds) == 0 || s.state != open {
		return LeaseNews{}, false
	}
	left := g.keeper.ValidFor()
	if s.ttl != nil {
		left = min(left, s.ttl.Remaining())
	}
	return LeaseNews{Until: s.m.o.Clock() + left, Jeopardy: g.keeper.State() == heartbeat.Jeopardy}, left > 0
}

// tellLease tells the app, if it holds something, how the lease does.
func (s *Session) tellLease() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellLeaseLocked()
}

func (s *Session) tellLeaseLocked() {
	if len(s.holds) > 0 {
		s.mail.lease = true
		s.mail.ring()
	}
}

func (s *Session) tellDraining() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mail.draining = true
	s.mail.ring()
}
