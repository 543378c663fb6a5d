package localapi

import (
	"strings"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// TestEndOfAProcessWithManyStreamsThatWereCutOff: all of its locks are free, and nothing is left of it.
func TestEndOfAProcessWithManyStreamsThatWereCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("300 streams")
	}
	const limit = 3 * time.Minute // the machine may be busy
	const streams = maxWatched + 44
	s := start(t, func(so *session.Options, o *Options) {
		so.TTL = lock.MaxTTL
		o.Limits.Stall = time.Second
	})
	app := s.flooder(t, overLines, streams, "", takeEnv+"=r/")
	eventuallyIn(t, limit, "cut off", func() bool { return s.server.places.count() == 0 })
	if n := s.manager.Info().Holds; n < streams {
		t.Fatalf("%d locks, want %d: others could have them", n, streams)
	}
	s.server.cutOffs.mu.Lock()
	files := len(s.server.cutOffs.of)
	s.server.cutOffs.mu.Unlock()
	if files == maxWatched {
		t.Skip("this kernel has no pidfds that tell processes apart (Linux 6.9)")
	}
	if err := app.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventuallyIn(t, limit, "all of its sessions ended", func() bool { return s.manager.Info().Sessions == 0 })
	eventuallyIn(t, limit, "nothing left", func() bool {
		s.server.cutOffs.mu.Lock()
		defer s.server.cutOffs.mu.Unlock()
		return s.manager.Info().Holds == 0 && len(s.server.cutOffs.of) == 0
	})
}

// TestLocksOfAClientThatWasToldElsewhere: who does not read its stream may hear of its locks by other calls. It relies on what these have said,
// until the end.
func TestLocksOfAClientThatWasToldElsewhere(t *testing.T) {
	overEachWire(t, testLocksOfAClientThatWasToldElsewhere)
}

func testLocksOfAClientThatWasToldElsewhere(t *testing.T, w wireName) {
	s := start(t, func(so *session.Options, o *Options) {
		so.TTL = 4 * time.Second
		o.Limits.Stall = 3 * time.Second
	})
	api := s.api(t)
	x := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
	mine := &pb.AcquireRequest{Resource: "r", Reentrant: true}
	x.acquire("1", mine)
	if x.answer("1").GetGranted() == nil {
		t.Fatal("not granted")
	}
	sent := make(chan struct{})
	go func() { // and reads nothing
		defer close(sent)
		q := &pb.SessionRequest{RequestId: strings.Repeat("k", 128), Request: &pb.SessionRequest_Release{Release: &pb.ReleaseRequest{LockId: "none"}}}
		for x.Send(q) == nil { //nolint:revive // until the stream ends
		}
	}()
	var told time.Duration // until when it may rely on the lock, on the sidecar's clock
	eventually(t, "cut off", func() bool {
		time.Sleep(10 * time.Millisecond)
		g, err := api.Acquire(t.Context(), &pb.AcquireRequest{SessionId: x.id, Resource: "r", Reentrant: true})
		if err == nil {
			told = g.GetCountedAt().AsDuration() + g.GetValidFor().AsDuration()
		}
		return err != nil
	})
	other := s.stream(t, api, &pb.OpenSessionRequest{})
	other.acquire("1", &pb.AcquireRequest{Resource: "r"})
	if next := other.answer("1").GetGranted().GetCountedAt().AsDuration(); next < told {
		t.Errorf("another has the lock %v before the end that its client was told", told-next)
	}
	x.cancel()
	within(t, sent)
}
