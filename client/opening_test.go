package client_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
)

// A session is opened again where the sidecar hangs up without a word, and only there.
func TestOpeningAgain(t *testing.T) {
	p := play(t)
	opening := call(func() (*client.Session, error) { return p.c.OpenSession(t.Context(), client.SessionOptions{}) })
	_ = p.accept().c.Close()
	h := p.accept()
	h.next()
	_ = h.c.Close()
	h = p.accept()
	h.opened(h.next())
	if s, err := returned(t, "OpenSession", opening); err != nil || s.Err() != nil {
		t.Error(err)
	}
	opening = call(func() (*client.Session, error) { return p.c.OpenSession(t.Context(), client.SessionOptions{}) })
	h = p.accept()
	h.next()
	h.raw(refusedAll)
	if s, err := returned(t, "OpenSession", opening); !errors.Is(err, client.ErrLimitExceeded) || s != nil || !strings.HasPrefix(err.Error(), "open session: ") {
		t.Error(err)
	}
	h.ends()
}

// What becomes of a session that was not opened: the connection ends, also where the sidecar
// has refused the request alone.
func TestNotOpened(t *testing.T) {
	p := play(t)
	opening := call(func() (*client.Session, error) { return p.c.OpenSession(t.Context(), client.SessionOptions{}) })
	h := p.accept()
	h.raw(`{"requestId":"` + h.next().GetRequestId() + `","error":{"message":"not today"}}` + "\n")
	if _, err := returned(t, "OpenSession", opening); err == nil || err.Error() != "open session: not today" {
		t.Error(err)
	}
	h.ends()

	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	opening = call(func() (*client.Session, error) { return p.c.OpenSession(ctx, client.SessionOptions{}) })
	h = p.accept()
	h.next()
	cancel(cause)
	if s, err := returned(t, "OpenSession", opening); !errors.Is(err, cause) || s != nil {
		t.Errorf("%v", err)
	}
	h.ends()

	ctx, cancel = context.WithCancelCause(t.Context())
	opening = call(func() (*client.Session, error) { return p.c.OpenSession(ctx, client.SessionOptions{}) })
	for range 6 {
		_ = p.accept().c.Close()
	}
	time.Sleep(5 * time.Millisecond) // it pauses for longer now; else it asks, and gets no answer
	cancel(cause)
	if s, err := returned(t, "OpenSession", opening); !errors.Is(err, cause) || s != nil {
		t.Errorf("while the sidecar hangs up: %v", err)
	}
}

// The context of the opening does not end the session.
func TestOpenedLives(t *testing.T) {
	p := play(t)
	ctx, cancel := context.WithCancel(t.Context())
	opening := call(func() (*client.Session, error) { return p.c.OpenSession(ctx, client.SessionOptions{}) })
	h := p.accept()
	h.opened(h.next())
	s, err := returned(t, "OpenSession", opening)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	acquiring := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "r", client.AcquireOptions{}) })
	h.granted(h.next().GetRequestId(), "r")
	if _, err := returned(t, "Acquire", acquiring); err != nil || s.Err() != nil {
		t.Errorf("%v, session %v", err, s.Err())
	}
}

// Whichever is first, the answer or the end of the context: there is no session, or one that
// lives.
func TestOpenedBesideTheEndOfItsContext(t *testing.T) {
	p := play(t)
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		opening := call(func() (*client.Session, error) { return p.c.OpenSession(ctx, client.SessionOptions{}) })
		h := p.accept()
		q := h.next()
		go cancel()
		_ = h.send(&pb.SessionResponse{RequestId: q.GetRequestId(), Response: &pb.SessionResponse_Opened{Opened: &pb.OpenSessionResponse{}}})
		s, err := returned(t, "OpenSession", opening)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			h.ends()
			continue
		}
		acquiring := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "r", client.AcquireOptions{}) })
		h.granted(h.next().GetRequestId(), "r")
		if _, err := returned(t, "Acquire", acquiring); err != nil {
			t.Fatal(err)
		}
	}
}

// A session tells why it has ended, and its locks do.
func TestWhyASessionEnds(t *testing.T) {
	for name, c := range map[string]struct {
		say  string
		want error
		text string
	}{
		"without a word":     {"", client.ErrStreamEnded, "the connection to the sidecar ended"},
		"said so":            {refusedAll, client.ErrLimitExceeded, "too many"},
		"no line of the API": {"what?\n", client.ErrStreamEnded, "the connection to the sidecar ended: read answer: what answers there is no sidecar"},
	} {
		t.Run(name, func(t *testing.T) {
			s, h := play(t).open(client.SessionOptions{})
			acquiring := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "l", client.AcquireOptions{}) })
			h.granted(h.next().GetRequestId(), "l")
			l, err := returned(t, "Acquire", acquiring)
			if err != nil {
				t.Fatal(err)
			}
			waiting := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "w", client.AcquireOptions{}) })
			h.next()
			h.raw(c.say)
			if c.say == "" {
				_ = h.c.Close()
			}
			within(t, "done", s.Done())
			if err := s.Err(); !errors.Is(err, c.want) || !strings.HasPrefix(err.Error(), c.text) {
				t.Errorf("session: %v", err)
			}
			if _, err := returned(t, "the waiting", waiting); !errors.Is(err, c.want) {
				t.Errorf("who waited: %v", err)
			}
			within(t, "lost", l.Lost())
			var lost *client.LostError
			if !errors.As(l.Err(), &lost) || lost.Reason != client.LostStream || lost.GraceLeft() != 0 {
				t.Errorf("lock: %v", l.Err())
			}
			if err := l.Release(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("release: %v", err)
			}
			if err := l.Downgrade(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("downgrade: %v", err)
			}
			if c.say != "" {
				h.ends()
			}
		})
	}
}

// Close ends what waits, and nothing that the sidecar says then is a surprise.
func TestCloseBesideAGrant(t *testing.T) {
	s, h := play(t).open(client.SessionOptions{})
	held := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "held", client.AcquireOptions{}) })
	h.granted(h.next().GetRequestId(), "held")
	l, err := returned(t, "Acquire", held)
	if err != nil {
		t.Fatal(err)
	}
	waiting := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "w", client.AcquireOptions{}) })
	asked := h.next().GetRequestId()
	closing := call(func() (struct{}, error) { return struct{}{}, s.Close() })
	h.ends() // its half
	within(t, "done", s.Done())
	if _, err := returned(t, "the waiting", waiting); !errors.Is(err, client.ErrSessionClosed) {
		t.Errorf("who waited: %v", err)
	}
	var lost *client.LostError
	if !errors.As(l.Err(), &lost) || lost.Reason != "SESSION_CLOSED" {
		t.Errorf("lock: %v", l.Err())
	}
	h.granted(asked, "w")
	h.raw(`{"event":{"lost":{"lockId":"held","resource":"held","reason":"FORCED"}}}` + "\n")
	select {
	case r := <-closing:
		t.Errorf("Close has returned before the sidecar ended the connection: %v", r.err)
	default:
	}
	_ = h.c.Close()
	if _, err := returned(t, "Close", closing); err != nil {
		t.Error(err)
	}
	if !errors.Is(s.Err(), client.ErrSessionClosed) || client.Locks(s) != 0 {
		t.Errorf("%v, %d locks", s.Err(), client.Locks(s))
	}
	if err := s.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// What the sidecar could not take at first goes out as soon as it reads, also where nothing
// more is asked.
func TestBlockedRequestGoesOut(t *testing.T) {
	s, h := play(t).open(client.SessionOptions{})
	h.skip(client.Block(s))
	if q := h.next(); q.GetCancel() == nil {
		t.Errorf("asked %v", q)
	}
}

// What was not sent and is not wanted any more is never sent.
func TestWithdrawnBeforeItIsSent(t *testing.T) {
	s, h := play(t).open(client.SessionOptions{})
	filled := client.Block(s)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	asking := call(func() (*client.Lock, error) { return s.Acquire(ctx, "r", client.AcquireOptions{}) })
	eventually(t, "queued", func() bool { return client.Queued(s) == 1 })
	last := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "last", client.AcquireOptions{}) })
	eventually(t, "queued", func() bool { return client.Queued(s) == 2 })
	cancel(cause)
	if _, err := returned(t, "the call", asking); !errors.Is(err, cause) {
		t.Error(err)
	}
	if n := client.Queued(s); n != 1 {
		t.Errorf("%d requests are to be sent, and one is wanted", n)
	}
	h.skip(filled)
	h.next()
	q := h.next()
	if q.GetAcquire().GetResource() != "last" {
		t.Fatalf("asked %v", q)
	}
	h.granted(q.GetRequestId(), "last")
	if _, err := returned(t, "Acquire", last); err != nil {
		t.Error(err)
	}
	// Nothing of it is kept: no grant can come that a loss may have overtaken.
	h.raw(`{"event":{"lost":{"lockId":"x","resource":"r"}}}` + "\n" + `{"event":{"draining":{}}}` + "\n")
	within(t, "draining", s.Draining())
	if n, early := client.Calls(s), client.EarlyLosses(s); n != 1 || early != 0 {
		t.Errorf("%d requests are noted, and the sidecar has not answered one; %d losses", n, early)
	}
}

// A release that was not sent yet goes on when its caller leaves.
func TestReleaseIsNotWithdrawn(t *testing.T) {
	s, h := play(t).open(client.SessionOptions{})
	acquiring := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "l", client.AcquireOptions{}) })
	h.granted(h.next().GetRequestId(), "l")
	l, err := returned(t, "Acquire", acquiring)
	if err != nil {
		t.Fatal(err)
	}
	filled := client.Block(s)
	ctx, cancel := context.WithCancel(t.Context())
	releasing := call(func() (struct{}, error) { return struct{}{}, l.Release(ctx) })
	eventually(t, "queued", func() bool { return client.Queued(s) == 1 })
	cancel()
	if _, err := returned(t, "Release", releasing); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	h.skip(filled)
	h.next()
	if q := h.next(); q.GetRelease().GetLockId() != "l" {
		t.Errorf("asked %v", q)
	}
}

// What was not sent when the session is closed is not sent any more.
func TestClosedBeforeItIsSent(t *testing.T) {
	s, h := play(t).open(client.SessionOptions{})
	filled := client.Block(s)
	waiting := call(func() (*client.Lock, error) { return s.Acquire(t.Context(), "r", client.AcquireOptions{}) })
	eventually(t, "queued", func() bool { return client.Queued(s) == 1 })
	closing := call(func() (struct{}, error) { return struct{}{}, s.Close() })
	if _, err := returned(t, "Acquire", waiting); !errors.Is(err, client.ErrSessionClosed) {
		t.Error(err)
	}
	h.skip(filled)
	h.next()
	h.ends()
	_ = h.c.Close()
	if _, err := returned(t, "Close", closing); err != nil {
		t.Error(err)
	}
}

// A sidecar that does not answer a keep-alive gets no more of them.
func TestKeepAliveIsAnsweredFirst(t *testing.T) {
	s, h := play(t).open(client.SessionOptions{TTL: 3 * time.Millisecond})
	q := h.next()
	if q.GetKeepAlive() == nil {
		t.Fatalf("asked %v", q)
	}
	_ = h.c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if _, err := h.in.Peek(1); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("another one before the answer: %v", err)
	}
	_ = h.c.SetReadDeadline(time.Now().Add(patience))
	h.say(&pb.SessionResponse{RequestId: q.GetRequestId(), Response: &pb.SessionResponse_KeptAlive{KeptAlive: &pb.KeepAliveResponse{}}})
	if q := h.next(); q.GetKeepAlive() == nil {
		t.Errorf("asked %v", q)
	}
	if s.Err() != nil {
		t.Error(s.Err())
	}
}
