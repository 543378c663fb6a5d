package localapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// Detach takes a hold off its session.
func (s *service) Detach(ctx context.Context, q *pb.DetachRequest) (*pb.DetachedHold, error) {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	return s.detach(ctx, sess, q)
}

func (s *service) detach(ctx context.Context, sess *session.Session, q *pb.DetachRequest) (*pb.DetachedHold, error) {
	if q.GetLockId() == "" {
		return nil, invalid("lock_id", "must not be empty")
	}
	ttl, err := durationOf("ttl", q.GetTtl(), 0)
	if err != nil {
		return nil, err
	}
	ctx, end := s.span(ctx, "detach", "")
	d, err := sess.Detach(ctx, lock.HoldID(q.GetLockId()), ttl)
	end(err)
	if err != nil {
		return nil, err
	}
	return detachedTo(d, s.o.Clock()), nil
}

// ExtendHandle moves the end of a detached hold.
func (s *service) ExtendHandle(ctx context.Context, q *pb.ExtendHandleRequest) (*pb.DetachedHold, error) {
	ttl, err := durationOf("ttl", q.GetTtl(), 0)
	if err != nil {
		return nil, err
	}
	sp, err := spaceOf(ctx)
	if err != nil {
		return nil, err
	}
	land, err := fly(ctx, true)
	if err != nil {
		return nil, err
	}
	defer land()
	ctx, end := s.span(ctx, "extend-handle", "")
	d, err := sp.ExtendHandle(ctx, q.GetHandle(), ttl)
	end(err)
	if err != nil {
		return nil, err
	}
	return detachedTo(d, s.o.Clock()), nil
}

// ReleaseHandle ends a detached hold.
func (s *service) ReleaseHandle(ctx context.Context, q *pb.ReleaseHandleRequest) (*pb.ReleaseHandleResponse, error) {
	sp, err := spaceOf(ctx)
	if err != nil {
		return nil, err
	}
	land, err := fly(ctx, true)
	if err != nil {
		return nil, err
	}
	defer land()
	ctx, end := s.span(ctx, "release-handle", "")
	err = sp.ReleaseHandle(ctx, q.GetHandle())
	end(err)
	if err != nil {
		return nil, err
	}
	return &pb.ReleaseHandleResponse{}, nil
}

// detachedTo has both times from one reading of the clock, as grantTo.
func detachedTo(d session.Detached, now time.Duration) *pb.DetachedHold {
	return &pb.DetachedHold{
		Handle: d.Handle, Resource: d.Resource, Mode: modeTo(d.Mode), Fence: int64(d.Fence), Limit: limitTo(d.Mode),
		ValidFor: durationpb.New(left(d.Until, now)), CountedAt: durationpb.New(now),
	}
}
