package localapi

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// TestMinHoldOverEachWire: a release tells for how long others are kept out, who is refused is told too, and
// lists show what is kept.
func TestMinHoldOverEachWire(t *testing.T) {
	for _, over := range []string{"gRPC", "lines", "HTTP"} {
		t.Run(over, func(t *testing.T) {
			s := start(t, noNews, func(*session.Options, *Options) {})
			var a app
			if over == "HTTP" {
				a = s.httpApp(t, "a")
			} else {
				a = s.stream(t, s.streams(t, wireName(over)), &pb.OpenSessionRequest{Name: "a"})
			}
			acquire := func(id string, least, wait time.Duration) *pb.SessionResponse {
				q := &pb.AcquireRequest{Resource: "r", Wait: durationpb.New(wait)}
				if least > 0 {
					q.MinHold = durationpb.New(least)
				}
				return a.ask(&pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Acquire{Acquire: q}})
			}
			g := acquire("1", time.Hour, time.Second).GetGranted()
			if g == nil {
				t.Fatal("not granted")
			}
			kept := func(what string, d *durationpb.Duration) {
				if left := d.AsDuration(); left <= 0 || left > time.Hour {
					t.Errorf("%s: kept for %s", what, left)
				}
			}
			released := a.ask(&pb.SessionRequest{RequestId: "2", Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: g.GetLockId()}}}).GetReleased()
			if released == nil || released.GetCount() != 0 {
				t.Fatalf("release: %v", released)
			}
			kept("release", released.GetKeptFor())
			refused := acquire("3", 0, 0).GetError()
			info := infoOf(t, refused)
			if info.GetReason() != string(reasonHeld) || info.GetMetadata()["holder_kept_for"] == "" {
				t.Errorf("who is refused is told %v", refused)
			}
			l, err := s.api(t).GetLock(t.Context(), &pb.GetLockRequest{Resource: "r"})
			if err != nil || len(l.GetHolders()) != 1 {
				t.Fatalf("%v, %v", l, err)
			}
			kept("get", l.GetHolders()[0].GetKeptFor())
			if leader := leaderOf("r", l); leader.GetLeads() {
				t.Errorf("what is kept leads: %v", leader)
			}
			if _, err := s.api(t).ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: "r"}); err != nil {
				t.Fatal(err)
			}
			g = acquire("4", 0, 0).GetGranted()
			released = a.ask(&pb.SessionRequest{RequestId: "5", Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: g.GetLockId()}}}).GetReleased()
			if released == nil || released.KeptFor != nil {
				t.Errorf("release of what is not kept: %v", released)
			}
		})
	}
}
