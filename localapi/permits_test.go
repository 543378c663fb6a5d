package localapi

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// twoOverEachWire runs a test with two apps over each of the three wires.
func twoOverEachWire(t *testing.T, test func(t *testing.T, s *sidecar, a, b app)) {
	for _, over := range []string{"gRPC", "lines", "HTTP"} {
		t.Run(over, func(t *testing.T) {
			s := start(t, noNews, func(*session.Options, *Options) {})
			a, b := s.apps(t, over)
			test(t, s, a, b)
		})
	}
}

// TestPermitsOverEachWire: each of so many has a slot of its own, who is too many is refused, and who waits gets the
// slot that comes free.
func TestPermitsOverEachWire(t *testing.T) {
	twoOverEachWire(t, func(t *testing.T, _ *sidecar, a, b app) {
		limit := int32(2)
		permit := func(id string, wait time.Duration) *pb.SessionRequest {
			return acquireOf(id, &pb.AcquireRequest{Resource: "r", Limit: &limit, Wait: durationpb.New(wait)})
		}
		one, two := a.ask(permit("1", 0)).GetGranted(), b.ask(permit("2", 0)).GetGranted()
		if one == nil || two == nil || one.Slot == nil || two.Slot == nil || one.GetSlot() == two.GetSlot() {
			t.Fatalf("granted %v and %v", one, two)
		}
		if got := infoOf(t, a.ask(permit("3", 0)).GetError()).GetReason(); got != string(reasonHeld) {
			t.Errorf("a third one is refused with %s", got)
		}
		a.begin(permit("4", time.Minute))
		if got := b.ask(releaseOf("5", two.GetLockId(), "")); got.GetReleased() == nil {
			t.Errorf("release: %v", got)
		}
		if next := a.wait("4").GetGranted(); next.GetSlot() != two.GetSlot() || next.GetMode() != pb.Mode_PERMIT {
			t.Errorf("the next one got %v, want the slot of %v", next, two)
		}
	})
}

// TestDeadlockOverEachWire: one of two is told who waits for whom, and keeps what it has. When it releases that, the other
// goes on.
func TestDeadlockOverEachWire(t *testing.T) {
	twoOverEachWire(t, func(t *testing.T, s *sidecar, a, b app) {
		want := func(id, owner, resource string) *pb.SessionRequest {
			return acquireOf(id, &pb.AcquireRequest{Resource: resource, Owner: owner, Wait: durationpb.New(time.Minute)})
		}
		has := a.ask(want("1", "alice", "x")).GetGranted()
		theirs := b.ask(want("2", "bob", "y")).GetGranted()
		if has == nil || theirs == nil {
			t.Fatal("not granted")
		}
		a.begin(want("3", "alice", "y"))
		eventually(t, "alice waits", func() bool {
			l, err := s.api(t).GetLock(t.Context(), &pb.GetLockRequest{Resource: "y"})
			return err == nil && len(l.GetWaiters()) == 1
		})
		b.begin(want("4", "bob", "x"))
		ends := make(chan *pb.SessionResponse, 2)
		go func() { ends <- a.wait("3") }()
		go func() { ends <- b.wait("4") }()
		first := <-ends
		info := infoOf(t, first.GetError())
		if info.GetReason() != string(reasonDeadlock) || info.GetMetadata()["cycle_length"] != "2" || !strings.Contains(first.GetError().GetMessage(), "alice") {
			t.Errorf("the first answer is %v", first)
		}
		if l, err := s.api(t).GetLock(t.Context(), &pb.GetLockRequest{Resource: info.GetMetadata()["resource"]}); err != nil || len(l.GetHolders()) != 1 {
			t.Errorf("what it waited for: %v, %v", l, err)
		}
		// That is bob, who has asked last, but where both have asked in one millisecond.
		mine, held := b, theirs
		if first.GetRequestId() == "3" {
			mine, held = a, has
		}
		if got := mine.ask(releaseOf("5", held.GetLockId(), "")); got.GetReleased() == nil {
			t.Errorf("release: %v", got)
		}
		if next := <-ends; next.GetGranted() == nil {
			t.Errorf("the other one got %v", next)
		}
	})
}
