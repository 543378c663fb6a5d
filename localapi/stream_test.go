package localapi

import (
	"errors"
	"io"
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
