package localapi

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// gate is a client that reads only when it is told to.
type gate struct {
	reads chan struct{}
	got   []*pb.SessionResponse
}

func (g *gate) send(batch []*pb.SessionResponse, _ bool) error {
	if _, ok := <-g.reads; !ok {
		return io.EOF
	}
	g.got = append(g.got, batch...)
	return nil
}

func spawn(f func()) { go f() }

func numbered(n int) *pb.SessionResponse { return &pb.SessionResponse{RequestId: strconv.Itoa(n)} }

// The times of a message are of one reading of the clock, after the wait for its
// turn, and stand for the moment that they stood for before.
func TestTimesAreCountedWhenSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		g := &gate{reads: make(chan struct{})}
		o := newOutbox(g.send, 1, func() time.Duration { return time.Since(began) }, spawn)
		time.Sleep(500 * time.Millisecond)
		go o.post(numbered(1)) // the client reads nothing at first
		synctest.Wait()
		grant := grantTo(session.Grant{Until: 10 * time.Second}, 0)
		lease := eventTo(session.Event{Lease: &session.LeaseNews{Until: 10 * time.Second}}, time.Since(began))
		lost := eventTo(session.Event{Lost: &session.Lost{GraceEnd: 8 * time.Second}}, time.Since(began))
		o.post(&pb.SessionResponse{Response: &pb.SessionResponse_Granted{Granted: grant}})
		o.post(&pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: lease}})
		o.post(&pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: lost}})
		draining := eventTo(session.Event{Draining: &session.Draining{End: began.Add(10 * time.Second)}}, time.Since(began))
		o.post(&pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: draining}})
		down := grantTo(session.Grant{Until: 10 * time.Second}, 0)
		o.post(&pb.SessionResponse{Response: &pb.SessionResponse_Downgraded{Downgraded: down}})
		time.Sleep(8500 * time.Millisecond)
		for range 6 {
			g.reads <- struct{}{}
		}
		<-o.settle()
		for name, got := range map[string][2]*durationpb.Duration{
			"downgrade": {down.GetValidFor(), down.GetCountedAt()},
			"grant":     {grant.GetValidFor(), grant.GetCountedAt()},
			"lease":     {lease.GetLease().GetValidFor(), lease.GetLease().GetCountedAt()},
			"lost":      {lost.GetLost().GetGrace(), lost.GetLost().GetCountedAt()},
			"draining":  {draining.GetDraining().GetRemaining(), draining.GetDraining().GetCountedAt()},
		} {
			want := time.Second
			if name == "lost" {
				want = 0 // over meanwhile
			}
			if v, c := got[0].AsDuration(), got[1].AsDuration(); v != want || c != 9*time.Second {
				t.Errorf("%s: %s from %s, want %s from 9s", name, v, c, want)
			}
		}
	})
}

// Nobody but the sender waits for a client that does not read, everything keeps
// its order, and nothing is left out.
func TestOutboxOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{reads: make(chan struct{})}
		o := newOutbox(g.send, 1, func() time.Duration { return 0 }, spawn)
		go o.post(numbered(0))
		synctest.Wait()
		for n := 1; n < 500; n++ {
			o.post(numbered(n)) // returns
		}
		told := make(chan error, 1)
		go func() { told <- o.deliver(t.Context(), numbered(500)) }()
		synctest.Wait()
		for range 501 {
			g.reads <- struct{}{}
		}
		if err := <-told; err != nil {
			t.Error(err)
		}
		<-o.settle()
		for n, a := range g.got {
			if a.GetRequestId() != strconv.Itoa(n) {
				t.Fatalf("message %d is %s", n, a.GetRequestId())
			}
		}
		if len(g.got) != 501 || o.unsent() != 0 || o.due != nil {
			t.Errorf("%d came, %d are unsent", len(g.got), o.unsent())
		}
	})
}

func TestOutboxCatchUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{reads: make(chan struct{})}
		o := newOutbox(g.send, 1, func() time.Duration { return 0 }, spawn)
		go o.post(numbered(0))
		synctest.Wait()
		for n := 1; n < maxUnsent-1; n++ {
			o.post(numbered(n))
		}
		if err := o.catchUp(t.Context(), time.Second); err != nil { // few are unsent
			t.Fatal(err)
		}
		for n := range 10 {
			o.post(numbered(n))
		}
		caught := make(chan error, 1)
		go func() { caught <- o.catchUp(t.Context(), 10*time.Second) }()
		for range 10 { // a slow reader is no stalled one
			time.Sleep(9 * time.Second)
			g.reads <- struct{}{}
		}
		if err := <-caught; err != nil {
			t.Errorf("slow: %v", err)
		}
		for n := range maxUnsent {
			o.post(numbered(n))
		}
		if err := o.catchUp(t.Context(), 10*time.Second); !errors.Is(err, errStalled) {
			t.Errorf("stalled: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := o.catchUp(ended, time.Hour); !errors.Is(err, context.Canceled) {
			t.Errorf("ended: %v", err)
		}
		if err := o.deliver(ended, numbered(1)); !errors.Is(err, context.Canceled) {
			t.Errorf("deliver: %v", err)
		}
		close(g.reads)
		<-o.settle()
	})
}

// The time of a client that reads nothing is over after all of its steps, unless somebody stops it.
func TestCountdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		over := make(chan time.Duration, 2)
		newCountdown(10*time.Second, func() { over <- time.Since(began) })
		stopped := newCountdown(10*time.Second, func() { over <- 0 })
		time.Sleep(9500 * time.Millisecond)
		stopped.stop()
		stopped.stop()
		time.Sleep(time.Minute)
		if took := <-over; took != 10*time.Second || len(over) > 0 {
			t.Errorf("over after %v, and %d more", took, len(over))
		}
	})
}

// Where something is always due, because the client is slower than its requests,
// what brings the news is not kept by the sending, and what was sent is forgotten.
func TestOutboxAlwaysBehind(t *testing.T) {
	const many = 100 * maxUnsent
	var o *outbox
	sent, largest := 0, 0
	returned := make(chan struct{})
	o = newOutbox(func([]*pb.SessionResponse, bool) error {
		if sent++; sent < many {
			largest = max(largest, cap(o.due))
			o.put(letter{a: numbered(sent)}) // somebody else's, who leaves it to the sender
			return nil
		}
		select {
		case <-returned:
		case <-time.After(patience):
			t.Error("deliver goes on sending what others post")
		}
		return nil
	}, 1, func() time.Duration { return 0 }, spawn)
	if err := o.deliver(t.Context(), numbered(0)); err != nil {
		t.Fatal(err)
	}
	close(returned)
	<-o.settle()
	if largest > 4*maxUnsent {
		t.Errorf("room for %d messages is kept, where one is due at a time", largest)
	}
}

// The receiver holds the outbox while answers pile up in it. It stands still only for what a client does not
// read: at whatever moment the answer comes that is one too many, it is sent.
func TestNoStandingStillForWhatIsHeld(t *testing.T) {
	s := &Server{o: Options{Limits: Limits{Stall: patience}}}
	out := newOutbox(func([]*pb.SessionResponse, bool) error { return nil }, lineBatch, lock.BootTime, spawn)
	x := &sessionStream{
		service: &service{Server: s}, ctx: t.Context(), out: out,
		wire: wire{recv: func() (*pb.SessionRequest, error) { return &pb.SessionRequest{}, nil }},
	}
	var over atomic.Bool
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		defer over.Store(true)
		for i := range 20_000 * maxUnsent {
			out.post(numbered(i))
		}
	}()
	for !over.Load() {
		out.hold()
		if _, err := x.next(); err != nil {
			t.Fatal(err)
		}
	}
	<-posted
}
