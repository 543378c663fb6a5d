package session

import (
	"context"
	"errors"
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
	*Space // the one of everybody
	t      *testing.T
	way    *faulty
	stop   func() error // ends Run and waits for it; may be called again
	obs    *observer
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
	way := &faulty{Backend: e.store, faults: map[string]fault{}, calls: map[string]int{}, busy: map[lock.HoldID]string{}}
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
	return &sidecar{Manager: m, Space: m.Everybody(), t: e.t, way: way, obs: obs}
}

func (sc *sidecar) Info() Info { return sc.Manager.Info() }

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
		// Whatever a test has done: what counts for limits ends with what it is of.
		synctest.Wait() // a session may be just about to end
		i := sc.Info()
		sc.mu.Lock()
		defer sc.mu.Unlock()
		if i.InFlight != 0 || i.Waiters != 0 || i.Sessions != 0 || len(sc.usages) != 0 {
			sc.t.Errorf("counted at the end: %d in flight, %d waiters, %d sessions, usages %v", i.InFlight, i.Waiters, i.Sessions, sc.usages)
		}
		if sc.way.broken != "" {
			sc.t.Error(sc.way.broken)
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

// beginAsync is begin by Begin.
func beginAsync(s *Session, r AcquireRequest) *pending {
	p := &pending{done: make(chan struct{})}
	q := s.Begin(context.Background(), r, func(g Grant, err error) {
		p.grant, p.err = g, err
		close(p.done) // a second answer would panic
	})
	p.cancel = q.GiveUp
	go q.Run()
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

// readers are the test's readers of events, one a session.
var readers sync.Map

// news gives the test's reader of a session's events, the same for each call.
func news(s *Session) *Events {
	r, _ := readers.LoadOrStore(s, s.Events())
	return r.(*Events)
}

// lostEvent takes the next event that is a Lost.
func lostEvent(t *testing.T, s *Session) Lost {
	t.Helper()
	for {
		e, err := news(s).Next(context.Background())
		if err != nil {
			t.Fatalf("Next = %v, want Lost", err)
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
	resource string // of the last
	lost     []LostReason
	opened   []error
	locked   []bool // deadlocks, broken or not
}

func (o *observer) Deadlock(broken bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.locked = append(o.locked, broken)
}

func (o *observer) deadlocks() []bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.locked)
}

func (o *observer) Acquired(resource string, _ lock.Mode, r AcquireResult, _ time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acquired, o.resource = append(o.acquired, r), resource
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

// again makes a request reentrant.
func again(r AcquireRequest) AcquireRequest {
	r.Reentrant = true
	return r
}

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
