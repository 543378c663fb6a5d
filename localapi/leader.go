package localapi

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// leaderMetadata is the key of a session's metadata under which a leader publishes.
const leaderMetadata = "leader"

// leaderOf is a resource whose EXCLUSIVE holder leads.
func leaderOf(resource string, l *pb.Lock) *pb.Leader {
	a := &pb.Leader{Resource: resource, Candidates: countTo(len(l.GetWaiters()))}
	for _, h := range l.GetHolders() {
		if h.GetMode() == pb.Mode_EXCLUSIVE && !h.GetParked() && h.GetKeptFor() == nil {
			a.Leads, a.Holder, a.Value = true, h, h.GetMetadata()[leaderMetadata]
		}
	}
	return a
}

// GetLeader tells who leads.
func (s *service) GetLeader(ctx context.Context, q *pb.GetLeaderRequest) (*pb.Leader, error) {
	l, err := s.GetLock(ctx, &pb.GetLockRequest{Resource: q.GetResource()})
	if err != nil {
		return nil, err
	}
	return leaderOf(q.GetResource(), l), nil
}

// WatchLeader tells who leads, and who leads next.
func (s *service) WatchLeader(q *pb.WatchLeaderRequest, st grpc.ServerStreamingServer[pb.Leader]) error {
	return sendInTime(s, st, func(send func(*pb.Leader) error) error { return s.watchLeader(st.Context(), q, send) })
}

// watchLeader sends who leads, and after that each change of it: a watch of the resource
// says more, such as who waits.
func (s *service) watchLeader(ctx context.Context, q *pb.WatchLeaderRequest, send func(*pb.Leader) error) error {
	if q.GetResource() == "" {
		return invalid("resource", "must not be empty")
	}
	now, told := leaderOf(q.GetResource(), nil), (*pb.Leader)(nil)
	return s.follow(ctx, &pb.WatchLocksRequest{Prefix: q.GetResource(), Interval: q.GetInterval()}, func(e session.WatchEvent) error {
		synced := e.Kind == session.Synced
		switch {
		case e.Kind == session.Missing:
			if told == nil && e.Lacks.Lacks(lock.Resource(q.GetResource())) {
				return e.Lacks
			}
			return nil // the lock is not there, or who was seen last still leads, as far as is known
		case !synced && string(e.Status.Resource) != q.GetResource():
			return nil
		case !synced:
			now = leaderOf(q.GetResource(), lockTo(e.Status, time.Now()))
		}
		first := told == nil && (synced || now.GetLeads())
		if !first && (told == nil || told.GetHolder().GetLockId() == now.GetHolder().GetLockId()) {
			return nil
		}
		told = now
		return send(now)
	})
}
