package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// Outcome is what became of a resource that is done once.
type Outcome struct {
	Resource string // without the namespace
	outcome.Outcome
}

// glanceLimit bounds the look at a record before the lock is asked for.
const glanceLimit = time.Second

// beginOnce obtains a lock and writes down the attempt that is made under it. What has
// succeeded, or failed for the last time, is refused without the lock: others may
// have it, and nothing would come of the wait. A request that waits comes again when its bell
// has rung, and then goes on where it was.
//
// With a *outcome.RefusedError nothing is left behind. Other errors are those of
// lock.Lease.Acquire; when it is not lock.ErrLeaseLost the lock may be held.
func beginOnce(a *asking) (lock.Grant, *outcome.Attempt, error) {
	s, h, g, q := a.s, a.h, a.g, a.q
	lock.Blocking(a)
	var found lock.Record
	known := false
	if !a.glanced {
		a.glanced = true
		if found, known = glance(a, s.space.m.records, q.Resource); known {
			if err := h.Once().Refused(q.Resource, found); err != nil {
				return lock.Grant{}, nil, forApp(err, h)
			}
		}
	} // else it has waited: who had the lock has most likely written another record
	grant, err := g.acquire(a, q)
	if err != nil {
		return lock.Grant{}, nil, err
	}
	by := outcome.By{LockID: q.ID, Fence: grant.Fence, Sidecar: s.space.m.o.Sidecar, Owner: lock.DecodeOwner(q.Owner)}
	attempt, err := record(a, s.space.m.records, g, *h.Once(), q.Resource, by, found, known)
	switch {
	case err == nil:
		if guarder, ok := s.space.m.records.(lock.RecordGuarder); ok {
			attempt.Guard = guarder.RecordGuard(q.Resource, attempt.Started().Version, attempt.Ended(outcome.Succeeded, ""), attempt.Keep())
		}
		return grant, attempt, nil
	case errors.Is(err, outcome.ErrOvertaken):
		return lock.Grant{}, nil, overtaken(q.ID, h.Name(), grant.Fence)
	case !errors.Is(err, lock.ErrUnavailable):
		letGo(a, s, g, q)
	}
	return lock.Grant{}, nil, forApp(err, h)
}

// glance looks at a record once, and not for long.
func glance(ctx context.Context, records lock.Records, r lock.Resource) (lock.Record, bool) {
	ctx, cancel := context.WithTimeout(ctx, glanceLimit)
	defer cancel()
	found, err := records.ReadRecord(ctx, r)
	return found, err == nil
}

// record writes down the beginning of an attempt over the record that it finds. found
// is an older reading, where known: the store compares it when it writes.
func record(ctx context.Context, records lock.Records, g *generation, w outcome.Wish, r lock.Resource, by outcome.By,
	found lock.Record, known bool,
) (*outcome.Attempt, error) {
	var a *outcome.Attempt
	old := known
	for tries := 0; ; tries++ {
		var err error
		if !known {
			if found, err = records.ReadRecord(ctx, r); err == nil {
				known, old = true, false
			}
		}
		if known {
			if a != nil && found.Version == a.Started().Version { // the write whose outcome was unknown has done it
				return a, nil
			}
			if a, err = w.Begin(r, found, by); err == nil {
				err = records.WriteRecord(ctx, r, found.Version, a.Started(), w.Keep)
			}
			known = false
		}
		switch {
		case err == nil:
			return a, nil
		case errors.Is(err, lock.ErrRecordChanged), old:
			old = false // at once, but once only: who has the lock sees few changes
		case !g.again(ctx, tries, err):
			return nil, err
		}
	}
}

// letGo releases a lock under which nothing is to be done; in the background, where the
// store does not answer.
func letGo(ctx context.Context, s *Session, g *generation, q lock.Request) {
	ctx, cancel := context.WithTimeout(ctx, firstTimeout)
	defer cancel()
	if errors.Is(g.lease.Release(ctx, q.Resource, q.ID), lock.ErrUnavailable) {
		g.janitors.add(chore{session: s.id, resource: q.Resource, id: q.ID, gone: leaves(s)})
	}
}

// forApp puts the app's name of the resource into an error.
func forApp(err error, h *ledger.Hold) error {
	if refused := (*outcome.RefusedError)(nil); errors.As(err, &refused) {
		refused.Resource = h.Name()
	}
	return err
}

// overtaken is the loss that nobody has told: somebody else has begun.
func overtaken(id lock.HoldID, name string, f lock.Fence) error {
	return &LostError{Lost: Lost{LockID: id, Resource: name, Fence: f, Reason: StoreLost}}
}

// Conclude records how the attempt under a hold has ended, Failed or Succeeded, and
// then releases the hold as Release does. What is recorded stays recorded, whatever
// becomes of the release: then the count is 0. A hold that was lost may be concluded as
// well, as long as nobody else has begun: what was done is done.
//
// It may be called again, with the same requestID or without one: the outcome is recorded once.
//
//	lock.ErrUnavailable: the store has not answered for two seconds, or too much is in flight. It may have
//	  recorded the outcome. The hold stays: another Conclude finds out, and goes on.
//	*LostError: the hold was lost, and somebody else has begun; nothing is recorded.
//	*lock.InvalidError: the hold is not one of something that is done once, another outcome
//	  was recorded before, or a field is refused.
//	lock.ErrNotHolder, ErrSessionClosed: as for Release.
func (s *Session) Conclude(ctx context.Context, id lock.HoldID, requestID string, state outcome.State, note string) (int, error) {
	if err := checkLabel("request_id", requestID); err != nil {
		return 0, err
	}
	if state != outcome.Failed && state != outcome.Succeeded {
		return 0, invalid("outcome", "must be FAILED or SUCCEEDED")
	}
	if err := outcome.CheckNote(note); err != nil {
		return 0, invalid("note", "%v", err)
	}
	s.enter()
	a, lives := s.ledger.Attempt(id), s.ledger.Lives(id)
	waits := a != nil && errand(s)
	s.exit()
	switch {
	case a == nil && lives:
		return 0, invalid("outcome", "is for holds that were acquired with once")
	case a == nil:
		return s.Release(ctx, id, requestID)
	case !waits:
		return 0, fmt.Errorf("record outcome: too much is in flight: %w", lock.ErrUnavailable)
	}
	recorded := conclude(ctx, s.space.m.records, a, a.Ended(state, note))
	s.mu.Lock()
	landed(s)
	recount(s)
	s.mu.Unlock()
	switch {
	case errors.Is(recorded, outcome.ErrOtherwise):
		return 0, invalid("outcome", "is %s, but the other one was recorded before", state)
	case recorded != nil && !errors.Is(recorded, outcome.ErrOvertaken):
		return 0, fmt.Errorf("record outcome: %w", recorded)
	}
	left, err := s.Release(ctx, id, requestID)
	switch over := errors.Is(err, ErrLost) || errors.Is(err, lock.ErrNotHolder) || errors.Is(err, ErrSessionClosed); {
	case recorded != nil && errors.Is(err, ErrLost):
		return 0, err
	case recorded != nil:
		return 0, overtaken(id, s.space.inApp(a.Resource), a.Fence())
	case over:
		return 0, nil
	default:
		return left, err
	}
}

// conclude writes the end of an attempt, until the store has said what happened, or for two
// seconds. Its errors: outcome.ErrOvertaken, outcome.ErrOtherwise, lock.ErrUnavailable.
func conclude(ctx context.Context, records lock.Records, a *outcome.Attempt, end lock.Record) error {
	lock.Blocking(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	after := a.Started().Version
	for tries := 0; ; tries++ {
		err := records.WriteRecord(ctx, a.Resource, after, end, a.Keep())
		if err == nil {
			return nil
		}
		found, unread := records.ReadRecord(ctx, a.Resource)
		if unread == nil {
			var done bool
			if after, done, unread = a.After(found, end); done || unread != nil {
				return unread
			}
		}
		if !pause(ctx, backoff(tries, minPause, maxPause)) {
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, errors.Join(err, unread))
		}
	}
}
