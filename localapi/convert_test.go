package localapi

import (
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

func same(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// TestWhatALockTells: each thing that the store knows of holders and waiters is told.
func TestWhatALockTells(t *testing.T) {
	now := time.Unix(1000, 0)
	st := lock.Status{
		Resource: "r",
		Holders: []lock.Holding{{
			ID: "h", Mode: lock.Shared, Fence: 7, Age: 3 * time.Second, Lease: "l", Sidecar: "pod",
			Owner:   lock.Owner{PID: 1, UID: 2, GID: 3, Session: "s", Label: "thread-4", Metadata: map[string]string{"k": "v"}},
			Revoked: true, Parked: true,
		}},
		Waiters: []lock.Holding{{ID: "w", Mode: lock.Exclusive, Age: time.Second}},
	}
	same(t, lockTo(st, now), &pb.Lock{
		Resource: "r",
		Holders: []*pb.Holder{{
			LockId: "h", Mode: pb.Mode_SHARED, Fence: 7, Since: timestamppb.New(time.Unix(997, 0)), Age: durationpb.New(3 * time.Second),
			LeaseId: "l", Sidecar: "pod", Pid: 1, Uid: 2, Gid: 3, Session: "s", Owner: "thread-4", Metadata: map[string]string{"k": "v"},
			Revoked: true, Parked: true,
		}},
		Waiters: []*pb.Holder{{LockId: "w", Mode: pb.Mode_EXCLUSIVE, Since: timestamppb.New(time.Unix(999, 0)), Age: durationpb.New(time.Second)}},
	})
	if l := lockTo(lock.Status{}, now); l.Holders == nil || l.Waiters == nil {
		t.Error("no holders are no list")
	}
	for kind, want := range map[session.WatchKind]pb.WatchEvent_Kind{
		session.Current: pb.WatchEvent_CURRENT, session.Changed: pb.WatchEvent_CHANGED, session.Free: pb.WatchEvent_FREE,
	} {
		same(t, watchEventTo(session.WatchEvent{Kind: kind, Status: st}, now), &pb.WatchEvent{Kind: want, Lock: lockTo(st, now)})
	}
	same(t, watchEventTo(session.WatchEvent{Kind: session.Synced}, now), &pb.WatchEvent{Kind: pb.WatchEvent_SYNCED})
	same(t, watchEventTo(session.WatchEvent{}, now), &pb.WatchEvent{})
}

// TestWhatAGrantTells: times count from the moment of the answer, and none is negative.
func TestWhatAGrantTells(t *testing.T) {
	g := session.Grant{
		LockID: "id", Resource: "r", Mode: lock.Shared, Fence: 9, Until: 12 * time.Second, Count: 3,
		Guard: &lock.Guard{Dialect: "mysql", SQL: "SELECT 1", Args: []string{"a"}},
	}
	want := &pb.Grant{
		LockId: "id", Resource: "r", Mode: pb.Mode_SHARED, Fence: 9, Count: 3,
		ValidFor: durationpb.New(2 * time.Second), CountedAt: durationpb.New(10 * time.Second),
		Guard: &pb.Guard{Dialect: "mysql", Sql: "SELECT 1", Args: []string{"a"}},
	}
	same(t, grantTo(g, 10*time.Second), want)
	g.Guard, want.Guard = nil, nil
	want.ValidFor, want.CountedAt = durationpb.New(0), durationpb.New(13*time.Second)
	same(t, grantTo(g, 13*time.Second), want)
	if n := countTo(math.MaxInt32 + 1); n != math.MaxInt32 {
		t.Errorf("a count of 2^31 is %d", n)
	}
}

// TestWhatEventsTell is the same for news.
func TestWhatEventsTell(t *testing.T) {
	now := 10 * time.Second
	same(t, eventTo(session.Event{Lease: &session.LeaseNews{Until: 15 * time.Second, Jeopardy: true}}, now), &pb.Event{Event: &pb.Event_Lease{Lease: &pb.LeaseNews{
		ValidFor: durationpb.New(5 * time.Second), Jeopardy: true, CountedAt: durationpb.New(now),
	}}})
	same(t, eventTo(session.Event{Lost: &session.Lost{LockID: "id", Resource: "r", Fence: 9, Reason: session.Forced, GraceEnd: 11 * time.Second}}, now),
		&pb.Event{Event: &pb.Event_Lost{Lost: &pb.Lost{
			LockId: "id", Resource: "r", Fence: 9, Reason: pb.LostReason_FORCED, Grace: durationpb.New(time.Second),
			Message: session.Forced.Explain(), CountedAt: durationpb.New(now),
		}}})
	same(t, eventTo(session.Event{}, now), &pb.Event{})
	for name, end := range map[string]time.Time{"over": time.Now().Add(-time.Hour), "unknown": {}} {
		if d := eventTo(session.Event{Draining: &session.Draining{End: end}}, now).GetDraining(); d == nil || d.GetRemaining().AsDuration() != 0 || d.GetCountedAt().AsDuration() != now {
			t.Errorf("draining whose end is %s: %v", name, d)
		}
	}
	if d := drainingFor(time.Now().Add(time.Hour)); d < 59*time.Minute || d > time.Hour {
		t.Errorf("an hour of draining is %s", d)
	}
}

// TestWhatASessionIs: what it hangs on, and for how long.
func TestWhatASessionIs(t *testing.T) {
	gone := make(chan struct{})
	c := &conn{peer: &peercred.Peer{UID: 1, GID: 2, PID: 3, Gone: gone}}
	minute := durationpb.New(time.Minute)
	for name, x := range map[string]struct {
		q    *pb.OpenSessionRequest
		want session.Liveness
		ttl  time.Duration
		bad  string
	}{
		"nothing said":  {&pb.OpenSessionRequest{}, session.Process, 0, ""},
		"PROCESS":       {&pb.OpenSessionRequest{Liveness: pb.Liveness_PROCESS}, session.Process, 0, ""},
		"a TTL":         {&pb.OpenSessionRequest{Ttl: minute}, session.TTL, time.Minute, ""},
		"TTL":           {&pb.OpenSessionRequest{Liveness: pb.Liveness_TTL, Ttl: minute}, session.TTL, time.Minute, ""},
		"STREAM":        {&pb.OpenSessionRequest{Liveness: pb.Liveness_STREAM}, session.Stream, 0, ""},
		"STREAM, a TTL": {&pb.OpenSessionRequest{Liveness: pb.Liveness_STREAM, Ttl: minute}, session.Stream, time.Minute, ""},
		"no TTL":        {&pb.OpenSessionRequest{Ttl: durationpb.New(0)}, session.TTL, 0, "ttl must not be 0: leave it out for no limit"},
		"less":          {&pb.OpenSessionRequest{Ttl: durationpb.New(-1)}, session.TTL, 0, "ttl must not be negative"},
		"something":     {&pb.OpenSessionRequest{Liveness: 9}, 0, 0, "liveness must be PROCESS, TTL or STREAM, and not 9"},
	} {
		t.Run(name, func(t *testing.T) {
			x.q.Name, x.q.Metadata = "n", map[string]string{"k": "v"}
			l, err := livenessOf(x.q)
			var r session.OpenRequest
			if err == nil {
				r, err = openRequestOf(x.q, l, c)
			}
			if x.bad != "" {
				if err == nil || err.Error() != x.bad {
					t.Errorf("%v, want %q", err, x.bad)
				}
				return
			}
			if err != nil || l != x.want || r.Liveness != x.want || r.TTL != x.ttl || r.Name != "n" || r.Metadata["k"] != "v" {
				t.Errorf("%+v, %v", r, err)
			}
			// A stream ends with its connection; else the end of the process is watched.
			if watched := r.Peer.Gone != nil; r.Peer.UID != 1 || r.Peer.GID != 2 || r.Peer.PID != 3 || watched != (l != session.Stream) {
				t.Errorf("%+v", r.Peer)
			}
		})
	}
}

func TestWhatAPermitTells(t *testing.T) {
	st := lock.Status{
		Resource: "r",
		Holders:  []lock.Holding{{ID: "h", Mode: lock.Permits(4), Fence: lock.PermitFence(7, 0)}},
		Waiters:  []lock.Holding{{ID: "w", Mode: lock.Permits(4)}},
	}
	l := lockTo(st, time.Unix(1000, 0))
	if h := l.GetHolders()[0]; h.GetMode() != pb.Mode_PERMIT || h.GetLimit() != 4 || h.Slot == nil || h.GetSlot() != 0 {
		t.Errorf("a holder: %v", h)
	}
	if w := l.GetWaiters()[0]; w.GetMode() != pb.Mode_PERMIT || w.GetLimit() != 4 || w.Slot != nil {
		t.Errorf("a waiter: %v", w)
	}
	if g := grantTo(session.Grant{Mode: lock.Permits(4), Fence: lock.PermitFence(7, 3)}, 0); g.GetMode() != pb.Mode_PERMIT || g.GetSlot() != 3 {
		t.Errorf("a grant: %v", g)
	}
	if g := grantTo(session.Grant{Mode: lock.Exclusive, Fence: 7}, 0); g.Slot != nil {
		t.Errorf("a grant that is no permit: %v", g)
	}
}

func TestModesOfRequests(t *testing.T) {
	limit := func(n int32) *int32 { return &n }
	for _, c := range []struct {
		q     *pb.AcquireRequest
		want  lock.Mode
		field string
	}{
		{&pb.AcquireRequest{}, lock.Exclusive, ""},
		{&pb.AcquireRequest{Mode: pb.Mode_SHARED}, lock.Shared, ""},
		{&pb.AcquireRequest{Limit: limit(1)}, lock.Permits(1), ""},
		{&pb.AcquireRequest{Limit: limit(1024), Mode: pb.Mode_PERMIT}, lock.Permits(1024), ""},
		{&pb.AcquireRequest{Mode: pb.Mode_PERMIT}, 0, "limit"},
		{&pb.AcquireRequest{Limit: limit(0)}, 0, "limit"},
		{&pb.AcquireRequest{Limit: limit(-1)}, 0, "limit"},
		{&pb.AcquireRequest{Limit: limit(1025)}, 0, "limit"},
		{&pb.AcquireRequest{Limit: limit(4), Mode: pb.Mode_EXCLUSIVE}, 0, "limit"},
		{&pb.AcquireRequest{Limit: limit(4), Mode: pb.Mode_SHARED}, 0, "limit"},
		{&pb.AcquireRequest{Mode: 7}, 0, "mode"},
	} {
		r, err := acquireRequestOf("", c.q)
		var bad *lock.InvalidError
		switch {
		case c.field == "" && (err != nil || r.Mode != c.want):
			t.Errorf("%v: %s, %v", c.q, r.Mode, err)
		case c.field != "" && (!errors.As(err, &bad) || bad.Field != c.field):
			t.Errorf("%v: %v, want %s to be refused", c.q, err, c.field)
		}
	}
}
