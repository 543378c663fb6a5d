package localapi

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// service is the API without a protocol. gRPC calls its methods through the
// generated code; the HTTP handlers call them too. Errors come as they are and
// become API errors at the protocol's edge.
type service struct {
	pb.UnimplementedLockSidecarServer
	*Server
}

const (
	defaultForceGrace = 2 * time.Second
	defaultPageSize   = 100
	// pageBytes is where a page ends before it is full, for the sake of clients that
	// take no message above 4 MiB, as is gRPC's default.
	pageBytes = 1 << 20
)

// find gives the session of that id, if it is the caller's: of the same uid and principal.
func (s *service) find(ctx context.Context, id string) (*session.Session, error) {
	if id == "" {
		return nil, invalid("session_id", "must not be empty")
	}
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	return c.space.Lookup(session.ID(id), c.sessionPeer())
}

// open opens a session for the caller.
func (s *service) open(ctx context.Context, q *pb.OpenSessionRequest, l session.Liveness) (*session.Session, error) {
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := openRequestOf(q, l, c)
	if err != nil {
		return nil, err
	}
	return c.space.Open(ctx, r)
}

func (s *service) opened(sess *session.Session, now time.Duration) *pb.OpenSessionResponse {
	info := s.o.Manager.Info()
	return &pb.OpenSessionResponse{
		SessionId:   string(sess.ID()),
		LeaseTtl:    durationpb.New(info.LeaseTTL),
		LeaseMargin: durationpb.New(info.LeaseMargin),
		Sidecar:     info.Sidecar,
		CountedAt:   durationpb.New(now),
	}
}

// livenessOf is what a session of its own hangs on.
func livenessOf(q *pb.OpenSessionRequest) (session.Liveness, error) {
	switch q.GetLiveness() {
	case pb.Liveness_PROCESS:
		return session.Process, nil
	case pb.Liveness_TTL:
		return session.TTL, nil
	case pb.Liveness_STREAM:
		return session.Stream, nil
	case pb.Liveness_LIVENESS_UNSPECIFIED:
		if q.Ttl != nil {
			return session.TTL, nil
		}
		return session.Process, nil
	default:
		return 0, invalid("liveness", "must be PROCESS, TTL or STREAM, and not %d", q.GetLiveness())
	}
}

// OpenSession opens a session that outlives the call.
func (s *service) OpenSession(ctx context.Context, q *pb.OpenSessionRequest) (*pb.OpenSessionResponse, error) {
	l, err := livenessOf(q)
	if err != nil {
		return nil, err
	}
	if l == session.Stream {
		return nil, invalid("liveness", "must not be STREAM here: use the Session stream")
	}
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	now := s.o.Clock()
	release := func() {}
	if l == session.Process {
		// The session outlives the connection, whose end would end the watch of the
		// process.
		if !c.peer.Retain() {
			return nil, errGone
		}
		release = c.peer.Release
	}
	sess, err := s.open(ctx, q, l)
	if err != nil {
		release()
		return nil, err
	}
	s.places.enter(c)
	s.running.Go(func() {
		select {
		case <-sess.Done():
		case <-s.stopping.Done(): // the watch ends now
		}
		s.places.leave(c)
		release()
	})
	return s.opened(sess, now), nil
}

// KeepAlive renews a session.
func (s *service) KeepAlive(ctx context.Context, q *pb.KeepAliveRequest) (*pb.KeepAliveResponse, error) {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	return s.keepAlive(sess)
}

func (s *service) keepAlive(sess *session.Session) (*pb.KeepAliveResponse, error) {
	end, err := sess.KeepAlive()
	if err != nil {
		return nil, err
	}
	return &pb.KeepAliveResponse{ValidFor: durationpb.New(left(end, s.o.Clock()))}, nil
}

// CloseSession ends a session.
func (s *service) CloseSession(ctx context.Context, q *pb.CloseSessionRequest) (*pb.CloseSessionResponse, error) {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	sess.Close()
	return &pb.CloseSessionResponse{}, nil
}

// Acquire takes a lock for a session.
func (s *service) Acquire(ctx context.Context, q *pb.AcquireRequest) (*pb.Grant, error) {
	if q.GetName() != "" || len(q.GetMetadata()) > 0 {
		return nil, invalid("name", "and metadata belong to the session here: give them when it is opened")
	}
	r, err := acquireRequestOf(q.GetRequestId(), q)
	if err != nil {
		return nil, err
	}
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	g, err := s.acquire(ctx, sess, r)
	if err != nil {
		return nil, err
	}
	return grantTo(g, s.o.Clock()), nil
}

// Cancel gives up an acquire.
func (s *service) Cancel(ctx context.Context, q *pb.CancelRequest) (*pb.CancelResponse, error) {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	if err := sess.Cancel(ctx, q.GetRequestId()); err != nil {
		return nil, err
	}
	return &pb.CancelResponse{}, nil
}

// Release ends a hold.
func (s *service) Release(ctx context.Context, q *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	return s.release(ctx, sess, q)
}

func (s *service) release(ctx context.Context, sess *session.Session, q *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	if q.GetLockId() == "" {
		return nil, invalid("lock_id", "must not be empty")
	}
	state, err := conclusionOf(q)
	if err != nil {
		return nil, err
	}
	ctx, end := s.span(ctx, "release", "")
	var count int
	id := lock.HoldID(q.GetLockId())
	if state == 0 {
		count, err = sess.Release(ctx, id, q.GetRequestId())
	} else {
		count, err = sess.Conclude(ctx, id, q.GetRequestId(), state, q.GetNote())
	}
	end(err)
	if err != nil {
		return nil, err
	}
	a := &pb.ReleaseResponse{Count: countTo(count)}
	if count == 0 {
		if until := sess.KeptUntil(id); until != 0 { // else the clock need not be read
			a.KeptFor = keptTo(until - s.o.Clock())
		}
	}
	return a, nil
}

// Downgrade turns an EXCLUSIVE hold into a SHARED one.
func (s *service) Downgrade(ctx context.Context, q *pb.DowngradeRequest) (*pb.Grant, error) {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	g, err := s.downgrade(ctx, sess, q)
	if err != nil {
		return nil, err
	}
	return grantTo(g, s.o.Clock()), nil
}

func (s *service) downgrade(ctx context.Context, sess *session.Session, q *pb.DowngradeRequest) (session.Grant, error) {
	if q.GetLockId() == "" {
		return session.Grant{}, invalid("lock_id", "must not be empty")
	}
	ctx, end := s.span(ctx, "downgrade", "")
	g, err := sess.Downgrade(ctx, lock.HoldID(q.GetLockId()))
	end(err)
	return g, err
}

// Extend moves the end of a hold's own limit.
func (s *service) Extend(ctx context.Context, q *pb.ExtendRequest) (*pb.Grant, error) {
	sess, err := s.find(ctx, q.GetSessionId())
	if err != nil {
		return nil, err
	}
	return s.extend(ctx, sess, q)
}

func (s *service) extend(ctx context.Context, sess *session.Session, q *pb.ExtendRequest) (*pb.Grant, error) {
	if q.GetLockId() == "" {
		return nil, invalid("lock_id", "must not be empty")
	}
	maxHold, err := durationOf("max_hold", q.GetMaxHold(), 0)
	if err != nil {
		return nil, err
	}
	_, end := s.span(ctx, "extend", "")
	g, err := sess.Extend(lock.HoldID(q.GetLockId()), maxHold)
	end(err)
	if err != nil {
		return nil, err
	}
	return grantTo(g, s.o.Clock()), nil
}

// GetLock tells who holds and waits for a resource.
func (s *service) GetLock(ctx context.Context, q *pb.GetLockRequest) (*pb.Lock, error) {
	sp, err := spaceOf(ctx)
	if err != nil {
		return nil, err
	}
	land, err := fly(ctx, false)
	if err != nil {
		return nil, err
	}
	defer land()
	ctx, end := s.span(ctx, "get", q.GetResource())
	st, err := sp.Get(ctx, q.GetResource())
	end(err)
	if err != nil {
		return nil, err
	}
	return lockTo(st, time.Now()), nil
}

// ListLocks tells it for all resources, page by page.
func (s *service) ListLocks(ctx context.Context, q *pb.ListLocksRequest) (*pb.ListLocksResponse, error) {
	sp, after, limit, err := pageOf(ctx, q)
	if err != nil {
		return nil, err
	}
	land, err := fly(ctx, false)
	if err != nil {
		return nil, err
	}
	defer land()
	ctx, end := s.span(ctx, "list", "")
	found, err := sp.List(ctx, q.GetPrefix(), after, limit)
	end(err)
	missing, err := without(err, q.GetPartial())
	if err != nil {
		return nil, err
	}
	now := time.Now()
	a := &pb.ListLocksResponse{Locks: make([]*pb.Lock, 0, len(found)), MissingShards: missing}
	size := 0
	for _, st := range found {
		l := lockTo(st, now)
		if size += proto.Size(l); size > pageBytes && len(a.Locks) > 0 {
			break
		}
		a.Locks = append(a.Locks, l)
	}
	if n := len(a.Locks); n == limit || n < len(found) {
		a.NextPageToken = pageToken(string(found[n-1].Resource))
	}
	return a, nil
}

// admin gives the connection of a caller who must be an admin. What an admin may do ends at the space.
func (s *service) admin(ctx context.Context) (*conn, error) {
	c, err := connOf(ctx)
	if err != nil {
		return nil, err
	}
	if !s.o.Access.admin(c.sessionPeer()) {
		return nil, refuse(reasonPermission, "%s is not one of this sidecar's admins", c.whoSays())
	}
	return c, nil
}

// ForceRelease takes a lock from its holder.
func (s *service) ForceRelease(ctx context.Context, q *pb.ForceReleaseRequest) (*pb.ForceReleaseResponse, error) {
	c, err := s.admin(ctx)
	if err != nil {
		return nil, err
	}
	grace, err := durationOf("grace", q.GetGrace(), defaultForceGrace)
	if err != nil {
		return nil, err
	}
	land, err := fly(ctx, true) // it may be what ends the waits that have used up what there is
	if err != nil {
		return nil, err
	}
	defer land()
	ctx, end := s.span(ctx, "force-release", q.GetResource())
	ids, err := c.space.ForceRelease(ctx, q.GetResource(), lock.HoldID(q.GetLockId()), grace)
	end(err)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 { // it was free
		return &pb.ForceReleaseResponse{}, nil
	}
	s.o.Logger.Warn("lock taken from its holder", append([]any{keyResource, q.GetResource(), keyLockIDs, ids}, c.whois()...)...)
	a := &pb.ForceReleaseResponse{}
	for _, id := range ids {
		a.LockIds = append(a.LockIds, string(id))
	}
	return a, nil
}

// GetInfo tells about the sidecar.
func (s *service) GetInfo(ctx context.Context, _ *pb.GetInfoRequest) (*pb.Info, error) {
	sp, err := spaceOf(ctx)
	if err != nil {
		return nil, err
	}
	i := sp.Info()
	return &pb.Info{
		Version:         s.o.Version,
		Sidecar:         i.Sidecar,
		Store:           s.o.Store(),
		Namespace:       i.Namespace,
		Ready:           i.Ready,
		NotReadyBecause: i.NotReadyBecause,
		LeaseId:         string(i.LeaseID),
		LeaseTtl:        durationpb.New(i.LeaseTTL),
		LeaseValidFor:   durationpb.New(i.LeaseValidFor),
		Jeopardy:        i.Jeopardy,
		Draining:        i.Draining,
		Sessions:        countTo(i.Sessions),
		Holds:           countTo(i.Holds),
		Waiters:         countTo(i.Waiters),
		Parked:          countTo(i.Parked),
		Uptime:          durationpb.New(i.Uptime),
	}, nil
}
