package client

import (
	"context"
	"errors"
	"os"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// reading says who reads the connection: one goroutine at a time.
//
// The receiver reads for many callers, and while somebody listens for a loss. But to hand
// an answer to a caller costs one wake-up more than the trip itself. So where callers
// come one at a time and nobody listens, the receiver lets them read by themselves, and
// only looks now and then whether they still come. What reaches the client between two
// calls, and nobody listens for, waits for two pauses at most.
type reading struct {
	caller      *call         // who reads until its answer has come; nil: the receiver, or nobody
	interrupted bool          // caller is to stop
	free        bool          // nobody reads, and a caller may
	over        bool          // there is nothing more to read
	listened    int           // holds that somebody listens for the loss of
	turns       int           // of callers, so far
	asleep      bool          // the receiver looks no more, until it is woken
	wake        chan struct{} // makes the receiver look; has room for one
	pause       time.Duration // after how long without a caller the receiver reads again
	single      int           // answers in a row after which none was due; the receiver's own
}

// fewSingle is after how many answers, none of them due at the same time as another, the
// receiver leaves reading to the callers.
const fewSingle = 4

// usualPause is long enough that the receiver costs next to nothing, and short beside any
// time that a loss leaves an app.
const usualPause = 5 * time.Millisecond

// receive is the receiver.
func (s *Session) receive() {
	defer s.cancel()
	for {
		leave, err := s.readNext(s.leaveToCallers)
		if err != nil {
			s.ended(err)
			return
		}
		if leave && !s.standBy() {
			return
		}
	}
}

// readNext waits for the next message and takes it. Then it asks after, while nobody else reads
// and s.mu is held.
func (s *Session) readNext(after func(*pb.SessionResponse) bool) (bool, error) {
	for {
		s.stream.receiving.Lock()
		m, err := s.stream.next()
		if m != nil {
			s.mu.Lock()
			s.take(m)
			a := after(m)
			s.mu.Unlock()
			s.stream.receiving.Unlock()
			return a, nil
		}
		s.stream.receiving.Unlock()
		if err == nil {
			err = s.stream.more()
		}
		if err != nil {
			return false, err
		}
	}
}

// mostUnread is how many messages catchUp takes: more than a socket keeps.
const mostUnread = 10_000

// catchUp takes what stands unread, whoever else reads, and does not wait. Whoever is about to
// find a hold over by the clock calls it first: where this process stood still, the sidecar has
// renewed the lease meanwhile, and what has come is no silence.
func (s *Session) catchUp() {
	s.stream.receiving.Lock()
	defer s.stream.receiving.Unlock()
	for range mostUnread {
		m, err := s.stream.unread()
		if err != nil {
			s.ended(err)
			s.cancel()
			return
		}
		if m == nil {
			return
		}
		s.mu.Lock()
		s.take(m)
		if c := s.reading.caller; c != nil && s.calls[c.id] != c { // it reads for an answer that is here
			s.interrupt(c)
		}
		s.mu.Unlock()
	}
}

// take takes a message. s.mu is held.
func (s *Session) take(m *pb.SessionResponse) {
	if e := m.GetEvent(); e != nil {
		s.event(e)
	} else {
		s.answered(m)
	}
}

// leaveToCallers ends the receiver's turn, after a message, where callers come one at a
// time. It is called by readNext.
func (s *Session) leaveToCallers(m *pb.SessionResponse) bool {
	r := &s.reading
	switch {
	case m.GetEvent() != nil:
		return false
	case len(s.calls) > 0:
		r.single = 0
		return false
	}
	r.single++
	r.free = r.single >= fewSingle && r.listened == 0 && s.err == nil && !s.stream.hasLine()
	return r.free
}

// standBy waits until the receiver has to read again. It reports false when there is
// nothing more to read.
func (s *Session) standBy() bool {
	timer := time.NewTimer(s.reading.pause)
	defer timer.Stop()
	for turns := -1; ; {
		select {
		case <-timer.C:
		case <-s.reading.wake:
		}
		s.mu.Lock()
		r := &s.reading
		mine, idle := false, r.turns == turns
		turns = r.turns
		switch {
		case r.over:
		case r.caller == nil && (idle || s.receiverDue()):
			mine, r.free, r.single = true, false, 0
		case r.caller != nil && idle: // it waits for long
			r.asleep = true
		default:
			timer.Reset(r.pause)
		}
		over := r.over
		s.mu.Unlock()
		if mine || over {
			return mine
		}
	}
}

// receiverDue tells whether somebody other than a caller that reads wants to hear from
// the sidecar. s.mu is held.
func (s *Session) receiverDue() bool {
	return len(s.calls) > 0 || s.reading.listened > 0 || s.err != nil
}

// listen sees to it that a loss of the hold is read at once. s.mu is held.
func (s *Session) listen(l *Lock) {
	if l.listened || l.over != nil {
		return
	}
	l.listened = true
	s.reading.listened++
	s.wakeReceiver()
}

// overFor notes that a hold is over. s.mu is held.
func (s *Session) overFor(l *Lock, why error) {
	if l.over == nil && l.listened {
		s.reading.listened--
	}
	l.over = why
}

// wakeReceiver makes the receiver look who reads, if it does not read itself. s.mu is held.
func (s *Session) wakeReceiver() {
	s.reading.asleep = false
	select {
	case s.reading.wake <- struct{}{}:
	default:
	}
}

// readFor reads until a call has its answer, the session or ctx has ended, or at once
// where another reads.
func (s *Session) readFor(ctx context.Context, c *call) {
	if !s.begin(c) {
		return
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.interrupt(c)
		})
		defer stop()
	}
	last := func(*pb.SessionResponse) bool {
		done := s.calls[c.id] != c && !s.stream.hasLine()
		if done {
			s.passOn()
		}
		return done
	}
	for done := false; !done; {
		var err error
		if done, err = s.readNext(last); err != nil {
			s.stopped(err)
			return
		}
	}
}

// begin makes a caller the one who reads, where nobody does and it has no answer yet.
func (s *Session) begin(c *call) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &s.reading
	if !r.free || s.calls[c.id] != c {
		return false
	}
	r.free, r.caller = false, c
	r.turns++
	return true
}

// stopped ends the turn of a caller that was interrupted, or has read the end.
func (s *Session) stopped(err error) {
	over := !errors.Is(err, os.ErrDeadlineExceeded)
	if over {
		s.ended(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.over = over
	s.passOn()
}

// passOn ends a caller's turn. s.mu is held.
func (s *Session) passOn() {
	r := &s.reading
	r.caller, r.free = nil, true
	if r.interrupted {
		r.interrupted = false
		_ = s.stream.conn.SetReadDeadline(time.Time{}) // its error is that of the next read
	}
	if r.asleep || s.receiverDue() {
		s.wakeReceiver()
	}
}

// interrupt makes a caller stop reading. s.mu is held.
func (s *Session) interrupt(c *call) {
	if r := &s.reading; c != nil && r.caller == c {
		r.interrupted = true
		_ = s.stream.conn.SetReadDeadline(time.Unix(1, 0))
	}
}
