package localapi

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// TestHandlesOverEachWire: taken, detached, extended, attached, taken over and released, with the same
// fence, and told as what it is.
func TestHandlesOverEachWire(t *testing.T) {
	for _, over := range []string{"gRPC", "lines", "HTTP"} {
		t.Run(over, func(t *testing.T) {
			s := start(t, noNews, func(*session.Options, *Options) {})
			open := func(name string) app {
				if over == "HTTP" {
					return s.httpApp(t, name)
				}
				return s.stream(t, s.streams(t, wireName(over)), &pb.OpenSessionRequest{Name: name})
			}
			a, b := open("a"), open("b")
			g := a.ask(&pb.SessionRequest{RequestId: "1", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", Detachable: true}}}).GetGranted()
			if g == nil || g.EndsIn != nil {
				t.Fatalf("granted: %v", g)
			}
			d := a.ask(&pb.SessionRequest{RequestId: "2", Request: &pb.SessionRequest_Detach{Detach: &pb.DetachRequest{LockId: g.GetLockId(), Ttl: durationpb.New(time.Minute)}}}).GetDetached()
			if left := d.GetValidFor().AsDuration(); d.GetFence() != g.GetFence() || d.GetResource() != "r" || d.GetMode() != pb.Mode_EXCLUSIVE || left <= 0 || left > time.Minute {
				t.Fatalf("detached: %v", d)
			}
			refused := b.ask(&pb.SessionRequest{RequestId: "3", Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Resource: "r", Wait: durationpb.New(0)}}}).GetError()
			if info := infoOf(t, refused); info.GetReason() != string(reasonHeld) || info.GetMetadata()["holder_kept_for"] == "" {
				t.Errorf("who is refused is told %v", refused)
			}
			l, err := s.api(t).GetLock(t.Context(), &pb.GetLockRequest{Resource: "r"})
			if err != nil || len(l.GetHolders()) != 1 || !l.GetHolders()[0].GetDetached() || l.GetHolders()[0].GetKeptFor() == nil {
				t.Errorf("shown as %v, %v", l, err)
			}
			longer := b.ask(&pb.SessionRequest{RequestId: "4", Request: &pb.SessionRequest_ExtendHandle{ExtendHandle: &pb.ExtendHandleRequest{Handle: d.GetHandle(), Ttl: durationpb.New(time.Hour)}}}).GetDetached()
			if left := longer.GetValidFor().AsDuration(); left <= time.Minute || left > time.Hour || longer.GetHandle() != d.GetHandle() {
				t.Errorf("extended: %v", longer)
			}
			attach := func(x app, id string) *pb.SessionResponse {
				return x.ask(&pb.SessionRequest{RequestId: id, Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Handle: d.GetHandle()}}})
			}
			first := attach(a, "5").GetGranted()
			if left := first.GetEndsIn().AsDuration(); first.GetFence() != g.GetFence() || first.GetLockId() == g.GetLockId() || left <= time.Minute || left > time.Hour {
				t.Errorf("attached: %v", first)
			}
			second := attach(b, "6").GetGranted()
			if second.GetFence() != g.GetFence() {
				t.Errorf("attached elsewhere: %v", second)
			}
			if lost := a.lost(); lost.GetReason() != pb.LostReason_TAKEN_OVER || lost.GetLockId() != first.GetLockId() {
				t.Errorf("who had it is told %v", lost)
			}
			release := &pb.SessionRequest_ReleaseHandle{ReleaseHandle: &pb.ReleaseHandleRequest{Handle: d.GetHandle()}}
			if got := a.ask(&pb.SessionRequest{RequestId: "7", Request: release}); got.GetHandleReleased() == nil {
				t.Errorf("released: %v", got)
			}
			for id, q := range map[string]*pb.SessionRequest{
				"8": {Request: release},
				"9": {Request: &pb.SessionRequest_Acquire{Acquire: &pb.AcquireRequest{Handle: d.GetHandle()}}},
			} {
				q.RequestId = id
				if got := b.ask(q).GetError(); infoOf(t, got).GetReason() != string(reasonNotHolder) {
					t.Errorf("by a handle that was released: %v", got)
				}
			}
		})
	}
}

// stuckHandles is a store that answers to handles when it is let.
type stuckHandles struct {
	lock.Backend
	entered, let chan struct{}
}

func (b *stuckHandles) SetHandle(context.Context, lock.Resource, lock.HandleKey, time.Duration) (lock.Detached, error) {
	b.entered <- struct{}{}
	<-b.let
	return lock.Detached{}, lock.ErrNoHandle
}

// TestLinesGoOnWhileAHandleBlocks: the goroutine that reads leaves that to another when the store is asked
// about a handle, and what comes meanwhile is answered and told.
func TestLinesGoOnWhileAHandleBlocks(t *testing.T) {
	b := &stuckHandles{entered: make(chan struct{}), let: make(chan struct{})}
	s := start(t, noNews, func(o *session.Options, _ *Options) {
		b.Backend = o.Backend
		o.Backend = b
	})
	x := s.says(t, opening+`{"requestId":"1","acquire":{"resource":"r","detachable":true}}`+"\n"+`{"requestId":"2","acquire":{"resource":"lost"}}`+"\n")
	x.answer()
	ids := map[string]string{}
	for range 2 {
		a := x.answer()
		ids[a.GetRequestId()] = a.GetGranted().GetLockId()
	}
	x.say(`{"requestId":"3","detach":{"lockId":"` + ids["1"] + `","ttl":"60s"}}` + "\n")
	handle := x.answer().GetDetached().GetHandle()
	for _, ask := range []string{`"releaseHandle":{"handle":"` + handle + `"}`, `"extendHandle":{"handle":"` + handle + `","ttl":"50s"}`} {
		x.say(`{"requestId":"h",` + ask + "}\n")
		<-b.entered
		x.say(`{"requestId":"k","keepAlive":{}}` + "\n")
		if a := x.answer(); a.GetKeptAlive() == nil {
			t.Errorf("%v", a)
		}
		b.let <- struct{}{}
		if a := x.answer(); a.GetRequestId() != "h" || a.GetError() == nil {
			t.Errorf("%v", a)
		}
	}
	x.say(`{"requestId":"h","releaseHandle":{"handle":"` + handle + `"}}` + "\n")
	<-b.entered
	if _, err := s.api(t).ForceRelease(t.Context(), &pb.ForceReleaseRequest{Resource: "lost", Grace: durationpb.New(0)}); err != nil {
		t.Error(err)
	}
	for a := x.hears(); a.GetEvent().GetLost().GetLockId() != ids["2"]; a = x.hears() {
		if a.GetEvent() == nil {
			t.Fatalf("%v", a)
		}
	}
	b.let <- struct{}{}
	if a := x.answer(); a.GetError() == nil {
		t.Errorf("%v", a)
	}
}
