package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// The operations of a store, as names for faults.
const (
	opOpen      = "open"
	opAcquire   = "acquire"
	opRelease   = "release"
	opDowngrade = "downgrade"
	opDetach    = "detach"
	opHandle    = "handle"
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

// stuck: the store does it, and the driver returns much later, whatever ctx says.
func stuck(_ context.Context, do func(context.Context) error) error {
	_ = do(context.Background())
	time.Sleep(stuckFor)
	return fmt.Errorf("read reply: %w", lock.ErrUnavailable)
}

const stuckFor = 30 * time.Second

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

// inTurn is each of some once, and the last one after that.
func inTurn(all ...fault) fault {
	var n atomic.Int32
	return func(ctx context.Context, do func(context.Context) error) error {
		return all[min(int(n.Add(1)), len(all))-1](ctx, do)
	}
}

// faulty is a way to a store on which things go wrong as the test says.
type faulty struct {
	lock.Backend
	mu     sync.Mutex
	faults map[string]fault
	calls  map[string]int
	last   *faultyLease
	guard  *lock.Guard            // that grants carry
	mute   bool                   // pushes are dropped: news come by the heartbeat alone
	busy   map[lock.HoldID]string // the call that is under way
	broken string                 // two calls on one hold at once

	force func(lock.HoldID) error // what the store says to a forced release
}

// opWaiting is opAcquire between two calls, where the first has returned lock.ErrWaiting.
const opWaiting = "acquire that waits"

// one calls do, and notes where another call on the hold is under way.
func (f *faulty) one(op string, id lock.HoldID, do func() error) (err error) {
	f.mu.Lock()
	if other, ok := f.busy[id]; ok && (other != opWaiting || op != opAcquire) {
		f.broken = fmt.Sprintf("%s of %s while its %s is under way", op, id, other)
	}
	f.busy[id] = op
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.busy, id)
		if errors.Is(err, lock.ErrWaiting) {
			f.busy[id] = opWaiting
		}
	}()
	return do()
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
	fl := &faultyLease{Lease: l, f: f, extra: make(chan lock.Event), over: make(chan struct{}), news: map[lock.HoldID]lock.Event{}}
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

func (f *faulty) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	if f.force != nil {
		return f.force(id)
	}
	return f.Backend.ForceRelease(ctx, r, id, grace)
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

	mu   sync.Mutex
	news map[lock.HoldID]lock.Event // what the next heartbeats bring
}

func (l *faultyLease) Acquire(ctx context.Context, q lock.Request) (g lock.Grant, err error) {
	err = l.f.one(opAcquire, q.ID, func() error {
		return l.f.do(ctx, opAcquire, func(ctx context.Context) (err error) {
			g, err = l.Lease.Acquire(ctx, q)
			return err
		})
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
	return l.f.one(opRelease, id, func() error {
		return l.f.do(ctx, opRelease, func(ctx context.Context) error {
			l.mu.Lock()
			delete(l.news, id)
			l.mu.Unlock()
			return l.Lease.Release(ctx, r, id)
		})
	})
}

func (l *faultyLease) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	return l.f.one(opDowngrade, id, func() error {
		return l.f.do(ctx, opDowngrade, func(ctx context.Context) error { return l.Lease.Downgrade(ctx, r, id) })
	})
}

func (l *faultyLease) Detach(ctx context.Context, r lock.Resource, id lock.HoldID, key lock.HandleKey, ttl time.Duration) error {
	return l.f.one(opDetach, id, func() error {
		return l.f.do(ctx, opDetach, func(ctx context.Context) error { return l.Lease.(lock.Detacher).Detach(ctx, r, id, key, ttl) })
	})
}

func (f *faulty) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (d lock.Detached, err error) {
	err = f.do(ctx, opHandle, func(ctx context.Context) (err error) {
		d, err = f.Backend.(lock.Handles).SetHandle(ctx, r, key, ttl)
		return err
	})
	return d, err
}

func (l *faultyLease) Heartbeat(ctx context.Context) (news []lock.Event, err error) {
	err = l.f.do(ctx, opHeartbeat, func(ctx context.Context) (err error) {
		news, err = l.Lease.Heartbeat(ctx)
		return err
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.news {
		news = append(news, e)
	}
	return news, err
}

// push passes an event on, or keeps it for the heartbeat.
func (l *faultyLease) push(e lock.Event) {
	l.f.mu.Lock()
	dropped := l.f.mute
	l.f.mu.Unlock()
	if !dropped {
		l.out <- e
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news[e.ID] = e
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
					l.push(e)
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
