package session

import (
	"context"

	"github.com/locksidecar/locksidecar/heartbeat"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// Events is one reader of a session's news. It costs nothing while nobody reads,
// and may be dropped at any time: losses stay with the session, and of everything
// else only the latest counts.
type Events struct {
	s        *Session
	lost     uint64 // the last loss that was read
	lease    uint64 // the last news of the lease
	draining bool   // that the sidecar drains was read
}

// Events gives a new reader. It reads first every loss that is not acknowledged,
// whether or not another reader has read it: a Release of the lock_id
// acknowledges, and nothing else but the end of the session.
func (s *Session) Events() *Events {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Events{s: s, lease: s.told}
}

// Next waits for news. A loss may come again, with a shorter grace. One goroutine
// at a time may call it.
//
//	ErrSessionClosed: the session has ended, and the last news were read.
//	the cause of ctx: it has ended; no news are lost.
func (r *Events) Next(ctx context.Context) (Event, error) {
	s := r.s
	for {
		s.enter()
		e, ok := r.read()
		over := s.ledger.State() == ledger.Closed
		if s.bell == nil {
			s.bell = make(chan struct{})
		}
		bell := s.bell
		s.exit()
		switch {
		case ok:
			return e, nil
		case over:
			return Event{}, ErrSessionClosed
		}
		select {
		case <-bell:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// read gives the most urgent news. s.mu is held.
//
// Model: told.READ.
func (r *Events) read() (Event, bool) {
	s := r.s
	if lost, seq, ok := s.ledger.Loss(r.lost); ok {
		r.lost = seq
		return Event{Lost: &lost}, true
	}
	if s.ledger.State() == ledger.Closed {
		return Event{}, false
	}
	if s.draining && !r.draining {
		r.draining = true
		return Event{Draining: &Draining{End: s.space.m.drainingUntil()}}, true
	}
	if r.lease == s.told {
		return Event{}, false
	}
	r.lease = s.told
	// When the lease is lost there are no news of it: the losses are the news.
	if s.lease == nil || !s.ledger.Holds() {
		return Event{}, false
	}
	return Event{Lease: &LeaseNews{Until: s.ledger.Until(), Jeopardy: s.lease.keeper.State() == heartbeat.Jeopardy}}, true
}

// tellLease tells the app, if it holds something, how the lease does.
func tellLease(s *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger.Holds() {
		s.told++
		s.ring()
	}
}

func tellDraining(s *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	s.ring()
}

// ring wakes all readers. s.mu is held.
func (s *Session) ring() {
	if s.bell != nil {
		close(s.bell)
		s.bell = nil
	}
}
