package client

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// mostAsking acquires of one session the sidecar takes at a time, unless it says otherwise.
	mostAsking = 1000
	// From manyAsking on an acquire queues in the client where another for the same resources is
	// on its way. One for resources of which none is still gets through: their holder may wait
	// for nothing else.
	manyAsking = 800
	// tryLimit is how long an acquire with NoWait may queue in the client.
	tryLimit = 5 * time.Second
)

// acquires are those of a session: those that are on their way, and those that queue here, as
// the sidecar takes only so many. Session.mu guards it.
type acquires struct {
	size   int            // of those on their way
	most   int            // of these; 0: mostAsking
	asked  map[string]int // how many of them ask for what
	tries  []*call        // these queue, in order, and go before waits: they are answered at once
	waits  []*call
	placed uint64
	full   bool // one was refused: there is no room before one is answered
	stuck  bool // none of the queue has room while manyAsking are on their way, and what it asks for is asked for
}

// enter reports whether an acquire is to be sent now: then it is on its way. Else it queues here.
func (a *acquires) enter(c *call) bool {
	a.placed++
	c.place = a.placed
	if a.crowded(c) {
		a.put(c)
		return false
	}
	a.leaves(c)
	return true
}

// next is the next acquire to be sent, which is on its way then; nil: there is none, or no room.
func (a *acquires) next() *call {
	if len(a.tries)+len(a.waits) == 0 || a.full || a.size >= a.limit() || a.stuck && a.size >= manyAsking {
		return nil
	}
	for _, queue := range []*[]*call{&a.tries, &a.waits} {
		for i, c := range *queue {
			if !a.crowded(c) {
				*queue = slices.Delete(*queue, i, i+1)
				a.leaves(c)
				return c
			}
		}
	}
	a.stuck = true
	return nil
}

// answered: it is not on its way any more.
func (a *acquires) answered(c *call) {
	a.left(c)
	a.full = false
}

// refused: it was one too many, where most is what the sidecar takes; 0: it does not say. It queues
// in its old place.
func (a *acquires) refused(c *call, most int) {
	a.left(c)
	if most <= 0 {
		most = a.size
	}
	a.most = max(1, min(a.limit(), most))
	a.full = a.size > 0
	a.put(c)
}

// drop takes an acquire out of the queue, and reports whether it was there.
func (a *acquires) drop(c *call) bool {
	queue := a.queueOf(c)
	i, found := slices.BinarySearchFunc(*queue, c, byPlace)
	if found {
		*queue = slices.Delete(*queue, i, i+1)
	}
	return found
}

// clear empties the queue, and gives what was in it.
func (a *acquires) clear() []*call {
	all := slices.Concat(a.tries, a.waits)
	a.tries, a.waits = nil, nil
	return all
}

func (a *acquires) limit() int {
	if a.most == 0 {
		return mostAsking
	}
	return a.most
}

func (a *acquires) put(c *call) {
	queue := a.queueOf(c)
	i, _ := slices.BinarySearchFunc(*queue, c, byPlace)
	*queue = slices.Insert(*queue, i, c)
	a.stuck = a.stuck && a.asked[c.what()] > 0
}

func (a *acquires) queueOf(c *call) *[]*call {
	if c.patience == NoWait {
		return &a.tries
	}
	return &a.waits
}

func byPlace(a, b *call) int { return int(a.place) - int(b.place) } //nolint:gosec // places are counted from 1

func (a *acquires) crowded(c *call) bool {
	return a.full || a.size >= a.limit() || a.size >= manyAsking && a.asked[c.what()] > 0
}

func (a *acquires) leaves(c *call) {
	if a.asked == nil {
		a.asked = make(map[string]int)
	}
	a.size++
	a.asked[c.what()]++
}

func (a *acquires) left(c *call) {
	a.size--
	what := c.what()
	if a.asked[what]--; a.asked[what] == 0 {
		delete(a.asked, what)
		a.stuck = false
	}
}

// what an acquire asks for.
func (c *call) what() string {
	if len(c.resources) == 1 {
		return c.resources[0]
	}
	return strings.Join(c.resources, "\x00") // which is in no name
}

// boundWait ends the wait of an acquire in time where it queues in the client. s.mu is held.
func (s *Session) boundWait(c *call) {
	limit, why := c.deadline-bootTime(), &Error{
		Reason:   "WAIT_TIMEOUT",
		Message:  "the wait is over: more of this process wait than the sidecar takes at a time",
		Metadata: map[string]string{"resource": strings.Join(c.resources, ", ")},
	}
	switch c.patience {
	case 0:
		return
	case NoWait:
		limit, why = tryLimit, &Error{
			Reason:   "LIMIT_EXCEEDED",
			Message:  "more of this process wait than the sidecar takes at a time, and none of them was answered",
			Metadata: map[string]string{"limit": "waiters", "max": strconv.Itoa(s.acquires.limit())},
		}
	}
	c.due = time.AfterFunc(max(0, limit), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.acquires.drop(c) {
			c.failed = why
			close(c.answer)
		}
	})
}

// leavesQueue: it does not queue in the client any more. Session.mu is held.
func (c *call) leavesQueue() {
	if c.due != nil {
		c.due.Stop()
	}
}

// sendQueued sends what has queued in the client, as far as there is room. s.mu is held.
func (s *Session) sendQueued() {
	for c := s.acquires.next(); c != nil; c = s.acquires.next() {
		c.leavesQueue()
		if c.patience > 0 {
			c.request.GetAcquire().Wait = durationpb.New(max(time.Millisecond, c.deadline-bootTime()))
		}
		s.inBackground(c, c.request)
	}
}

// queueAgain reports whether an acquire was refused only because the sidecar takes fewer at a time than
// are on their way. Then it queues in the client. s.mu is held.
func (s *Session) queueAgain(c *call, err error) bool {
	var said *Error
	if !errors.As(err, &said) || !errors.Is(said, ErrLimitExceeded) || c.abandoned || s.acquires.size == 1 {
		return false
	}
	if limit := said.Metadata["limit"]; limit != "waiters" && limit != "requests in flight" {
		return false
	}
	most, _ := strconv.Atoi(said.Metadata["max"])
	delete(s.calls, c.id)
	c.id = ""
	s.acquires.refused(c, most)
	s.boundWait(c)
	return true
}
