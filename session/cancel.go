package session

import (
	"context"
	"errors"
)

// maxCancelled is how many cancelled ids a session remembers. It is for requests
// that were overtaken by their own cancelling, so for moments.
const maxCancelled = 1024

// cancelledIDs are the ids of the requests that were given up last.
type cancelledIDs struct {
	known map[string]struct{}
	order []string // a ring, once it is full
	next  int
}

func (c *cancelledIDs) has(id string) bool {
	_, ok := c.known[id]
	return ok
}

func (c *cancelledIDs) add(id string) {
	if c.has(id) {
		return
	}
	if c.known == nil {
		c.known = make(map[string]struct{})
	}
	c.known[id] = struct{}{}
	if len(c.order) < maxCancelled {
		c.order = append(c.order, id)
		return
	}
	delete(c.known, c.order[c.next])
	c.order[c.next] = id
	c.next = (c.next + 1) % maxCancelled
}

// Cancel gives up an Acquire by the id of its request, wherever it is: a call
// that waits ends, a grant that nobody has heard of is given back, and a call
// that comes only now, because this one has overtaken it, is refused. Afterwards
// nothing of the request is held, and its id is used up. Cancel does not end with
// ctx. An id that nothing is known of is no error.
//
//	ErrSessionClosed: the session has ended, and with it the hold.
//	*lock.InvalidError: the id is refused.
func (s *Session) Cancel(ctx context.Context, requestID string) error {
	if requestID == "" {
		return invalid("request_id", "must not be empty")
	}
	if err := checkLabel("request_id", requestID); err != nil {
		return err
	}
	s.mu.Lock()
	if err := s.usable(); err != nil {
		s.mu.Unlock()
		return err
	}
	s.cancelled.add(requestID)
	s.mu.Unlock()
	return s.Withdraw(ctx, requestID)
}

// Withdraw is Cancel for a request that may be asked again, because only its
// answer has not arrived.
func (s *Session) Withdraw(ctx context.Context, requestID string) error {
	s.mu.Lock()
	cl := s.requests[requestID]
	if cl == nil {
		s.mu.Unlock()
		return nil
	}
	for _, cancel := range cl.cancels { // what they get from now on they give back themselves
		cancel()
	}
	h := cl.hold
	if !cl.handed || h.state != held {
		s.mu.Unlock()
		return nil
	}
	s.unclaim(cl)
	err := s.takeOff(ctx, h)
	if errors.Is(err, ErrLost) { // nobody cares any more
		return nil
	}
	return err
}
