package localapi

import (
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// TestMaxHoldOfAGrantThatComesLate: a grant is sent when its client reads, and its max_hold runs before. By what the grant says the
// client knows the end all the same: it is there before another can have the lock.
func TestMaxHoldOfAGrantThatComesLate(t *testing.T) {
	const maxHold = 3 * time.Second
	s := start(t, noNews, func(so *session.Options, o *Options) {
		so.LostGrace = 10 * time.Millisecond
		o.Limits.Stall = time.Hour
	})
	other := s.stream(t, s.api(t), &pb.OpenSessionRequest{})
	other.acquire("1", tryOnce("r"))
	lockID := other.answer("1").GetGranted().GetLockId()
	x := s.says(t, opening)
	x.answer()
	x.say(`{"requestId":"late","acquire":{"resource":"r","maxHold":"3s"}}` + "\n")
	eventually(t, "waiting", func() bool { return s.manager.Info().Waiters == 1 })
	go func() {
		line := `{"requestId":"` + strings.Repeat("k", 100) + `","release":{"lockId":"none"}}` + "\n"
		for err := error(nil); err == nil; {
			_, err = io.WriteString(x.c, line)
		}
	}()
	eventually(t, "standing", func() bool { return s.server.standing.Load() == 1 }) // it reads nothing
	other.release("2", lockID)
	time.Sleep(maxHold / 6)
	var g *pb.Grant
	for g == nil {
		g = x.answer().GetGranted()
	}
	end := g.GetCountedAt().AsDuration() + maxHold
	if g.EndsIn != nil {
		end = min(end, g.GetCountedAt().AsDuration()+g.GetEndsIn().AsDuration())
	}
	other.acquire("3", &pb.AcquireRequest{Resource: "r"})
	if next := other.answer("3").GetGranted().GetCountedAt().AsDuration(); next < end {
		t.Errorf("another has the lock %v before its client may think that it is over", end-next)
	}
}

// TestEndsInOfADowngrade: the answer to a downgrade says the same end, whenever it is sent.
func TestEndsInOfADowngrade(t *testing.T) { overEachWire(t, testEndsInOfADowngrade) }

func testEndsInOfADowngrade(t *testing.T, w wireName) {
	const maxHold = time.Minute
	s := start(t, noNews)
	x := s.stream(t, s.streams(t, w), &pb.OpenSessionRequest{})
	x.acquire("1", &pb.AcquireRequest{Resource: "r", MaxHold: durationpb.New(maxHold)})
	g := x.answer("1").GetGranted()
	x.send(&pb.SessionRequest{RequestId: "2", Request: &pb.SessionRequest_Downgrade{Downgrade: &pb.DowngradeRequest{LockId: g.GetLockId()}}})
	d := x.answer("2").GetDowngraded()
	was, is := g.GetCountedAt().AsDuration()+g.GetEndsIn().AsDuration(), d.GetCountedAt().AsDuration()+d.GetEndsIn().AsDuration()
	if d.EndsIn == nil || is != was {
		t.Errorf("the grant says that it ends at %v of the sidecar's clock, the downgrade %v", was, is)
	}
}
