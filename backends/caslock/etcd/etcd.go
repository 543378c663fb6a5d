// Package etcd keeps locks in etcd. Package caslock decides about them; here is how its
// transactions reach a member of the cluster.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/locksidecar/locksidecar/backends/caslock"
	"github.com/locksidecar/locksidecar/backends/storeurl"
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
// answer. The library's own balancer asks all of them in turn, so with one that is frozen
// each third request would wait in vain.
type store struct {
	cfg config

	mu      sync.Mutex
	at      int              // whose turn it is
	client  *clientv3.Client // of that member; nil: not made yet
	retired []*clientv3.Client
	closed  bool
}

var _ caslock.Store = (*store)(nil)

func newStore(cfg config) *store { return &store{cfg: cfg} }

const (
	// A connection that is idle for so long is asked for a sign of life. Servers refuse
	// to be asked more often than each five seconds.
	aliveEvery = 6 * time.Second
	// How long it takes to connect again, at least and at most.
	leastBackoff, mostBackoff = 20 * time.Millisecond, time.Second
	// maxRetired is how many connections to members are kept for requests under way.
	maxRetired = 2
)

var errClosed = errors.New("the store is closed")

// member gives a connection to the member whose turn it is.
func (s *store) member(ctx context.Context) (*clientv3.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.client != nil {
		return s.client, nil
	}
	scheme := "http://"
	if s.cfg.tls != nil {
		scheme = "https://"
	}
	cfg := clientv3.Config{
		Endpoints: []string{scheme + s.cfg.addrs[s.at%len(s.cfg.addrs)]},
		TLS:       s.cfg.tls.Config(), DialTimeout: s.cfg.timeout,
		DialKeepAliveTime: aliveEvery, DialKeepAliveTimeout: s.cfg.timeout, PermitWithoutStream: true,
		MaxUnaryRetries: 1, Logger: zap.NewNop(), Context: context.WithoutCancel(ctx),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: leastBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: mostBackoff},
			MinConnectTimeout: s.cfg.timeout,
		})},
	}
	c, err := clientv3.New(cfg)
	if err == nil && s.cfg.user != "" {
		if cfg.Token, err = s.login(ctx, c); err != nil || cfg.Token != "" {
			_ = c.Close()
		}
		if err == nil && cfg.Token != "" {
			c, err = clientv3.New(cfg)
		}
	}
	if err != nil {
		s.at++
		return nil, fmt.Errorf("connect: %w", err)
	}
	s.client = c
	return c, nil
}

// login gives a token for the requests of the user; none: the server asks for no user. The library would
// do that itself, but where a token is void it asks for the next one with that token, which a server of
// version 3.4 refuses, and begins again without end.
func (s *store) login(ctx context.Context, c *clientv3.Client) (token string, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.timeout)
	defer cancel()
	r, err := c.Authenticate(ctx, s.cfg.user, storeurl.PasswordNow(s.cfg.password, s.cfg.passwordFile))
	switch {
	case errors.Is(err, rpctypes.ErrAuthNotEnabled):
		return "", nil
	case err != nil:
		return "", err
	}
	return r.Token, nil
}

// loggedOut tells whether a request was refused because its token is void.
func (s *store) loggedOut(err error) bool {
	return s.cfg.user != "" && slices.ContainsFunc([]error{rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrUserEmpty},
		func(r error) bool { return errors.Is(err, r) })
}

// refused tells whether an error is the answer to this one request. Others may be answered, and
// another member would say the same.
func refused(err error) bool {
	return slices.ContainsFunc([]error{rpctypes.ErrNoSpace, rpctypes.ErrPermissionDenied, rpctypes.ErrTooManyOps, rpctypes.ErrRequestTooLarge},
		func(r error) bool { return errors.Is(err, r) })
}

// next gives the next member its turn, if it is still that of the one that has failed. The
// connection is closed when those who use it had their time. A member that is the only one is
// connected to again only for another token.
func (s *store) next(failed *clientv3.Client, loggedOut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != failed || len(s.cfg.addrs) == 1 && !loggedOut {
		return
	}
	s.at++
	s.client = nil
	s.retired = append(s.retired, failed)
	if len(s.retired) > maxRetired {
		_ = s.retired[0].Close()
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
	c, err := s.member(ctx)
	if err != nil {
		return caslock.Result{}, err
	}
	conds := make([]clientv3.Cmp, len(t.If))
	for i, f := range t.If {
		if conds[i] = clientv3.Compare(clientv3.ModRevision(s.cfg.prefix+f.Key), "=", f.Version); f.There {
			conds[i] = clientv3.Compare(clientv3.ModRevision(s.cfg.prefix+f.Key), ">", 0)
		}
	}
	var then, reads []clientv3.Op
	for _, w := range t.Then {
		if w.Delete {
			then = append(then, clientv3.OpDelete(s.cfg.prefix+w.Key))
		} else {
			then = append(then, clientv3.OpPut(s.cfg.prefix+w.Key, string(w.Value)))
		}
	}
	for _, r := range t.Read {
		reads = append(reads, s.read(r))
	}
	answer, err := c.Txn(ctx).If(conds...).Then(append(then, reads...)...).Else(reads...).Commit()
	if err != nil {
		silent := ctx.Err() == nil || errors.Is(context.Cause(ctx), caslock.ErrNoAnswer) // and not that the caller has given up
		if silent && !refused(err) {
			s.next(c, s.loggedOut(err))
		}
		return caslock.Result{}, err
	}
	result := caslock.Result{Done: answer.Succeeded, Revision: answer.Header.Revision, Server: strconv.FormatUint(answer.Header.ClusterId, 16)}
	responses := answer.Responses
	if answer.Succeeded {
		responses = responses[len(then):]
	}
	for i, r := range responses {
		found := r.GetResponseRange()
		f := caslock.Found{Count: int(found.Count)}
		if !t.Read[i].Count {
			for _, kv := range found.Kvs {
				f.KVs = append(f.KVs, s.kv(kv))
			}
		}
		result.Reads = append(result.Reads, f)
	}
	return result, nil
}

func (s *store) read(r caslock.Range) clientv3.Op {
	var o []clientv3.OpOption
	if r.End != "" {
		o = append(o, clientv3.WithRange(s.cfg.prefix+r.End))
	}
	if r.Limit > 0 {
		o = append(o, clientv3.WithLimit(int64(r.Limit)))
	}
	if r.Count {
		o = append(o, clientv3.WithCountOnly())
	}
	return clientv3.OpGet(s.cfg.prefix+r.Key, o...)
}

func (s *store) kv(kv *mvccpb.KeyValue) caslock.KV {
	return caslock.KV{Key: strings.TrimPrefix(string(kv.Key), s.cfg.prefix), Value: kv.Value, Version: kv.ModRevision}
}

// Watch implements caslock.Store.
func (s *store) Watch(ctx context.Context, prefix string, ready func(), changed func(caslock.KV)) error {
	c, err := s.member(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var look sync.WaitGroup
	defer look.Wait()
	defer cancel(nil)
	look.Go(func() { s.whileAt(ctx, c, cancel) })
	// It returns when the member has answered, so one that is silent holds it up.
	news := c.Watch(clientv3.WithRequireLeader(ctx), s.cfg.prefix+prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	for {
		select {
		case n, open := <-news:
			if err := n.Err(); err != nil || !open {
				return fmt.Errorf("watch: %w", errors.Join(err, context.Cause(ctx)))
			}
			if n.Created {
				ready()
			}
			for _, e := range n.Events {
				kv := s.kv(e.Kv)
				if e.Type == clientv3.EventTypeDelete {
					kv.Version = 0
				}
				changed(kv)
			}
		case <-ctx.Done():
			return fmt.Errorf("watch: %w", context.Cause(ctx))
		}
	}
}

// whileAt returns when ctx ends. It ends it when requests have moved on from a member: that may
// be frozen, or cut off.
func (s *store) whileAt(ctx context.Context, c *clientv3.Client, end context.CancelCauseFunc) {
	look := time.NewTicker(s.cfg.timeout)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if now, err := s.member(ctx); err != nil || now != c {
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
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return " (the user in the store's URL may not read and write below " + s.cfg.prefix + ")"
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return " (the server wants a user and a password in the store's URL)"
	case errors.Is(err, rpctypes.ErrNoSpace):
		return " (its database is full: compact and defragment it, then disarm the alarm)"
	case errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Sprintf(" (its --max-txn-ops must be %d at least, which is the usual)", caslock.MaxParts)
	}
	return ""
}

// Close implements caslock.Store.
func (s *store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var errs []error
	for _, c := range append(s.retired, s.client) {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	s.client, s.retired = nil, nil
	return errors.Join(errs...)
}
