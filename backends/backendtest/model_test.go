package backendtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// faults are the laws that a model breaks.
type faults struct {
	silentHeartbeat    bool // news come by push only
	newsOnce           bool // a heartbeat does not say again what was said
	forcersClock       bool // grace counts from the call of the forcer
	ignoresSecondForce bool
	prolongsGrace      bool // a second, longer grace counts
	revivedByHeartbeat bool // a lease that is over is renewed
	revivedByAcquire   bool
	revivedByRelease   bool
	trustsAnyServer    bool // never compares its holds with the server's
	trustsKnownServer  bool // compares only with a server that it has not seen before
	noFailoverGrace    bool // grants at once after a change of server
	keepsDeadWaiters   bool // in the store, where List does not look
	stalls             bool // a request holds up all others for as long as the resource has holders and waiters
	looksAtEach        bool // a heartbeat asks for each hold of its lease
	shortLivedLease    bool // ends every lease after some seconds
	sharesSlots        bool // gives every permit the slot 0
	forgetsMinHold     bool // a release ends it
	keepsNoDead        bool // the end of the lease ends a MinHold
	keepsForced        bool // a forced release does not end it
	keepsUnseen        bool // what is kept is shown as held
	attachesAny        bool // by any key
	attachesQuietly    bool // tells nobody who had it
	attachesAnew       bool // with another fence
	attachesForGood    bool // forgets until when it is there
	detachesForEver    bool // whatever time is asked for
	extendsNothing     bool
	detachesNothing    bool // it ends with the lease that has detached it
	permitsFormerKeys  bool // a key is good for ever
	mixesLimits        bool // lets permits of another number wait beside those that are held
	leavesNoRoom       bool // numbers grants so that the fences of a cohort are those of others, too

	lastWriteWins   bool // a record is written whatever is there
	writesTwice     bool // the same write once more finds another version
	losesRecords    bool // what was written and not heard of is something else
	keepsForLonger  bool // a record is there after its time
	keepsOldRecords bool // and where nobody sees it
	listsAtRandom   bool // in no order
}

// model is a Harness of servers in memory, in a bubble of testing/synctest.
type model struct {
	bad      faults
	clock    lock.Clock
	commands atomic.Int64 // that were asked for

	main *server
}

func newModel(bad faults) *model {
	return &model{bad: bad, clock: lock.GoTime(), main: newServer(bad)}
}

const modelRecheck = time.Second

var (
	_ Faulter        = (*model)(nil)
	_ WakeupDropper  = (*model)(nil)
	_ Switcher       = (*model)(nil)
	_ Insider        = (*model)(nil)
	_ CommandCounter = (*model)(nil)
	_ timekeeper     = (*model)(nil)
)

func (m *model) Open(testing.TB) lock.Backend {
	b := &modelBackend{m: m}
	b.target.Store(m.main)
	b.seen = map[*server]bool{m.main: true}
	b.last = m.main
	return b
}
func (m *model) TTL() time.Duration            { return 2 * time.Second }
func (m *model) Recheck() time.Duration        { return modelRecheck }
func (m *model) Exceptions() map[string]string { return nil }
func (m *model) Clock() lock.Clock             { return m.clock }
func (m *model) Commands(testing.TB) int64     { return m.commands.Load() }

// LoseReplies makes the model a Faulter.
func (m *model) LoseReplies(t testing.TB, b lock.Backend) func() {
	deaf := &b.(*modelBackend).deaf
	heal := func() { deaf.Store(false) }
	t.Cleanup(heal)
	deaf.Store(true)
	return heal
}

// DropWakeups makes the model a WakeupDropper.
func (m *model) DropWakeups(t testing.TB, b lock.Backend) func() {
	mute := &b.(*modelBackend).mute
	restore := func() { mute.Store(false) }
	t.Cleanup(restore)
	mute.Store(true)
	return restore
}

// Fork makes the model a Switcher.
func (m *model) Fork(testing.TB) func(toFork bool, bs ...lock.Backend) {
	fork := m.main.fork()
	return func(toFork bool, bs ...lock.Backend) {
		for _, b := range bs {
			to := m.main
			if toFork {
				to = fork
			}
			b.(*modelBackend).target.Store(to)
		}
	}
}

type modelBackend struct {
	m          *model
	target     atomic.Pointer[server]
	deaf, mute atomic.Bool

	mu      sync.Mutex
	last    *server
	seen    map[*server]bool
	strange bool      // the last is to be compared with
	since   time.Time // when the last server was first met
}

var _ lock.Backend = (*modelBackend)(nil)

// ask carries out a request. The answer may be lost.
func (b *modelBackend) ask(f func(s *server, now time.Time)) error {
	s := b.target.Load()
	b.meet(s)
	b.m.commands.Add(1)
	s.do(func(now time.Time) { f(s, now) })
	if b.deaf.Load() {
		return fmt.Errorf("%w: no answer", lock.ErrUnavailable)
	}
	return nil
}

// meet notices a change of server.
func (b *modelBackend) meet(s *server) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s == b.last {
		return
	}
	b.last, b.since = s, time.Now()
	b.strange = !b.m.bad.trustsAnyServer && (!b.m.bad.trustsKnownServer || !b.seen[s])
	b.seen[s] = true
}

// isStrange tells whether the holds are to be compared with the server's.
func (b *modelBackend) isStrange() bool {
	b.meet(b.target.Load())
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.strange
}

func (b *modelBackend) compared() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.strange = false
}

// graceLeft is how long nothing may be granted yet, on leases of that TTL.
func (b *modelBackend) graceLeft(ttl time.Duration) time.Duration {
	b.meet(b.target.Load())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since.IsZero() || b.m.bad.noFailoverGrace {
		return 0
	}
	return time.Until(b.since.Add(ttl))
}

func (b *modelBackend) OpenLease(_ context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	if o.TTL < lock.MinTTL || o.TTL > lock.MaxTTL {
		return nil, &lock.InvalidError{Field: "ttl", Problem: "is out of bounds"}
	}
	if left := b.graceLeft(o.TTL); left > 0 {
		return nil, fmt.Errorf("%w: another server", lock.ErrUnavailable)
	}
	l := &modelLease{
		b: b, id: lock.NewLeaseID(), ttl: o.TTL, events: make(chan lock.Event), poke: make(chan struct{}, 1), done: make(chan struct{}),
		own: make(map[lock.HoldID]*ownHold),
	}
	if b.m.bad.shortLivedLease {
		l.ttl = min(l.ttl, 3*time.Second)
	}
	err := b.ask(func(s *server, now time.Time) {
		s.leases[l.id] = &leaseRow{sidecar: o.Sidecar, ttl: l.ttl, ends: now.Add(l.ttl)}
		s.listeners[l.id] = l
	})
	if err != nil {
		return nil, err
	}
	l.routine.Go(l.listen)
	return l, nil
}

func (b *modelBackend) Get(_ context.Context, r lock.Resource) (st lock.Status, err error) {
	err = b.ask(func(s *server, now time.Time) { st = s.status(r, now) })
	return st, err
}

func (b *modelBackend) List(_ context.Context, prefix string, p lock.Page) (all []lock.Status, err error) {
	err = b.ask(func(s *server, now time.Time) {
		for _, r := range s.names(prefix) {
			if r > p.After && len(all) < p.Limit {
				all = append(all, s.status(r, now))
			}
		}
	})
	return all, err
}

func (b *modelBackend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	var answer error
	if err := b.ask(func(s *server, now time.Time) { answer = s.force(r, id, grace, now) }); err != nil {
		return err
	}
	for answer == nil {
		var there *holdRow
		if err := b.ask(func(s *server, _ time.Time) { there, _ = s.find(r, id) }); err != nil {
			return err
		}
		if there == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", lock.ErrUnavailable, ctx.Err())
		case <-time.After(modelRecheck / 4):
		}
	}
	return answer
}

func (b *modelBackend) Ping(context.Context) error { return b.ask(func(*server, time.Time) {}) }
func (b *modelBackend) Close() error               { return nil }

// Leftovers makes the model an Insider.
func (m *model) Leftovers(_ testing.TB, prefix string) (left []string) {
	m.main.do(func(time.Time) {
		for _, r := range m.main.names(prefix) {
			left = append(left, string(r))
		}
		for _, r := range slices.Sorted(maps.Keys(m.main.records)) {
			if strings.HasPrefix(string(r), prefix) {
				left = append(left, "record of "+string(r))
			}
		}
		for _, h := range m.main.hidden {
			if strings.HasPrefix(h, prefix) {
				left = append(left, h)
			}
		}
	})
	return left
}
