package client

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/internal/jsonlines"
)

// streamPair is a stream without a sidecar, and the other end of its connection.
func streamPair(t *testing.T) (*stream, *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	s := &stream{conn: ends[0], buf: make([]byte, readBuffer)}
	s.read = s.readSome
	if s.raw, err = ends[0].SyscallConn(); err != nil {
		t.Fatal(err)
	}
	return s, ends[1]
}

// unread is a session that nobody reads for, as where this process stands still, and what the
// sidecar says meanwhile.
func unread(t *testing.T, clock func() time.Duration) (s *Session, say func(...*pb.SessionResponse), sidecar *net.UnixConn) {
	s = alone(t, clock)
	s.stream, sidecar = streamPair(t)
	return s, func(all ...*pb.SessionResponse) {
		t.Helper()
		var out []byte
		for _, m := range all {
			var err error
			if out, err = jsonlines.Append(out, m); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := sidecar.Write(out); err != nil {
			t.Fatal(err)
		}
	}, sidecar
}

func newsOfLease(counted, validFor time.Duration) *pb.SessionResponse {
	return &pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: &pb.Event{Event: &pb.Event_Lease{Lease: &pb.LeaseNews{
		CountedAt: durationpb.New(counted), ValidFor: durationpb.New(validFor),
	}}}}}
}

func lostNews(id string) *pb.SessionResponse {
	return &pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: &pb.Event{Event: &pb.Event_Lost{Lost: &pb.Lost{
		LockId: id, Resource: id, Reason: pb.LostReason_FORCED, CountedAt: durationpb.New(bootTime()),
	}}}}}
}

var asks = map[string]func(*Lock) bool{
	"Err":      func(l *Lock) bool { return l.Err() == nil },
	"ValidFor": func(l *Lock) bool { return l.ValidFor() > 0 },
	"the look": func(l *Lock) bool { l.session.look(); return !isLost(l) },
}

// TestStoodStill: the end is over by the clock, and the sidecar has renewed the lease
// meanwhile. Whoever asks first reads that.
func TestStoodStill(t *testing.T) {
	for name, held := range asks {
		now := time.Hour
		s, say, _ := unread(t, func() time.Duration { return now })
		l := s.give("l", 9*time.Second, 0)
		say(newsOfLease(now+5*time.Second, 9*time.Second), newsOfLease(now+13*time.Second, 9*time.Second))
		now += 20 * time.Second
		if !held(l) || isLost(l) || l.ValidFor() != 2*time.Second {
			t.Errorf("%s: lost %v, valid for %s", name, isLost(l), l.ValidFor())
		}
		if now += 2 * time.Second; held(l) || !isLost(l) { // what was read is over, too
			t.Errorf("%s: still held, and nothing more was heard", name)
		}
	}
}

// TestStoodStillTooLong: what stands unread does not speak for the hold.
func TestStoodStillTooLong(t *testing.T) {
	const s9 = 9 * time.Second
	for name, held := range asks {
		for what, c := range map[string]struct {
			reason string
			say    func(granted time.Duration) []*pb.SessionResponse
		}{
			"nothing": {LostSilence, func(time.Duration) []*pb.SessionResponse { return nil }},
			"news that are over": {LostSilence, func(at time.Duration) []*pb.SessionResponse {
				return []*pb.SessionResponse{newsOfLease(at+time.Second, s9)}
			}},
			"news of the next lease": {LostSilence, func(at time.Duration) []*pb.SessionResponse {
				return []*pb.SessionResponse{newsOfLease(at+s9, time.Minute)}
			}},
			"its loss": {"FORCED", func(time.Duration) []*pb.SessionResponse { return []*pb.SessionResponse{lostNews("l")} }},
			"news and then its loss": {"FORCED", func(at time.Duration) []*pb.SessionResponse {
				return []*pb.SessionResponse{newsOfLease(at+5*time.Second, time.Minute), lostNews("l")}
			}},
			"its loss and then more news": {"FORCED", func(at time.Duration) []*pb.SessionResponse {
				return []*pb.SessionResponse{lostNews("l"), newsOfLease(at+5*time.Second, time.Minute)}
			}},
		} {
			now := time.Hour
			s, say, _ := unread(t, func() time.Duration { return now })
			l := s.give("l", s9, 0)
			if m := c.say(now); len(m) > 0 {
				say(m...)
			}
			now += 20 * time.Second
			var lost *LostError
			if held(l) || !isLost(l) || !errors.As(l.Err(), &lost) || lost.Reason != c.reason {
				t.Errorf("%s, %s: %v", name, what, l.Err())
			}
		}
	}
}

// TestStoodStillBesideTheEnd: the connection ended meanwhile, or what came is no line of the API.
func TestStoodStillBesideTheEnd(t *testing.T) {
	for name, held := range asks {
		for _, last := range []string{"", "no line of the API\n"} {
			now := time.Hour
			s, _, sidecar := unread(t, func() time.Duration { return now })
			ended := false
			s.cancel = func() { ended = true }
			l := s.give("l", time.Second, 0)
			if _, err := sidecar.Write([]byte(last)); err != nil {
				t.Fatal(err)
			}
			if last == "" {
				_ = sidecar.Close()
			}
			now += time.Second
			var lost *LostError
			if held(l) || !errors.As(l.Err(), &lost) || lost.Reason != LostStream || !ended || s.Err() == nil {
				t.Errorf("%s, after %q: %v; the session: %v", name, last, l.Err(), s.Err())
			}
		}
	}
}

// TestTakenFromTheReader: a caller reads for its answer, and another, who asks about a hold,
// takes that from the socket. The caller returns with it.
func TestTakenFromTheReader(t *testing.T) {
	now := time.Hour
	s, say, _ := unread(t, func() time.Duration { return now })
	l := s.give("l", time.Second, 0)
	c := newCall()
	c.id = "1"
	s.calls["1"], s.reading.free, s.reading.wake = c, true, make(chan struct{}, 1)
	if !s.begin(c) {
		t.Fatal("the caller may not read")
	}
	say(&pb.SessionResponse{RequestId: "1", Response: &pb.SessionResponse_Released{Released: &pb.ReleaseResponse{}}})
	now += time.Second
	if l.Err() == nil {
		t.Fatal("not lost")
	}
	_, err := s.readNext(func(*pb.SessionResponse) bool { t.Error("there is something to read"); return true })
	if s.stopped(err); !errors.Is(err, os.ErrDeadlineExceeded) || !s.reading.free || s.reading.interrupted || s.Err() != nil {
		t.Errorf("%v; %+v; %v", err, &s.reading, s.Err())
	}
	if a, err := s.wait(context.Background(), c); err != nil || a.GetReleased() == nil {
		t.Errorf("%v, %v", a, err)
	}
}
