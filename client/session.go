package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
)

// SessionOptions are what a session is opened with.
type SessionOptions struct {
	Name     string            // shown in lists, at most 128 bytes
	Metadata map[string]string // shown in lists, at most 1 KiB in all
	// TTL (100ms to 1h) makes the sidecar end the session when it gets no
	// keep-alive for so long. The client sends them by itself, from a goroutine:
	// they show that the process is scheduled and not that its work goes on.
	TTL time.Duration
}

// Session is one app session: a connection to the sidecar. Its methods may be called at the
// same time by many goroutines.
type Session struct {
	client *Client
	id     string
	stream *stream
	cancel context.CancelFunc // ends the stream

	running  sync.WaitGroup // the receiver and who helps it
	done     chan struct{}
	draining chan struct{}

	mu       sync.Mutex
	outbox   outbox
	acquires acquires
	reading  reading
	lastID   uint64
	calls    map[string]*call
	locks    map[string]*Lock         // those that are held
	limits   map[string]time.Duration // Lock.limit of those that the sidecar knows as held, as far as they have one
	early    earlyLosses
	news     leaseNews // the latest
	clock    sidecarClock
	margin   time.Duration
	timer    *time.Timer // looks whether a hold is over; nil until there is a lock
	looksAt  time.Duration
	err      error // why the session ended
}

// earlyLosses may have overtaken a grant; only while acquires are on their way.
type earlyLosses struct {
	byID  map[string]*pb.Lost // by the id of the lock
	order []string            // of the ids: the oldest first
}

// leaseNews is what the sidecar said last about all holds of the session: when it
// said so, and until when they may be relied on, both on its clock.
type leaseNews struct{ counted, until time.Duration }

// call is a request in flight.
type call struct {
	id        string
	request   *pb.SessionRequest
	answer    chan *pb.SessionResponse // gets one; closed when the session ends
	sent      time.Duration
	maxHold   time.Duration
	lock      *Lock // what a grant has made
	release   *Lock // what is asked to be released
	changes   *Lock // what is asked to be downgraded, extended or detached
	detaches  bool  // detached: its handle is lost where nobody waits for it
	attaches  bool
	conclude  *Lock // whose outcome is told
	abandoned bool  // the caller has left: nobody wants the lock

	acquire   bool
	resources []string      // of an acquire, as the following
	patience  time.Duration // AcquireOptions.Wait
	deadline  time.Duration // of the wait, where it has one
	place     uint64        // among those that were asked for
	due       *time.Timer   // ends the wait while it queues in the client
	failed    error         // why it was not sent; set before answer is closed
}

func newCall() *call { return &call{answer: make(chan *pb.SessionResponse, 1)} }

// OpenSession opens an app session. It lives until Close, or until the sidecar
// or its connection ends; ctx is only for the opening.
func (c *Client) OpenSession(ctx context.Context, o SessionOptions) (*Session, error) {
	err := checkString("name", o.Name)
	for k, v := range o.Metadata {
		err = cmp.Or(err, checkString("metadata", k), checkString("metadata", v))
	}
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	limit, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	for b := (backoff{}); ; {
		s, err := c.openSession(ctx, o)
		if err == nil {
			return s, nil
		}
		// The sidecar hangs up without a word where it has too much to do.
		if !errors.Is(err, ErrStreamEnded) || c.closing.Err() != nil || !b.wait(limit) {
			return nil, fmt.Errorf("open session: %w", cmp.Or(context.Cause(ctx), err))
		}
	}
}

func (c *Client) openSession(ctx context.Context, o SessionOptions) (*Session, error) {
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	leave := context.AfterFunc(ctx, cancel)
	defer leave()
	st, err := c.openStream(sctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &Session{
		client:   c,
		stream:   st,
		reading:  reading{wake: make(chan struct{}, 1), pause: usualPause},
		cancel:   cancel,
		done:     make(chan struct{}),
		draining: make(chan struct{}),
		calls:    make(map[string]*call),
		locks:    make(map[string]*Lock),
		limits:   make(map[string]time.Duration),
	}
	open := &pb.OpenSessionRequest{Name: o.Name, Metadata: o.Metadata}
	if o.TTL != 0 {
		open.Ttl = durationpb.New(o.TTL)
	}
	s.start(s.receive)
	a, err := s.do(ctx, newCall(), &pb.SessionRequest{Request: &pb.SessionRequest_Open{Open: open}})
	if !leave() {
		err = ctx.Err() // it has ended the stream
	}
	if err != nil {
		cancel()
		s.running.Wait()
		return nil, err
	}
	s.id = a.GetOpened().GetSessionId()
	if o.TTL != 0 {
		s.start(func() { s.keepAlive(sctx, o.TTL/3) })
	}
	return s, nil
}

// start runs f in a goroutine that the end of the session waits for. WaitGroup.Go came with
// Go 1.25; the client is for 1.24.
func (s *Session) start(f func()) {
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		f()
	}()
}

// ID is the session's name at the sidecar.
func (s *Session) ID() string { return s.id }

// Margin is how much longer than ValidFor the store keeps others out, so that work
// can be stopped when the sidecar was not heard of in time.
func (s *Session) Margin() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.margin
}

// Done is closed when the session has ended. All its locks are lost then.
func (s *Session) Done() <-chan struct{} { return s.done }

// Draining is closed when the sidecar is about to stop: finish and release.
func (s *Session) Draining() <-chan struct{} { return s.draining }

// Err is nil as long as the session lives. Then it is ErrSessionClosed after
// Close, else what the sidecar said, or ErrStreamEnded.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// closeLimit is how long Close waits for the sidecar.
const closeLimit = 5 * time.Second

// Close ends the session and releases its locks. It returns when the sidecar
// has done so; the error says that it did not answer in time. Then too the
// stream has ended, and the sidecar releases the locks as soon as it sees that.
func (s *Session) Close() error {
	s.end(ErrSessionClosed, "SESSION_CLOSED", "this process has closed the session")
	late := time.AfterFunc(closeLimit, s.cancel)
	s.endSending()
	s.running.Wait()
	if !late.Stop() {
		return fmt.Errorf("close session: the sidecar did not answer within %s", closeLimit)
	}
	return nil
}

// ended is told how the stream ended.
func (s *Session) ended(err error) {
	why := ErrStreamEnded
	if !errors.Is(err, io.EOF) {
		var said *Error
		if why = err; !errors.As(why, &said) {
			why = fmt.Errorf("%w: %w", ErrStreamEnded, why)
		}
	}
	s.end(why, LostStream, "the connection to the sidecar ended")
}

// end ends the session once: later reasons do not count.
func (s *Session) end(why error, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = why
	for _, l := range s.locks {
		s.lose(l, &LostError{Reason: reason, Message: message, ended: why})
	}
	for id, c := range s.calls {
		delete(s.calls, id)
		close(c.answer)
	}
	for _, c := range s.acquires.clear() {
		c.leavesQueue()
		close(c.answer)
	}
	s.outbox.queue = nil
	s.interrupt(s.reading.caller)
	s.wakeReceiver() // what is left to read is the end
	if s.timer != nil {
		s.timer.Stop()
	}
	close(s.done)
}

// answered gives an answer to its caller. s.mu is held.
func (s *Session) answered(m *pb.SessionResponse) {
	c := s.calls[m.GetRequestId()]
	if c == nil {
		return // it came after Close
	}
	switch r := m.GetResponse().(type) {
	case *pb.SessionResponse_Opened:
		s.clock.answered(c.sent, r.Opened.GetCountedAt())
		s.margin = r.Opened.GetLeaseMargin().AsDuration()
	case *pb.SessionResponse_Granted:
		s.clock.answered(c.sent, r.Granted.GetCountedAt())
		s.granted(c, r.Granted)
	case *pb.SessionResponse_Error:
		switch l := c.changes; {
		case c.acquire:
			if s.queueAgain(c, fromStatus(r.Error)) {
				return
			}
		case c.release != nil:
			s.notHeld(c.release, fromStatus(r.Error))
		case c.conclude != nil:
			s.notConcluded(c.conclude, fromStatus(r.Error))
		case c.detaches:
			s.notDetached(l, fromStatus(r.Error))
		case l != nil && l.over == nil: // else it was released meanwhile, or is lost
			s.notHeld(l, fromStatus(r.Error))
		}
	case *pb.SessionResponse_Released:
		if c.conclude != nil {
			s.concluded(c.conclude)
			c.conclude.released(r.Released)
		}
		if c.release != nil {
			c.release.released(r.Released)
		}
		if r.Released.GetCount() == 0 && c.release != nil {
			delete(s.limits, c.release.ID)
		}
	case *pb.SessionResponse_Downgraded:
		s.clock.answered(c.sent, r.Downgraded.GetCountedAt())
		if l := s.locks[r.Downgraded.GetLockId()]; l != nil {
			l.mode = r.Downgraded.GetMode()
		}
	case *pb.SessionResponse_Detached:
		s.clock.answered(c.sent, r.Detached.GetCountedAt())
		s.detached(c, r.Detached)
	case *pb.SessionResponse_Extended:
		s.clock.answered(c.sent, r.Extended.GetCountedAt())
		s.extended(c, r.Extended)
	}
	s.forget(c)
	c.answer <- m
}

// event takes news that nobody asked for. s.mu is held.
func (s *Session) event(e *pb.Event) {
	switch {
	case e.GetLease() != nil:
		s.tellHolds(e.GetLease())
	case e.GetLost() != nil:
		l := e.GetLost()
		if lock := s.locks[l.GetLockId()]; lock != nil {
			s.lose(lock, s.lossOf(l))
		}
		delete(s.limits, l.GetLockId())
		s.remember(l)
	case e.GetDraining() != nil:
		select {
		case <-s.draining:
		default:
			close(s.draining)
		}
	}
}

// keepAlive tells the sidecar again and again that this process lives. A sidecar
// that does not answer gets no more of them.
func (s *Session) keepAlive(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.done:
			return
		}
		// Its error is that the session has ended, or has none to keep alive.
		_, _ = s.do(ctx, newCall(), &pb.SessionRequest{Request: &pb.SessionRequest_KeepAlive{KeepAlive: &pb.KeepAliveRequest{}}})
	}
}
