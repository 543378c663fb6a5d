package arbiter

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// MaxTurns is how many grants there can be under one hold of the store: each has a
// fence of its own.
const MaxTurns = lock.FenceRange

// Options say what the sidecar may answer by itself.
type Options struct {
	// Turns is how many members a cohort has at most; 0: each request goes to the
	// store.
	Turns int
	// Park is how long a hold stays in the store after its release, where its
	// resource has come back before; 0: not at all.
	Park time.Duration

	Clock lock.Clock // default lock.BootTime

	// Yielded, optional, is told how long it took from the news that somebody else
	// waits until the store was asked to hand on. It must not block.
	Yielded func(took time.Duration)
}

// Backend is a lock.Backend that asks another one only for what it must.
type Backend struct {
	lock.Backend
	o      Options
	saved  atomic.Uint64
	told   atomic.Uint64
	parked atomic.Int64

	ctx   context.Context //nolint:containedctx // ends with Close
	stop  context.CancelFunc
	tasks sync.WaitGroup // what Close waits for

	mu     sync.Mutex
	closed bool
	leases map[*Lease]struct{}
	looks  map[lock.Resource]*looks
}

var _ lock.Backend = (*Backend)(nil)

// New puts an arbiter in front of b.
func New(b lock.Backend, o Options) *Backend {
	if o.Clock == nil {
		o.Clock = lock.BootTime
	}
	if o.Yielded == nil {
		o.Yielded = func(time.Duration) {}
	}
	o.Turns = min(o.Turns, MaxTurns)
	a := &Backend{Backend: b, o: o, leases: make(map[*Lease]struct{}), looks: make(map[lock.Resource]*looks)}
	a.ctx, a.stop = context.WithCancel(context.Background())
	return a
}

// Close implements lock.Backend. Looks that are under way end, whoever waits for them.
func (b *Backend) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.stop()
	b.tasks.Wait()
	return b.Backend.Close()
}

// Unwrap gives the Backend behind the arbiter, for lock.RecordsOf: it has no say in records.
func (b *Backend) Unwrap() lock.Backend { return b.Backend }

// Stats is what the arbiter has done.
type Stats struct {
	Saved     uint64 // grants without asking the store
	Contended uint64 // holds and requests behind which somebody else was known to stand
	Parked    int    // holds that no app has, at this moment
}

// Stats tells what the arbiter has done.
func (b *Backend) Stats() Stats {
	return Stats{Saved: b.saved.Load(), Contended: b.told.Load(), Parked: int(b.parked.Load())}
}

// OpenLease implements lock.Backend. Where the store does not tell who stands behind a
// hold, the lease is the store's own: there is no arbiter.
func (b *Backend) OpenLease(ctx context.Context, o lock.LeaseOptions) (lock.Lease, error) {
	inner, err := b.Backend.OpenLease(ctx, o)
	if err != nil || b.o.Turns == 0 && b.o.Park == 0 || !lock.TellsContended(inner) {
		return inner, err
	}
	l := start(ctx, b, inner, o)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leases[l] = struct{}{}
	return l, nil
}

func (b *Backend) drop(l *Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.leases, l)
}

// all gives the leases that are open.
func (b *Backend) all() []*Lease {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*Lease, 0, len(b.leases))
	for l := range b.leases {
		list = append(list, l)
	}
	return list
}

// Get implements lock.Backend.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	st, err := b.Backend.Get(ctx, r)
	if err == nil {
		b.explain(&st)
	}
	return st, err
}

// List implements lock.Backend.
func (b *Backend) List(ctx context.Context, prefix string, p lock.Page) ([]lock.Status, error) {
	list, err := b.Backend.List(ctx, prefix, p)
	for i := range list {
		b.explain(&list[i])
	}
	return list, err
}

// explain turns what the store knows into what is true here.
func (b *Backend) explain(st *lock.Status) {
	for _, l := range b.all() {
		l.explain(st)
	}
	for i := range st.Holders {
		h := &st.Holders[i]
		switch t := h.Owner.Turn; {
		case t == nil:
		case h.Owner.Parked():
			h.Parked, h.Owner = true, lock.Owner{}
		default:
			h.ID, h.Fence, h.Age = t.LockID, h.Fence+t.Fences, max(0, h.Age-t.Later)
			h.Owner.Turn = nil
		}
		h.Cohort = false
	}
	for i := range st.Waiters {
		st.Waiters[i].Cohort = false
	}
}

func unknown(err error) bool { return errors.Is(err, lock.ErrUnavailable) }
