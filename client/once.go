package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// What is known of something that is done once.
const (
	Unknown   = pb.OutcomeState_UNKNOWN // it is at work, or has ended without saying how
	Failed    = pb.OutcomeState_FAILED
	Succeeded = pb.OutcomeState_SUCCEEDED // it is not done again
)

// Once says how something is to be done once.
type Once struct {
	Keep        time.Duration // how long its outcome is remembered, 1s to 400 days; 0: 30 days
	MaxAttempts int           // after so many there is no other; 0: no limit
}

// Conclude says how an attempt at something that is done once has ended, Failed or Succeeded, and
// releases the lock. The note, at most 1 KiB, is for people and for the next attempt.
// Without Conclude, and where it says that nothing was recorded, the outcome is Unknown.
//
//	nil: it is recorded. The lock is released, also where it was lost before.
//	ErrLockLost: the lock was lost, and somebody else has started. Nothing is recorded.
//	ErrStoreUnavailable, or the cause of ctx, which ended: it may be recorded or not. The
//	  lock is still held, unless it was lost. Conclude again: it is recorded once.
//	ErrInvalidRequest: it is not a lock of something that is done once, or another outcome
//	  was recorded before.
//	Session.Err: the session has ended, and the lock with it. It may be recorded or not.
func (l *Lock) Conclude(ctx context.Context, outcome pb.OutcomeState, note string) error {
	if err := checkString("note", note); err != nil {
		return err
	}
	c := newCall()
	c.conclude = l
	q := &pb.ReleaseRequest{LockId: l.ID, Outcome: outcome, Note: note}
	if _, err := l.session.do(ctx, c, &pb.SessionRequest{Request: &pb.SessionRequest_Release{Release: q}}); err != nil {
		return fmt.Errorf("conclude %q: %w", l.Resource, err)
	}
	return nil // the receiver has noted it
}

// concluded notes that an outcome is recorded. s.mu is held.
func (s *Session) concluded(l *Lock) {
	l.count = 0
	delete(s.limits, l.ID)
	if l.over == nil {
		l.over = ErrReleased
		delete(s.locks, l.ID)
	}
}

// notConcluded is told why an outcome is not recorded. s.mu is held.
func (s *Session) notConcluded(l *Lock, err error) {
	if errors.Is(err, ErrLockLost) {
		l.count = 0 // the sidecar takes the loss for known
	}
	s.notHeld(l, err)
}

// OutcomeOf is what an ErrAlreadyDone or ErrAttemptsExhausted was refused for; nil: the error is
// another.
func OutcomeOf(err error) *pb.Outcome {
	var e *Error
	if !errors.As(err, &e) || !errors.Is(e, ErrAlreadyDone) && !errors.Is(e, ErrAttemptsExhausted) {
		return nil
	}
	number := func(name string, bits int) int64 {
		n, _ := strconv.ParseInt(e.Metadata[name], 10, bits)
		return n
	}
	o := &pb.Outcome{
		Resource: e.Metadata["resource"],
		State:    pb.OutcomeState(pb.OutcomeState_value[e.Metadata["state"]]),
		Attempt:  int32(number("attempt", 32)), //nolint:gosec // of 32 bits
		Note:     e.Metadata["note"],
		LockId:   e.Metadata["lock_id"],
		Fence:    number("fence", 64),
		Session:  e.Metadata["session"],
		Sidecar:  e.Metadata["sidecar"],
		Pid:      int32(number("pid", 32)), //nolint:gosec // of 32 bits
		Owner:    e.Metadata["owner"],
	}
	if at, err := time.Parse(time.RFC3339Nano, e.Metadata["at"]); err == nil {
		o.At = timestamppb.New(at)
	}
	return o
}

// Outcomes tells what became of the resources with that prefix that are done once: of those in
// one of the states, or of all where there are none. They come in byte order. It ends after the first error.
// *IncompleteError: as of List.
// ErrUnsupported: the store keeps no outcomes.
func (c *Client) Outcomes(ctx context.Context, prefix string, states ...pb.OutcomeState) iter.Seq2[*pb.Outcome, error] {
	return func(yield func(*pb.Outcome, error) bool) {
		if err := checkString("prefix", prefix); err != nil {
			yield(nil, err)
			return
		}
		var names []string
		for _, s := range states {
			names = append(names, s.String())
		}
		q := &pb.ListOutcomesRequest{Prefix: prefix, PageSize: 1000, States: strings.Join(names, ","), Partial: true}
		var missing []string
		for {
			a, err := c.ask(ctx, true, &pb.SessionRequest{Request: &pb.SessionRequest_ListOutcomes{ListOutcomes: q}})
			if err != nil {
				yield(nil, err)
				return
			}
			page := a.GetOutcomes()
			missing = append(missing, page.GetMissingShards()...)
			for _, o := range page.GetOutcomes() {
				if !yield(o, nil) {
					return
				}
			}
			if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
				if err := incomplete(missing); err != nil {
					yield(nil, err)
				}
				return
			}
		}
	}
}

// ResetOutcome forgets what became of a resource, and tells what that was; nil: there was
// nothing. The next attempt is the first again.
// ErrLockHeld: somebody holds it, and may be at work. ErrPermissionDenied: not an admin.
func (c *Client) ResetOutcome(ctx context.Context, resource string) (*pb.Outcome, error) {
	if err := checkString("resource", resource); err != nil {
		return nil, err
	}
	q := &pb.ResetOutcomeRequest{Resource: resource}
	a, err := c.ask(ctx, false, &pb.SessionRequest{Request: &pb.SessionRequest_ResetOutcome{ResetOutcome: q}})
	return a.GetOutcomeReset().GetOutcome(), err
}
