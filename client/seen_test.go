package client_test

import (
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
)

// Dial waits for an answer of the sidecar, and calls again where that has too many
// connections.
func TestDialWaitsForAnAnswer(t *testing.T) {
	path, listen := front(t, 10)
	l := listen()
	type answer struct {
		c   *client.Client
		err error
	}
	dialled := make(chan answer, 1)
	go func() {
		c, err := client.Dial(t.Context(), path)
		dialled <- answer{c, err}
	}()
	for _, line := range []string{"HTTP/1.1 429 Too Many Requests\r\n\r\n", "", "HTTP/1.1 200 OK\r\n\r\n"} {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		select {
		case a := <-dialled:
			t.Fatalf("Dial has returned before it was answered %q: %v", line, a.err)
		case <-time.After(20 * time.Millisecond):
		}
		if _, err := c.Read(make([]byte, 1000)); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(c, line)
		_ = c.Close()
	}
	select {
	case a := <-dialled:
		if a.err != nil {
			t.Fatal(a.err)
		}
		if a.c.Socket() != path {
			t.Errorf("connected to %s, want %s", a.c.Socket(), path)
		}
		_ = a.c.Close()
	case <-time.After(patience):
		t.Fatal("Dial has not returned in time")
	}
}

// What an app asks for reaches the sidecar, which refuses what it does not allow.
func TestOptionsReachTheSidecar(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	if _, err := c.OpenSession(t.Context(), client.SessionOptions{TTL: time.Millisecond}); !errors.Is(err, client.ErrInvalidRequest) {
		t.Errorf("a session that lives for a millisecond: %v", err)
	}
	x := s.open(t, client.SessionOptions{})
	if x.ID() == "" {
		t.Error("the session has no name")
	}
	if _, err := x.Acquire(t.Context(), "r", client.AcquireOptions{MaxHold: time.Millisecond}); !errors.Is(err, client.ErrInvalidRequest) {
		t.Errorf("a hold of a millisecond: %v", err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
}

// A sidecar that is gone answers no question, and that is told.
func TestQuestionsToASidecarThatIsGone(t *testing.T) {
	s := start(t)
	c := s.dial(t)
	if _, err := c.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.stop()
	if _, err := c.Info(t.Context()); err == nil {
		t.Error("Info: no error")
	}
	if _, err := c.ForceRelease(t.Context(), "r", "", 0); err == nil {
		t.Error("ForceRelease: no error")
	}
	told := 0
	for _, err := range c.Watch(t.Context(), "", 0) {
		if err == nil {
			t.Error("Watch: no error")
		}
		told++
	}
	if told != 1 {
		t.Errorf("Watch: %d values, want the error alone", told)
	}
}

// A hold whose time is over without a word is lost in the moment in which the app asks.
func TestLostWhenAsked(t *testing.T) {
	for name, over := range map[string]func(l *client.Lock) bool{
		"ValidFor": func(l *client.Lock) bool { return l.ValidFor() == 0 },
		"Err":      func(l *client.Lock) bool { return l.Err() != nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := scripted(t)
			l := s.hold("l", 30*time.Millisecond)
			for !over(l) { // at most 30ms
				runtime.Gosched()
			}
			select {
			case <-l.Lost():
			default:
				t.Error("Lost is not closed")
			}
			var lost *client.LostError
			if !errors.As(l.Err(), &lost) || lost.Reason != client.LostSilence {
				t.Errorf("%v", l.Err())
			}
		})
	}
}

// A downgrade that the store does not answer fails by that, also where the hold is lost
// at the same time.
func TestDowngradeBesideALoss(t *testing.T) {
	s := scripted(t)
	l := s.hold("l", long)
	done := make(chan error, 1)
	go func() { done <- l.Downgrade(t.Context()) }()
	q := s.next()
	s.lost("l")
	within(t, "lost", l.Lost())
	s.refuse(q.GetRequestId(), "STORE_UNAVAILABLE", nil)
	if err := <-done; !errors.Is(err, client.ErrStoreUnavailable) || errors.Is(err, client.ErrLockLost) {
		t.Errorf("Downgrade: %v", err)
	}
}

// A loss is kept for a grant that may still come, and forgotten when none can come.
func TestEarlyLossesGoWithTheLastAcquire(t *testing.T) {
	s := scripted(t)
	a := s.ask("r")
	s.lostOf("1", "r")
	s.refuse(a.id, "LOCK_HELD", nil)
	if err := <-a.done; !errors.Is(err, client.ErrLockHeld) {
		t.Fatal(err)
	}
	if n := client.EarlyLosses(s.session); n != 0 {
		t.Errorf("%d losses are kept while nothing is asked for", n)
	}
	b := s.ask("r")
	s.grant(b.id, "1", lock.BootTime(), long) // the sidecar gives no id twice; a test does
	if l := s.got(b); l.Err() != nil {
		t.Errorf("the loss of before: %v", l.Err())
	}
}

// Who needs no guard says so, and who says nothing leaves it to the sidecar.
func TestAcquireWithoutGuard(t *testing.T) {
	s := scripted(t)
	for _, without := range []bool{false, true} {
		done := make(chan error, 1)
		go func() {
			_, err := s.session.Acquire(t.Context(), "r", client.AcquireOptions{NoGuard: without})
			done <- err
		}()
		q := s.next()
		if guard := q.GetAcquire().Guard; (guard != nil) != without || guard != nil && *guard {
			t.Errorf("NoGuard %t: asked for %v", without, q)
		}
		s.refuse(q.GetRequestId(), "LOCK_HELD", nil)
		if err := <-done; !errors.Is(err, client.ErrLockHeld) {
			t.Error(err)
		}
	}
}
