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

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

func tryOnce(resource string) *pb.AcquireRequest {
	return &pb.AcquireRequest{Resource: resource, Wait: durationpb.New(0)}
}

func TestSessionStream(t *testing.T) { overEachWire(t, testSessionStream) }

func testSessionStream(t *testing.T, w wireName) {
	s := start(t)
	c := s.streams(t, w)
	a, b := s.stream(t, c, &pb.OpenSessionRequest{Name: "a"}), s.stream(t, c, &pb.OpenSessionRequest{Name: "b"})

	a.acquire("1", &pb.AcquireRequest{Resource: "r"})
	g := a.answer("1").GetGranted()
	if g.GetLockId() == "" || g.GetFence() == 0 || g.GetCount() != 1 || g.GetValidFor().AsDuration() <= 0 || g.GetCountedAt().AsDuration() <= 0 {
		t.Fatalf("granted %v", g)
	}
	b.acquire("try", tryOnce("r"))
	info := infoOf(t, b.answer("try").GetError())
	if info.GetReason() != string(reasonHeld) || info.GetMetadata()["holder_session"] != "a" || info.GetMetadata()["holder_sidecar"] != "test-sidecar" {
		t.Errorf("try: %v", info)
	}
	b.acquire("wait", &pb.AcquireRequest{Resource: "r", Reentrant: true})
	eventually(t, "waiting", func() bool {
		st, err := s.manager.Everybody().Get(t.Context(), "r")
		return err == nil && len(st.Waiters) == 1
	})
	b.acquire("wait", &pb.AcquireRequest{Resource: "r"})
	if r := infoOf(t, b.answer("wait").GetError()).GetReason(); r != string(reasonInvalid) {
		t.Errorf("second request with the same id: %s", r)
	}
	if n := a.release("2", g.GetLockId()).GetReleased().GetCount(); n != 0 {
		t.Errorf("count after release: %d", n)
	}
	g2 := b.answer("wait").GetGranted()
	if g2.GetFence() <= g.GetFence() {
		t.Errorf("broken law: fence %d after %d", g2.GetFence(), g.GetFence())
	}
	if r := infoOf(t, a.release("3", g.GetLockId()).GetError()).GetReason(); r != string(reasonNotHolder) {
		t.Errorf("second release: %s", r)
	}
	b.send(&pb.SessionRequest{RequestId: "d", Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{LockId: g2.GetLockId()}}})
	if m := b.answer("d").GetDowngraded().GetMode(); m != pb.Mode_SHARED {
		t.Errorf("mode after downgrade: %s", m)
	}
	b.acquire("up", &pb.AcquireRequest{Resource: "r", Wait: durationpb.New(0), Reentrant: true})
	if r := infoOf(t, b.answer("up").GetError()).GetReason(); r != string(reasonUpgrade) {
		t.Errorf("upgrade: %s", r)
	}
}

func TestSessionStreamCancel(t *testing.T) { overEachWire(t, testSessionStreamCancel) }

func testSessionStreamCancel(t *testing.T, w wireName) {
	s := start(t)
	c := s.streams(t, w)
	a, b := s.stream(t, c, &pb.OpenSessionRequest{}), s.stream(t, c, &pb.OpenSessionRequest{})
	a.acquire("1", &pb.AcquireRequest{Resource: "r"})
	a.answer("1")
	b.acquire("w", &pb.AcquireRequest{Resource: "r"})
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	b.send(&pb.SessionRequest{RequestId: "c", Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "w"}}})
	seen := map[string]*pb.SessionResponse{}
	for len(seen) < 2 {
		r, err := b.Recv()
		if err != nil {
			t.Fatal(err)
		}
		seen[r.GetRequestId()] = r
	}
	if seen["c"].GetCancelled() == nil || infoOf(t, seen["w"].GetError()).GetReason() != string(reasonCancelled) {
		t.Errorf("got %v", seen)
	}
	b.acquire("x", &pb.AcquireRequest{Resource: "r", Wait: durationpb.New(1e6)})
	info := infoOf(t, b.answer("x").GetError())
	if info.GetReason() != string(reasonTimeout) || info.GetMetadata()["position"] != "1" {
		t.Errorf("timeout: %v", info)
	}
}

func TestSessionStreamEndReleases(t *testing.T) { overEachWire(t, testSessionStreamEndReleases) }

func testSessionStreamEndReleases(t *testing.T, w wireName) {
	for name, end := range map[string]func(*stream){
		"cancel":     func(x *stream) { x.cancel() },
		"close send": func(x *stream) { _ = x.CloseSend() },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			c := s.streams(t, w)
			a, b := s.stream(t, c, &pb.OpenSessionRequest{}), s.stream(t, c, &pb.OpenSessionRequest{})
			a.acquire("1", &pb.AcquireRequest{Resource: "r"})
			a.answer("1")
			b.acquire("2", &pb.AcquireRequest{Resource: "r"})
			end(a)
			if b.answer("2").GetGranted() == nil {
				t.Error("not granted")
			}
		})
	}
}

// A client that ends its stream in good order is told that it ended well.
func TestSessionStreamEndsWell(t *testing.T) { overEachWire(t, testSessionStreamEndsWell) }

func testSessionStreamEndsWell(t *testing.T, w wireName) {
	s := start(t)
	x := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
	x.acquire("1", &pb.AcquireRequest{Resource: "r"})
	x.answer("1")
	if err := x.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := x.Recv(); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("the stream ended with %v, want OK", err)
			}
			return
		}
	}
}

func TestSessionStreamRefusals(t *testing.T) { overEachWire(t, testSessionStreamRefusals) }

func testSessionStreamRefusals(t *testing.T, w wireName) {
	s := start(t)
	c := s.streams(t, w)
	ask := func(c pb.LockSidecarClient, q *pb.SessionRequest) error {
		t.Helper()
		st, err := c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if q != nil {
			if err := st.Send(q); err != nil {
				t.Fatal(err)
			}
		} else if l, ok := st.(*lineStream); ok { // by which the protocol is known
			_, _ = l.Write([]byte("{"))
		}
		_, err = st.Recv()
		return err
	}
	first := func(q *pb.SessionRequest) reason {
		t.Helper()
		return reasonOf(t, ask(c, q))
	}
	hasty := start(t, func(_ *session.Options, o *Options) { o.Limits.Handshake = 50 * time.Millisecond }).streams(t, w)
	eventually(t, "told that open must come", func() bool { // one that is too late with its first byte is just cut off
		err := ask(hasty, nil)
		return strings.Contains(err.Error(), "open must come within 50ms") && reasonOf(t, err) == reasonInvalid
	})
	if r := first(&pb.SessionRequest{RequestId: "x", Request: &pb.SessionRequest_KeepAlive{}}); r != reasonInvalid {
		t.Errorf("first message is not open: %s", r)
	}
	if r := first(&pb.SessionRequest{RequestId: "x", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{Name: strings.Repeat("n", 129)}}}); r != reasonInvalid {
		t.Errorf("long name: %s", r)
	}
	// What is too large gRPC refuses by itself, without our ErrorInfo, and lines with.
	st, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = st.Send(&pb.SessionRequest{RequestId: "x", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{Name: strings.Repeat("n", 100<<10)}}})
	if _, err := st.Recv(); status.Code(err) != codes.ResourceExhausted || w == overLines && reasonOf(t, err) != reasonLimit {
		t.Errorf("too large: %v", err)
	}

	x := s.stream(t, c, &pb.OpenSessionRequest{})
	for name, q := range map[string]*pb.SessionRequest{
		"open twice":   {RequestId: "i", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{}}},
		"nothing":      {RequestId: "i"},
		"no resource":  {RequestId: "i", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{}}},
		"bad mode":     {RequestId: "i", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", Mode: 9}}},
		"neg. wait":    {RequestId: "i", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", Wait: durationpb.New(-1)}}},
		"absurd wait":  {RequestId: "i", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", Wait: durationpb.New(25 * time.Hour)}}},
		"zero maxhold": {RequestId: "i", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", MaxHold: durationpb.New(0)}}},
		"control char": {RequestId: "i", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "a\x00"}}},
		"no lock id":   {RequestId: "i", Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{}}},
	} {
		x.send(q)
		if r := infoOf(t, x.answer("i").GetError()).GetReason(); r != string(reasonInvalid) {
			t.Errorf("%s: %s", name, r)
		}
	}
	if w == overLines {
		return // TestLineRefusals has it
	}
	x.send(&pb.SessionRequest{Request: &pb.SessionRequest_KeepAlive{}})
	if r := infoOf(t, x.answer("").GetError()).GetReason(); r != string(reasonInvalid) {
		t.Errorf("no request id: %s", r)
	}
}

func TestSessionStreamTellsLosses(t *testing.T) { overEachWire(t, testSessionStreamTellsLosses) }

func testSessionStreamTellsLosses(t *testing.T, w wireName) {
	s := start(t)
	c := s.streams(t, w)
	x := s.stream(t, c, &pb.OpenSessionRequest{})
	x.acquire("1", &pb.AcquireRequest{Resource: "r", MaxHold: durationpb.New(100 * time.Millisecond)})
	g := x.answer("1").GetGranted()
	if d := g.GetValidFor().AsDuration(); d > 100*time.Millisecond {
		t.Errorf("valid for %s", d)
	}
	l := x.lost()
	if l.GetLockId() != g.GetLockId() || l.GetReason() != pb.LostReason_MAX_HOLD || l.GetGrace().AsDuration() <= 0 {
		t.Errorf("lost %v", l)
	}
	x.acquire("2", &pb.AcquireRequest{Resource: "f"})
	g = x.answer("2").GetGranted()
	r, err := c.ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: "f", Grace: durationpb.New(0)})
	if err != nil || len(r.GetLockIds()) != 1 || r.GetLockIds()[0] != g.GetLockId() {
		t.Fatalf("force release: %v %v", r, err)
	}
	if l := x.lost(); l.GetReason() != pb.LostReason_FORCED || l.GetMessage() == "" {
		t.Errorf("lost %v", l)
	}
	if info := infoOf(t, x.release("3", g.GetLockId()).GetError()); info.GetReason() != string(reasonLost) || info.GetMetadata()["lost_reason"] != "FORCED" {
		t.Errorf("release of a lost lock: %v", info)
	}
}

func TestSessionStreamKeepAlive(t *testing.T) { overEachWire(t, testSessionStreamKeepAlive) }

func testSessionStreamKeepAlive(t *testing.T, w wireName) {
	s := start(t)
	c := s.streams(t, w)
	x := s.stream(t, c, &pb.OpenSessionRequest{Ttl: durationpb.New(3 * time.Second)}) // long for a machine that is busy
	x.send(&pb.SessionRequest{RequestId: "k", Request: &pb.SessionRequest_KeepAlive{}})
	if d := x.answer("k").GetKeptAlive().GetValidFor().AsDuration(); d <= 0 || d > 3*time.Second {
		t.Errorf("kept alive for %s", d)
	}
	x.acquire("1", &pb.AcquireRequest{Resource: "r"})
	x.answer("1")
	if l := x.lost(); l.GetReason() != pb.LostReason_SESSION_EXPIRED {
		t.Errorf("lost %v", l)
	}
	for { // after the grace the stream ends
		if _, err := x.Recv(); err != nil {
			if r := reasonOf(t, err); r != reasonNoSession {
				t.Errorf("stream ended with %s", r)
			}
			break
		}
	}
}

// A client that does not read stands still itself, and nobody else does.
func TestSlowReader(t *testing.T) { overEachWire(t, testSlowReader) }

func testSlowReader(t *testing.T, w wireName) {
	s := start(t, func(_ *session.Options, o *Options) { o.Limits.InFlight = 16 })
	slow := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
	slow.acquire("l", &pb.AcquireRequest{Resource: "held by the slow one"})
	lockID := slow.answer("l").GetGranted().GetLockId()
	sent := make(chan int, 1)
	go func() {
		n := 0
		for ; n < 1_000_000; n++ {
			if slow.Send(&pb.SessionRequest{RequestId: strings.Repeat("k", 128), Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: "none"}}}) != nil {
				break
			}
		}
		sent <- n
	}()
	other := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
	for range 20 {
		other.acquire("1", tryOnce("r"))
		other.release("2", other.answer("1").GetGranted().GetLockId())
	}
	other.acquire("w", &pb.AcquireRequest{Resource: "held by the slow one"})
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	r, err := s.streams(t, w).ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: "held by the slow one", Grace: durationpb.New(0)})
	if err != nil || r.GetLockIds()[0] != lockID {
		t.Fatalf("%v %v", r, err)
	}
	if other.answer("w").GetGranted() == nil {
		t.Error("not granted")
	}
	slow.cancel()
	if n := within(t, sent); n == 1_000_000 {
		t.Error("everything was taken from a client that reads nothing")
	}
}

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
