package client

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// NoWait is the AcquireOptions.Wait that tries once.
const NoWait time.Duration = -1

// AcquireOptions say how to take a lock. The zero value takes it Exclusive and
// waits as long as the call's context lasts.
type AcquireOptions struct {
	Mode    pb.Mode       // Exclusive (default) or Shared
	Wait    time.Duration // at most so long (at most 24h); 0: until ctx ends; NoWait: try once
	MaxHold time.Duration // the hold ends by itself after this time (100ms to 24h); 0: never
	// Owner makes acquires reentrant: one with the same resource and owner, in the
	// same session, finds its own hold and counts it up. By default a session is
	// one owner.
	Owner string
}

// Acquire takes a lock. With an error it has taken nothing.
//
//	ErrLockHeld: NoWait, and not free. ErrWaitTimeout: Wait is over. The *Error
//	  names the holder in both.
//	the cause of ctx: it ended; a grant that is on its way is given back.
//	ErrUpgradeRefused, ErrLimitExceeded, ErrInvalidRequest, ErrStoreUnavailable,
//	ErrLockLost: an administrator took the request out of the queue.
//	Session.Err: the session has ended.
func (s *Session) Acquire(ctx context.Context, resource string, o AcquireOptions) (*Lock, error) {
	// gRPC ends the whole stream for a message that it cannot send or take.
	if err := errors.Join(checkString("resource", resource), checkString("owner", o.Owner)); err != nil {
		return nil, err
	}
	q := &pb.AcquireRequest{Resource: resource, Mode: o.Mode, Owner: o.Owner}
	switch {
	case o.Wait > 0:
		q.Wait = durationpb.New(o.Wait)
	case o.Wait < 0:
		q.Wait = durationpb.New(0)
	}
	if o.MaxHold != 0 {
		q.MaxHold = durationpb.New(o.MaxHold)
	}
	c := &call{answer: make(chan *pb.SessionResponse, 1), acquire: true, maxHold: o.MaxHold}
	r := &pb.SessionRequest{Request: &pb.SessionRequest_Acquire{Acquire: q}}
	if err := s.send(c, r); err != nil {
		return nil, fmt.Errorf("acquire %q: %w", resource, err)
	}
	if _, err := s.wait(ctx, c); err != nil {
		if ctx.Err() != nil {
			s.abandon(c, r.GetRequestId())
		}
		return nil, fmt.Errorf("acquire %q: %w", resource, err)
	}
	return c.lock, nil
}

// maxString is longer than anything that the sidecar takes; what the limit is, it
// tells itself.
const maxString = 4096

func checkString(field, v string) error {
	problem := ""
	switch {
	case !utf8.ValidString(v):
		problem = "is not valid UTF-8"
	case len(v) > maxString:
		problem = fmt.Sprintf("is %d bytes long", len(v))
	default:
		return nil
	}
	return &Error{Reason: "INVALID_REQUEST", Message: field + " " + problem, Metadata: map[string]string{"field": field}}
}

// abandon makes sure that nobody keeps what nobody waits for.
func (s *Session) abandon(c *call, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.abandoned = true
	switch {
	case c.lock != nil: // granted, and the caller took the end of ctx instead
		s.giveBack(c.lock)
	case s.calls[id] == c:
		s.inBackground(&call{}, &pb.SessionRequest{Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: id}}})
	}
}

// giveBack releases a hold that nobody has seen. s.mu is held.
func (s *Session) giveBack(l *Lock) {
	s.inBackground(&call{release: l}, &pb.SessionRequest{Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: l.ID}}})
}

// inBackground sends a request for whose answer nobody waits. s.mu is held.
func (s *Session) inBackground(c *call, q *pb.SessionRequest) {
	c.answer = make(chan *pb.SessionResponse, 1)
	if s.err == nil { // else the sidecar releases everything
		s.running.Go(func() { _ = s.send(c, q) })
	}
}

// granted notes a hold. s.mu is held.
func (s *Session) granted(c *call, g *pb.Grant) {
	until := s.clock.until(g.GetCountedAt(), g.GetValidFor())
	l := s.locks[g.GetLockId()]
	if l == nil {
		l = &Lock{
			ID:       g.GetLockId(),
			Resource: g.GetResource(),
			Fence:    g.GetFence(),
			Guard:    guardOf(g.GetGuard()),
			session:  s,
			lost:     make(chan struct{}),
		}
		s.locks[l.ID] = l
	}
	l.count++
	l.mode = g.GetMode()
	if l.until = max(l.until, until); c.maxHold == 0 && l.limit == 0 {
		s.until = max(s.until, until)
	}
	if c.maxHold != 0 {
		if limit := s.clock.until(g.GetCountedAt(), durationpb.New(c.maxHold)); l.limit == 0 || limit < l.limit {
			l.limit = limit
		}
	}
	c.lock = l
	if early := s.early[l.ID]; early != nil {
		s.lose(l, s.lossOf(early))
		return
	}
	if c.abandoned {
		s.giveBack(l)
		return
	}
	s.watch(l.silentAt())
}

func guardOf(g *pb.Guard) *Guard {
	if g == nil {
		return nil
	}
	return &Guard{Dialect: g.GetDialect(), SQL: g.GetSql(), Args: g.GetArgs()}
}

// released notes that a hold was released once. s.mu is held.
func (s *Session) released(l *Lock) {
	if l.count--; l.count <= 0 && s.locks[l.ID] == l {
		delete(s.locks, l.ID)
	}
}

// lossOf reads what the sidecar says. s.mu is held.
func (s *Session) lossOf(l *pb.Lost) *LostError {
	return &LostError{
		Reason:   l.GetReason().String(),
		Message:  l.GetMessage(),
		graceEnd: s.clock.until(l.GetCountedAt(), l.GetGrace()),
	}
}

// lose marks a hold as lost. s.mu is held.
func (s *Session) lose(l *Lock, e *LostError) {
	if l.problem != nil {
		return
	}
	e.Resource, e.LockID, e.Fence = l.Resource, l.ID, l.Fence
	l.problem = e
	close(l.lost)
	delete(s.locks, l.ID)
}

// maxLook bounds the sleep of the timer: Go's timers stand still while the
// machine is suspended, and the clock of a hold does not.
const maxLook = time.Second

// watch sees to it that the end of a hold is noticed. One timer does for all
// holds: when it fires, it looks at each. s.mu is held.
func (s *Session) watch(end time.Duration) {
	now := bootTime()
	end = min(end, now+maxLook)
	switch {
	case s.timer == nil:
		s.looksAt = end
		s.timer = time.AfterFunc(end-now, s.look)
	case s.looksAt <= now || end < s.looksAt: // it has fired, or would be late
		s.looksAt = end
		s.timer.Reset(end - now)
	}
}

// look finds the holds that nothing was heard of for too long.
func (s *Session) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	now := bootTime()
	s.looksAt = 0
	next := now + maxLook
	for _, l := range s.locks {
		if end := l.silentAt(); end <= now {
			s.lose(l, l.silence())
		} else {
			next = min(next, end)
		}
	}
	if len(s.locks) > 0 {
		s.watch(next)
	}
}
