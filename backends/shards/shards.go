package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// Max is how many shards there can be. Each has a lease and a heartbeat of its own.
const Max = 64

// Shard is one of the stores.
type Shard struct {
	// Name says where a resource lives, together with the names of the others. It must be the same at all
	// sidecars and stay the same, whatever becomes of the address and the password.
	Name    string
	Backend lock.Backend
}

// Options are what else a Backend needs to know.
type Options struct {
	Clock lock.Clock // default lock.BootTime
	// Tell, optional, is told when the lease at a shard is opened, is given up, or cannot be
	// opened. It must not block.
	Tell func(News)
}

// News is what became of a sidecar's lease at one shard.
type News struct {
	Shard string
	Why   error // nil: the lease is open
	Holds int   // that are lost
}

// Backend is a lock.Backend made of others.
type Backend struct {
	o       Options
	shards  []*shard   // by name
	alarm   lock.Clock // Options.Clock as it was given
	told    map[string]string
	telling sync.Mutex    // guards told
	founder chan struct{} // has a value while the set is founded
}

// shard is one of the stores.
type shard struct {
	lock.Backend
	name    string
	number  int // among all
	seed    uint64
	records lock.Records

	silent atomic.Int64 // until then on the clock no Get waits for it
	listed atomic.Int64 // until then no page of a list but the first one does
}

const (
	// silentGet is for how long a Get, or a list, waits without an answer at least, until the shard counts as silent.
	silentGet = 500 * time.Millisecond
	// silentRest is for how long Get fails at once then, and a page of a list but the first one. Who reads one
	// lock after another, as the search for deadlocks does, or page after page, is not held up by each at this shard.
	silentRest = 2 * time.Second
)

var (
	_ lock.RecordGuarder = (*Backend)(nil)
	_ lock.Handles       = (*Backend)(nil)
)

// New makes one store of several. The error is a *lock.InvalidError.
func New(list []Shard, o Options) (*Backend, error) {
	b, err := gather(list)
	if err != nil {
		return nil, err
	}
	if len(b.shards) < 2 || len(b.shards) > Max {
		return nil, invalid("names %d shards, must be 2 to %d", len(b.shards), Max)
	}
	b.alarm, b.founder = o.Clock, make(chan struct{}, 1)
	if o.Clock == nil {
		o.Clock = lock.BootTime
	}
	if o.Tell == nil {
		o.Tell = func(News) {}
	}
	b.o = o
	return b, nil
}

// tell passes news on that are any: an attempt that fails as the one before did is none.
func (b *Backend) tell(n News) {
	state := "open"
	var other *MismatchError
	switch {
	case errors.As(n.Why, &other):
		state = "refused"
	case n.Why != nil:
		state = "away"
	}
	b.telling.Lock()
	defer b.telling.Unlock()
	if n.Holds == 0 && b.told[n.Shard] == state {
		return
	}
	b.told[n.Shard] = state
	b.o.Tell(n)
}

// gather puts shards in order.
func gather(list []Shard) (*Backend, error) {
	b := &Backend{told: make(map[string]string)}
	for _, s := range list {
		records, ok := lock.RecordsOf(s.Backend)
		if !ok {
			return nil, invalid("%s cannot be a shard: it keeps no records, and so not to which set of shards it belongs", s.Name)
		}
		b.shards = append(b.shards, &shard{Backend: s.Backend, name: s.Name, seed: seed(s.Name), records: records})
	}
	slices.SortFunc(b.shards, func(a, b *shard) int { return cmp.Compare(a.name, b.name) })
	for i, s := range b.shards {
		s.number = i
		if i > 0 && b.shards[i-1].name == s.name {
			return nil, invalid("names the shard %s twice: give each a name of its own with the option shard=NAME", s.name)
		}
	}
	return b, nil
}

func invalid(format string, args ...any) error {
	return &lock.InvalidError{Field: "store", Problem: fmt.Sprintf(format, args...)}
}

// names are those of the shards, in byte order.
func (b *Backend) names() []string {
	var names []string
	for _, s := range b.shards {
		names = append(names, s.name)
	}
	return names
}

// Get implements lock.Backend.
func (b *Backend) Get(ctx context.Context, r lock.Resource) (lock.Status, error) {
	s := b.of(r)
	began := b.o.Clock()
	if began < time.Duration(s.silent.Load()) {
		return lock.Status{}, fmt.Errorf("get %q: shard %s: %w", string(r), s.name, errRests)
	}
	st, err := s.Get(ctx, r)
	b.note(&s.silent, began, err)
	return st, s.explain(err)
}

var errRests = fmt.Errorf("%w: it did not answer a moment ago", lock.ErrUnavailable)

// note notes whether a shard has answered what it was asked then.
func (b *Backend) note(silent *atomic.Int64, began time.Duration, err error) {
	switch now := b.o.Clock(); {
	case err == nil:
		silent.Store(0)
	case errors.Is(err, lock.ErrUnavailable) && now-began >= silentGet:
		silent.Store(int64(now + silentRest))
	}
}

// ForceRelease implements lock.Backend.
func (b *Backend) ForceRelease(ctx context.Context, r lock.Resource, id lock.HoldID, grace time.Duration) error {
	s := b.of(r)
	return s.explain(s.ForceRelease(ctx, r, id, grace))
}

// SetHandle implements lock.Handles.
func (b *Backend) SetHandle(ctx context.Context, r lock.Resource, key lock.HandleKey, ttl time.Duration) (lock.Detached, error) {
	s := b.of(r)
	h, ok := lock.HandlesOf(s.Backend)
	if !ok {
		return lock.Detached{}, lock.NoHandles()
	}
	d, err := h.SetHandle(ctx, r, key, ttl)
	return d, s.explain(err)
}

// join makes one error of those that are not nil, in one line.
func join(errs ...error) (all error) {
	for _, err := range errs {
		switch {
		case err == nil:
		case all == nil:
			all = err
		default:
			all = fmt.Errorf("%w; %w", all, err)
		}
	}
	return all
}

// explain names the shard where it is away.
func (s *shard) explain(err error) error {
	var other *MismatchError // names it
	if errors.Is(err, lock.ErrUnavailable) && !errors.As(err, &other) {
		return fmt.Errorf("shard %s: %w", s.name, err)
	}
	return err
}

// Ping implements lock.Backend: one shard that answers is a sign of life.
func (b *Backend) Ping(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := b.each(func(s *shard) error {
		err := s.Ping(ctx)
		if err == nil {
			cancel()
		}
		return s.explain(err)
	})
	if slices.Contains(errs, nil) {
		return nil
	}
	return join(errs...)
}

// Close implements lock.Backend.
func (b *Backend) Close() error {
	return join(b.each(func(s *shard) error {
		if err := s.Close(); err != nil {
			return fmt.Errorf("shard %s: %w", s.name, err)
		}
		return nil
	})...)
}

// each does something at all shards side by side.
func (b *Backend) each(do func(*shard) error) []error {
	errs := make([]error, len(b.shards))
	var wg sync.WaitGroup
	for i, s := range b.shards {
		wg.Go(func() { errs[i] = do(s) })
	}
	wg.Wait()
	return errs
}
