package localapi

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// The calls here answer with a stream of messages, over gRPC and HTTP. send
// blocks while the client does not read; nothing piles up meanwhile, for each
// stream reads the session's news with a cursor of its own.

// Hold takes one lock and keeps it as long as the call lasts.
func (s *service) Hold(q *pb.AcquireRequest, st grpc.ServerStreamingServer[pb.Event]) error {
	return s.hold(st.Context(), q, st.Send)
}

func (s *service) hold(ctx context.Context, q *pb.AcquireRequest, send func(*pb.Event) error) error {
	if q.GetSessionId() != "" {
		return invalid("session_id", "must be empty here: Hold opens its own session")
	}
	if q.Once != nil {
		return invalid("once", "needs a session that can say how it ended: use one")
	}
	r, err := acquireRequestOf(q.GetRequestId(), q)
	if err != nil {
		return err
	}
	sess, err := s.open(ctx, &pb.OpenSessionRequest{Name: q.GetName(), Metadata: q.GetMetadata()}, session.Stream)
	if err != nil {
		return err
	}
	defer s.partingFrom(ctx, sess)(0)
	g, err := s.acquire(ctx, sess, r)
	if err != nil {
		return err
	}
	if err := send(&pb.Event{Event: &pb.Event_Granted{Granted: grantTo(g, s.o.Clock())}}); err != nil {
		return err
	}
	news := sess.Events()
	for {
		e, err := s.next(ctx, news)
		if e == nil {
			return err
		}
		if err := send(e); err != nil {
			return err
		}
		if lost := e.GetLost(); lost != nil {
			// To end the call would release the lock, which the app may still need
			// to stop its work: others are kept out until the grace is over.
			return s.linger(ctx, sess, news, lost, send)
		}
	}
}

// errGraceOver ends the wait for news of a lock that is lost.
var errGraceOver = errors.New("the grace is over")

// linger passes news on until the session or the call ends, at most for the grace of
// a lost lock: it may become shorter meanwhile. Of several, the one that is told may have none, and the rest has.
func (s *service) linger(ctx context.Context, sess *session.Session, news *session.Events, lost *pb.Lost, send func(*pb.Event) error) error {
	grace := left(session.GraceEnd(sess, lock.HoldID(lost.GetLockId())), s.o.Clock())
	ctx, stop := context.WithTimeoutCause(ctx, grace, errGraceOver)
	defer stop()
	for {
		e, err := s.next(ctx, news)
		switch {
		case errors.Is(err, errGraceOver):
			return nil
		case e == nil:
			return err
		}
		if err := send(e); err != nil {
			return err
		}
		if again := e.GetLost(); again != nil {
			return s.linger(ctx, sess, news, again, send)
		}
	}
}

// stream is a session whose life is the call.
func (s *service) stream(ctx context.Context, q *pb.OpenSessionRequest, send func(*pb.Event) error) error {
	now := s.o.Clock()
	sess, err := s.open(ctx, q, session.Stream)
	if err != nil {
		return err
	}
	defer s.partingFrom(ctx, sess)(0)
	if err := send(&pb.Event{Event: &pb.Event_Opened{Opened: s.opened(sess, now)}}); err != nil {
		return err
	}
	return s.pump(ctx, sess, send)
}

// Events brings the news of a session that was opened by OpenSession.
func (s *service) Events(q *pb.EventsRequest, st grpc.ServerStreamingServer[pb.Event]) error {
	return s.events(st.Context(), q, func() error { return st.SendHeader(nil) }, st.Send)
}

// events calls head before it waits for news.
func (s *service) events(ctx context.Context, q *pb.EventsRequest, head func() error, send func(*pb.Event) error) error {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return err
	}
	if err := head(); err != nil {
		return err
	}
	return s.pump(ctx, sess, send)
}

// pump passes the session's news on until the session or the call ends.
func (s *service) pump(ctx context.Context, sess *session.Session, send func(*pb.Event) error) error {
	news := sess.Events()
	for {
		e, err := s.next(ctx, news)
		if e == nil {
			return err
		}
		if err := send(e); err != nil {
			return err
		}
	}
}

// next waits for news. It gives none when the session has ended, or the call,
// which is the error.
//
// Model: told.WRITE.
func (s *service) next(ctx context.Context, news *session.Events) (*pb.Event, error) {
	e, err := news.Next(ctx)
	switch {
	case errors.Is(err, session.ErrSessionClosed):
		return nil, nil //nolint:nilnil // said above
	case err != nil:
		return nil, err
	}
	return eventTo(e, s.o.Clock()), nil
}

// WatchLocks brings what is there and then every change that was seen.
func (s *service) WatchLocks(q *pb.WatchLocksRequest, st grpc.ServerStreamingServer[pb.WatchEvent]) error {
	return sendInTime(s, st, func(send func(*pb.WatchEvent) error) error { return s.watch(st.Context(), q, send) })
}

// sendInTime runs a call that sends, and ends it where the client does not read in time.
func sendInTime[A any](s *service, st grpc.ServerStreamingServer[A], call func(send func(*A) error) error) error {
	// Nothing but the return of this method ends a Send that blocks.
	late := make(chan struct{}, 1)
	over := make(chan error, 1)
	s.running.Go(func() {
		over <- call(func(e *A) error {
			sending := newCountdown(s.o.Limits.Stall, func() {
				select {
				case late <- struct{}{}:
				default: // the call ends already
				}
			})
			defer sending.stop()
			return st.Send(e)
		})
	})
	select {
	case err := <-over:
		return err
	case <-late:
		s.stalled(st.Context())
		return errStalled
	}
}

// stalled is told of the end of a stream whose client did not read. Where many of
// a connection have ended so, it closes that: what a client has not read stays in
// memory until it reads it, or its connection ends.
func (s *Server) stalled(ctx context.Context) {
	c, err := connOf(ctx)
	if err != nil {
		return
	}
	if c.stalls.Add(1) > maxStalls {
		_ = c.cutOff()
	}
	s.aside(c.who(), func() {
		s.o.Logger.Warn("stream ended: its client reads nothing though answers are due", c.whois()...)
	})
}

// watch sends all events of a watch. Where shards are missing from the start, it is refused unless the request has partial.
func (s *service) watch(ctx context.Context, q *pb.WatchLocksRequest, send func(*pb.WatchEvent) error) error {
	synced := false
	return s.follow(ctx, q, func(e session.WatchEvent) error {
		synced = synced || e.Kind == session.Synced
		switch {
		case e.Kind != session.Missing || q.GetPartial():
			return send(watchEventTo(e, time.Now()))
		case synced:
			return nil
		default:
			return e.Lacks
		}
	})
}

// follow watches for a caller who may.
func (s *service) follow(ctx context.Context, q *pb.WatchLocksRequest, fn func(session.WatchEvent) error) error {
	interval, err := durationOf("interval", q.GetInterval(), session.DefaultWatchInterval)
	if err != nil {
		return err
	}
	if interval == 0 {
		return invalid("interval", "must not be 0: leave it out for %s", session.DefaultWatchInterval)
	}
	c, err := connOf(ctx)
	if err != nil {
		return err
	}
	of := c.shares()
	if err := s.watches.take(of); err != nil {
		return err
	}
	defer s.watches.give(of)
	return c.space.Watch(ctx, q.GetPrefix(), interval, fn)
}
