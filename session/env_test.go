package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The operations of a store, as names for faults.
const (
	opOpen      = "open"
	opAcquire   = "acquire"
	opRelease   = "release"
	opDowngrade = "downgrade"
	opHeartbeat = "heartbeat"
	opGet       = "get"
	opList      = "list"
	opClose     = "close"
)

// fault stands between a sidecar and the store: do asks the store.
type fault func(ctx context.Context, do func(context.Context) error) error

var errDown = fmt.Errorf("dial store: %w", lock.ErrUnavailable)

// down: the store cannot be reached.
func down(context.Context, func(context.Context) error) error { return errDown }

// hang: the store does not answer.
func hang(ctx context.Context, _ func(context.Context) error) error {
	<-ctx.Done()
	return fmt.Errorf("read reply: %w: %w", lock.ErrUnavailable, ctx.Err())
}

// mute: the store does it, and its answer is lost.
func mute(ctx context.Context, do func(context.Context) error) error {
	_ = do(ctx)
	return fmt.Errorf("read reply: %w", lock.ErrUnavailable)
}

// leaseLost: the store says that the lease is over.
func leaseLost(context.Context, func(context.Context) error) error {
	return fmt.Errorf("ask store: %w", lock.ErrLeaseLost)
}

// once is f the first time, and nothing after that.
func once(f fault) fault {
	var used atomic.Bool
	return func(ctx context.Context, do func(context.Context) error) error {
		if used.Swap(true) {
			return do(ctx)
		}
		return f(ctx, do)
	}
}

// faulty is a way to a store on which things go wrong as the test says.
type faulty struct {
	lock.Backend
	mu     sync.Mutex
	faults map[string]fault
	calls  map[string]int
	last   *faultyLease
	guard  *lock.Guard // that grants carry
}

// on sets the fault of some operations; nil: none.
func (f *faulty) on(ft fault, ops ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, op := range ops {
		f.faults[op] = ft
	}
}

func (f *faulty) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

func (f *faulty) do(ctx context.Context, op string, do func(context.Context) error) error {
	f.mu.Lock()
	f.calls[op]++
	ft := f.faults[op]
	f.mu.Unlock()
	if ft == nil {
		return do(ctx)
	}
	return ft(ctx, do)
}

func (f *faulty) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	var l lock.Lease
	err := f.do(ctx, opOpen, func(ctx context.Context) (err error) {
		l, err = f.Backend.OpenLease(ctx, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	fl := &faultyLease{Lease: l, f: f, extra: make(chan lock.Event), over: make(chan struct{})}
	f.mu.Lock()
	f.last = fl
	f.mu.Unlock()
	return fl, nil
}

func (f *faulty) Get(ctx context.Context, r lock.Resource) (st lock.Status, err error) {
	err = f.do(ctx, opGet, func(ctx context.Context) (err error) {
		st, err = f.Backend.Get(ctx, r)
		return err
	})
	return st, err
}

func (f *faulty) List(ctx context.Context, prefix string, p lock.Page) (list []lock.Status, err error) {
	err = f.do(ctx, opList, func(ctx context.Context) (err error) {
		list, err = f.Backend.List(ctx, prefix, p)
		return err
	})
	return list, err
}

// say makes the last lease of this way bring an event that the store has not sent.
func (f *faulty) say(e lock.Event) {
	f.mu.Lock()
	l := f.last
	f.mu.Unlock()
	l.extra <- e
}

type faultyLease struct {
	lock.Lease
	f     *faulty
	extra chan lock.Event
	once  sync.Once
	out   chan lock.Event
	over  chan struct{}
}

func (l *faultyLease) Acquire(ctx context.Context, q lock.Request) (g lock.Grant, err error) {
	err = l.f.do(ctx, opAcquire, func(ctx context.Context) (err error) {
		g, err = l.Lease.Acquire(ctx, q)
		return err
	})
	if err != nil {
		return lock.Grant{}, err
	}
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	g.Guard = l.f.guard
	return g, nil
}

func (l *faultyLease) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.f.do(ctx, opRelease, func(ctx context.Context) error { return l.Lease.Release(ctx, r, id) })
}

func (l *faultyLease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.f.do(ctx, opDowngrade, func(ctx context.Context) error { return l.Lease.Downgrade(ctx, r, id) })
}

func (l *faultyLease) Heartbeat(ctx context.Context) (news []lock.Event, err error) {
	err = l.f.do(ctx, opHeartbeat, func(ctx context.Context) (err error) {
		news, err = l.Lease.Heartbeat(ctx)
		return err
	})
	return news, err
}

func (l *faultyLease) Events() <-chan lock.Event {
	l.once.Do(func() {
		l.out = make(chan lock.Event)
		go func() {
			defer close(l.out)
			in := l.Lease.Events()
			for {
				select {
				case e, ok := <-in:
					if !ok {
						return
					}
					l.out <- e
				case e := <-l.extra:
					l.out <- e
				case <-l.over:
					return
				}
			}
		}()
	})
	return l.out
}

func (l *faultyLease) Close(ctx context.Context) error {
	defer close(l.over)
	return l.f.do(ctx, opClose, l.Lease.Close)
}

// env is a store and the sidecars on it, on a clock that can jump.
type env struct {
	t     *testing.T
	base  lock.Clock
	jump  atomic.Int64
	store *embedded.Store
}

// bubble runs a test in fake time.
func bubble(t *testing.T, f func(t *testing.T, e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &env{t: t, base: lock.GoTime()}
		e.store = embedded.New(embedded.WithClock(e.base))
		t.Cleanup(func() {
			if err := e.store.Close(); err != nil {
				t.Error(err)
			}
		})
		f(t, e)
	})
}

// now is the time since the test began.
func (e *env) now() time.Duration { return e.base() }

// left is the time from now to a moment.
func left(e *env, until time.Duration) time.Duration { return max(0, until-e.now()) }

// sidecar is one Manager that runs.
type sidecar struct {
	*Manager
	t    *testing.T
	way  *faulty
	stop func() error // ends Run and waits for it; may be called again
	obs  *observer
}

// sidecar starts one. Its clock is the test's, plus jump when jumps is set.
func (e *env) sidecar(change ...func(*Options)) *sidecar {
	e.t.Helper()
	sc := e.build(change...)
	sc.run()
	synctest.Wait()
	return sc
}

func (e *env) build(change ...func(*Options)) *sidecar {
	e.t.Helper()
	way := &faulty{Backend: e.store, faults: map[string]fault{}, calls: map[string]int{}}
	obs := &observer{}
	o := Options{
		Backend:  way,
		TTL:      10 * time.Second,
		Sidecar:  "test",
		Observer: obs,
		Clock:    func() time.Duration { return e.base() + time.Duration(e.jump.Load()) },
	}
	for _, c := range change {
		c(&o)
	}
	m, err := New(o)
	if err != nil {
		e.t.Fatal(err)
	}
	return &sidecar{Manager: m, t: e.t, way: way, obs: obs}
}

func (sc *sidecar) run() {
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error, 1)
	go func() { end <- sc.Run(ctx) }()
	sc.stop = sync.OnceValue(func() error {
		cancel()
		return <-end
	})
	sc.t.Cleanup(func() {
		if err := sc.stop(); err != nil {
			sc.t.Errorf("Run = %v", err)
		}
	})
}

// session opens a stream session.
func (sc *sidecar) session(change ...func(*OpenRequest)) *Session {
	sc.t.Helper()
	r := OpenRequest{Liveness: Stream, Name: "app", Peer: Peer{PID: 7, UID: 1000}}
	for _, c := range change {
		c(&r)
	}
	s, err := sc.Open(context.Background(), r)
	if err != nil {
		sc.t.Fatal(err)
	}
	return s
}

// free fails the test unless nobody holds or waits for anything in the store.
func (e *env) free() {
	e.t.Helper()
	list, err := e.store.List(context.Background(), "", lock.Page{Limit: lock.MaxPage})
	if err != nil || len(list) > 0 {
		e.t.Errorf("at %v the store has %+v, %v; want nothing", e.now(), list, err)
	}
}

// holders tells how many hold and wait.
func (e *env) holders(r lock.Resource) (holders, waiters int) {
	e.t.Helper()
	st, err := e.store.Get(context.Background(), r)
	if err != nil {
		e.t.Fatal(err)
	}
	return len(st.Holders), len(st.Waiters)
}

// must acquires or fails the test.
func must(t *testing.T, s *Session, r AcquireRequest) Grant {
	t.Helper()
	g, err := s.Acquire(context.Background(), r)
	if err != nil {
		t.Fatalf("Acquire(%+v) = %v", r, err)
	}
	return g
}

// pending is an Acquire on its way.
type pending struct {
	grant  Grant
	err    error
	cancel context.CancelFunc
	done   chan struct{}
}

// begin acquires in the background.
func begin(s *Session, r AcquireRequest) *pending {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pending{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer cancel()
		p.grant, p.err = s.Acquire(ctx, r)
	}()
	synctest.Wait()
	return p
}

func (p *pending) over() bool {
	synctest.Wait()
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *pending) wait() (Grant, error) {
	<-p.done
	return p.grant, p.err
}

// lost takes the next event that is a Lost.
func lostEvent(t *testing.T, s *Session) Lost {
	t.Helper()
	for {
		e, err := s.NextEvent(context.Background())
		if err != nil {
			t.Fatalf("NextEvent = %v, want Lost", err)
		}
		if e.Lost != nil {
			return *e.Lost
		}
	}
}

// isLost checks for a LostError with that reason.
func isLost(t *testing.T, err error, reason LostReason) {
	t.Helper()
	var l *LostError
	if !errors.As(err, &l) || !errors.Is(err, ErrLost) || l.Lost.Reason != reason {
		t.Errorf("error = %v, want LostError %v", err, reason)
	}
}

// isErr checks for an error.
func isErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error = %v, want %v", err, want)
	}
}

// observer keeps what it was told.
type observer struct {
	noObserver
	mu       sync.Mutex
	acquired []AcquireResult
	lost     []LostReason
	opened   []error
}

func (o *observer) Acquired(_ lock.Mode, r AcquireResult, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acquired = append(o.acquired, r)
}

func (o *observer) HoldLost(r LostReason) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lost = append(o.lost, r)
}

func (o *observer) LeaseOpened(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.opened = append(o.opened, err)
}

func (o *observer) results() []AcquireResult {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.acquired)
}

var (
	exclusive = AcquireRequest{Resource: "r", Mode: lock.Exclusive, Wait: Forever}
	shared    = AcquireRequest{Resource: "r", Mode: lock.Shared, Wait: Forever}
)

// with changes a copy of a request.
func with(r AcquireRequest, f func(*AcquireRequest)) AcquireRequest {
	f(&r)
	return r
}

func try(r AcquireRequest) AcquireRequest {
	r.Wait = 0
	return r
}

func waiting(r AcquireRequest, d time.Duration) AcquireRequest {
	r.Wait = d
	return r
}
