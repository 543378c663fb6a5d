package localapi

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

func TestUnary(t *testing.T) {
	s := start(t)
	c := s.api(t)
	ctx := t.Context()
	o, err := c.OpenSession(ctx, &pb.OpenSessionRequest{Liveness: pb.Liveness_PROCESS, Name: "u", Metadata: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Acquire(ctx, &pb.AcquireRequest{SessionId: o.GetSessionId(), Resource: "a/b", RequestId: "once"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Acquire(ctx, &pb.AcquireRequest{SessionId: o.GetSessionId(), Resource: "a/b", RequestId: "once"})
	if err != nil || again.GetLockId() != g.GetLockId() || again.GetCount() != 1 {
		t.Errorf("retry: %v %v", again, err)
	}
	l, err := c.GetLock(ctx, &pb.GetLockRequest{Resource: "a/b"})
	if err != nil || len(l.GetHolders()) != 1 {
		t.Fatalf("%v %v", l, err)
	}
	if h := l.GetHolders()[0]; int(h.GetPid()) != os.Getpid() || int(h.GetUid()) != os.Getuid() || h.GetSession() != "u" || h.GetMetadata()["k"] != "v" || h.GetLockId() != g.GetLockId() {
		t.Errorf("holder %v", h)
	}
	d, err := c.Downgrade(ctx, &pb.DowngradeRequest{SessionId: o.GetSessionId(), LockId: g.GetLockId()})
	if err != nil || d.GetMode() != pb.Mode_SHARED {
		t.Errorf("downgrade: %v %v", d, err)
	}
	if r, err := c.Release(ctx, &pb.ReleaseRequest{SessionId: o.GetSessionId(), LockId: g.GetLockId()}); err != nil || r.GetCount() != 0 {
		t.Errorf("release: %v %v", r, err)
	}
	if _, err := c.CloseSession(ctx, &pb.CloseSessionRequest{SessionId: o.GetSessionId()}); err != nil {
		t.Error(err)
	}
	_, err = c.Release(ctx, &pb.ReleaseRequest{SessionId: o.GetSessionId(), LockId: g.GetLockId()})
	if r := reasonOf(t, err); r != reasonNoSession {
		t.Errorf("after close: %s", r)
	}
	_, err = c.OpenSession(ctx, &pb.OpenSessionRequest{Liveness: pb.Liveness_STREAM})
	if r := reasonOf(t, err); r != reasonInvalid {
		t.Errorf("STREAM by a unary call: %s", r)
	}
	ttl, err := c.OpenSession(ctx, &pb.OpenSessionRequest{Ttl: durationpb.New(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	if k, err := c.KeepAlive(ctx, &pb.KeepAliveRequest{SessionId: ttl.GetSessionId()}); err != nil || k.GetValidFor().AsDuration().Round(time.Minute) != time.Minute {
		t.Errorf("keep alive: %v %v", k, err)
	}
	i, err := c.GetInfo(ctx, &pb.GetInfoRequest{})
	if err != nil || !i.GetReady() || i.GetVersion() != "v0-test" || i.GetStore() != "embedded:" || i.GetSessions() != 1 {
		t.Errorf("info: %v %v", i, err)
	}
}

// An acquire whose caller gives up leaves nothing behind. If the grant was on
// its way already, a retry with the same request id finds it.
func TestUnaryAcquireCancelled(t *testing.T) {
	s := start(t)
	c := s.api(t)
	o, err := c.OpenSession(t.Context(), &pb.OpenSessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	x := s.stream(t, c, &pb.OpenSessionRequest{})
	for i := range 50 {
		x.acquire("1", &pb.AcquireRequest{Resource: "r"})
		g := x.answer("1").GetGranted()
		q := &pb.AcquireRequest{SessionId: o.GetSessionId(), Resource: "r", RequestId: strconv.Itoa(i)}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.Acquire(ctx, q)
			done <- err
		}()
		eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
		go cancel()
		x.release("2", g.GetLockId())
		_ = within(t, done)
		g, err := c.Acquire(t.Context(), q)
		if err != nil || g.GetCount() != 1 {
			t.Fatalf("retry: %v %v", g, err)
		}
		if _, err := c.Release(t.Context(), &pb.ReleaseRequest{SessionId: o.GetSessionId(), LockId: g.GetLockId()}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "free", func() bool { return s.manager.Info().Holds == 0 })
	}
}

func TestListAndWatch(t *testing.T) {
	s := start(t)
	c := s.api(t)
	x := s.stream(t, c, &pb.OpenSessionRequest{})
	for _, r := range []string{"a/1", "a/2", "a/3", "b/1"} {
		x.acquire(r, &pb.AcquireRequest{Resource: r})
		x.answer(r)
	}
	var names []string
	q := &pb.ListLocksRequest{Prefix: "a/", PageSize: 2}
	for {
		p, err := c.ListLocks(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range p.GetLocks() {
			names = append(names, l.GetResource())
		}
		if q.PageToken = p.GetNextPageToken(); q.PageToken == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "a/1 a/2 a/3" {
		t.Errorf("listed %s", got)
	}
	for _, q := range []*pb.ListLocksRequest{{PageSize: -1}, {PageSize: 1001}, {PageToken: "!"}} {
		if _, err := c.ListLocks(t.Context(), q); reasonOf(t, err) != reasonInvalid {
			t.Errorf("%v: %v", q, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w, err := c.WatchLocks(ctx, &pb.WatchLocksRequest{Prefix: "b/", Interval: durationpb.New(100 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(k pb.WatchEvent_Kind, resource string) {
		t.Helper()
		e, err := w.Recv()
		if err != nil || e.GetKind() != k || e.GetLock().GetResource() != resource {
			t.Fatalf("got %v %v, want %s %s", e, err, k, resource)
		}
	}
	expect(pb.WatchEvent_CURRENT, "b/1")
	expect(pb.WatchEvent_SYNCED, "")
	x.acquire("n", &pb.AcquireRequest{Resource: "b/2"})
	g := x.answer("n").GetGranted()
	expect(pb.WatchEvent_CHANGED, "b/2")
	x.release("r", g.GetLockId())
	expect(pb.WatchEvent_FREE, "b/2")
}

// TestHold: one call of gRPC is one lock, from its first message to its end.
func TestHold(t *testing.T) {
	s := start(t)
	c := s.api(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hold := func(ctx context.Context, q *pb.AcquireRequest) (*pb.Event, error) {
		st, err := c.Hold(ctx, q)
		if err != nil {
			return nil, err
		}
		return st.Recv()
	}
	first, err := hold(ctx, &pb.AcquireRequest{Resource: "r", Name: "first"})
	if err != nil || first.GetGranted().GetFence() == 0 || first.GetGranted().GetResource() != "r" {
		t.Fatalf("%v, %v", first, err)
	}
	if _, err := hold(t.Context(), tryOnce("r")); reasonOf(t, err) != reasonHeld {
		t.Errorf("beside it: %v", err)
	}
	if _, err := hold(t.Context(), &pb.AcquireRequest{Resource: "r", SessionId: "x"}); reasonOf(t, err) != reasonInvalid {
		t.Errorf("in a session of the caller's: %v", err)
	}
	second := make(chan *pb.Event, 1)
	go func() {
		e, err := hold(t.Context(), &pb.AcquireRequest{Resource: "r"})
		if err != nil {
			t.Error(err)
		}
		second <- e
	}()
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	cancel()
	if g := within(t, second).GetGranted(); g.GetFence() <= first.GetGranted().GetFence() {
		t.Errorf("the next one: %v", g)
	}
}

// TestHoldOfSeveralOfWhichOneIsForced: the call goes on while others are kept out of the rest, though the one that was
// forced at once has no grace.
func TestHoldOfSeveralOfWhichOneIsForced(t *testing.T) {
	const grace = 1500 * time.Millisecond
	s := start(t, func(o *session.Options, _ *Options) { o.LostGrace = grace })
	c := s.api(t)
	st, err := c.Hold(t.Context(), &pb.AcquireRequest{Resources: []string{"a", "b"}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := st.Recv()
	if err != nil {
		t.Fatal(err)
	}
	parts := e.GetGranted().GetParts()
	if len(parts) != 2 {
		t.Fatalf("granted %v", e)
	}
	began := time.Now()
	if _, err := c.ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: "a", LockId: parts[0].GetLockId(), Grace: durationpb.New(0)}); err != nil {
		t.Fatal(err)
	}
	for e.GetLost() == nil {
		if e, err = st.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if l := e.GetLost(); l.GetResource() != "a" || l.GetGrace().AsDuration() != 0 {
		t.Errorf("lost %v", l)
	}
	for err == nil {
		_, err = st.Recv()
	}
	if took := time.Since(began); !errors.Is(err, io.EOF) || took < grace {
		t.Errorf("the call ended after %v, with %v", took, err)
	}
	eventually(t, "the rest is free", func() bool { return s.manager.Info().Holds == 0 })
}
