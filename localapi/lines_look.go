package localapi

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/localapi/peercred"
	"github.com/locksidecar/locksidecar/session"
)

// asksToLook tells whether a request needs no session: where the first line of a
// connection is one of these, it has none.
func asksToLook(q *pb.SessionRequest) bool {
	switch q.GetRequest().(type) {
	case *pb.SessionRequest_GetLock, *pb.SessionRequest_ListLocks, *pb.SessionRequest_WatchLocks,
		*pb.SessionRequest_ForceRelease, *pb.SessionRequest_GetInfo,
		*pb.SessionRequest_ListOutcomes, *pb.SessionRequest_ResetOutcome,
		*pb.SessionRequest_ExtendHandle, *pb.SessionRequest_ReleaseHandle,
		*pb.SessionRequest_GetLeader, *pb.SessionRequest_WatchLeader:
		return true
	default:
		return false
	}
}

// look answers requests that need no session, one after the other, until the client ends
// the connection, or its half of it. So of the answers, which may be large, one at a time
// is in memory. Its error is the last line.
func (s *service) look(ctx context.Context, l *lineConn, w *peercred.Watcher, q *pb.SessionRequest) error {
	// Nobody reads while a call lasts, so somebody else sees that the client has gone.
	if err := l.listenForHangUp(w.Closed); err != nil {
		return err
	}
	ctx, cancel := s.untilStop(ctx)
	defer cancel()
	defer context.AfterFunc(s.stopping, func() { _ = l.SetReadDeadline(time.Unix(1, 0)) })() //nolint:contextcheck,nolintlint // not ctx: the end of the server
	var err error
	for err == nil {
		if err = s.lookOnce(s.continueRequest(ctx, q), l, q); err == nil {
			q, err = s.nextLook(ctx, l)
		}
	}
	switch {
	case s.stopping.Err() != nil:
		return session.ErrDraining
	case errors.Is(err, io.EOF):
		return nil
	default:
		return err
	}
}

// nextLook answers what is no request, and gives the next that is one.
func (s *service) nextLook(ctx context.Context, l *lineConn) (*pb.SessionRequest, error) {
	for {
		q, err := l.recv()
		no := (*refused)(nil)
		if !errors.As(err, &no) {
			return q, err
		}
		if err := s.tell(ctx, l, s.refusal(ctx, no.id, no.err)); err != nil {
			return nil, err
		}
	}
}

// lookOnce answers one request. Its error is that of the connection.
func (s *service) lookOnce(ctx context.Context, l *lineConn, q *pb.SessionRequest) error {
	s.places.enter(l.conn)
	defer s.places.leave(l.conn)
	a := &pb.SessionResponse{RequestId: q.GetRequestId()}
	var err, gone error
	switch r := q.GetRequest().(type) {
	case *pb.SessionRequest_GetLock:
		var x *pb.Lock
		x, err = s.GetLock(ctx, r.GetLock)
		a.Response = &pb.SessionResponse_Lock{Lock: x}
	case *pb.SessionRequest_ListLocks:
		var x *pb.ListLocksResponse
		x, err = s.ListLocks(ctx, r.ListLocks)
		a.Response = &pb.SessionResponse_Locks{Locks: x}
	case *pb.SessionRequest_WatchLocks:
		err = s.watch(ctx, r.WatchLocks, func(e *pb.WatchEvent) error {
			gone = s.tell(ctx, l, &pb.SessionResponse{RequestId: a.RequestId, Response: &pb.SessionResponse_Watched{Watched: e}})
			return gone
		})
	case *pb.SessionRequest_ForceRelease:
		var x *pb.ForceReleaseResponse
		x, err = s.ForceRelease(ctx, r.ForceRelease)
		a.Response = &pb.SessionResponse_ForceReleased{ForceReleased: x}
	case *pb.SessionRequest_ListOutcomes:
		var x *pb.ListOutcomesResponse
		x, err = s.ListOutcomes(ctx, r.ListOutcomes)
		a.Response = &pb.SessionResponse_Outcomes{Outcomes: x}
	case *pb.SessionRequest_ResetOutcome:
		var x *pb.ResetOutcomeResponse
		x, err = s.ResetOutcome(ctx, r.ResetOutcome)
		a.Response = &pb.SessionResponse_OutcomeReset{OutcomeReset: x}
	case *pb.SessionRequest_GetLeader:
		var x *pb.Leader
		x, err = s.GetLeader(ctx, r.GetLeader)
		a.Response = &pb.SessionResponse_Leader{Leader: x}
	case *pb.SessionRequest_WatchLeader:
		err = s.watchLeader(ctx, r.WatchLeader, func(x *pb.Leader) error {
			gone = s.tell(ctx, l, &pb.SessionResponse{RequestId: a.RequestId, Response: &pb.SessionResponse_Leader{Leader: x}})
			return gone
		})
	case *pb.SessionRequest_ExtendHandle:
		var x *pb.DetachedHold
		x, err = s.ExtendHandle(ctx, r.ExtendHandle)
		a.Response = &pb.SessionResponse_Detached{Detached: x}
	case *pb.SessionRequest_ReleaseHandle:
		var x *pb.ReleaseHandleResponse
		x, err = s.ReleaseHandle(ctx, r.ReleaseHandle)
		a.Response = &pb.SessionResponse_HandleReleased{HandleReleased: x}
	case *pb.SessionRequest_GetInfo:
		var x *pb.Info
		x, err = s.GetInfo(ctx, r.GetInfo)
		a.Response = &pb.SessionResponse_Info{Info: x}
	default:
		err = invalid("open", "must be the first line of a connection that has a session")
	}
	switch {
	case gone != nil:
		return gone
	case err != nil:
		a = s.refusal(ctx, a.GetRequestId(), err)
	}
	return s.tell(ctx, l, a)
}

// tell writes one message, which the client must read in time.
func (s *service) tell(ctx context.Context, l *lineConn, a *pb.SessionResponse) error {
	l.out = appendLine(l.out, a)
	late := newCountdown(s.o.Limits.Stall, func() { _ = l.SetWriteDeadline(time.Unix(1, 0)) })
	err := l.send(nil, true)
	late.stop()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.stalled(ctx)
	}
	return err
}
