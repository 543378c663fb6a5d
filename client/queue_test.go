package client_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// TestMoreThanTheSidecarTakes: 1,500 wait on one session of a sidecar that takes a hundred at a time. All are
// served, and one who asks for another lock meanwhile, too.
func TestMoreThanTheSidecarTakes(t *testing.T) {
	for _, most := range []int{0, 100} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			side := start(t, func(o *session.Options) { o.Limits.WaitersPerSession = most })
			s := side.open(t, client.SessionOptions{})
			held := acquire(t, s, "r", client.AcquireOptions{})
			var all sync.WaitGroup
			for range 1500 {
				all.Go(func() {
					l, err := s.Acquire(t.Context(), "r", client.AcquireOptions{Wait: time.Hour})
					if err == nil {
						err = l.Release(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			eventually(t, "as many wait as may", func() bool { return side.manager.Info().Waiters == cmp.Or(most, 800) })
			if most == 0 {
				acquire(t, s, "other", client.AcquireOptions{})
			}
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
			all.Wait()
			if n := client.Calls(s); n != 0 {
				t.Errorf("%d requests are not answered", n)
			}
		})
	}
}

// crowded is a script whose sidecar takes one acquire at a time, and has one.
func crowded(t *testing.T) (s *script, first *asking, second chan error) {
	t.Helper()
	s = scripted(t)
	first = s.ask("first")
	second = make(chan error, 1)
	go func() {
		_, err := s.session.Acquire(t.Context(), "second", client.AcquireOptions{Wait: time.Hour})
		second <- err
	}()
	s.tooMany(s.next())
	s.tell(&pb.Event{Event: &pb.Event_Draining{Draining: &pb.Draining{}}})
	<-s.session.Draining() // all that is read
	return s, first, second
}

func (s *script) tooMany(q *pb.SessionRequest) {
	s.t.Helper()
	s.refuse(q.GetRequestId(), "LIMIT_EXCEEDED", map[string]string{"limit": "waiters", "max": "1"})
}

// TestRefusedForTooMany: the acquire queues in the client, and goes when one is answered, with what is left of its wait.
func TestRefusedForTooMany(t *testing.T) {
	s, first, second := crowded(t)
	s.grant(first.id, "first", lock.BootTime(), time.Hour)
	q := s.next()
	if wait := q.GetAcquire().GetWait().AsDuration(); q.GetAcquire().GetResource() != "second" || wait <= 0 || wait >= time.Hour {
		t.Errorf("the client asks for %v", q)
	}
	s.grant(q.GetRequestId(), "second", lock.BootTime(), time.Hour)
	if err := <-second; err != nil {
		t.Error(err)
	}
	// The only one is not refused for others of this session.
	alone := make(chan error, 1)
	go func() {
		_, err := s.session.Acquire(t.Context(), "alone", client.AcquireOptions{})
		alone <- err
	}()
	s.tooMany(s.next())
	if err := <-alone; !errors.Is(err, client.ErrLimitExceeded) {
		t.Errorf("an acquire that is alone: %v", err)
	}
}

// TestQueuedGivesUp: by its wait, by its context, and as a try. The sidecar hears nothing of it.
func TestQueuedGivesUp(t *testing.T) {
	s, first, second := crowded(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 3)
	acquire := func(ctx context.Context, wait time.Duration) {
		_, err := s.session.Acquire(ctx, "third", client.AcquireOptions{Wait: wait})
		ended <- err
	}
	go acquire(ctx, 0)
	go acquire(t.Context(), 100*time.Millisecond)
	go acquire(t.Context(), client.NoWait)
	if err := errors.Join(<-ended, <-ended); !errors.Is(err, client.ErrWaitTimeout) || !errors.Is(err, client.ErrLimitExceeded) {
		t.Errorf("the short wait and the try: %v", err)
	}
	cancel(cause)
	if err := <-ended; !errors.Is(err, cause) {
		t.Errorf("the context's end: %v", err)
	}
	s.grant(first.id, "first", lock.BootTime(), time.Hour)
	q := s.next()
	if q.GetAcquire().GetResource() != "second" {
		t.Errorf("the client asks for %v", q)
	}
	s.grant(q.GetRequestId(), "second", lock.BootTime(), time.Hour)
	if err := <-second; err != nil {
		t.Error(err)
	}
	s.read() // nothing else was asked
}

// TestQueuedWhenTheSessionEnds: it ends, too.
func TestQueuedWhenTheSessionEnds(t *testing.T) {
	s, first, second := crowded(t)
	if err := s.session.Close(); err != nil {
		t.Error(err)
	}
	for _, err := range []error{<-first.done, <-second} {
		if !errors.Is(err, client.ErrSessionClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}
