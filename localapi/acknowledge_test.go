package localapi

import (
	"net/http"
	"strings"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// TestEveryReaderOfEventsGetsTheLosses: the stream's own reader, one beside it
// that goes away, and one that comes later, until the app acknowledges.
func TestEveryReaderOfEventsGetsTheLosses(t *testing.T) {
	s := start(t)
	c := s.http(t)
	a := post(t, c, t.Context(), "/v1/sessions", `{"liveness":"STREAM"}`)
	own := lines(t, a.Body)
	id := within(t, own)["opened"]["sessionId"].(string)
	code, body := call(t, c, "POST", "/v1/sessions/"+id+"/locks", `{"resource":"r"}`)
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	lockID := field(t, body, "lockId")
	if code, body = call(t, c, "DELETE", "/v1/locks/r?grace=0s", ""); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	lost := func(l <-chan map[string]map[string]any) {
		t.Helper()
		for {
			if m := within(t, l); m["lost"] != nil {
				if m["lost"]["lockId"] != lockID {
					t.Errorf("lost %v", m)
				}
				return
			}
		}
	}
	lost(own)
	for range 2 {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/v1/sessions/"+id+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		lost(lines(t, r.Body))
		_ = r.Body.Close()
	}
	for range 2 {
		code, body = call(t, c, "DELETE", "/v1/sessions/"+id+"/locks/"+lockID, "")
		if code != http.StatusGone || infoOf(t, jsonStatus(t, body)).GetReason() != string(reasonLost) {
			t.Errorf("release: %d %s", code, body)
		}
	}
}

// TestReleaseWithARequestID takes off one count however often it is sent, in all
// protocols.
func TestReleaseWithARequestID(t *testing.T) {
	s := start(t)
	c := s.api(t)
	x := s.stream(t, c, &pb.OpenSessionRequest{})
	var lockID string
	for _, id := range []string{"1", "2", "3", "4"} {
		x.acquire(id, &pb.AcquireRequest{Resource: "r", Reentrant: true})
		lockID = x.answer(id).GetGranted().GetLockId()
	}
	for range 2 {
		q := &pb.ReleaseRequest{LockId: lockID, RequestId: "a"}
		x.send(&pb.SessionRequest{RequestId: "5", Request: &pb.SessionRequest_Release{Release: q}})
		if n := x.answer("5").GetReleased().GetCount(); n != 3 {
			t.Errorf("stream: count %d", n)
		}
		r, err := c.Release(t.Context(), &pb.ReleaseRequest{SessionId: x.id, LockId: lockID, RequestId: "b"})
		if err != nil || r.GetCount() != 2 {
			t.Errorf("gRPC: %v, %v", r, err)
		}
		code, body := call(t, s.http(t), "DELETE", "/v1/sessions/"+x.id+"/locks/"+lockID+"?requestId=c", "")
		if code != http.StatusOK || compact(body) != `{"count":1}` {
			t.Errorf("HTTP: %d %s", code, body)
		}
	}
}

// TestUnreadRefusalsEndTheStream: answers that need no store are not sent by who
// receives, so it sees that the client reads nothing.
func TestUnreadRefusalsEndTheStream(t *testing.T) { overEachWire(t, testUnreadRefusalsEndTheStream) }

func testUnreadRefusalsEndTheStream(t *testing.T, w wireName) {
	for name, q := range map[string]*pb.SessionRequest{
		"refused":    {RequestId: strings.Repeat("k", 128)},
		"cancel":     {RequestId: strings.Repeat("k", 128), Request: &pb.SessionRequest_Cancel{Cancel: &pb.CancelRequest{RequestId: "none"}}},
		"keep alive": {RequestId: strings.Repeat("k", 128), Request: &pb.SessionRequest_KeepAlive{KeepAlive: &pb.KeepAliveRequest{}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(_ *session.Options, o *Options) { o.Limits.Stall = 100 * time.Millisecond })
			x := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
			go func() {
				for x.Send(q) == nil { //nolint:revive // until the stream ends
				}
			}()
			eventually(t, "ended", func() bool { return s.manager.Info().Sessions == 0 })
		})
	}
}
