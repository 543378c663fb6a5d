package localapi

import (
	"context"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

// take begins what q asks for, and returns the work that may have to wait for the
// store, or nil. Its error is the answer.
func (t *sessionStream) take(q *pb.SessionRequest) (work func(), _ error) {
	id := q.GetRequestId()
	if id == "" || len(id) > maxRequestID {
		return nil, invalid("request_id", "must be 1 to %d bytes long", maxRequestID)
	}
	ctx := t.continueRequest(t.traced, q)
	switch r := q.GetRequest().(type) {
	case *pb.SessionRequest_Acquire:
		return t.acquire(ctx, id, r.Acquire)
	case *pb.SessionRequest_Release:
		done := session.Announce(t.sess, lock.HoldID(r.Release.GetLockId()))
		return t.fly(func() *pb.SessionResponse {
			defer done()
			a, err := t.release(ctx, t.sess, r.Release)
			return t.answer(id, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Released{Released: a}}, err)
		}), nil
	case *pb.SessionRequest_Downgrade:
		done := session.Announce(t.sess, lock.HoldID(r.Downgrade.GetLockId()))
		return t.fly(func() *pb.SessionResponse {
			defer done()
			g, err := t.downgrade(ctx, t.sess, r.Downgrade) // its times are counted when it is sent
			return t.answer(id, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Downgraded{Downgraded: grantTo(g, 0)}}, err)
		}), nil
	case *pb.SessionRequest_Detach:
		done := session.Announce(t.sess, lock.HoldID(r.Detach.GetLockId()))
		return t.fly(func() *pb.SessionResponse {
			defer done()
			d, err := t.detach(ctx, t.sess, r.Detach)
			return t.answer(id, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Detached{Detached: d}}, err)
		}), nil
	case *pb.SessionRequest_ExtendHandle:
		return t.fly(func() *pb.SessionResponse {
			d, err := t.ExtendHandle(ctx, r.ExtendHandle)
			return t.answer(id, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Detached{Detached: d}}, err)
		}), nil
	case *pb.SessionRequest_ReleaseHandle:
		return t.fly(func() *pb.SessionResponse {
			a, err := t.ReleaseHandle(ctx, r.ReleaseHandle)
			return t.answer(id, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_HandleReleased{HandleReleased: a}}, err)
		}), nil
	case *pb.SessionRequest_Extend:
		g, err := t.extend(ctx, t.sess, r.Extend)
		t.out.leave(t.answer(id, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Extended{Extended: g}}, err))
	case *pb.SessionRequest_Cancel:
		t.cancel(r.Cancel.GetRequestId())
		t.out.leave(&pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Cancelled{Cancelled: &pb.CancelResponse{}}})
	case *pb.SessionRequest_KeepAlive:
		a, err := t.keepAlive(t.sess)
		t.out.leave(t.answer(id, &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_KeptAlive{KeptAlive: a}}, err))
	case *pb.SessionRequest_Open:
		return nil, invalid("open", "must come only once, as the first message of a stream")
	default:
		if asksToLook(q) {
			return nil, invalid("request", "needs a connection of its own, with lines and without open")
		}
		return nil, invalid("request", "is missing, or not known to this sidecar")
	}
	return nil, nil
}

// maxRequestID is in bytes.
const maxRequestID = 128

// fly makes work of f, which gives the answer. Where too much is in flight already,
// f is done before the next request is taken: what is done here ends by itself, soon.
func (t *sessionStream) fly(f func() *pb.SessionResponse) (work func()) {
	if !t.depart() {
		if t.wire.inline {
			t.rest() // news must not wait for the store
		}
		t.out.leave(f())
		return nil
	}
	return func() { t.land(f()) }
}

func (t *sessionStream) depart() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.flying >= t.o.Limits.InFlight {
		return false
	}
	t.flying, t.unposted = t.flying+1, t.unposted+1
	return true
}

// land posts the answer to what departed. That is in flight no more before its client can know:
// it may send another request at once.
func (t *sessionStream) land(a *pb.SessionResponse) {
	t.mu.Lock()
	t.flying--
	others := t.flying > 0
	t.mu.Unlock()
	if others {
		t.out.share(a)
	} else {
		t.out.post(a)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unposted--
	if t.ended && t.unposted == 0 {
		close(t.settled)
	}
}

// acquire makes work of an acquire. It may wait for long, so unlike what fly does
// it is refused where too much is in flight.
func (t *sessionStream) acquire(ctx context.Context, id string, q *pb.AcquireRequest) (work func(), _ error) {
	if q.GetSessionId() != "" || q.GetRequestId() != "" || q.GetName() != "" || len(q.GetMetadata()) > 0 {
		return nil, invalid("acquire", "must not have session_id, request_id, name or metadata on a stream")
	}
	r, err := acquireRequestOf(id, q)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, taken := t.waits[id]; taken {
		return nil, invalid("request_id", "%q is that of an acquire in flight", id)
	}
	if t.ended {
		return nil, session.ErrSessionClosed
	}
	if t.flying >= t.o.Limits.InFlight {
		return nil, &session.LimitError{Limit: "requests in flight", Max: t.o.Limits.InFlight}
	}
	t.flying, t.unposted = t.flying+1, t.unposted+1
	request := t.begin(ctx, t.sess, r, func(g session.Grant, err error) {
		t.mu.Lock()
		delete(t.waits, id)
		t.mu.Unlock()
		if err != nil {
			t.land(t.refusal(id, err))
			return
		}
		// Its times are counted when it is sent.
		t.land(&pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Granted{Granted: grantTo(g, 0)}})
	})
	t.waits[id] = request
	return request.Run, nil
}

// cancel ends the wait of an acquire. One that was answered already is no error:
// the client could not know.
func (t *sessionStream) cancel(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.waits[id]; r != nil {
		r.GiveUp()
	}
}

// answer is a, or what says why there is none.
func (t *sessionStream) answer(id string, a *pb.SessionResponse, err error) *pb.SessionResponse {
	if err != nil {
		return t.refusal(id, err)
	}
	return a
}

func (t *sessionStream) refusal(id string, err error) *pb.SessionResponse {
	return t.service.refusal(t.ctx, id, err)
}

func (s *service) refusal(ctx context.Context, id string, err error) *pb.SessionResponse {
	return &pb.SessionResponse{RequestId: id, Response: &pb.SessionResponse_Error{Error: s.explain(ctx, methodSession, err)}}
}
