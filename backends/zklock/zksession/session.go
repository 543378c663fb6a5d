package zksession

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Config says how a session is opened.
type Config struct {
	// Addrs are the servers, host:port. Names are looked up for every attempt to
	// connect, and all addresses of a name are tried.
	Addrs []string
	// TLS is for connections with TLS; nil: without.
	TLS *tls.Config
	// Digest is "user:password" for ZooKeeper's digest authentication; empty: none.
	Digest string
	// SessionTimeout is asked for. The server may give another, see Timeout.
	SessionTimeout time.Duration
	// Timeout bounds how long one server may take to accept the session, how long
	// a request waits for a connection, and how long it waits for its answer.
	// Afterwards the connection is given up, and another one is made.
	Timeout time.Duration
	// KeepAlive sends pings when nothing else is sent. Without it the session
	// expires unless there are requests.
	KeepAlive bool
	// OnEvent is called when a node that is watched was changed or deleted, on the
	// goroutine that reads from the server: it must not block, and not send
	// anything. Events come before the answers to requests that saw the change.
	OnEvent func(Event)
	// OnReconnect is called when the session is on another connection, on that
	// goroutine too. What was watched is watched on.
	OnReconnect func()
	// Observe is told of every request that was sent.
	Observe func(name string, took time.Duration, err error)
}

// Event tells that a watched node was changed.
type Event struct {
	Path    string
	Deleted bool
}

// Session is one session of ZooKeeper, on one connection after the other.
type Session struct {
	cfg     Config
	id      int64
	passwd  []byte
	timeout time.Duration

	mu       sync.Mutex
	link     *link         // nil while there is none
	up       chan struct{} // closed when link is set; replaced when it is not
	watches  map[string]struct{}
	lastZxid int64
	err      error // why it is over

	done     chan struct{} // closed when it is over
	stop     context.CancelFunc
	routines sync.WaitGroup
}

// Open opens a session at one of the servers, which it tries once each.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	s := &Session{cfg: cfg, passwd: make([]byte, 16), up: make(chan struct{}), watches: make(map[string]struct{}), done: make(chan struct{})}
	l, err := s.connectAny(ctx, "")
	if err != nil {
		return nil, err
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.setLink(l)
	s.routines.Go(func() { s.run(run, l) })
	return s, nil
}

// ID is the number of the session.
func (s *Session) ID() int64 { return s.id }

// Timeout is how long the session lives without a request, as the server said.
func (s *Session) Timeout() time.Duration { return s.timeout }

// Done is closed when the session is over, for whatever reason.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is why the session is over: ErrExpired or ErrClosed; nil while it is not.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Do sends calls together, in order, and waits for their answers. Each call has
// its own Err. What Do returns is an error of the session and not of the server,
// as the last call has it: ErrNotSent, ErrLost, ErrExpired or ErrClosed.
// When ctx ends first, the error is ErrLost, and the calls must not be looked at.
func (s *Session) Do(ctx context.Context, calls ...*Call) error {
	done := make(chan struct{})
	if err := s.send(ctx, calls, done); err != nil {
		return err
	}
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrLost, context.Cause(ctx))
	}
	last := calls[len(calls)-1].Err
	var answer Error
	if last == nil || errors.As(last, &answer) {
		return nil
	}
	return last
}

// Go sends calls like Do and does not wait for the answers. The error is that
// they were not sent.
func (s *Session) Go(ctx context.Context, calls ...*Call) error { return s.send(ctx, calls, nil) }

func (s *Session) send(ctx context.Context, calls []*Call, done chan struct{}) error {
	var timeout <-chan time.Time
	for {
		s.mu.Lock()
		l, up, err := s.link, s.up, s.err
		s.mu.Unlock()
		if err == nil && l != nil && l.send(calls, done) {
			return nil
		}
		if err == nil && timeout == nil {
			t := time.NewTimer(s.cfg.Timeout)
			defer t.Stop()
			timeout = t.C
		}
		if err == nil {
			select {
			case <-up:
				if l == nil {
					continue
				}
				// The link has failed, and its reader is about to take it away.
				select {
				case <-l.gone:
					continue
				case <-s.done:
					continue
				case <-timeout:
				case <-ctx.Done():
				}
				err = ErrNotSent
			case <-s.done:
				continue
			case <-timeout:
				err = ErrNotSent
			case <-ctx.Done():
				err = ErrNotSent
			}
		}
		for _, c := range calls {
			c.fail(err)
			if c.Then != nil {
				c.Then(c)
			}
		}
		return err
	}
}

// maxCloses bounds how often the server is asked to end the session.
const maxCloses = 3

// Close ends the session at the server, as far as it can be reached before ctx
// ends, and returns when nothing of it runs any more. It is no error when the
// session has expired.
func (s *Session) Close(ctx context.Context) error {
	err := s.Do(ctx, &Call{op: opClose})
	for tries := 1; tries < maxCloses && errors.Is(err, ErrLost) && ctx.Err() == nil; tries++ {
		err = s.Do(ctx, &Call{op: opClose}) // the next connection tells if the session has ended
	}
	s.end(ErrClosed)
	s.stop()
	s.routines.Wait()
	if errors.Is(err, ErrExpired) || errors.Is(err, ErrClosed) {
		return nil
	}
	return err
}

// end marks the session as over.
func (s *Session) end(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = why
		close(s.done)
	}
}

func (s *Session) setLink(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	close(s.up)
}

func (s *Session) unsetLink() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = nil
	s.up = make(chan struct{})
}

// run keeps the session on a connection until it is over.
func (s *Session) run(ctx context.Context, l *link) {
	pause := backoff{}
	for {
		began := time.Now()
		l.serve(ctx)
		if time.Since(began) > s.cfg.Timeout {
			pause = backoff{}
		}
		for addr := l.addr; ; {
			if s.Err() != nil || ctx.Err() != nil {
				return
			}
			var err error
			if l, err = s.connectAny(ctx, addr); err == nil {
				break
			}
			if errors.Is(err, ErrExpired) {
				s.end(ErrExpired)
				return
			}
			pause.wait(ctx)
		}
		s.setLink(l)
		if s.cfg.OnReconnect != nil {
			s.cfg.OnReconnect()
		}
	}
}

// backoff are growing pauses between attempts.
type backoff struct{ last time.Duration }

func (b *backoff) wait(ctx context.Context) {
	b.last = min(max(2*b.last, 10*time.Millisecond), 250*time.Millisecond)
	t := time.NewTimer(b.last/2 + rand.N(b.last)) //nolint:gosec // not a secret
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// connectAny tries the servers in random order, the one at last after all
// others.
func (s *Session) connectAny(ctx context.Context, last string) (*link, error) {
	var errs []error
	for _, a := range s.resolve(ctx, last) {
		if ctx.Err() != nil {
			errs = append(errs, context.Cause(ctx))
			break
		}
		l, err := s.connect(ctx, a)
		if err == nil {
			return l, nil
		}
		if errors.Is(err, ErrExpired) {
			return nil, err
		}
		errs = append(errs, fmt.Errorf("%s: %w", a.addr, err))
	}
	return nil, fmt.Errorf("connect to ZooKeeper: %w", errors.Join(errs...))
}

// server is one address of a server, and the name it has in its certificate.
type server struct{ addr, host string }

func (s *Session) resolve(ctx context.Context, last string) []server {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	var all, late []server
	for _, a := range s.cfg.Addrs {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			all = append(all, server{a, a}) // dialling it tells the error
			continue
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			ips = []string{host} // the same
		}
		for _, ip := range ips {
			srv := server{net.JoinHostPort(ip, port), host}
			if srv.addr == last {
				late = append(late, srv)
			} else {
				all = append(all, srv)
			}
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] }) //nolint:gosec // not a secret
	return append(all, late...)
}
