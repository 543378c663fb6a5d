package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// testClock is in place of the machine's, where a test has set it. Timers of sessions of
// other tests may still look at it.
var testClock atomic.Pointer[func() time.Duration]

var _ = func() bool {
	machine := bootTime
	bootTime = func() time.Duration {
		if c := testClock.Load(); c != nil {
			return (*c)()
		}
		return machine()
	}
	return true
}()

// alone is a session without a sidecar, whose clock shows what the test says.
func alone(t *testing.T, clock func() time.Duration) *Session {
	testClock.Store(&clock)
	t.Cleanup(func() { testClock.Store(nil) })
	st, _ := streamPair(t)
	s := &Session{
		stream: st, cancel: func() {},
		done: make(chan struct{}), draining: make(chan struct{}), margin: time.Second,
		calls: map[string]*call{}, locks: map[string]*Lock{}, limits: map[string]time.Duration{},
	}
	s.clock.answered(0, durationpb.New(0))
	t.Cleanup(func() { s.end(ErrSessionClosed, "", "") })
	return s
}

// give is the grant of a hold, counted now.
func (s *Session) give(id string, validFor, maxHold time.Duration) *Lock {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := newCall()
	c.maxHold = maxHold
	s.granted(c, &pb.Grant{LockId: id, Resource: "of " + id, Fence: 7, CountedAt: durationpb.New(bootTime()), ValidFor: durationpb.New(validFor)})
	return c.lock
}

// hear takes a message as the one who reads does.
func (s *Session) hear(m *pb.SessionResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.take(m)
}

func (s *Session) hearEvent(e *pb.Event) {
	s.hear(&pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: e}})
}

func (s *Session) tell(counted, validFor time.Duration) {
	s.hearEvent(&pb.Event{Event: &pb.Event_Lease{Lease: &pb.LeaseNews{CountedAt: durationpb.New(counted), ValidFor: durationpb.New(validFor)}}})
}

func isLost(l *Lock) bool {
	select {
	case <-l.Lost():
		return true
	default:
		return false
	}
}

// TestEndsInTheirMoment: one timer tells the end of each hold in the moment of its end,
// whatever is granted meanwhile, and in whatever order.
func TestEndsInTheirMoment(t *testing.T) {
	const ms = time.Millisecond
	for name, first := range map[string][]time.Duration{
		"one":          {400 * ms},
		"later ones":   {400 * ms, 5000 * ms, 3000 * ms},
		"sooner ones":  {5000 * ms, 400 * ms, 200 * ms},
		"sooner later": {400 * ms, 5000 * ms, 200 * ms, 3000 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { endsInTheirMoment(t, first) })
		})
	}
}

func endsInTheirMoment(t *testing.T, first []time.Duration) {
	const ms = time.Millisecond
	began := time.Now()
	s := alone(t, func() time.Duration { return time.Hour + time.Since(began) })
	ends := map[string]time.Duration{}
	lost := map[string]time.Duration{}
	all := map[string]*Lock{}
	give := func(validFor time.Duration) *Lock {
		id := fmt.Sprint(len(all))
		all[id] = s.give(id, validFor, 0)
		ends[id] = time.Since(began) + validFor
		return all[id]
	}
	for _, validFor := range first {
		give(validFor)
	}
	for now := time.Duration(0); now <= 6000*ms; now += 10 * ms {
		if now == 500*ms || now == 3500*ms { // after the timer has fired
			give(100 * ms)
			give(700 * ms)
		}
		synctest.Wait()
		for id, l := range all {
			if isLost(l) && lost[id] == 0 {
				lost[id] = time.Since(began)
			}
		}
		time.Sleep(10 * ms)
	}
	for id, end := range ends {
		if lost[id] != end {
			t.Errorf("hold %s ends at %s, and is lost at %s", id, end, lost[id])
		}
		var e *LostError
		if err := all[id].Err(); !errors.As(err, &e) || e.Reason != LostSilence || e.Resource != "of "+id || e.LockID != id || e.Fence != 7 {
			t.Errorf("hold %s: %#v", id, err)
		}
	}
	l := give(100 * ms) // after a time without holds
	time.Sleep(100 * ms)
	synctest.Wait()
	if !isLost(l) {
		t.Error("the last hold is not lost at its end")
	}
}

// TestProlongedIsNotLost: news that came in time move the end.
func TestProlongedIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := alone(t, func() time.Duration { return time.Hour + time.Since(began) })
		l := s.give("l", 300*time.Millisecond, 0)
		for range 20 {
			time.Sleep(200 * time.Millisecond)
			s.tell(bootTime(), 300*time.Millisecond)
		}
		if isLost(l) || l.Err() != nil {
			t.Fatalf("%v after %s", l.Err(), time.Since(began))
		}
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if !isLost(l) {
			t.Error("not lost, and the news are over")
		}
	})
}

// TestTheLastMoment of a hold is not the app's any more, and who asks then has told all.
func TestTheLastMoment(t *testing.T) {
	var now time.Duration
	for name, ask := range map[string]func(l *Lock) bool{
		"ValidFor": func(l *Lock) bool { return l.ValidFor() == 0 },
		"Err":      func(l *Lock) bool { return errors.Is(l.Err(), ErrLockLost) },
	} {
		now = time.Hour
		s := alone(t, func() time.Duration { return now })
		l := s.give("l", time.Minute, 0)
		now += time.Minute - 1
		if ask(l) || isLost(l) || l.ValidFor() != 1 {
			t.Errorf("%s: over a nanosecond too soon", name)
		}
		now++
		if !ask(l) || !isLost(l) {
			t.Errorf("%s: not over, and its time is", name)
		}
		var e *LostError
		if errors.As(l.Err(), &e); e.GraceLeft() != time.Second {
			t.Errorf("%s: %s are left of the margin", name, e.GraceLeft())
		}
		if now += time.Second / 4; e.GraceLeft() != 3*time.Second/4 {
			t.Errorf("%s: %s are left a quarter of a second later", name, e.GraceLeft())
		}
	}
}

// TestTheLastMomentOfMaxHold: the sidecar has a quarter of a second to say more about it.
func TestTheLastMomentOfMaxHold(t *testing.T) {
	for name, ask := range map[string]func(l *Lock){
		"ValidFor": func(l *Lock) { l.ValidFor() },
		"Err":      func(l *Lock) { _ = l.Err() },
	} {
		now := time.Hour
		s := alone(t, func() time.Duration { return now })
		l := s.give("l", time.Hour, time.Minute)
		for _, at := range []time.Duration{time.Minute, time.Minute + maxSlack - 1} {
			now = time.Hour + at
			ask(l)
			var e *LostError
			if err := l.Err(); isLost(l) || l.ValidFor() != 0 || !errors.As(err, &e) || e.Reason != "MAX_HOLD" || e.LockID != "l" || e.GraceLeft() != 0 {
				t.Errorf("%s after %s: lost %v, valid for %s, %#v", name, at, isLost(l), l.ValidFor(), err)
			}
		}
		now++
		ask(l)
		if !isLost(l) {
			t.Errorf("%s: the sidecar's time is over, and the hold is not lost", name)
		}
		var e *LostError
		if err := l.Err(); !errors.As(err, &e) || e.Reason != "MAX_HOLD" || e.GraceLeft() != 0 {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

// TestNewsOfTheSameMoment as the grant speak for it, in whatever order both are read; those
// of the moment in which it is over do not.
func TestNewsOfTheSameMoment(t *testing.T) {
	now := time.Hour
	s := alone(t, func() time.Duration { return now })
	l := s.give("l", time.Minute, 0)
	s.tell(now, time.Hour)
	if v := l.ValidFor(); v != time.Hour {
		t.Errorf("news after the grant: valid for %s", v)
	}
	if v := s.give("m", time.Minute, 0).ValidFor(); v != time.Hour {
		t.Errorf("news before the grant: valid for %s", v)
	}
	s = alone(t, func() time.Duration { return now })
	l = s.give("l", time.Minute, 0)
	s.tell(now+time.Minute-1, time.Hour)
	if v := l.ValidFor(); v != time.Hour+time.Minute-1 {
		t.Errorf("news of the last moment: valid for %s", v)
	}
	s = alone(t, func() time.Duration { return now })
	l = s.give("l", time.Minute, 0)
	s.tell(now+time.Minute, time.Hour)
	if v := l.ValidFor(); v != time.Minute {
		t.Errorf("news of the moment after: valid for %s", v)
	}
	s.tell(now+time.Second, time.Second) // of a sidecar that knows less
	if v := l.ValidFor(); v != time.Minute {
		t.Errorf("news that give less: valid for %s", v)
	}
}

// TestTheSoonestMaxHoldCounts, of all acquires of one hold.
func TestTheSoonestMaxHoldCounts(t *testing.T) {
	now := time.Hour
	s := alone(t, func() time.Duration { return now })
	for _, c := range []struct{ maxHold, want time.Duration }{
		{0, time.Hour}, {20 * time.Minute, 20 * time.Minute}, {30 * time.Minute, 20 * time.Minute}, {10 * time.Minute, 10 * time.Minute}, {0, 10 * time.Minute},
	} {
		if v := s.give("l", time.Hour, c.maxHold).ValidFor(); v != c.want {
			t.Errorf("entered with %s: valid for %s, want %s", c.maxHold, v, c.want)
		}
	}
	if n := s.give("l", time.Hour, 0).Count(); n != 6 {
		t.Errorf("%d counts", n)
	}
}

// TestGraceOfALoss is what the sidecar said, on its clock.
func TestGraceOfALoss(t *testing.T) {
	now := time.Hour
	s := alone(t, func() time.Duration { return now })
	s.clock.answered(now, durationpb.New(2*time.Hour)) // tells less than what is known
	l := s.give("l", time.Minute, 0)
	lost := func() {
		s.hearEvent(&pb.Event{Event: &pb.Event_Lost{Lost: &pb.Lost{
			LockId: "l", Resource: "of l", Reason: pb.LostReason_FORCED, Message: "by an administrator",
			CountedAt: durationpb.New(now - time.Second), Grace: durationpb.New(10 * time.Second),
		}}})
	}
	lost()
	var e *LostError
	if err := l.Err(); !errors.As(err, &e) || e.GraceLeft() != 9*time.Second || e.Reason != "FORCED" || err.Error() != `the lock on "of l" is lost: by an administrator` {
		t.Errorf("%v", err)
	}
	now += 20 * time.Second
	lost() // told again
	var again *LostError
	if !errors.As(l.Err(), &again) || again != e || e.GraceLeft() != 0 {
		t.Errorf("%v, %s are left", l.Err(), e.GraceLeft())
	}
}

// TestSoManyEarlyLosses: the oldest makes room, and without an acquire on its way there are none.
func TestSoManyEarlyLosses(t *testing.T) {
	s := alone(t, func() time.Duration { return time.Hour })
	c := newCall()
	c.acquire = true
	s.acquires.enter(c)
	lost := func(i int) string {
		id := fmt.Sprint(i)
		s.remember(&pb.Lost{LockId: id, Resource: "r"})
		return id
	}
	for i := range mostEarly + 1 {
		lost(i)
	}
	last := lost(mostEarly) // told again
	if s.early.byID["0"] != nil || s.early.byID["1"] == nil || s.early.byID[last] == nil || len(s.early.byID) != mostEarly {
		t.Errorf("%d losses are kept, and not the last %d", len(s.early.byID), mostEarly)
	}
	s.forget(c)
	if lost(1); len(s.early.byID)+len(s.early.order) != 0 {
		t.Errorf("%d losses are kept for nobody", len(s.early.byID))
	}
}

// TestEachAnswerTellsTheClock of the sidecar, if it was counted.
func TestEachAnswerTellsTheClock(t *testing.T) {
	counted := durationpb.New(time.Minute)
	for name, m := range map[string]*pb.SessionResponse{
		"opened":     {Response: &pb.SessionResponse_Opened{Opened: &pb.OpenSessionResponse{CountedAt: counted}}},
		"granted":    {Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{LockId: "l", CountedAt: counted, ValidFor: durationpb.New(time.Hour)}}},
		"downgraded": {Response: &pb.SessionResponse_Downgraded{Downgraded: &pb.Grant{CountedAt: counted}}},
	} {
		now := time.Hour
		s := alone(t, func() time.Duration { return now })
		s.clock = sidecarClock{}
		s.outbox.busy = true // nobody sends
		c := newCall()
		s.post(c, &pb.SessionRequest{})
		now += time.Second // the answer is late
		m.RequestId = c.id
		s.hear(m)
		if got := s.clock.ours(time.Minute); got != time.Hour {
			t.Errorf("%s: a minute of the sidecar is %s here", name, got)
		}
		if len(s.calls) != 0 {
			t.Errorf("%s: %d calls are noted", name, len(s.calls))
		}
	}
}

// TestDrainingIsToldOnce, however often the sidecar says so.
func TestDrainingIsToldOnce(t *testing.T) {
	s := alone(t, func() time.Duration { return time.Hour })
	for range 2 {
		s.hearEvent(&pb.Event{Event: &pb.Event_Draining{Draining: &pb.Draining{}}})
	}
	select {
	case <-s.Draining():
	default:
		t.Error("not draining")
	}
	if s.Err() != nil {
		t.Error(s.Err())
	}
}

// TestGrantBesideTheEndOfItsContext: whichever the caller takes, a hold that it does not
// get is given back.
func TestGrantBesideTheEndOfItsContext(t *testing.T) {
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for got, gone := false, false; !got || !gone; {
		s := alone(t, func() time.Duration { return time.Hour })
		s.outbox.busy = true // nobody sends
		c := newCall()
		c.acquire = true
		s.acquires.enter(c)
		s.post(c, &pb.SessionRequest{})
		s.outbox.queue = nil // but that is sent
		s.hear(&pb.SessionResponse{RequestId: c.id, Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{
			LockId: "l", CountedAt: durationpb.New(bootTime()), ValidFor: durationpb.New(time.Minute),
		}}})
		_, err := s.wait(ctx, c)
		switch q := s.outbox.queue; {
		case err == nil:
			if got = true; len(q) != 0 || c.lock.Err() != nil {
				t.Fatalf("taken, and it is given back: %v, %v", q, c.lock.Err())
			}
		case !errors.Is(err, cause):
			t.Fatal(err)
		default:
			if gone = true; len(q) != 1 || q[0].request.GetRelease().GetLockId() != "l" || len(s.locks) != 0 {
				t.Fatalf("not taken, and asked %v, %d locks", q, len(s.locks))
			}
		}
	}
}

// TestPausesBetweenAttempts grow to a tenth of a second, and end with the context.
func TestPausesBetweenAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b backoff
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 100, 100} {
			began := time.Now()
			if ok := b.wait(t.Context()); !ok || time.Since(began) != want*time.Millisecond {
				t.Errorf("pause %d: %v after %s, want %s", i, ok, time.Since(began), want*time.Millisecond)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if b.wait(ctx) || ctx.Err() == nil {
			t.Errorf("the pause does not end with its context")
		}
	})
}
