package zksession

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// MaxPaths is how many bytes of paths one session may have nodes for.
//
// The end of a session is one transaction with the paths of all its nodes, and no
// server takes a packet of more than a megabyte from another one, nor a transaction
// of that size from its own disk (jute.maxbuffer, ZOOKEEPER-4306): an ensemble in
// which a larger session has ended does not come back. So what a lease has is spread
// over as many sessions as that needs.
const MaxPaths = 256 << 10

// maxSessions is how many sessions, and connections, a set may have.
const maxSessions = 64

// spare is kept free in the first session, for the node of the lease.
const spare = 1 << 10

// Sessions are the sessions of one lease. They live and die together: when one is over that
// nodes hang on, so is the set.
type Sessions struct {
	cfg   Config
	first *Session
	run   context.Context
	stop  context.CancelFunc
	tasks sync.WaitGroup
	over  chan struct{} // closed when the set is over

	mu      sync.Mutex
	members []*member // the first one is first
	opening *opening  // nil: no session is being opened
	renewed time.Duration
	err     error
}

// member is a session of a lease. Its fields stand under the set's mutex.
type member struct {
	s    *Session
	used int // bytes of paths
	idle int // beats since it was used last
}

// opening is a session on its way.
type opening struct {
	done chan struct{} // closed when err is set
	err  error
}

// OpenSessions opens the first session of a lease. cfg.TTL is that of the lease.
func OpenSessions(ctx context.Context, cfg Config) (*Sessions, error) {
	if cfg.Clock == nil {
		cfg.Clock = lock.BootTime
	}
	t := &Sessions{cfg: cfg, renewed: cfg.Clock(), over: make(chan struct{})}
	s, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	t.first = s
	t.run, t.stop = context.WithCancel(context.WithoutCancel(ctx))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.join(s, spare)
	return t, nil
}

// First is the session that is there from the beginning to the end.
func (t *Sessions) First() *Session { return t.first }

// Done is closed when the set is over: a session with nodes is, or Close was called.
func (t *Sessions) Done() <-chan struct{} { return t.over }

// Err is why the set is over: ErrExpired or ErrClosed; nil while it is not.
func (t *Sessions) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Overdue reports whether the lease may be over: no beat of the last TTL was
// answered. Nothing more may be asked for in its name then until Beat has succeeded,
// because any request keeps a session alive, in the place of beats that nobody sends
// any more.
func (t *Sessions) Overdue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cfg.Clock() >= t.renewed+t.cfg.TTL
}

// Room is a place in a session for the nodes of one request.
type Room struct {
	t    *Sessions
	m    *member
	size int // 0: it was left
}

// Room gives a place for nodes that the server will number, by their paths without
// the number. All that is asked for them is asked in the Room's session.
//
//	lock.ErrLimit: as many sessions as may be are full.
//	ErrNotSent, ErrLost, or of a server: another session could not be opened.
//	ErrExpired, ErrClosed: the set is over.
func (t *Sessions) Room(ctx context.Context, paths ...string) (*Room, error) {
	const number, length = 11, 4 // of digits and a sign; before each path
	size := 0
	for _, p := range paths {
		size += len(p) + number + length
	}
	for {
		r, o, err := t.place(size) //nolint:contextcheck // the session that it opens is for all who wait
		if r != nil || err != nil {
			return r, err
		}
		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-t.over:
			return nil, t.Err()
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrNotSent, context.Cause(ctx))
		}
	}
}

// place gives a room in a session that has one, or a session to wait for.
func (t *Sessions) place(size int) (*Room, *opening, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return nil, nil, t.err
	}
	for _, m := range t.members {
		if m.used+size <= MaxPaths {
			m.used, m.idle = m.used+size, 0
			return &Room{t: t, m: m, size: size}, nil, nil
		}
	}
	if len(t.members) == maxSessions {
		return nil, nil, &lock.LimitError{Limit: "bytes of names that one sidecar holds or waits for in ZooKeeper", Max: maxSessions * MaxPaths}
	}
	if t.opening == nil {
		o := &opening{done: make(chan struct{})}
		t.opening = o
		t.tasks.Go(func() { t.open(o) })
	}
	return nil, t.opening, nil
}

// open opens another session.
func (t *Sessions) open(o *opening) {
	s, err := Open(t.run, t.cfg)
	t.mu.Lock()
	t.opening = nil
	switch {
	case err != nil:
		o.err = fmt.Errorf("open another session: %w", err)
	case t.err != nil:
		o.err = t.err
	default:
		t.join(s, 0)
		s = nil
	}
	t.mu.Unlock()
	close(o.done)
	if err == nil && s != nil {
		t.part(s)
	}
}

// join makes a session a member. t.mu is held.
func (t *Sessions) join(s *Session, used int) {
	m := &member{s: s, used: used}
	t.members = append(t.members, m)
	t.tasks.Go(func() {
		select {
		case <-s.Done():
			t.lost(m)
		case <-t.run.Done():
		}
	})
}

// lost takes the news that a session is over: with nodes, it is the end of all.
func (t *Sessions) lost(m *member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.members, m); i >= 0 && m.used > 0 {
		t.end(m.s.Err())
	} else if i >= 0 {
		t.members = slices.Delete(t.members, i, i+1)
	}
}

// end marks the set as over. t.mu is held.
func (t *Sessions) end(why error) {
	if t.err == nil {
		t.err = why
		close(t.over)
	}
}

// part closes a session that nothing hangs on.
func (t *Sessions) part(s *Session) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.run), t.cfg.Timeout)
	defer cancel()
	_ = s.Close(ctx) // otherwise it ends by its timeout
}

// Session is where the nodes are.
func (r *Room) Session() *Session { return r.m.s }

// Leave gives the place back: the nodes are known not to be there, nor to come. It
// may be called again.
func (r *Room) Leave() {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.m.used -= r.size
	r.size = 0
}

// maxIdle is after how many beats a session is closed that nothing hangs on.
const maxIdle = 3

// Beat keeps all sessions alive, the first by that write. A nil error promises that
// they all live for the TTL after the call. Other errors are those of Session.Beat;
// where it is ErrExpired, so is the set.
func (t *Sessions) Beat(ctx context.Context, write func(context.Context) error) error {
	since := t.cfg.Clock()
	t.mu.Lock()
	if err := t.err; err != nil { // Close has them
		t.mu.Unlock()
		return err
	}
	t.dismiss() //nolint:contextcheck // nobody waits for that
	others := slices.Clone(t.members[1:])
	t.mu.Unlock()
	errs := make([]error, len(others)+1)
	var all sync.WaitGroup
	for i, m := range others {
		all.Go(func() {
			err := m.s.Beat(ctx, m.s.touch)
			if errors.Is(err, ErrExpired) || errors.Is(err, ErrClosed) {
				t.lost(m)
				err = t.Err() // nil: nothing hung on it
			}
			errs[i+1] = err
		})
	}
	errs[0] = t.first.Beat(ctx, write)
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.renewed = max(t.renewed, since)
	return t.err
}

// dismiss closes sessions that nothing has hung on for some time. t.mu is held.
func (t *Sessions) dismiss() {
	t.members = slices.DeleteFunc(t.members, func(m *member) bool {
		if m.used > 0 {
			return false
		}
		m.idle++
		if m.idle > maxIdle {
			t.tasks.Go(func() { t.part(m.s) })
		}
		return m.idle > maxIdle
	})
}

// Close ends all sessions at the server, and with them all nodes, each in a
// transaction of its own, as far as it can be reached before ctx ends. ErrNotSent,
// ErrLost: what it did not reach ends by its timeout.
func (t *Sessions) Close(ctx context.Context) error {
	t.mu.Lock()
	t.end(ErrClosed)
	members := t.members
	t.members = nil
	t.mu.Unlock()
	t.stop() // nobody is let in any more
	// One after the other, so that nobody else waits for more than one of them; but no
	// longer for servers once they do not answer.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var first error
	for _, m := range slices.Backward(members) {
		if err := m.s.Close(ctx); err != nil {
			if first == nil {
				first = err
			}
			cancel()
		}
	}
	t.tasks.Wait()
	return first
}
