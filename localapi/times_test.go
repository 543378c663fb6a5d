package localapi

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/session"
)

// Whoever writes a message may stand still between any two of its instructions: here the
// clock moves on each time that it is read. A message has both of its times from one
// reading, so together they are the moment that the session has said, and never a later one.
func TestTimesAreOfOneReading(t *testing.T) {
	const until = time.Hour
	var read time.Duration
	clock := func() time.Duration { read += time.Minute; return read }
	times := func(what string, valid, countedAt *durationpb.Duration) {
		t.Helper()
		if end := valid.AsDuration() + countedAt.AsDuration(); end != until {
			t.Errorf("%s: %s from %s, which is until %s, want %s", what, valid.AsDuration(), countedAt.AsDuration(), end, until)
		}
	}
	var grants []*pb.Grant
	grant := func() *pb.Grant {
		grants = append(grants, grantTo(session.Grant{Until: until, End: until}, clock()))
		return grants[len(grants)-1]
	}
	event := func(e session.Event) *pb.Event { return eventTo(e, clock()) }
	var batch []*pb.SessionResponse
	add := func(a *pb.SessionResponse) { batch = append(batch, a) }
	add(&pb.SessionResponse{Response: &pb.SessionResponse_Granted{Granted: grant()}})
	add(&pb.SessionResponse{Response: &pb.SessionResponse_Downgraded{Downgraded: grant()}})
	add(&pb.SessionResponse{Response: &pb.SessionResponse_Extended{Extended: grant()}})
	add(&pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: event(session.Event{Lease: &session.LeaseNews{Until: until}})}})
	add(&pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: event(session.Event{Lost: &session.Lost{GraceEnd: until}})}})
	check := func(when string) {
		for _, a := range batch {
			valid, countedAt := timesOf(a)
			times(when, valid, countedAt)
		}
		for _, g := range grants {
			times(when+", its end", g.GetEndsIn(), g.GetCountedAt())
		}
	}
	check("when it is made")
	before := read
	refresh(batch, clock)
	check("when it is sent")
	if read == before {
		t.Error("the clock was not read when they were sent")
	}
}
