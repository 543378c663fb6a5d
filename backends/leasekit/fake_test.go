package leasekit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 10 * time.Second

// fake is a store as one lease sees it, with faults. All others together are the
// set of resources that are taken.
type fake struct {
	mu       sync.Mutex
	entries  map[lock.HoldID]*stored
	order    []lock.HoldID // of waiters
	taken    map[lock.Resource]bool
	holders  []lock.Holding       // who has it, as a try is told
	gone     map[lock.HoldID]bool // given up, and a copy of the request may arrive
	refused  map[lock.HoldID]bool // a copy of the request has ended a hold that was forced; another copy may bring it back
	over     bool
	fence    lock.Fence
	stranger bool         // the next heartbeat is answered by another server
	told     []Revocation // by the next heartbeat, of holds that are gone
	entriesN int          // what the heartbeat says instead of the number, unless 0
	stays    bool         // there is no downgrade
	partial  bool         // one server of several does not answer to heartbeats

	faults map[string]fault
	calls  map[string]int
	acks   []Revocation // as they came
	ended  []Withdrawal
	push   func(Push)
	pushes chan struct{} // closed when Listen has begun
}

func newFake() *fake {
	return &fake{
		entries: map[lock.HoldID]*stored{}, taken: map[lock.Resource]bool{}, gone: map[lock.HoldID]bool{}, refused: map[lock.HoldID]bool{},
		faults: map[string]fault{}, calls: map[string]int{}, pushes: make(chan struct{}),
	}
}

type stored struct {
	Ref
	held, revoked bool
	fence         lock.Fence
	grace         time.Duration
	acked         bool
}

// fault stands between the lease and the store: do asks the store.
type fault func(ctx context.Context, do func()) error

var errSilent = fmt.Errorf("read answer: %w", lock.ErrUnavailable)

// mute: the store does it, and its answer is lost.
func mute(_ context.Context, do func()) error { do(); return errSilent }

// down: the request does not reach the store.
func down(context.Context, func()) error { return errSilent }

// hang: no answer comes, ever.
func hang(ctx context.Context, do func()) error {
	do()
	<-ctx.Done()
	return fmt.Errorf("%w: %w", lock.ErrUnavailable, ctx.Err())
}

// slow: the store does it at once, and its answer comes late.
func slow(d time.Duration) fault {
	return func(_ context.Context, do func()) error { do(); time.Sleep(d); return nil }
}

// once is f for the first call.
func once(f fault) fault {
	var used sync.Once
	return func(ctx context.Context, do func()) (err error) {
		g := func(_ context.Context, do func()) error { do(); return nil }
		used.Do(func() { g = f })
		return g(ctx, do)
	}
}

func (f *fake) on(op string, ft fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = ft
}

func (f *fake) count(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

func (f *fake) call(ctx context.Context, op string, do func() error) error {
	f.mu.Lock()
	f.calls[op]++
	ft := f.faults[op]
	f.mu.Unlock()
	var err error
	locked := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err = lock.ErrLeaseLost; !f.over {
			err = do()
		}
	}
	if ft == nil {
		locked()
		return err
	}
	return errors.Join(ft(ctx, locked), err)
}

// Ask implements Driver.
func (f *fake) Ask(ctx context.Context, q lock.Request) (a Answer, err error) {
	err = f.call(ctx, "ask", func() error {
		e := f.entries[q.ID]
		switch {
		case f.gone[q.ID], e != nil && e.revoked:
			f.refused[q.ID] = true
			f.drop(q.ID)
			return lock.ErrNotHolder
		case e == nil && q.Try && f.taken[q.Resource]:
			return &lock.HeldError{Cause: lock.ErrHeld, Status: lock.Status{Holders: f.holders}}
		case e == nil:
			e = &stored{Ref: Ref{q.Resource, q.ID}}
			f.entries[q.ID] = e
			f.order = append(f.order, q.ID)
		}
		if !e.held && !f.taken[e.Resource] {
			f.grant(e)
		}
		a = Answer{Granted: e.held, Fence: e.fence}
		return nil
	})
	return a, err
}

func (f *fake) grant(e *stored) {
	f.fence++
	e.held, e.fence = true, f.fence
	f.taken[e.Resource] = true
	f.order = slices.DeleteFunc(f.order, func(id lock.HoldID) bool { return id == e.ID })
}

func (f *fake) drop(id lock.HoldID) {
	e := f.entries[id]
	if e == nil {
		return
	}
	delete(f.entries, id)
	f.order = slices.DeleteFunc(f.order, func(w lock.HoldID) bool { return w == id })
	if e.held {
		f.free(e.Resource)
	}
}

// free lets the next one in.
func (f *fake) free(r lock.Resource) {
	delete(f.taken, r)
	for _, id := range f.order {
		if e := f.entries[id]; e.Resource == r {
			f.grant(e)
			return
		}
	}
}

// Withdraw implements Driver.
func (f *fake) Withdraw(ctx context.Context, w Withdrawal) (found Withdrawn, err error) {
	err = f.call(ctx, "withdraw", func() error {
		f.ended = append(f.ended, w)
		found.Found = f.entries[w.ID] != nil
		f.drop(w.ID)
		f.gone[w.ID] = f.gone[w.ID] || w.Unsure
		return nil
	})
	return found, err
}

// Downgrade implements Driver.
func (f *fake) Downgrade(ctx context.Context, r Ref) error {
	return f.call(ctx, "downgrade", func() error {
		if e := f.entries[r.ID]; e == nil || !e.held {
			return lock.ErrNotHolder
		}
		if f.stays {
			return lock.ErrUnsupported
		}
		return nil
	})
}

// Renew implements Driver.
func (f *fake) Renew(ctx context.Context, acks []Revocation) (r Renewal, err error) {
	err = f.call(ctx, "renew", func() error {
		f.acks = append(f.acks, acks...)
		for _, a := range acks {
			if e := f.entries[a.ID]; e != nil && a.Grace <= e.grace {
				e.acked = true
			}
		}
		r.Entries = len(f.entries)
		if f.entriesN != 0 {
			r.Entries = f.entriesN
		}
		for _, e := range f.entries {
			if e.revoked && !e.acked {
				r.Revoked = append(r.Revoked, Revocation{Ref: e.Ref, Grace: e.grace})
			}
		}
		r.Revoked, f.told = append(r.Revoked, f.told...), nil
		r.Stranger, f.stranger = f.stranger, false
		if f.partial {
			return errSilent
		}
		return nil
	})
	return r, err
}

// Held implements Driver.
func (f *fake) Held(ctx context.Context, each func(Ref)) error {
	var all []Ref
	err := f.call(ctx, "held", func() error {
		for _, e := range f.entries {
			all = append(all, e.Ref)
		}
		return nil
	})
	if err == nil {
		for _, r := range all {
			each(r)
		}
	}
	return err
}

// Listen implements Driver.
func (f *fake) Listen(ctx context.Context, push func(Push)) {
	f.mu.Lock()
	f.push = push
	f.mu.Unlock()
	close(f.pushes)
	<-ctx.Done()
}

// Close implements Driver.
func (f *fake) Close(ctx context.Context) error {
	return f.call(ctx, "close", func() error {
		f.over, f.entries = true, nil
		return nil
	})
}

// force forces a release, as another sidecar would. What is told of it is for the
// test to push.
func (f *fake) force(id lock.HoldID, grace time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entries[id]
	if grace == 0 || !e.held {
		f.drop(id)
		return
	}
	e.revoked, e.grace, e.acked = true, grace, false
}

// lose makes the store forget an entry, as a failover does.
func (f *fake) lose(id lock.HoldID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(id)
}

// change changes the store under its mutex.
func (f *fake) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fake) acknowledged() []Revocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.acks)
}

func (f *fake) has(id lock.HoldID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.entries[id] != nil
}

// kit is a lease over a fake.
type kit struct {
	*Lease
	t     *testing.T
	f     *fake
	clock lock.Clock
}

// bubble runs a test on a lease whose time is the bubble's.
func bubble(t *testing.T, do func(k *kit)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		clock := lock.GoTime()
		k := &kit{t: t, f: f, clock: clock, Lease: Start(t.Context(), f, Options{ID: "lease", TTL: ttl, Clock: clock})}
		<-f.pushes
		do(k)
		k.f.change(func() { clear(f.faults) })
		if err := k.Close(t.Context()); err != nil && !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Close: %v", err)
		}
	})
}

func (k *kit) request(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive}
}

func (k *kit) acquire(r lock.Resource) lock.Grant {
	k.t.Helper()
	g, err := k.Acquire(k.t.Context(), k.request(r))
	if err != nil {
		k.t.Fatalf("Acquire: %v", err)
	}
	return g
}

// result is how an Acquire ended.
type result struct {
	g   lock.Grant
	err error
	at  time.Duration
}

// begins starts to acquire and returns when everything stands still.
func (k *kit) begins(ctx context.Context, q lock.Request) <-chan result {
	done := make(chan result, 1)
	go func() {
		g, err := k.Acquire(ctx, q)
		done <- result{g, err, k.clock()}
	}()
	synctest.Wait()
	return done
}

// beat sends a heartbeat that must succeed, and gives its news.
func (k *kit) beat() []lock.Event {
	k.t.Helper()
	news, err := k.Heartbeat(k.t.Context())
	if err != nil {
		k.t.Fatalf("Heartbeat: %v", err)
	}
	return news
}

// events gives what has come by push, without waiting.
func (k *kit) events() []lock.Event {
	var all []lock.Event
	for {
		synctest.Wait()
		select {
		case ev, open := <-k.Events():
			if !open {
				return all
			}
			all = append(all, ev)
		default:
			return all
		}
	}
}

func (k *kit) same(what string, got []lock.Event, want ...lock.Event) {
	k.t.Helper()
	if !slices.Equal(got, want) {
		k.t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

func (k *kit) is(what string, err, want error) {
	k.t.Helper()
	if !errors.Is(err, want) {
		k.t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func revoked(g lock.Grant, until time.Duration) lock.Event {
	return lock.Event{Kind: lock.Revoked, Resource: g.Resource, ID: g.ID, Until: until}
}

func vanished(g lock.Grant) lock.Event {
	return lock.Event{Kind: lock.Vanished, Resource: g.Resource, ID: g.ID}
}

// Waiting implements Sorter.
func (f *fake) Waiting(ctx context.Context, holds []Hold) (waiting []Ref, err error) {
	err = f.call(ctx, "waiting", func() error {
		for _, r := range holds {
			if e := f.entries[r.ID]; e == nil || !e.held {
				waiting = append(waiting, r.Ref)
			}
		}
		return nil
	})
	return waiting, err
}
