package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	long  = time.Minute // not over in a test
	short = 5 * time.Second
)

// A grant says how long its own hold may be relied on, and nothing about others.
func TestGrantProlongsOnlyItsOwn(t *testing.T) {
	s := scripted(t)
	a := s.hold("a", short)
	b := s.hold("b", long)
	if v := a.ValidFor(); v > short {
		t.Errorf("a, granted for %s, is valid for %s after a grant of b", short, v)
	}
	if v := b.ValidFor(); v <= short {
		t.Errorf("b, granted for %s, is valid for %s", long, v)
	}
	c := s.hold("c", time.Millisecond)
	within(t, "lost", c.Lost())
	if a.Err() != nil || b.Err() != nil {
		t.Errorf("c is over, and so are a: %v, b: %v", a.Err(), b.Err())
	}
}

func TestLeaseNews(t *testing.T) {
	t.Run("prolong what is held", func(t *testing.T) {
		s := scripted(t)
		l := s.hold("l", short)
		s.news(lock.BootTime(), long)
		s.read()
		if v := l.ValidFor(); v <= short || v > long {
			t.Errorf("valid for %s", v)
		}
	})
	t.Run("counted before the grant", func(t *testing.T) {
		s := scripted(t)
		counted := lock.BootTime() - time.Millisecond
		a := s.ask("l")
		s.grant(a.id, "l", lock.BootTime(), short)
		l := s.got(a)
		s.news(counted, long)
		s.read()
		if v := l.ValidFor(); v > short {
			t.Errorf("valid for %s, more than granted, by news from before the grant", v)
		}
		m := s.hold("m", short)
		if v := m.ValidFor(); v > short {
			t.Errorf("valid for %s, more than granted, by news that came before the grant", v)
		}
	})
	t.Run("counted after a grant that they overtook", func(t *testing.T) {
		s := scripted(t)
		counted := lock.BootTime()
		a := s.ask("l")
		s.news(lock.BootTime()+time.Microsecond, long)
		s.grant(a.id, "l", counted, short)
		if v := s.got(a).ValidFor(); v <= short {
			t.Errorf("valid for %s", v)
		}
	})
	t.Run("of the next lease", func(t *testing.T) {
		s := scripted(t)
		l := s.hold("l", short)
		// The lease was over, and the next one is there; the loss is still on its way.
		s.news(lock.BootTime()+short, long)
		s.read()
		if v := l.ValidFor(); v > short {
			t.Errorf("valid for %s by the news of another lease", v)
		}
	})
}

// A loss and the grant of a re-entry that it has overtaken.
func TestLossOvertakesReentry(t *testing.T) {
	s := scripted(t)
	l := s.hold("l", long)
	again := s.ask("l")
	s.lost("l")
	within(t, "lost", l.Lost())
	s.grant(again.id, "l", lock.BootTime(), long)
	if m := s.got(again); !errors.Is(m.Err(), client.ErrLockLost) || m.ValidFor() != 0 {
		t.Errorf("a lost hold was entered again: %v, valid for %s", m.Err(), m.ValidFor())
	}
}

// A loss that has overtaken a grant, among many of others.
func TestLossOvertakesGrant(t *testing.T) {
	s := scripted(t)
	a := s.ask("wanted")
	s.lostOf("1", "wanted")
	for i := range 1000 {
		s.lostOf(fmt.Sprint("other", i), fmt.Sprint("other", i))
	}
	s.grant(a.id, "1", lock.BootTime(), long)
	if l := s.got(a); !errors.Is(l.Err(), client.ErrLockLost) {
		t.Errorf("the loss that came before its grant was forgotten: %v", l.Err())
	}
}

// The sidecar says at the release that the hold is lost: there is no event of it.
func TestLostAtRelease(t *testing.T) {
	for reason, want := range map[string]struct {
		reason string
		err    error
	}{
		"LOCK_LOST":  {"STORE_LOST", client.ErrLockLost},
		"NOT_HOLDER": {client.LostUnknown, client.ErrLockLost},
	} {
		t.Run(reason, func(t *testing.T) {
			s := scripted(t)
			l := s.hold("l", long)
			done := make(chan error, 1)
			go func() { done <- l.Release(t.Context()) }()
			s.refuse(s.next().GetRequestId(), reason, map[string]string{"lost_reason": "STORE_LOST"})
			if err := <-done; !errors.Is(err, want.err) {
				t.Errorf("release: %v", err)
			}
			within(t, "lost", l.Lost())
			var lost *client.LostError
			if !errors.As(l.Err(), &lost) || lost.Reason != want.reason || lost.LockID != "l" || l.ValidFor() != 0 {
				t.Errorf("%v, valid for %s", l.Err(), l.ValidFor())
			}
			if n := client.Locks(s.session); n != 0 {
				t.Errorf("the session still has %d locks", n)
			}
		})
	}
}

// The same at a downgrade. Of a hold that is released meanwhile it is no news.
func TestLostAtDowngrade(t *testing.T) {
	for reason, want := range map[string]string{"LOCK_LOST": "STORE_LOST", "NOT_HOLDER": client.LostUnknown} {
		t.Run(reason, func(t *testing.T) {
			s := scripted(t)
			l := s.hold("l", long)
			done := make(chan error, 1)
			go func() { done <- l.Downgrade(t.Context()) }()
			s.refuse(s.next().GetRequestId(), reason, map[string]string{"lost_reason": "STORE_LOST"})
			if err := <-done; !errors.Is(err, client.ErrLockLost) {
				t.Errorf("downgrade: %v", err)
			}
			var lost *client.LostError
			if !errors.As(l.Err(), &lost) || lost.Reason != want || l.ValidFor() != 0 {
				t.Errorf("%v, valid for %s", l.Err(), l.ValidFor())
			}
		})
	}
	t.Run("released meanwhile", func(t *testing.T) {
		s := scripted(t)
		l := s.hold("l", long)
		done := make(chan error, 2)
		go func() { done <- l.Downgrade(t.Context()) }()
		downgrade := s.next().GetRequestId()
		go func() { done <- l.Release(t.Context()) }()
		s.released(s.next().GetRequestId())
		s.refuse(downgrade, "NOT_HOLDER", nil)
		for range 2 {
			if err := <-done; err != nil && !errors.Is(err, client.ErrNotHolder) {
				t.Error(err)
			}
		}
		if !errors.Is(l.Err(), client.ErrReleased) {
			t.Errorf("the released lock: %v", l.Err())
		}
	})
}

// When MaxHold is over the app does not have the hold, though the sidecar has not said
// so yet: then its word is what is told.
func TestMaxHoldIsOverBeforeItsNews(t *testing.T) {
	s := scripted(t)
	done := make(chan *client.Lock, 1)
	go func() {
		l, err := s.session.Acquire(t.Context(), "l", client.AcquireOptions{MaxHold: 20 * time.Millisecond})
		if err != nil {
			t.Error(err)
		}
		done <- l
	}()
	s.grant(s.next().GetRequestId(), "l", lock.BootTime(), long)
	l := <-done
	for lost := false; !lost; {
		valid := l.ValidFor()
		var e *client.LostError
		if err := l.Err(); valid == 0 && (!errors.As(err, &e) || e.LockID != "l") {
			t.Fatalf("valid for %s, and its error is %v", valid, err)
		}
		select {
		case <-l.Lost():
			lost = true
		default:
		}
	}
}

// Extend moves the end by MaxHold, which the app keeps by its own clock.
func TestExtendMovesTheEnd(t *testing.T) {
	s := scripted(t)
	l := s.hold("l", long)
	for _, maxHold := range []time.Duration{long / 2, long / 4, 20 * time.Millisecond} {
		done := make(chan error, 1)
		go func() { done <- l.Extend(t.Context(), maxHold) }()
		q := s.next()
		if e := q.GetExtend(); e.GetLockId() != "l" || e.GetMaxHold().AsDuration() != maxHold {
			t.Fatalf("asked %v", q)
		}
		s.say <- &pb.SessionResponse{RequestId: q.GetRequestId(), Response: &pb.SessionResponse_Extended{Extended: &pb.Grant{
			LockId: "l", CountedAt: durationpb.New(lock.BootTime()), ValidFor: durationpb.New(maxHold),
		}}}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if v := l.ValidFor(); v > maxHold {
			t.Errorf("valid for %s after Extend by %s", v, maxHold)
		}
	}
	within(t, "lost", l.Lost()) // nobody says so
}

// A hold is over for the app as soon as it has asked for the release.
func TestReleasedIsOver(t *testing.T) {
	s := scripted(t)
	l := s.hold("l", long)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Release(ctx) }()
	q := s.next()
	over := func(when string) {
		t.Helper()
		if err := l.Err(); !errors.Is(err, client.ErrReleased) || !errors.Is(err, client.ErrNotHolder) || errors.Is(err, client.ErrLockLost) || l.ValidFor() != 0 || l.Count() != 0 {
			t.Errorf("%s: err %v, valid for %s, count %d", when, err, l.ValidFor(), l.Count())
		}
	}
	over("asked")
	cause := errors.New("enough")
	cancel(cause)
	if err := <-done; !errors.Is(err, cause) {
		t.Errorf("release: %v", err)
	}
	over("given up")
	if err := l.Release(t.Context()); !errors.Is(err, client.ErrReleased) {
		t.Errorf("second release: %v", err)
	}
	s.released(q.GetRequestId())
	s.read()
	over("released")
	select {
	case <-l.Lost():
		t.Error("lost")
	default:
	}
}

// The sidecar keeps a loss, and its grace, until the app releases the lost hold:
// once for each time it was acquired.
func TestLostIsAcknowledged(t *testing.T) {
	s := scripted(t)
	l := s.hold("l", long)
	again := s.ask("l")
	s.grant(again.id, "l", lock.BootTime(), long)
	if s.got(again) != l {
		t.Fatal("two locks of one hold")
	}
	s.lost("l")
	within(t, "lost", l.Lost())
	for range 2 {
		done := make(chan error, 1)
		go func() { done <- l.Release(t.Context()) }()
		q := s.next()
		if q.GetRelease().GetLockId() != "l" {
			t.Fatalf("asked %v", q)
		}
		s.refuse(q.GetRequestId(), "LOCK_LOST", nil)
		if err := <-done; !errors.Is(err, client.ErrLockLost) {
			t.Errorf("release: %v", err)
		}
	}
	// No more is asked.
	if err := l.Release(t.Context()); !errors.Is(err, client.ErrLockLost) {
		t.Errorf("third release: %v", err)
	}
}

// Nobody waits for the grant any more, and its loss has overtaken it.
func TestLossOfAbandonedIsAcknowledged(t *testing.T) {
	s := scripted(t)
	a := s.ask("l")
	a.cancel()
	if q := s.next(); q.GetCancel().GetRequestId() != a.id {
		t.Fatalf("asked %v", q)
	}
	s.lost("l")
	s.grant(a.id, "l", lock.BootTime(), long)
	if q := s.next(); q.GetRelease().GetLockId() != "l" {
		t.Errorf("asked %v", q)
	}
}

// Who enters a hold again knows when its max_hold is over, also where the Lock that was
// made with it is over for the app and the hold is not for the sidecar.
func TestReentryKeepsMaxHold(t *testing.T) {
	limited := func(t *testing.T, validFor time.Duration) (*script, *client.Lock) {
		s := scripted(t)
		done := make(chan *client.Lock, 1)
		go func() {
			l, err := s.session.Acquire(t.Context(), "l", client.AcquireOptions{MaxHold: short, Reentrant: true})
			if err != nil {
				t.Error(err)
			}
			done <- l
		}()
		s.grant(s.next().GetRequestId(), "l", lock.BootTime(), validFor)
		return s, <-done
	}
	check := func(t *testing.T, s *script, before, l *client.Lock) {
		t.Helper()
		s.news(lock.BootTime(), long)
		s.read()
		if l == before {
			t.Error("the lock that is over lives again")
		}
		if v := l.ValidFor(); v > short {
			t.Errorf("valid for %s, and its max_hold is %s", v, short)
		}
	}
	t.Run("after the sidecar's silence", func(t *testing.T) {
		s, l := limited(t, time.Millisecond)
		within(t, "lost", l.Lost())
		again := s.ask("l")
		s.grant(again.id, "l", lock.BootTime(), time.Second)
		check(t, s, l, s.got(again))
	})
	t.Run("while it is released", func(t *testing.T) {
		s, l := limited(t, time.Second)
		again := s.ask("l")
		done := make(chan error, 1)
		go func() { done <- l.Release(t.Context()) }()
		release := s.next()
		s.grant(again.id, "l", lock.BootTime(), time.Second)
		s.say <- &pb.SessionResponse{RequestId: release.GetRequestId(), Response: &pb.SessionResponse_Released{Released: &pb.ReleaseResponse{Count: 1}}}
		if err := <-done; err != nil {
			t.Error(err)
		}
		check(t, s, l, s.got(again))
		if n := client.Limits(s.session); n != 1 {
			t.Errorf("%d limits are kept of a hold that has a count left", n)
		}
	})
}

// A release of one of two counts, and the hold is lost meanwhile: that is told, if the
// sidecar has answered; else why it has not.
func TestReleaseBesideALoss(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(s *script, id string)
		want   error
	}{
		"released":    {func(s *script, id string) { s.released(id) }, client.ErrLockLost},
		"not holder":  {func(s *script, id string) { s.refuse(id, "NOT_HOLDER", nil) }, client.ErrLockLost},
		"not decided": {func(s *script, id string) { s.refuse(id, "STORE_UNAVAILABLE", nil) }, client.ErrStoreUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := scripted(t)
			l := s.hold("l", long)
			again := s.ask("l")
			s.grant(again.id, "l", lock.BootTime(), long)
			s.got(again)
			done := make(chan error, 1)
			go func() { done <- l.Release(t.Context()) }()
			q := s.next()
			s.lost("l")
			within(t, "lost", l.Lost())
			c.answer(s, q.GetRequestId())
			if err := <-done; !errors.Is(err, c.want) || !strings.HasPrefix(err.Error(), `release "l": `) {
				t.Errorf("Release: %v", err)
			}
		})
	}
}

// The guard of a grant reaches the app.
func TestGuardOfAGrant(t *testing.T) {
	s := scripted(t)
	if l := s.hold("none", long); l.Guard != nil {
		t.Errorf("%+v where the store has none", l.Guard)
	}
	a := s.ask("l")
	s.say <- &pb.SessionResponse{RequestId: a.id, Response: &pb.SessionResponse_Granted{Granted: &pb.Grant{
		LockId: "l", Resource: "l", CountedAt: durationpb.New(lock.BootTime()), ValidFor: durationpb.New(long),
		Guard: &pb.Guard{Dialect: "mysql", Sql: "SELECT ?, ?", Args: []string{"1", "2"}},
	}}}
	if g := s.got(a).Guard; g == nil || g.Dialect != "mysql" || g.SQL != "SELECT ?, ?" || strings.Join(g.Args, " ") != "1 2" {
		t.Errorf("%+v", g)
	}
}

// What is known of a hold's max_hold is forgotten with the hold.
func TestLimitsAreForgotten(t *testing.T) {
	s := scripted(t)
	for i, end := range []func(l *client.Lock, id string){
		func(l *client.Lock, _ string) {
			go func() { _ = l.Release(t.Context()) }()
			s.released(s.next().GetRequestId())
		},
		func(l *client.Lock, _ string) {
			go func() { _ = l.Release(t.Context()) }()
			s.refuse(s.next().GetRequestId(), "NOT_HOLDER", nil)
		},
		func(_ *client.Lock, id string) { s.lost(id) },
	} {
		id := fmt.Sprint("l", i)
		done := make(chan *client.Lock, 1)
		go func() {
			l, err := s.session.Acquire(t.Context(), id, client.AcquireOptions{MaxHold: long})
			if err != nil {
				t.Error(err)
			}
			done <- l
		}()
		s.grant(s.next().GetRequestId(), id, lock.BootTime(), long)
		end(<-done, id)
		s.read()
		if n := client.Limits(s.session); n != 0 {
			t.Errorf("case %d: %d limits are kept", i, n)
		}
	}
}
