package backendtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// sidecar is one lease on one backend. One goroutine renews it, another reads
// its events.
type sidecar struct {
	lock.Lease
	e        *env
	b        lock.Backend
	name     string
	ttl      time.Duration
	routines sync.WaitGroup

	beating chan struct{} // full while a heartbeat is under way, one at a time
	silent  bool          // guarded by beating
	closed  atomic.Bool   // by the test

	mu      sync.Mutex
	notices []notice
	renewed time.Time     // before the last heartbeat was sent that is known to have been carried out
	pause   time.Duration // the longest between two of them
	over    time.Time     // when a heartbeat said that the lease is over; zero: it has not
	calls   map[lock.HoldID]bool
}

// notice is news that reached the sidecar.
type notice struct {
	lock.Event
	at   time.Time
	beat bool // in the answer of a heartbeat
}

// idAt is the id of the lease in what the store shows of a resource.
func (s *sidecar) idAt(r lock.Resource) lock.LeaseID {
	if n, ok := s.e.h.(Namer); ok {
		return n.LeaseID(s.Lease, r)
	}
	return s.ID()
}

// sidecar opens a lease that lives as long as the test, on a backend of its own.
func (e *env) sidecar() *sidecar {
	e.Helper()
	return e.lease(longTTL)
}

// sidecars opens n of them.
func (e *env) sidecars(n int) []*sidecar {
	e.Helper()
	all := make([]*sidecar, n)
	for i := range all {
		all[i] = e.sidecar()
	}
	return all
}

// mortal opens a lease that ends soon after the test silences it.
func (e *env) mortal() *sidecar {
	e.Helper()
	return e.lease(e.h.TTL())
}

// lease opens a lease on a backend of its own, and renews it.
func (e *env) lease(ttl time.Duration) *sidecar {
	e.Helper()
	s := e.leaseOn(e.open(), ttl)
	if s == nil {
		e.Fatalf("the store refuses a lease of %s", ttl)
	}
	return s
}

// leaseOn opens a lease on a backend, and renews it. It is nil where the store
// refuses a lease of that TTL, in so many words.
func (e *env) leaseOn(b lock.Backend, ttl time.Duration) *sidecar {
	e.Helper()
	name := fmt.Sprintf("sidecar-%d", len(e.leases)+1)
	var s *sidecar
	e.eventually("a lease is opened", func() bool {
		renewed := time.Now()
		l, err := b.OpenLease(e.ctx, lock.LeaseOptions{TTL: ttl, Sidecar: name})
		if errors.Is(err, lock.ErrInvalid) || err != nil && strings.Contains(err.Error(), "a lease of "+ttl.String()) {
			return true
		}
		if errors.Is(err, lock.ErrUnavailable) {
			return false // it may be soon
		}
		if err != nil {
			e.Fatalf("OpenLease: %v", err)
		}
		s = &sidecar{Lease: l, e: e, b: b, name: name, ttl: ttl, renewed: renewed, beating: make(chan struct{}, 1), calls: make(map[lock.HoldID]bool)}
		return true
	})
	if s == nil {
		return nil
	}
	e.leases = append(e.leases, s)
	stop := make(chan struct{})
	s.routines.Go(func() {
		defer close(stop)
		for ev := range s.Events() {
			s.mu.Lock()
			s.notices = append(s.notices, notice{Event: ev, at: time.Now()})
			s.mu.Unlock()
		}
	})
	s.routines.Go(func() {
		ticker := time.NewTicker(min(ttl/4, time.Second))
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				s.renew()
			case <-stop:
				return
			}
		}
	})
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		// Without an answer in time, the lease ends with its TTL.
		if err := s.Close(ctx); err != nil && !errors.Is(err, lock.ErrLeaseLost) && !errors.Is(err, lock.ErrUnavailable) {
			e.Errorf("close lease: %v", err)
		}
		s.routines.Wait()
	})
	return s
}

// renew sends a heartbeat unless the sidecar is silent. A test that needs the
// lease finds out when that fails, and others let it die.
func (s *sidecar) renew() {
	s.beating <- struct{}{}
	defer func() { <-s.beating }()
	if s.silent {
		return
	}
	ctx, cancel := context.WithTimeout(s.e.ctx, min(s.ttl/2, 2*time.Second))
	defer cancel()
	_ = s.beatLocked(ctx)
}

// beat sends one heartbeat for its outcome.
func (s *sidecar) beat(ctx context.Context) error {
	s.beating <- struct{}{}
	defer func() { <-s.beating }()
	return s.beatLocked(ctx)
}

func (s *sidecar) beatLocked(ctx context.Context) error {
	before := time.Now()
	news, err := s.Heartbeat(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Now()
	if end := s.renewed.Add(s.ttl); end.Before(at) { // an answer so late finds nobody who relies on anything
		at = end
	}
	for _, ev := range news {
		s.notices = append(s.notices, notice{Event: ev, at: at, beat: true})
	}
	switch {
	case err == nil:
		// The store has carried it out at some moment up to now.
		s.pause, s.renewed = max(s.pause, time.Since(s.renewed)), before
	case errors.Is(err, lock.ErrLeaseLost) && s.over.IsZero():
		s.over = time.Now()
	}
	return err
}

// silence stops the heartbeats, as if the sidecar had died, and tells when the
// last one was sent.
func (s *sidecar) silence() (renewed time.Time) {
	s.beating <- struct{}{}
	defer func() { <-s.beating }()
	s.silent = true
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}

// isSilent reports whether it was silenced.
func (s *sidecar) isSilent() bool {
	s.beating <- struct{}{}
	defer func() { <-s.beating }()
	return s.silent
}

// event waits for news about a hold.
func (s *sidecar) event(kind lock.EventKind, id lock.HoldID) lock.Event {
	s.e.Helper()
	return s.notice("the lease is told of the event", func(n notice) bool { return n.Kind == kind && n.ID == id }).Event
}

// beatTells waits until the answer of a heartbeat brings news about a hold.
func (s *sidecar) beatTells(kind lock.EventKind, id lock.HoldID) notice {
	s.e.Helper()
	return s.notice("the answer of a heartbeat tells of the event", func(n notice) bool { return n.beat && n.Kind == kind && n.ID == id })
}

// notice waits for news that want takes. The heartbeats are sent more often
// meanwhile, for without pushes nothing else brings news.
func (s *sidecar) notice(what string, want func(notice) bool) notice {
	s.e.Helper()
	var found notice
	s.e.eventually(what, func() bool {
		s.mu.Lock()
		i := slices.IndexFunc(s.notices, want)
		if i >= 0 {
			found = s.notices[i]
		}
		over := !s.over.IsZero()
		s.mu.Unlock()
		if i < 0 && over {
			s.e.lasting() // nobody is told any more
		}
		if i < 0 {
			s.renew()
		}
		return i >= 0
	})
	return found
}

// knowsOfLoss tells whether the sidecar knows that it lost the hold.
func (s *sidecar) knowsOfLoss(id lock.HoldID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.over.IsZero() || slices.ContainsFunc(s.notices, func(n notice) bool { return n.ID == id && n.Kind == lock.Vanished })
}

// toldOfLossOn tells whether the sidecar was told that it lost a hold on a resource, or is
// about to be.
func (s *sidecar) toldOfLossOn(r lock.Resource) bool {
	for end := time.Now().Add(slack); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if slices.ContainsFunc(s.told(), func(n notice) bool { return n.Resource == r && n.Kind == lock.Vanished }) {
			return true
		}
	}
	return false
}

// lastRenewed is before the last heartbeat that was carried out.
func (s *sidecar) lastRenewed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}

// longestPause is the longest time between two heartbeats, or since the last.
func (s *sidecar) longestPause() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.pause, time.Since(s.renewed))
}

// told are all news so far.
func (s *sidecar) told() []notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.notices)
}

// forget drops the news so far.
func (s *sidecar) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices = nil
}

// relies tells until when the sidecar relies on a hold that it was granted, as
// far as it knows by now: until its lease would end, or it is told of a loss.
func (s *sidecar) relies(id lock.HoldID) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.renewed.Add(s.ttl)
	if !s.over.IsZero() && s.over.Before(end) {
		end = s.over
	}
	for _, n := range s.notices {
		told := n.at
		if n.ID != id {
			continue
		}
		if n.Kind == lock.Revoked && n.Until != 0 {
			told = s.e.moment(n.Until)
		}
		if told.Before(end) {
			end = told
		}
	}
	return end
}

// ended silences the sidecar and waits until the store says that the lease is over. In a
// store of many servers it lives on each by itself, for its TTL after whatever came there
// last: that may be a heartbeat to which another server said that it is over.
func (s *sidecar) ended() {
	s.e.Helper()
	s.silence()
	time.Sleep(s.ttl)
	s.e.eventually("the store says that the lease is over", func() bool {
		err := s.Release(s.e.ctx, s.e.name("nothing"), lock.NewHoldID()) // unlike Heartbeat, it does not renew
		return errors.Is(err, lock.ErrLeaseLost)
	})
}

// alone keeps the rule for callers: one call at a time for a HoldID.
func (s *sidecar) alone(id lock.HoldID) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls[id] {
		s.e.Errorf("the test makes two calls for the hold %s at once, which the contract forbids", id)
		return func() {}
	}
	s.calls[id] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, id)
	}
}

// Close is that of the lease, by the test.
func (s *sidecar) Close(ctx context.Context) error {
	s.closed.Store(true)
	return s.Lease.Close(ctx)
}

// Acquire is that of the lease, one call at a time.
func (s *sidecar) Acquire(ctx context.Context, q lock.Request) (lock.Grant, error) {
	defer s.alone(q.ID)()
	return s.Lease.Acquire(ctx, q)
}

// Release is that of the lease, one call at a time.
func (s *sidecar) Release(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	defer s.alone(id)()
	return s.Lease.Release(ctx, r, id)
}

// Downgrade is that of the lease, one call at a time.
func (s *sidecar) Downgrade(ctx context.Context, r lock.Resource, id lock.HoldID) error {
	defer s.alone(id)()
	return s.Lease.Downgrade(ctx, r, id)
}
