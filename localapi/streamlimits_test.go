package localapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// TestLongCallsOfAConnection: those over gRPC that may last for ever are bounded, the
// others go on, and one that has ended makes room.
func TestLongCallsOfAConnection(t *testing.T) {
	s := start(t)
	cc := s.dialGRPC(t)
	c := healthpb.NewHealthClient(cc)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, end := context.WithCancel(ctx)
	defer end()
	watch := func(ctx context.Context) error {
		w, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = w.Recv()
		}
		return err
	}
	if err := watch(first); err != nil {
		t.Fatal(err)
	}
	for range maxLongCalls - 1 {
		if err := watch(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := watch(ctx); reasonOf(t, err) != reasonLimit || !strings.Contains(err.Error(), fmt.Sprintf("at most %d streams of one connection", maxLongCalls)) {
			t.Errorf("one too many: %v", err)
		}
	}
	if _, err := pb.NewLockSidecarClient(cc).GetInfo(ctx, &pb.GetInfoRequest{}); err != nil {
		t.Errorf("another call: %v", err)
	}
	end()
	eventually(t, "served again", func() bool { return watch(ctx) == nil })
	if err := watch(ctx); reasonOf(t, err) != reasonLimit {
		t.Errorf("one too many again: %v", err)
	}
}

// TestStallsOfAConnection: some of its streams may end because the client does not read.
// One more, and the connection ends.
func TestStallsOfAConnection(t *testing.T) {
	var out logLines
	s := New(Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &out})})
	c := accepted(t, s)
	ctx := withConn(t.Context(), c)
	for range maxStalls {
		s.stalled(ctx)
	}
	if s.places.count() != 1 {
		t.Error("it is closed too soon")
	}
	s.stalled(ctx)
	if s.places.count() != 0 {
		t.Error("it is not closed")
	}
	s.stalled(t.Context()) // of no connection
	s.running.Wait()
	if n := strings.Count(out.String(), "[WARN]  stream ended: its client reads nothing though answers are due: pid="); n != maxStalls+1 {
		t.Errorf("%d lines: %s", n, out.String())
	}
}

// standing is a stream whose client has n answers to read, and reads none.
func standing(t *testing.T, s *Server, n int) *sessionStream {
	t.Helper()
	stream := (&service{Server: s}).newStream(t.Context(), wire{
		recv: func() (*pb.SessionRequest, error) { return nil, io.EOF },
		send: func([]*pb.SessionResponse, bool) error { <-t.Context().Done(); return io.EOF },
		most: 1,
	})
	for i := range n {
		stream.out.put(letter{a: numbered(i)})
	}
	return stream
}

// TestHowLongAStreamMayStandStill: as long as its client has few answers to read, its next
// request is taken. Then it has time, and less where many stand still.
func TestHowLongAStreamMayStandStill(t *testing.T) {
	for name, x := range map[string]struct {
		unsent, others int
		stall, want    time.Duration
		err            error
	}{
		"few":         {maxUnsent - 1, 0, time.Minute, 0, io.EOF},
		"many":        {maxUnsent, 0, time.Minute, time.Minute, errStalled},
		"with others": {maxUnsent, maxStanding - 1, time.Minute, time.Minute, errStalled},
		"with more":   {maxUnsent, maxStanding, time.Minute, shortStall, errStalled},
		"shorter":     {maxUnsent, maxStanding, time.Second, time.Second, errStalled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(Options{Limits: Limits{Stall: x.stall}})
				stream := standing(t, s, x.unsent)
				s.standing.Store(int32(x.others))
				began := time.Now()
				_, err := stream.next()
				if took := time.Since(began); !errors.Is(err, x.err) || took != x.want {
					t.Errorf("%v after %s, want %v after %s", err, took, x.err, x.want)
				}
				if n := s.standing.Load(); n != int32(x.others) {
					t.Errorf("%d stand still afterwards, %d before", n, x.others)
				}
			})
		})
	}
}

// TestRequestsInFlight: what may wait for long is refused above the limit, what ends by
// itself is carried out before the next request is taken; when something was answered,
// there is room again.
func TestRequestsInFlight(t *testing.T) { overEachWire(t, testRequestsInFlight) }

func testRequestsInFlight(t *testing.T, w wireName) {
	s := start(t, noNews, func(_ *session.Options, o *Options) { o.Limits.InFlight = 2 })
	c := s.streams(t, w)
	holder := s.stream(t, c, &pb.OpenSessionRequest{})
	holder.acquire("1", &pb.AcquireRequest{Resource: "held"})
	holder.answer("1")
	x := s.stream(t, c, &pb.OpenSessionRequest{})
	x.acquire("mine", &pb.AcquireRequest{Resource: "mine"})
	mine := x.answer("mine").GetGranted().GetLockId()
	x.acquire("w1", &pb.AcquireRequest{Resource: "held"})
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	w2 := ""
	eventually(t, "taken", func() bool { // an answer comes a moment before its request counts no more
		w2 += "2"
		x.acquire(w2, &pb.AcquireRequest{Resource: "held"})
		x.send(&pb.SessionRequest{RequestId: "k", Request: &pb.SessionRequest_KeepAlive{}})
		for taken := true; ; {
			a, err := x.Recv()
			if err != nil {
				t.Fatal(err)
			}
			switch a.GetRequestId() {
			case w2:
				taken = false
			case "k":
				return taken
			}
		}
	})
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 2 })
	x.acquire("w3", tryOnce("other"))
	if info := infoOf(t, x.answer("w3").GetError()); info.GetReason() != string(reasonLimit) || info.GetMetadata()["limit"] != "requests in flight" || info.GetMetadata()["max"] != "2" {
		t.Errorf("one too many: %v", info)
	}
	x.send(&pb.SessionRequest{RequestId: "d", Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{LockId: mine}}})
	if a := x.answer("d"); a.GetDowngraded().GetMode() != pb.Mode_SHARED {
		t.Errorf("downgrade: %v", a)
	}
	if a := x.release("r", mine); a.GetReleased() == nil {
		t.Errorf("release: %v", a)
	}
	for _, id := range []string{"w1", w2} {
		x.send(&pb.SessionRequest{RequestId: "c", Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: id}}})
		seen := map[string]bool{}
		for len(seen) < 2 {
			a, err := x.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if a.GetEvent() == nil {
				seen[a.GetRequestId()] = true
			}
		}
		if !seen["c"] || !seen[id] {
			t.Errorf("%v", seen)
		}
	}
	x.send(&pb.SessionRequest{RequestId: "c", Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "w1"}}})
	if x.answer("c").GetCancelled() == nil {
		t.Error("to cancel what is over is a mistake")
	}
	eventually(t, "granted with room again, and an id that is free again", func() bool {
		x.acquire("w1", tryOnce("again"))
		return x.answer("w1").GetGranted() != nil
	})
}

// TestInFlightIsExact: the limit is the last that is taken.
func TestInFlightIsExact(t *testing.T) {
	s := New(Options{Limits: Limits{InFlight: 2}})
	x := (&service{Server: s}).newStream(t.Context(), wire{most: 1, send: func([]*pb.SessionResponse, bool) error { return nil }})
	for n := range 3 {
		if x.depart() != (n < 2) {
			t.Errorf("with %d in flight the next one is wrong", n)
		}
	}
	x.land(&pb.SessionResponse{})
	if !x.depart() {
		t.Error("none may follow the one that has ended")
	}
	x.land(&pb.SessionResponse{})
	x.end()
	select {
	case <-x.settled:
		t.Error("it is over while one is in flight")
	default:
	}
	x.land(&pb.SessionResponse{})
	<-x.settled
	x.end() // does nothing
	if x.depart() {
		t.Error("one begins after the end")
	}
	if _, err := x.acquire(t.Context(), "1", tryOnce("r")); !errors.Is(err, session.ErrSessionClosed) {
		t.Errorf("an acquire after the end: %v", err)
	}
}

// TestAnsweredIsNotInFlight: who has read an answer may send the next request at once.
func TestAnsweredIsNotInFlight(t *testing.T) {
	s := New(Options{Limits: Limits{InFlight: 1}})
	var x *sessionStream
	room := make(chan bool, 1)
	x = (&service{Server: s}).newStream(t.Context(), wire{most: 1, send: func([]*pb.SessionResponse, bool) error {
		room <- x.depart()
		return nil
	}})
	x.depart()
	x.land(&pb.SessionResponse{})
	if !<-room {
		t.Error("what is answered is still in flight")
	}
}

// TestOpenThatNobodyHears: the session of a client that is gone before it was told of it
// ends.
func TestOpenThatNobodyHears(t *testing.T) {
	s := start(t)
	ctx := withConn(t.Context(), accepted(t, s.server))
	x := (&service{Server: s.server}).newStream(ctx, wire{
		recv: func() (*pb.SessionRequest, error) {
			return &pb.SessionRequest{RequestId: "o", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{}}}, nil
		},
		send: func([]*pb.SessionResponse, bool) error { return errGone },
		most: 1,
	})
	if err := x.serve(); !errors.Is(err, errGone) {
		t.Errorf("%v", err)
	}
	eventually(t, "ended", func() bool { return s.manager.Info().Sessions == 0 })
}

// TestFirstMessages: what a stream over gRPC must begin with.
func TestFirstMessages(t *testing.T) {
	s := start(t)
	c := s.api(t)
	for text, q := range map[string]*pb.SessionRequest{
		"open must be the first message of a stream":         {RequestId: "1", Request: &pb.SessionRequest_KeepAlive{}},
		"liveness must be STREAM on a stream, and not TTL":   {RequestId: "1", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{Liveness: pb.Liveness_TTL}}},
		"ttl must not be 0: leave it out for no limit":       {RequestId: "1", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{Ttl: durationpb.New(0)}}},
		"name is 129 bytes long, at most 128 are allowed":    {RequestId: "1", Request: &pb.SessionRequest_Open{Open: &pb.OpenSessionRequest{Name: strings.Repeat("n", 129)}}},
		"open must be the first message of a stream, not ..": {},
	} {
		st, err := c.Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := st.Send(q); err != nil {
			t.Fatal(err)
		}
		if _, err = st.Recv(); reasonOf(t, err) != reasonInvalid || !strings.Contains(err.Error(), strings.TrimSuffix(text, ", not ..")) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	st, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := st.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("a stream that asks for nothing ends with %v", err)
	}
	x := s.stream(t, c, &pb.OpenSessionRequest{Liveness: pb.Liveness_STREAM})
	long := strings.Repeat("x", maxRequestID)
	x.acquire(long, tryOnce("r"))
	if a := x.answer(long); a.GetGranted() == nil {
		t.Errorf("the longest id: %v", a)
	}
	for text, q := range map[string]*pb.SessionRequest{
		"request_id must be 1 to 128 bytes long": {RequestId: long + "x", Request: &pb.SessionRequest_KeepAlive{}},
		"request needs a connection of its own":  {RequestId: "1", Request: &pb.SessionRequest_GetInfo{}},
		"request is missing, or not known":       {RequestId: "1"},
		"open must come only once":               {RequestId: "1", Request: &pb.SessionRequest_Open{}},
		"acquire must not have session_id":       {RequestId: "1", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", SessionId: "x"}}},
		"acquire must not have session_id,":      {RequestId: "1", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", RequestId: "x"}}},
		"acquire must not have session_id, ":     {RequestId: "1", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", Name: "x"}}},
		"must not have session_id, request_id":   {RequestId: "1", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", Metadata: map[string]string{"k": "v"}}}},
		"lock_id must not be empty":              {RequestId: "1", Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{}}},
	} {
		x.send(q)
		a := x.answer(q.GetRequestId())
		if infoOf(t, a.GetError()).GetReason() != string(reasonInvalid) || !strings.Contains(a.GetError().GetMessage(), text) {
			t.Errorf("%v, want %q", a, text)
		}
	}
}

// TestEdgesOfErrors: an error gets the form of the API once, and tells a stop of the sidecar
// from a client that gives up.
func TestEdgesOfErrors(t *testing.T) {
	s := New(Options{})
	has := s.edge(t.Context(), "m", session.ErrDraining)
	if again := s.edge(t.Context(), "m", has); again != has { //nolint:errorlint // the same
		t.Errorf("an error of the API becomes %v", again)
	}
	if s.edge(t.Context(), "m", nil) != nil {
		t.Error("no error becomes one")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(session.ErrDraining)
	if err := s.edge(ctx, "m", ctx.Err()); reasonOf(t, err) != reasonDraining {
		t.Errorf("a call that the stop has ended: %v", err)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(nil)
	if err := s.edge(ctx, "m", ctx.Err()); reasonOf(t, err) != reasonCancelled {
		t.Errorf("a call that was cancelled: %v", err)
	}
}
