package client

import (
	"context"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// outbox is what waits to be sent. gRPC's Send takes one caller at a time, and
// blocks, whatever becomes of the caller's context, when the sidecar does not
// read. So a caller sends only what cannot block; everything else is sent by a
// goroutine, and the caller can leave.
type outbox struct {
	queue      []*call // in the order in which they will be sent
	busy       bool    // somebody is sending
	unanswered int     // bytes of the requests that have no answer yet
}

const (
	// unblocked is how many bytes may be on their way when a caller sends by itself.
	// gRPC takes 64 KiB of a stream before it blocks (defaultWriteQuota), and what
	// was answered has left it.
	unblocked = 32 << 10
	// helped is how many requests one caller sends, for others too.
	helped = 16
)

// do sends a request and waits for its answer.
func (s *Session) do(ctx context.Context, c *call, q *pb.SessionRequest) (*pb.SessionResponse, error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return nil, s.err
	}
	send := s.post(c, q)
	s.mu.Unlock()
	if send {
		s.send(helped)
	}
	return s.wait(ctx, c)
}

// post queues a request, and reports whether the caller has to send it. The
// session has not ended. s.mu is held.
func (s *Session) post(c *call, q *pb.SessionRequest) (send bool) {
	s.lastID++
	c.id = strconv.FormatUint(s.lastID, 36)
	q.RequestId = c.id
	c.request, c.size, c.sent = q, proto.Size(q), bootTime()
	s.calls[c.id] = c
	if c.acquire {
		s.asking++
	}
	b := &s.outbox
	b.unanswered += c.size
	b.queue = append(b.queue, c)
	if b.busy {
		return false
	}
	b.busy = true
	if b.unanswered > unblocked {
		s.running.Go(s.sendAll)
		return false
	}
	return true
}

// inBackground queues a request for whose answer nobody waits. s.mu is held.
func (s *Session) inBackground(c *call, q *pb.SessionRequest) {
	if s.err == nil && s.post(c, q) { // else the sidecar releases everything
		s.running.Go(s.sendAll)
	}
}

// send sends what is queued: as long as it cannot block, and so many at most. A
// goroutine does the rest.
func (s *Session) send(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range most {
		if s.outbox.unanswered > unblocked {
			break
		}
		if !s.sendOne() {
			return
		}
	}
	if s.err != nil {
		s.sent()
		return
	}
	s.running.Go(s.sendAll)
}

// sendAll sends all that is queued.
func (s *Session) sendAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sendOne() {
	}
}

// sendOne sends one request; it reports false when there is none, and then
// somebody else may send. s.mu is held, but not meanwhile.
func (s *Session) sendOne() bool {
	b := &s.outbox
	if len(b.queue) == 0 {
		s.sent()
		return false
	}
	q := b.queue[0].request
	b.queue = slices.Delete(b.queue, 0, 1)
	s.mu.Unlock()
	_ = s.stream.Send(q) // an error is told better by the receiver, which ends the call too
	s.mu.Lock()
	return true
}

// sent notes that nobody is sending. s.mu is held.
func (s *Session) sent() {
	s.outbox.busy = false
	if s.err != nil {
		_ = s.stream.CloseSend() // its error is that the stream has ended
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
	select {
	case a, ok := <-c.answer:
		if !ok {
			return nil, s.Err()
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
		s.giveBack(c.lock)
	case s.calls[c.id] != c || c.release != nil: // answered, or must go on
	case s.withdraw(c):
		s.forget(c)
	case c.acquire:
		c.abandoned = true
		s.inBackground(newCall(), &pb.SessionRequest{Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: c.id}}})
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
	s.outbox.unanswered -= c.size
	if c.acquire {
		if s.asking--; s.asking == 0 {
			clear(s.early)
		}
	}
}
