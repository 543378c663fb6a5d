package client

import (
	"context"
	"errors"
	"syscall"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// Block fills the connection of a session whose sidecar does not read, and lets the session
// send a request, which cannot go out. It returns how many bytes are before that.
func Block(s *Session) (filled int64) {
	_ = s.stream.raw.Write(func(fd uintptr) bool {
		for {
			n, err := syscall.Write(int(fd), []byte{'\n'})
			if errors.Is(err, syscall.EAGAIN) {
				return true
			}
			filled += int64(max(n, 0))
		}
	})
	s.mu.Lock()
	s.unlockAndSend(s.post(newCall(), &pb.SessionRequest{Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "blocked"}}}))
	return filled
}

// AttachUnseen attaches, and its caller takes the end of its context in place of the grant.
func AttachUnseen(ctx context.Context, s *Session, handle string) error {
	c := newCall()
	c.acquire, c.attaches = true, true
	_, err := s.do(ctx, c, &pb.SessionRequest{Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Handle: handle}}})
	s.leave(c)
	return err
}

// Locks is how many locks a session keeps.
func Locks(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks)
}

// Queued is how many requests have not been given to the stream.
func Queued(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.outbox.queue)
}

// EarlyLosses is how many losses are kept for grants that may still come.
func EarlyLosses(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.early.byID)
}

// Limits is of how many holds a session keeps the end by their MaxHold.
func Limits(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.limits)
}

// Calls is how many requests of a session have had no answer.
func Calls(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// NeverPause leaves it to the callers to read, as soon as the receiver may, until somebody
// wakes it. The session has asked for nothing yet.
func NeverPause(s *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.pause = time.Hour
}

// Free tells whether nobody reads, and the next caller will.
func Free(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading.free
}

// CallerReads tells whether a caller reads.
func CallerReads(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading.caller != nil
}

// Waits tells whether the receiver waits to be woken, however long that takes.
func Waits(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading.asleep
}
