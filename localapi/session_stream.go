package localapi

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session"
)

const methodSession = pb.LockSidecar_Session_FullMethodName

// farewell is how long a stream whose session has ended waits for a slow client
// to read the last answers.
const farewell = time.Second

const (
	// maxStanding is how many streams of the sidecar may stand still, because their
	// clients do not read, for as long as Limits.Stall. Others end after shortStall.
	maxStanding = 256
	shortStall  = 5 * time.Second
	// maxStalls is how many streams of a connection may have ended for that.
	maxStalls = 16
)

// wire is how the messages of a session go to and fro.
type wire struct {
	// recv gives the next request. io.EOF: the client has ended the stream. *refused:
	// what came is no request; the stream goes on.
	recv func() (*pb.SessionRequest, error)
	send func(batch []*pb.SessionResponse, wait bool) error // see outbox
	most int                                                // messages of a batch
	// waited: recv has waited for the client the last time. Only where inline.
	waited func() bool
	// more: another request is there already. Only where inline.
	more func() bool
	// inline: who receives carries out what it has received, and goes on receiving where
	// that has not blocked. recv must call rest before it waits.
	inline bool
}

// refused is a request that is answered with an error although nobody has seen it whole.
type refused struct {
	id  string // may be empty
	err error
}

func (r *refused) Error() string { return r.err.Error() }
func (r *refused) Unwrap() error { return r.err }

// sessionStream is one app session on its stream.
//
// One goroutine at a time receives, one sends the news, and every request that is on
// its way to the store has its own. One that waits has none. Whoever has an answer sends it, and
// those that come up meanwhile; see outbox. When the client does not read, its
// requests are not taken any more. So a slow client costs a bounded amount of
// memory and nobody else's time.
type sessionStream struct {
	*service
	wire   wire
	ctx    context.Context //nolint:containedctx // the stream's, whose life is that of this value
	traced context.Context //nolint:containedctx // ctx in the trace of open, for the receiver
	sess   *session.Session
	out    *outbox
	turn   atomic.Uint64 // odd while the receiver carries out a request, one more each time

	part  func(stood time.Duration) // ends sess
	stood atomic.Int64              // how long the client had read nothing when the receiver stopped for that; 0: it did not

	received chan error // why the receiver has stopped

	mu       sync.Mutex
	waits    map[string]*session.Request // acquires in flight, by request id
	flying   int                         // requests that are not answered yet
	unposted int                         // and those whose answer is not posted yet
	ended    bool                        // the receiver takes no more
	settled  chan struct{}               // closed when ended and all answers are posted
	askers   askers

	burst burst
}

// Session serves one app session over gRPC.
func (s *service) Session(st grpc.BidiStreamingServer[pb.SessionRequest, pb.SessionResponse]) error {
	return s.newStream(st.Context(), wire{
		recv: st.Recv,
		send: func(batch []*pb.SessionResponse, _ bool) error { return st.Send(batch[0]) },
		most: 1,
	}).serve()
}

func (s *service) newStream(ctx context.Context, w wire) *sessionStream {
	t := &sessionStream{
		service: s,
		wire:    w,
		ctx:     ctx,
		waits:   make(map[string]*session.Request),

		out:      newOutbox(w.send, w.most, s.o.Clock, s.workers.Run),
		received: make(chan error, 1),
		settled:  make(chan struct{}),
	}
	if w.inline {
		t.ctx = lock.WithBurst(lock.WithBlocking(ctx, t.passOn), &t.burst)
	}
	return t
}

// serve returns when the stream or the session has ended, and says how.
func (t *sessionStream) serve() error {
	// Nothing but the return of this method makes a blocked recv or send of gRPC return,
	// so neither is done here.
	opened := make(chan error, 1)
	t.running.Go(func() {
		err := t.open()
		opened <- err
		if err != nil {
			t.end()
			return
		}
		t.receive()
	})

	timer := time.NewTimer(t.o.Limits.Handshake)
	defer timer.Stop()
	select {
	case err := <-opened:
		switch {
		case errors.Is(err, io.EOF): // it has asked for nothing
			return nil
		case err != nil:
			return err
		}
	case <-timer.C:
		return invalid("open", "must come within %s", t.o.Limits.Handshake)
	case <-t.ctx.Done():
		return context.Cause(t.ctx)
	}

	told := make(chan struct{})
	t.running.Go(func() {
		defer close(told)
		_ = t.pump(t.ctx, t.sess, func(e *pb.Event) error {
			return t.out.deliver(t.ctx, &pb.SessionResponse{Response: &pb.SessionResponse_Event{Event: e}})
		})
	})
	err := t.over()
	t.end()
	timer.Reset(farewell)
	for _, last := range []func() <-chan struct{}{
		func() <-chan struct{} { return told },
		func() <-chan struct{} { return t.settled },
		t.out.settle,
	} {
		select {
		case <-last():
		case <-timer.C:
			return err
		case <-t.ctx.Done():
			return err
		}
	}
	return err
}

// over waits for the end of the stream or of the session, and says how it ended.
func (t *sessionStream) over() error {
	var err error
	select {
	case err = <-t.received:
	case <-t.sess.Done():
		select {
		case err = <-t.received: // the stream has ended, and the session with it
		default:
			if t.stopping.Err() != nil || t.o.Manager.Info().Draining {
				return session.ErrDraining
			}
			return session.ErrSessionClosed
		}
	case <-t.stopping.Done():
		return session.ErrDraining
	case <-t.ctx.Done(): // the receiver need not read just now
		return context.Cause(t.ctx)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// receive takes requests until the stream ends. One that has to ask the store is
// carried out and answered on the goroutine that has received it, which leaves
// receiving to another: so the request does not wait for a goroutine to wake up. Over
// gRPC it does so each time, for who goes on receiving never sends: he would not see
// that the client does not read. Inline it does so when the request blocks.
func (t *sessionStream) receive() {
	kept := false // receiving, for a trip
	for {
		q, err := t.next()
		if t.wire.inline {
			if kept {
				t.mu.Lock()
				t.askers.tripped(!t.wire.waited())
				t.mu.Unlock()
			}
			t.out.hold()
			t.burst.next(t.wire.more())
		}
		if no := (*refused)(nil); errors.As(err, &no) {
			t.out.leave(t.refusal(no.id, no.err))
			continue
		}
		if err != nil {
			t.rest()
			t.received <- err // before the session ends by it, so that it is known which ended which
			t.end()
			if errors.Is(err, errStalled) {
				t.stalled(t.ctx)
			}
			return
		}
		work, err := t.take(q)
		switch {
		case err != nil:
			t.out.leave(t.refusal(q.GetRequestId(), err))
		case work == nil:
		case t.wire.inline:
			turn := t.turn.Add(1)
			work()
			if !t.turn.CompareAndSwap(turn, turn+1) {
				return // another receives
			}
			t.mu.Lock()
			kept = t.askers.kept == turn
			t.mu.Unlock()
		default:
			t.workers.Run(t.receive)
			work()
			return
		}
	}
}

// passOn leaves receiving to another goroutine while a request is carried out that is
// about to block. Where it is told of one that is not the receiver's, or not any more,
// that is in vain, and no harm. The receiver of a client that asks for one thing after the
// other keeps it for a short trip, after which its client has the answer, and asks again. It does not where
// another request is there already: the trip may wait for that.
func (t *sessionStream) passOn() {
	if turn := t.turn.Load(); turn%2 == 1 && (t.burst.goesOn.Load() || !t.mayKeep(turn)) {
		t.passTurn(turn)
	}
}

// passTurn reports whether the receiver still had this turn.
func (t *sessionStream) passTurn(turn uint64) bool {
	if !t.turn.CompareAndSwap(turn, turn+1) {
		return false
	}
	t.workers.Run(t.receive)
	return true
}

// rest is called by the receiver before it waits for anything: what is due goes out, to the client and to the
// store.
func (t *sessionStream) rest() {
	t.burst.end()
	t.out.flush()
}

// next receives a request, once the client has read most of its answers.
func (t *sessionStream) next() (*pb.SessionRequest, error) {
	if t.out.unsent() >= maxUnsent {
		if err := t.standStill(); err != nil {
			return nil, err
		}
	}
	return t.wire.recv()
}

// standStill waits until the client has read most of its answers. What is held must go out first,
// whoever has posted it: nobody else sends it.
func (t *sessionStream) standStill() error {
	if t.rest(); t.out.unsent() < maxUnsent {
		return nil
	}
	defer t.standing.Add(-1)
	patience := t.o.Limits.Stall
	if t.standing.Add(1) > maxStanding {
		patience = min(patience, shortStall)
	}
	err := t.out.catchUp(t.ctx, patience)
	if errors.Is(err, errStalled) {
		t.stood.Store(int64(patience))
	}
	return err
}

func (t *sessionStream) open() error {
	q, err := t.wire.recv()
	if err != nil {
		return err
	}
	o := q.GetOpen()
	switch {
	case o == nil:
		return &refused{q.GetRequestId(), invalid("open", "must be the first message of a stream")}
	case o.GetLiveness() != pb.Liveness_LIVENESS_UNSPECIFIED && o.GetLiveness() != pb.Liveness_STREAM:
		return &refused{q.GetRequestId(), invalid("liveness", "must be STREAM on a stream, and not %s", o.GetLiveness())}
	}
	t.traced = t.continueRequest(t.ctx, q)
	now := t.o.Clock()
	if t.sess, err = t.service.open(t.traced, o, session.Stream); err != nil {
		return &refused{q.GetRequestId(), err}
	}
	t.part = t.partingFrom(t.ctx, t.sess)
	return t.out.deliver(t.ctx, &pb.SessionResponse{
		RequestId: q.GetRequestId(),
		Response:  &pb.SessionResponse_Opened{Opened: t.opened(t.sess, now)},
	})
}

// end takes no more requests and closes the session, which ends those in flight. It
// returns when the locks are free, or the store has not said so for too long: the end of
// the stream tells it to the client.
func (t *sessionStream) end() {
	t.mu.Lock()
	if !t.ended && t.unposted == 0 {
		close(t.settled)
	}
	t.ended = true
	t.mu.Unlock()
	if t.sess != nil { // nil: it was not opened
		t.part(time.Duration(t.stood.Load()))
	}
}
