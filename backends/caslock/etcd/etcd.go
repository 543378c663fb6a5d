// Package etcd keeps locks in etcd. Package caslock decides about them; here is how its
// transactions reach a member of the cluster.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/lock"
)

// Open makes a Backend for a URL, see docs/stores/etcd.md for its form. It does not ask the
// store anything, so a store that is down is no error here. The error is lock.ErrInvalid.
// observe may be nil.
func Open(rawURL string, observe lock.Observe) (*caslock.Backend, error) {
	cfg, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return caslock.Open(newStore(cfg), caslock.Options{Timeout: cfg.timeout, Observe: observe}), nil
}

// store is a cluster. Its requests go to one member, and to the next one when that does not
// answer. A balancer that asks all of them in turn would let each third request wait in vain
// while one is frozen.
type store struct {
	cfg config

	mu      sync.Mutex
	at      int      // whose turn it is
	turn    *member  // the connection to that one; nil: not made yet
	joining *joining // what makes it; nil: nothing does
	retired []*member
	closed  bool

	background context.Context // ends with Close
	stop       context.CancelFunc
	joins      sync.WaitGroup
}

// joining is a connection that is being made.
type joining struct {
	over   chan struct{} // closed when that has ended
	member *member
	err    error
}

var _ caslock.Store = (*store)(nil)

func newStore(cfg config) *store {
	s := &store{cfg: cfg}
	s.background, s.stop = context.WithCancel(context.Background())
	return s
}

// maxRetired is how many connections to members are kept for requests under way.
const maxRetired = 2

var errClosed = errors.New("the store is closed")

// member gives a connection to the member whose turn it is. Who asks first makes it, for all who come meanwhile; it goes
// on without them.
func (s *store) member(ctx context.Context) (*member, error) {
	s.mu.Lock()
	if s.closed || s.turn != nil {
		defer s.mu.Unlock()
		if s.closed {
			return nil, errClosed
		}
		return s.turn, nil
	}
	j := s.joining
	if j == nil {
		j = &joining{over: make(chan struct{})}
		s.joining = j
		addr := s.cfg.addrs[s.at%len(s.cfg.addrs)]
		s.joins.Go(func() { s.join(addr, j) })
	}
	s.mu.Unlock()
	select {
	case <-j.over:
		return j.member, j.err
	case <-ctx.Done():
		return nil, fmt.Errorf("connect: %w", context.Cause(ctx))
	}
}

// join connects to a member. Where that fails, it is the next one's turn.
func (s *store) join(addr string, j *joining) {
	m, err := newMember(addr, s.cfg)
	if err == nil && s.cfg.user != "" {
		if err = m.login(s.background, s.cfg); err != nil {
			_ = m.close()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(j.over)
	s.joining = nil
	switch {
	case err != nil:
		s.at++
		j.err = fmt.Errorf("connect: %w", err)
	case s.closed:
		_ = m.close()
		j.err = errClosed
	default:
		s.turn, j.member = m, m
	}
}

// loggedOut tells whether a request was refused because it needs another token.
func (s *store) loggedOut(err error) bool { return s.cfg.user != "" && voidToken(err) }

// next gives the next member its turn, if it is still that of the one that has failed. The
// connection is closed when those who use it had their time. A member that is the only one is
// connected to again only for another token.
func (s *store) next(failed *member, loggedOut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn != failed || len(s.cfg.addrs) == 1 && !loggedOut {
		return
	}
	s.at++
	s.turn = nil
	s.retired = append(s.retired, failed)
	if len(s.retired) > maxRetired {
		_ = s.retired[0].close()
		s.retired = s.retired[1:]
	}
}

// Do implements caslock.Store.
func (s *store) Do(ctx context.Context, t caslock.Txn) (caslock.Result, error) {
	r, err := s.try(ctx, t)
	if s.loggedOut(err) { // it was not carried out
		return s.try(ctx, t)
	}
	return r, err
}

func (s *store) try(ctx context.Context, t caslock.Txn) (caslock.Result, error) {
	m, err := s.member(ctx)
	if err != nil {
		return caslock.Result{}, err
	}
	answer, err := m.ask(ctx, callTxn, txnRequest(s.cfg.prefix, t))
	if err != nil {
		silent := ctx.Err() == nil || errors.Is(context.Cause(ctx), caslock.ErrNoAnswer) // and not that the caller has given up
		if silent && !onlyThisRequest(err) {
			s.next(m, s.loggedOut(err))
		}
		return caslock.Result{}, err
	}
	return txnResponse(answer, s.cfg.prefix, t)
}

// Watch implements caslock.Store.
func (s *store) Watch(ctx context.Context, prefix string, ready func(), changed func(caslock.KV)) error {
	m, err := s.member(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var look sync.WaitGroup
	defer look.Wait()
	defer cancel(nil)
	look.Go(func() { s.whileAt(ctx, m, cancel) })
	err = m.watch(ctx, watchRequest(s.cfg.prefix+prefix), func(answer []byte) error {
		n, err := watchResponse(answer, s.cfg.prefix)
		switch {
		case err != nil:
			return err
		case n.canceled:
			return fmt.Errorf("etcd has ended it: %s", n.reason)
		case n.created:
			ready()
		}
		for _, kv := range n.changes {
			changed(kv)
		}
		return nil
	})
	return fmt.Errorf("watch: %w", err)
}

// whileAt returns when ctx ends. It ends it when requests have moved on from a member: that may
// be frozen, or cut off.
func (s *store) whileAt(ctx context.Context, m *member, end context.CancelCauseFunc) {
	look := time.NewTicker(s.cfg.timeout)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if now, err := s.member(ctx); err != nil || now != m {
				end(errMoved)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

var errMoved = errors.New("another member is asked now")

// Hint implements caslock.Store.
func (s *store) Hint(err error) string {
	switch {
	case errors.Is(err, errPermissionDenied):
		return " (the user in the store's URL may not read and write below " + s.cfg.prefix + ")"
	case errors.Is(err, errUserEmpty):
		return " (the server wants a user and a password in the store's URL)"
	case errors.Is(err, errNoSpace):
		return " (its database is full: compact and defragment it, then disarm the alarm)"
	case errors.Is(err, errTooManyOps):
		return fmt.Sprintf(" (its --max-txn-ops must be %d at least, which is the usual)", caslock.MaxParts)
	}
	return ""
}

// Close implements caslock.Store.
func (s *store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.joins.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, m := range append(s.retired, s.turn) {
		if m != nil {
			errs = append(errs, m.close())
		}
	}
	s.turn, s.retired = nil, nil
	return errors.Join(errs...)
}
