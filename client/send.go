package client

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"strconv"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// outbox is what waits to be sent. A stream's send takes one caller at a time, and
// blocks, whatever becomes of the caller's context, when the sidecar does not
// read. So a caller sends only what does not block; everything else is sent by a
// goroutine, and the caller can leave. Who sends takes what others have queued meanwhile.
type outbox struct {
	queue []*call // in the order in which they will be sent
	busy  bool    // somebody is sending
	batch []*pb.SessionRequest
}

// helped is how many batches one caller sends, for others too.
const helped = 16

// do sends a request and waits for its answer.
func (s *Session) do(ctx context.Context, c *call, q *pb.SessionRequest) (*pb.SessionResponse, error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	if c.acquire && !s.acquires.enter(c) {
		c.request = q
		s.boundWait(c)
		s.mu.Unlock()
		return s.wait(ctx, c)
	}
	send := s.post(c, q)
	s.unlockAndSend(send)
	return s.wait(ctx, c)
}

// unlockAndSend sends, if the caller has to, what it and others have queued.
func (s *Session) unlockAndSend(send bool) {
	others := len(s.calls) > 1
	s.mu.Unlock()
	if !send {
		return
	}
	if others {
		runtime.Gosched() // those that have just got their answers, too, may have more to ask
	}
	s.send(helped)
}

// post queues a request, and reports whether the caller has to send it. The
// session has not ended. s.mu is held.
func (s *Session) post(c *call, q *pb.SessionRequest) (send bool) {
	s.lastID++
	c.id = strconv.FormatUint(s.lastID, 36)
	q.RequestId = c.id
	c.request, c.sent = q, bootTime()
	s.calls[c.id] = c
	b := &s.outbox
	b.queue = append(b.queue, c)
	if b.busy {
		return false
	}
	b.busy = true
	return true
}

// inBackground queues a request for whose answer nobody waits. s.mu is held.
func (s *Session) inBackground(c *call, q *pb.SessionRequest) {
	if s.err == nil && s.post(c, q) { // else the sidecar releases everything
		s.start(s.sendAll)
	}
}

// send sends what is queued: as long as it cannot block, and so many at most. A
// goroutine does the rest.
func (s *Session) send(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := 1; s.sendSome(false); n++ {
		if n >= most && s.err == nil { // else there is nothing more
			s.start(s.sendAll)
			return
		}
	}
}

// sendAll sends all that is queued.
func (s *Session) sendAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sendSome(true) {
	}
}

// sendSome sends a batch. It reports false when the caller is done: there is nothing, or,
// without wait, another goroutine goes on. s.mu is held, but not meanwhile.
func (s *Session) sendSome(wait bool) bool {
	b := &s.outbox
	if len(b.queue) == 0 {
		s.sent()
		return false
	}
	n := min(lineBatch, len(b.queue))
	b.batch = b.batch[:0]
	for _, c := range b.queue[:n] {
		b.batch = append(b.batch, c.request)
	}
	b.queue = slices.Delete(b.queue, 0, n)
	s.mu.Unlock()
	err := s.stream.send(b.batch, wait) // its error is told better by the receiver, which ends the call too
	s.mu.Lock()
	if !errors.Is(err, errBlocked) || s.err != nil { // the sidecar takes half a line for none
		return true
	}
	s.start(func() {
		_ = s.stream.send(nil, true)
		s.sendAll()
	})
	return false
}

// sent notes that nobody is sending. s.mu is held.
func (s *Session) sent() {
	s.outbox.busy = false
	if s.err != nil {
		_ = s.stream.closeSend() // its error is that the stream has ended
	}
}

// endSending ends our half of the stream, now or when a Send has returned. The
// session has ended.
func (s *Session) endSending() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.outbox.busy {
		s.sent()
	}
}

// wait waits for the answer to a request.
func (s *Session) wait(ctx context.Context, c *call) (*pb.SessionResponse, error) {
	s.readFor(ctx, c)
	select {
	case a, ok := <-c.answer:
		if !ok {
			return nil, cmp.Or(c.failed, s.Err())
		}
		if st := a.GetError(); st != nil {
			return nil, fromStatus(st)
		}
		return a, nil
	case <-ctx.Done():
		s.leave(c)
		return nil, context.Cause(ctx)
	}
}

// leave makes sure that nobody keeps what nobody waits for.
func (s *Session) leave(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.lock != nil: // granted, and the caller took the end of ctx instead
		s.giveBack(c)
	case c.acquire && s.acquires.drop(c): // it was not sent
		c.leavesQueue()
	case s.calls[c.id] != c || c.release != nil: // answered, or must go on
	case s.withdraw(c):
		s.forget(c)
	case c.detaches:
		c.abandoned = true
		if c.changes.over == nil {
			s.lose(c.changes, &LostError{Reason: LostUnknown, Message: "nobody waited for it to be detached"})
		}
	case c.acquire:
		s.callOff(c)
	}
}

// withdraw takes a request out of the queue; it reports false when it was sent.
// s.mu is held.
func (s *Session) withdraw(c *call) bool {
	i := slices.Index(s.outbox.queue, c)
	if i < 0 {
		return false
	}
	s.outbox.queue = slices.Delete(s.outbox.queue, i, i+1)
	return true
}

// forget ends what was noted for a request in flight. s.mu is held.
func (s *Session) forget(c *call) {
	delete(s.calls, c.id)
	if c.acquire {
		if s.acquires.answered(c); s.acquires.size == 0 {
			s.early = earlyLosses{}
		}
		s.sendQueued()
	}
}
