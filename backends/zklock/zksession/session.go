package zksession

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/locksidecar/locksidecar/lock"
)

// Config says how a session is opened.
type Config struct {
	// Addrs are the servers, host:port. Names are looked up for every round of
	// attempts to connect, and all addresses of a name are tried.
	Addrs []string
	// TLS gives what a connection with TLS needs, which may change it; nil: without.
	TLS func() *tls.Config
	// Digest is "user:password" for ZooKeeper's digest authentication; empty: none.
	Digest string
	// SessionTimeout is asked for. A server may give another one. The session expires when
	// nothing is asked for so long, whatever becomes of connections.
	SessionTimeout time.Duration
	// TTL is that of the lease that the session is for; 0: it is for none. Then it is
	// not SessionTimeout that is asked for but what the lease needs, and a server that
	// gives less is refused, also later. Such a session has beats.
	TTL time.Duration
	// Tick is the tickTime of the servers, or more; default DefaultTick. Only with TTL.
	Tick time.Duration
	// Clock counts beats; default lock.BootTime.
	Clock lock.Clock
	// Timeout bounds how long one server may take to accept the session, how long
	// a request waits for a connection, and how long it waits for its answer.
	// Afterwards the connection is given up, and another one is made.
	Timeout time.Duration
	// OnEvent is called when a node that is watched was changed or deleted, or its children
	// were that are watched, mostly
	// on the goroutine that reads from the server: it must not block, and not ask
	// for anything.
	OnEvent func(Event)
	// OnReconnect is called when the session is on another connection, on such a
	// goroutine too. What was watched is watched on.
	OnReconnect func()
	// Observe is told of every request that was sent.
	Observe func(name string, took time.Duration, err error)
}

// Event tells that a watched node was changed.
type Event struct {
	Path    string
	Deleted bool
	Below   bool // its children have changed
}

// Session is one session of ZooKeeper, on one connection after the other.
type Session struct {
	cfg     Config
	conn    *zk.Conn
	servers *servers
	id      int64
	timeout time.Duration
	proof   *proof // nil: it is for no lease

	mu        sync.Mutex
	link      *link         // that carries requests; nil while there is none
	latest    *link         // that was dialled last
	flying    int           // calls that the library has
	calm      chan struct{} // closed when there are none; nil while nobody waits for that
	up        chan struct{} // closed when link is set; replaced when it is not
	asked     time.Time     // when a request came last
	dialled   time.Time     // when latest was
	wanting   int           // requests that wait for a connection
	left      map[chan struct{}]struct{}
	chased    map[string]chan struct{} // closed when what makes a node there is on its way
	on        *link                    // that was accepted last
	watches   watches
	connected bool // it was, at least once
	closing   bool
	short     *time.Timer // ends it, see shortened; nil: no server has made it live less long
	err       error       // why it is over

	done     chan struct{} // closed when it is over
	routines sync.WaitGroup
}

// Open opens a session at one of the servers, which it tries once each.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	if cfg.Clock == nil {
		cfg.Clock = lock.BootTime
	}
	if cfg.Tick == 0 {
		cfg.Tick = DefaultTick
	}
	if cfg.TTL != 0 {
		cfg.SessionTimeout = Timeout(cfg.TTL, cfg.Tick)
	}
	s := &Session{
		cfg: cfg, up: make(chan struct{}), asked: time.Now(), done: make(chan struct{}),
		left: make(map[chan struct{}]struct{}), chased: make(map[string]chan struct{}),
		watches: newWatches(),
	}
	if cfg.TTL != 0 {
		s.proof = newProof(cfg.TTL, cfg.Tick)
	}
	s.servers = newServers(s)
	s.mu.Lock() // until conn is set, which the library's goroutine uses through our callbacks
	conn, events, err := zk.Connect(cfg.Addrs, cfg.SessionTimeout,
		zk.WithDialer(s.dial), zk.WithHostProvider(s.servers), zk.WithEventCallback(s.event), zk.WithLogger(nowhere{}), zk.WithLogInfo(false),
		zk.WithMaxBufferSize(maxAnswer), zk.WithMaxConnBufferSize(maxRequest))
	s.conn = conn
	s.mu.Unlock()
	if err != nil {
		return nil, fmt.Errorf("connect to ZooKeeper: %w", err)
	}
	s.routines.Go(func() {
		for range events { // closed when the library has ended
		}
	})
	if err := s.begin(ctx); err != nil {
		s.abandon()
		return nil, fmt.Errorf("connect to ZooKeeper: %w", err)
	}
	return s, nil
}

const (
	// maxAnswer is the largest answer that is taken: the children of a node with
	// hundreds of thousands of them.
	maxAnswer = 64 << 20
	// maxRequest is what a server takes by default (jute.maxbuffer).
	maxRequest = 1 << 20
)

// nowhere keeps the library from writing to standard error by itself.
type nowhere struct{}

func (nowhere) Printf(string, ...any) {}

// begin waits for the first connection and authenticates.
func (s *Session) begin(ctx context.Context) error {
	s.mu.Lock()
	up := s.up
	s.mu.Unlock()
	select {
	case <-up:
	case err := <-s.servers.failed:
		return err
	case <-s.done:
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.cfg.Digest == "" {
		return nil
	}
	auth := &Call{name: "auth", do: func(conn *zk.Conn) answer { return answer{err: conn.AddAuth("digest", []byte(s.cfg.Digest))} }}
	if err := s.Do(ctx, auth); err != nil {
		return fmt.Errorf("authenticate: %w", err)
	}
	return auth.Err
}

// ID is the number of the session.
func (s *Session) ID() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Fresh reports whether it lives, and was asked for something within the half of its timeout: then it
// does not end for lack of requests meanwhile.
func (s *Session) Fresh() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err == nil && time.Since(s.asked) < s.timeout/2
}

// Done is closed when the session is over, for whatever reason.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is why the session is over: ErrExpired or ErrClosed; nil while it is not.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session at the server, as far as it can be reached and answers before ctx
// ends, and returns when nothing of it runs any more. It is no error when the
// session has expired. ErrNotSent, ErrLost: it ends by its timeout.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	l, over := s.link, s.err != nil || s.closing
	s.closing = true
	s.mu.Unlock()
	if over {
		s.routines.Wait()
		return nil
	}
	if l == nil {
		limit := time.NewTimer(s.cfg.Timeout)
		defer limit.Stop()
		var err error
		if l, err = s.wait(ctx, limit.C); err != nil {
			s.abandon()
			if errors.Is(err, ErrExpired) {
				return nil
			}
			return err
		}
	}
	s.routines.Go(s.closeConn) // waits for the answer for no more than a second
	select {                   // the server may need longer, to delete thousands of nodes
	case <-l.closed:
	case <-l.gone:
	case <-ctx.Done():
	}
	s.abandon()
	select {
	case <-l.closed:
		return nil
	default:
		return ErrLost
	}
}

// abandon ends the session on this side, and returns when nothing of it runs.
func (s *Session) abandon() {
	s.end(ErrClosed)
	s.routines.Wait()
}

// end marks the session as over and has the library come to its end.
func (s *Session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = why
	close(s.done)
	if s.short != nil {
		s.short.Stop()
	}
	if s.latest != nil {
		s.latest.cut()
	}
	s.routines.Go(s.closeConn)
}

// callsEnd is how long a connection that is to end waits for its calls.
const callsEnd = 250 * time.Millisecond

// closeConn has the library come to its end, after the calls that are under way: it
// reads the answer of a call that it gives up while it may still be written
// (go-zookeeper 1.0.4, Conn.Create).
func (s *Session) closeConn() {
	s.settle(context.Background())
	s.conn.Close()
}

// settle waits until no calls are under way, but no longer than that.
func (s *Session) settle(ctx context.Context) {
	s.mu.Lock()
	if s.flying > 0 && s.calm == nil {
		s.calm = make(chan struct{})
	}
	calm := s.calm
	s.mu.Unlock()
	if calm == nil {
		return
	}
	limit := time.NewTimer(callsEnd)
	defer limit.Stop()
	select {
	case <-calm:
	case <-limit.C:
	case <-ctx.Done():
	}
}

// event is the library's callback.
func (s *Session) event(e zk.Event) {
	switch e.Type {
	case zk.EventSession:
		switch e.State {
		case zk.StateHasSession:
			s.linkUp()
		case zk.StateDisconnected, zk.StateExpired:
			s.linkDown()
		}
	case zk.EventNodeDataChanged, zk.EventNodeDeleted, zk.EventNodeChildrenChanged:
		s.happened(Event{Path: e.Path, Deleted: e.Type == zk.EventNodeDeleted, Below: e.Type == zk.EventNodeChildrenChanged})
	}
}

// linkUp: requests can be sent.
func (s *Session) linkUp() {
	s.mu.Lock()
	l := s.latest
	if s.err != nil || l == nil || s.link != nil {
		s.mu.Unlock()
		return
	}
	s.id, s.timeout = l.session, l.timeout
	again := s.connected
	s.link, s.on, s.connected = l, l, true
	s.rewatch(l)
	if s.proof != nil {
		s.proof.moved(l, l.asked)
	}
	if s.short != nil { // this server has made it live as long as it must
		s.short.Stop()
		s.short = nil
	}
	close(s.up)
	s.mu.Unlock()
	if again && s.cfg.OnReconnect != nil {
		s.cfg.OnReconnect()
	}
}

// linkDown: what was sent and has no answer will get none.
func (s *Session) linkDown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on != nil && s.on.watched { // its reader has ended
		s.watches.since = max(s.watches.since, s.on.last)
	}
	if s.link != nil {
		s.link = nil
		s.up = make(chan struct{})
	}
}

// wanted says how long a session without a connection has to wait until it may
// have one, unless a request wants it before: connecting keeps it alive too, also
// where its answer is lost. Once it must have expired, a connection tells so.
func (s *Session) wanted() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	silent := time.Since(s.asked)
	if !s.connected || s.wanting > 0 || silent < s.timeout*2/3 {
		return 0
	}
	silent = min(silent, time.Since(s.dialled))
	return max(0, s.timeout*3/2-silent) // the timeout, and the half of it that a server may take to notice
}

// lost is a session's error, or nil for an answer of the server.
func lost(err error) error {
	var refused Error
	if err == nil || errors.As(err, &refused) {
		return nil
	}
	return err
}
