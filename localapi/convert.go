package localapi

import (
	"encoding/base64"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
	"github.com/locksidecar/locksidecar/session/outcome"
)

// durationOf reads an optional duration. Whether it is in the field's range is
// seen to by who uses it; here it must only be one.
func durationOf(field string, d *durationpb.Duration, absent time.Duration) (time.Duration, error) {
	switch {
	case d == nil:
		return absent, nil
	case d.GetSeconds() < 0 || d.GetNanos() < 0:
		return 0, invalid(field, "must not be negative")
	case !d.IsValid():
		return 0, invalid(field, "is not a valid duration")
	default:
		return d.AsDuration(), nil
	}
}

// defaultKeep is how long an outcome is remembered where nobody says.
const defaultKeep = 30 * 24 * time.Hour

func acquireRequestOf(requestID string, q *pb.AcquireRequest) (session.AcquireRequest, error) {
	r := session.AcquireRequest{RequestID: requestID, Resource: q.GetResource(), Resources: q.GetResources(), Owner: q.GetOwner(), Reentrant: q.GetReentrant(), Direct: q.GetDirect(), Detachable: q.GetDetachable(), Handle: q.GetHandle()}
	if q.Guard != nil {
		r.Guard = lock.WithoutGuard
		if q.GetGuard() {
			r.Guard = lock.WithGuard
		}
	}
	var err error
	if r.Mode, err = modeOf(q); err != nil {
		return r, err
	}
	if q.Once != nil {
		keep, err := durationOf("once.keep", q.GetOnce().GetKeep(), defaultKeep)
		if err != nil {
			return r, err
		}
		r.Once = &outcome.Wish{Keep: keep, MaxAttempts: int(q.GetOnce().GetMaxAttempts())}
	}
	if r.Wait, err = durationOf("wait", q.GetWait(), session.Forever); err != nil {
		return r, err
	}
	if q.MaxHold != nil && q.GetMaxHold().AsDuration() == 0 {
		return r, invalid("max_hold", "must not be 0: leave it out for no limit")
	}
	if r.MaxHold, err = durationOf("max_hold", q.GetMaxHold(), 0); err != nil {
		return r, err
	}
	if q.MinHold != nil && q.GetMinHold().AsDuration() == 0 {
		return r, invalid("min_hold", "must not be 0: leave it out for none")
	}
	r.MinHold, err = durationOf("min_hold", q.GetMinHold(), 0)
	return r, err
}

func modeOf(q *pb.AcquireRequest) (lock.Mode, error) {
	mode := q.GetMode()
	switch n := q.GetLimit(); {
	case q.Limit == nil && mode == pb.Mode_PERMIT:
		return 0, invalid("limit", "is needed for mode PERMIT")
	case q.Limit == nil:
	case mode != pb.Mode_PERMIT && mode != pb.Mode_MODE_UNSPECIFIED:
		return 0, invalid("limit", "needs mode PERMIT, or none")
	case n < 1 || n > lock.MaxPermits:
		return 0, invalid("limit", "is %d, must be 1 to %d", n, lock.MaxPermits)
	default:
		return lock.Permits(int(n)), nil
	}
	switch mode {
	case pb.Mode_MODE_UNSPECIFIED, pb.Mode_EXCLUSIVE:
		return lock.Exclusive, nil
	case pb.Mode_SHARED:
		return lock.Shared, nil
	default:
		return 0, invalid("mode", "must be EXCLUSIVE, SHARED or PERMIT, and not %d", mode)
	}
}

// limitTo is nil for what is no permit.
func limitTo(m lock.Mode) *int32 {
	if m.Limit() == 0 {
		return nil
	}
	n := countTo(m.Limit())
	return &n
}

// slotTo is nil for what is no permit, or is not held.
func slotTo(m lock.Mode, f lock.Fence) *int32 {
	if m.Limit() == 0 || f == 0 {
		return nil
	}
	slot := countTo(f.Slot())
	return &slot
}

// keptTo is nil for what is not kept.
func keptTo(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}

func openRequestOf(q *pb.OpenSessionRequest, liveness session.Liveness, c *conn) (session.OpenRequest, error) {
	ttl, err := durationOf("ttl", q.GetTtl(), 0)
	if err == nil && q.Ttl != nil && ttl == 0 {
		err = invalid("ttl", "must not be 0: leave it out for no limit")
	}
	r := session.OpenRequest{
		Liveness: liveness,
		TTL:      ttl,
		Name:     q.GetName(),
		Metadata: q.GetMetadata(),
		Peer:     c.sessionPeer(),
	}
	if liveness == session.Stream {
		r.Peer.Gone = nil // then the connection is closed, and the stream ends, which costs no goroutine
	}
	return r, err
}

func modeTo(m lock.Mode) pb.Mode {
	switch m {
	case lock.Exclusive:
		return pb.Mode_EXCLUSIVE
	case lock.Shared:
		return pb.Mode_SHARED
	default:
		if m.Limit() > 0 {
			return pb.Mode_PERMIT
		}
		return pb.Mode_MODE_UNSPECIFIED
	}
}

// grantTo has both times from one reading of the clock, now, which is taken as late
// as possible; see refresh.
//
// Model: lease.NEWS.
func grantTo(g session.Grant, now time.Duration) *pb.Grant {
	a := &pb.Grant{
		LockId:    string(g.LockID),
		Resource:  g.Resource,
		Mode:      modeTo(g.Mode),
		Fence:     int64(g.Fence),
		ValidFor:  durationpb.New(left(g.Until, now)),
		Count:     countTo(g.Count),
		CountedAt: durationpb.New(now),
		Guard:     guardTo(g.Guard),
		Slot:      slotTo(g.Mode, g.Fence),
	}
	if g.End != 0 {
		a.EndsIn = durationpb.New(left(g.End, now))
	}
	if g.Attempt != nil {
		number := countTo(g.Attempt.Number)
		a.Attempt, a.OutcomeGuard = &number, guardTo(g.Attempt.Guard)
		if p := g.Attempt.Previous; p != nil {
			a.Previous = outcomeTo(session.Outcome{Resource: g.Resource, Outcome: *p}, time.Now())
		}
	}
	for _, p := range g.Parts {
		a.Parts = append(a.Parts, &pb.Part{Resource: p.Resource, Fence: int64(p.Fence), Guard: guardTo(p.Guard), LockId: string(p.LockID)})
	}
	return a
}

// refresh counts the times of messages that were made earlier from now, which is read
// once. The moments that they stand for do not change.
func refresh(batch []*pb.SessionResponse, clock lock.Clock) {
	var now time.Duration
	for _, a := range batch {
		good, countedAt := timesOf(a)
		if good == nil {
			continue
		}
		if now == 0 {
			now = clock()
		}
		until := countedAt.AsDuration() + good.AsDuration()
		if ends := endsOf(a); ends != nil {
			set(ends, left(countedAt.AsDuration()+ends.AsDuration(), now))
		}
		set(good, left(until, now))
		set(countedAt, now)
	}
}

// timesOf gives how long a message is good, and since when; nil: it has no times.
func timesOf(a *pb.SessionResponse) (good, countedAt *durationpb.Duration) {
	switch r := a.GetResponse().(type) {
	case *pb.SessionResponse_Granted:
		return r.Granted.GetValidFor(), r.Granted.GetCountedAt()
	case *pb.SessionResponse_Downgraded:
		return r.Downgraded.GetValidFor(), r.Downgraded.GetCountedAt()
	case *pb.SessionResponse_Extended:
		return r.Extended.GetValidFor(), r.Extended.GetCountedAt()
	case *pb.SessionResponse_Detached:
		return r.Detached.GetValidFor(), r.Detached.GetCountedAt()
	case *pb.SessionResponse_Event:
		if l := r.Event.GetLease(); l != nil {
			return l.GetValidFor(), l.GetCountedAt()
		} else if l := r.Event.GetLost(); l != nil {
			return l.GetGrace(), l.GetCountedAt()
		} else if d := r.Event.GetDraining(); d != nil {
			return d.GetRemaining(), d.GetCountedAt()
		}
	}
	return nil, nil
}

// endsOf gives when a hold ends by itself; nil: it does not.
func endsOf(a *pb.SessionResponse) *durationpb.Duration {
	switch r := a.GetResponse().(type) {
	case *pb.SessionResponse_Granted:
		return r.Granted.GetEndsIn()
	case *pb.SessionResponse_Downgraded:
		return r.Downgraded.GetEndsIn()
	case *pb.SessionResponse_Extended:
		return r.Extended.GetEndsIn()
	default:
		return nil
	}
}

func set(d *durationpb.Duration, v time.Duration) {
	d.Seconds, d.Nanos = int64(v/time.Second), int32(v%time.Second)
}

// left is the time from now to a moment on the same clock.
func left(until, now time.Duration) time.Duration { return max(0, until-now) }

func guardTo(g *lock.Guard) *pb.Guard {
	if g == nil {
		return nil
	}
	return &pb.Guard{Dialect: g.Dialect, Sql: g.SQL, Args: g.Args}
}

// countTo narrows what the API has as an int32.
func countTo(n int) int32 { return int32(min(n, math.MaxInt32)) } //nolint:gosec // bounded here

func eventTo(e session.Event, now time.Duration) *pb.Event {
	switch {
	case e.Lease != nil:
		return &pb.Event{Event: &pb.Event_Lease{Lease: &pb.LeaseNews{
			ValidFor:  durationpb.New(left(e.Lease.Until, now)),
			Jeopardy:  e.Lease.Jeopardy,
			CountedAt: durationpb.New(now),
		}}}
	case e.Lost != nil:
		return &pb.Event{Event: &pb.Event_Lost{Lost: &pb.Lost{
			LockId:    string(e.Lost.LockID),
			Resource:  e.Lost.Resource,
			Fence:     int64(e.Lost.Fence),
			Reason:    lostReasonTo(e.Lost.Reason),
			Grace:     durationpb.New(left(e.Lost.GraceEnd, now)),
			Message:   e.Lost.Reason.Explain(),
			CountedAt: durationpb.New(now),
		}}}
	case e.Draining != nil:
		return &pb.Event{Event: &pb.Event_Draining{Draining: &pb.Draining{
			Remaining: durationpb.New(drainingFor(e.Draining.End)),
			CountedAt: durationpb.New(now),
		}}}
	default:
		return &pb.Event{}
	}
}

// drainingFor is 0 when the end has come or is unknown.
func drainingFor(end time.Time) time.Duration {
	if end.IsZero() {
		return 0
	}
	return max(0, time.Until(end))
}

func lostReasonTo(r session.LostReason) pb.LostReason {
	return pb.LostReason(pb.LostReason_value[r.String()]) // the same names, see TestLostReasons
}

func lockTo(s lock.Status, now time.Time) *pb.Lock {
	return &pb.Lock{
		Resource: string(s.Resource),
		Holders:  holdersTo(s.Holders, now),
		Waiters:  holdersTo(s.Waiters, now),
	}
}

func holdersTo(hs []lock.Holding, now time.Time) []*pb.Holder {
	out := make([]*pb.Holder, 0, len(hs))
	for _, h := range hs {
		out = append(out, &pb.Holder{
			LockId:     string(h.ID),
			Mode:       modeTo(h.Mode),
			Fence:      int64(h.Fence),
			Since:      timestamppb.New(now.Add(-h.Age)),
			Age:        durationpb.New(h.Age),
			Sidecar:    h.Sidecar,
			LeaseId:    string(h.Lease),
			Pid:        h.Owner.PID,
			Uid:        h.Owner.UID,
			Gid:        h.Owner.GID,
			Principal:  h.Owner.Principal,
			Session:    h.Owner.Session,
			Owner:      h.Owner.Label,
			Metadata:   h.Owner.Metadata,
			Revoked:    h.Revoked,
			Parked:     h.Parked,
			SessionRef: h.Owner.Ref,
			Limit:      limitTo(h.Mode),
			Slot:       slotTo(h.Mode, h.Fence),
			KeptFor:    keptTo(h.Kept),
			Detached:   h.Detached,
		})
	}
	return out
}

func watchEventTo(e session.WatchEvent, now time.Time) *pb.WatchEvent {
	switch e.Kind {
	case session.Current:
		return &pb.WatchEvent{Kind: pb.WatchEvent_CURRENT, Lock: lockTo(e.Status, now)}
	case session.Changed:
		return &pb.WatchEvent{Kind: pb.WatchEvent_CHANGED, Lock: lockTo(e.Status, now)}
	case session.Free:
		return &pb.WatchEvent{Kind: pb.WatchEvent_FREE, Lock: lockTo(e.Status, now)}
	case session.Synced:
		return &pb.WatchEvent{Kind: pb.WatchEvent_SYNCED}
	case session.Missing:
		return &pb.WatchEvent{Kind: pb.WatchEvent_MISSING, MissingShards: e.Lacks.Names()}
	default:
		return &pb.WatchEvent{}
	}
}

// A page token is the last name of the page before. It is encoded so that
// nobody takes it for a name to write by hand.
var tokenEncoding = base64.RawURLEncoding

func pageToken(last string) string { return tokenEncoding.EncodeToString([]byte(last)) }

func afterOf(token string) (string, error) {
	last, err := tokenEncoding.DecodeString(token)
	if err != nil {
		return "", invalid("page_token", "must be the next_page_token of an answer")
	}
	return string(last), nil
}
