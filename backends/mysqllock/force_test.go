package mysqllock

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

// eachStrategy runs a test with every strategy on each kind of server, and once more where the machine was too
// busy for it.
func eachStrategy(t *testing.T, test func(t testing.TB, w *world)) {
	t.Helper()
	for _, kind := range []*testengine.Kind{testengine.MariaDB, testengine.MySQL} {
		for _, strategy := range Strategies {
			t.Run(kind.String()+"/"+strategy, func(t *testing.T) {
				t.Parallel()
				again(t, func(t testing.TB) { test(t, newWorld(t, testengine.Shared(t, kind), strategy)) })
			})
		}
	}
}

// again runs a test, and once more where the machine was too busy for it.
func again(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	backendtest.Again(t, test, os.ErrDeadlineExceeded)
}

// world is a server and the sidecars that a test opens on it.
type world struct {
	testing.TB
	server  testengine.Server
	options string
}

// newWorld has its sidecars wait for answers for longer than a busy machine stands still.
func newWorld(t testing.TB, s testengine.Server, strategy string) *world {
	return &world{TB: t, server: s, options: "?timeout=3s&strategy=" + strategy}
}

// sidecar is one lease on a backend of its own, by a road of its own. It knows
// for how long its app relies on what it holds.
type sidecar struct {
	*world
	b    lock.Backend
	l    lock.Lease
	road *testengine.Proxy
	ttl  time.Duration

	mu     sync.Mutex
	proven time.Duration // before the last good heartbeat was sent
	beaten error         // of the last heartbeat
	told   map[lock.HoldID]revocation
}

// revocation is the last event that told a sidecar of a forced release.
type revocation struct{ at, until time.Duration }

func (w *world) sidecar(ttl time.Duration) *sidecar {
	w.Helper()
	road := testengine.Through(w.TB, w.server)
	b, err := Open(road.URL()+w.options, nil)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = b.Close() })
	s := &sidecar{world: w, b: b, road: road, ttl: ttl, told: make(map[lock.HoldID]revocation)}
	w.eventually("a lease is opened", func() bool {
		s.proven = lock.BootTime()
		s.l, err = b.OpenLease(w.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: w.Name()})
		return err == nil
	})
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = s.l.Close(ctx) // it may be lost
	})
	return s
}

// lives has the sidecar heartbeat and listen until the test is over.
func (s *sidecar) lives() *sidecar {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			sent := lock.BootTime()
			bounded, cancel := context.WithTimeout(ctx, s.ttl/3)
			news, err := s.l.Heartbeat(bounded)
			cancel()
			for _, ev := range news {
				s.hear(ev)
			}
			s.mu.Lock()
			if s.beaten = err; err == nil {
				s.proven = sent
			}
			s.mu.Unlock()
			select {
			case <-time.After(s.ttl / 10):
			case <-ctx.Done():
			}
		}
	})
	wg.Go(func() {
		for {
			select {
			case ev := <-s.l.Events():
				s.hear(ev)
			case <-ctx.Done():
				return
			}
		}
	})
	s.Cleanup(func() { stop(); wg.Wait() })
	return s
}

// hear notes that the release of a hold is forced. On ShedLock's table a forced release
// takes the row away, too: a heartbeat that was sent before the force may find that first.
func (s *sidecar) hear(ev lock.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if was, told := s.told[ev.ID]; (ev.Kind == lock.Revoked || ev.Kind == lock.Vanished) && (!told || was.until != ev.Until) {
		s.told[ev.ID] = revocation{lock.BootTime(), ev.Until}
	}
}

// revoked waits until the sidecar is told of a forced release that ends before
// some moment.
func (s *sidecar) revoked(id lock.HoldID, before time.Duration) (r revocation) {
	s.Helper()
	defer func() {
		if s.Failed() {
			s.Logf("told so far: %+v; its last heartbeat: %v", s.told[id], s.beaten)
		}
	}()
	s.eventually("the holder is told", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		r = s.told[id]
		return r.at != 0 && r.until < before
	})
	return r
}

// relies is until when the app of the sidecar relies on a hold.
func (s *sidecar) relies(id lock.HoldID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.proven + s.ttl
	if r := s.told[id]; r.at != 0 {
		end = min(end, max(r.at, r.until))
	}
	return end
}

func (w *world) eventually(what string, f func() bool) {
	w.Helper()
	for deadline := time.Now().Add(patience); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("waited %s in vain until %s", patience, what)
		}
	}
}

func request(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive, Owner: lock.Owner{Session: "test"}.Encode()}
}

func (s *sidecar) hold(r lock.Resource) lock.Grant {
	s.Helper()
	g, err := s.l.Acquire(s.Context(), request(r))
	if err != nil {
		s.Fatalf("Acquire: %v", err)
	}
	return g
}

// call is a call under way.
type call struct {
	s     *sidecar
	done  chan struct{}
	at    time.Duration // when it returned
	grant lock.Grant
	err   error
}

// begin makes a call. It is cancelled when the test is over.
func (s *sidecar) begin(f func(ctx context.Context, c *call)) *call {
	c := &call{s: s, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	s.Cleanup(func() { cancel(); <-c.done })
	go func() {
		defer close(c.done)
		f(ctx, c)
		c.at = lock.BootTime()
	}()
	return c
}

// queue asks for what is taken, and returns when it waits.
func (s *sidecar) queue(r lock.Resource) *call {
	s.Helper()
	q := request(r)
	c := s.begin(func(ctx context.Context, c *call) { c.grant, c.err = s.l.Acquire(ctx, q) })
	s.eventually("the request waits", func() bool {
		st, err := s.b.Get(s.Context(), r)
		return err == nil && slices.ContainsFunc(st.Waiters, func(h lock.Holding) bool { return h.ID == q.ID })
	})
	return c
}

// force forces a release, and returns when that is written down.
func (s *sidecar) force(g lock.Grant, grace time.Duration) *call {
	s.Helper()
	c := s.begin(func(ctx context.Context, c *call) { c.err = s.b.ForceRelease(ctx, g.Resource, g.ID, grace) })
	s.marked(g)
	return c
}

func (s *sidecar) marked(g lock.Grant) {
	s.Helper()
	s.eventually("the forced release is written down", func() bool {
		st, err := s.b.Get(s.Context(), g.Resource)
		return err == nil && !slices.ContainsFunc(st.Holders, func(h lock.Holding) bool { return h.ID == g.ID && !h.Revoked })
	})
}

func (c *call) pending(d time.Duration) {
	c.s.Helper()
	select {
	case <-c.done:
		c.s.Fatalf("it returned %+v, %v", c.grant, c.err)
	case <-time.After(d):
	}
}

func (c *call) ok() lock.Grant {
	c.s.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.s.Fatalf("it has not returned after %s", patience)
	}
	if c.err != nil {
		c.s.Fatal(c.err)
	}
	return c.grant
}

// after checks that a grant came only when the holder before did not rely on its
// hold any more.
func (c *call) after(holder *sidecar, g lock.Grant) {
	c.s.Helper()
	if end := holder.relies(g.ID); c.at < end {
		c.s.Errorf("granted %s before the holder's app knew", end-c.at)
	}
}

// short names fit ShedLock's table.
func unique() lock.Resource { return "force/" + lock.Resource(lock.NewHoldID()) }

// TestGraceCountsFromWhenTheHolderKnew: nothing comes through to the holder's
// sidecar for longer than the grace of a forced release.
func TestGraceCountsFromWhenTheHolderKnew(t *testing.T) {
	const grace, silence = 500 * time.Millisecond, 2 * time.Second
	eachStrategy(t, func(t testing.TB, w *world) {
		holder, other := w.sidecar(15*time.Second).lives(), w.sidecar(15*time.Second).lives()
		r := unique()
		g := holder.hold(r)
		next := other.queue(r)
		holder.road.Inject(testengine.HoldAll)
		force := other.force(g, grace)
		next.pending(silence)
		healed := lock.BootTime()
		if err := holder.road.Heal(); err != nil {
			t.Fatal(err)
		}
		told := holder.revoked(g.ID, healed+patience)
		if told.until < healed+grace {
			t.Errorf("the holder was left %s of a grace of %s", told.until-healed, grace)
		}
		next.ok()
		next.after(holder, g)
		force.ok()
	})
}

// TestForcedHolderFallsSilent: the holder's sidecar is never heard again. What it
// held is handed on when its lease is over.
func TestForcedHolderFallsSilent(t *testing.T) {
	const ttl = 2 * time.Second
	eachStrategy(t, func(t testing.TB, w *world) {
		holder, other := w.sidecar(ttl).lives(), w.sidecar(15*time.Second).lives()
		r := unique()
		g := holder.hold(r)
		next := other.queue(r)
		holder.road.Inject(testengine.HoldAll)
		force := other.force(g, 100*time.Millisecond)
		next.ok()
		if end := holder.relies(g.ID); next.at < end {
			t.Errorf("granted %s before the holder's lease was over", end-next.at)
		}
		force.ok()
	})
}

// TestForcerIsGone: whoever forced a release is gone before the holder's sidecar
// hears of it, and that ends the hold itself.
func TestForcerIsGone(t *testing.T) {
	const grace = 300 * time.Millisecond
	eachStrategy(t, func(t testing.TB, w *world) {
		holder, other := w.sidecar(15*time.Second).lives(), w.sidecar(15*time.Second).lives()
		forcer, err := Open(w.server.URL()+w.options, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := unique()
		g := holder.hold(r)
		next := other.queue(r)
		holder.road.Inject(testengine.HoldAll)
		ctx, cancel := context.WithCancel(t.Context())
		force := other.begin(func(_ context.Context, c *call) { c.err = forcer.ForceRelease(ctx, r, g.ID, grace) })
		other.marked(g)
		cancel()
		<-force.done
		if force.err == nil || !errors.Is(force.err, context.Canceled) && !errors.Is(force.err, lock.ErrUnavailable) {
			t.Errorf("ForceRelease that was cut short: %v", force.err)
		}
		if err := forcer.Close(); err != nil {
			t.Error(err)
		}
		next.pending(2 * grace)
		if err := holder.road.Heal(); err != nil {
			t.Fatal(err)
		}
		next.ok()
		next.after(holder, g)
	})
}

// TestForcedAgain: a second forced release with a longer grace changes nothing,
// and one with a shorter grace is told and counts.
func TestForcedAgain(t *testing.T) {
	eachStrategy(t, func(t testing.TB, w *world) {
		holder, other := w.sidecar(15*time.Second).lives(), w.sidecar(15*time.Second).lives()
		r := unique()
		g := holder.hold(r)
		next := other.queue(r)
		first := other.force(g, time.Hour)
		began := holder.revoked(g.ID, lock.BootTime()+2*time.Hour)
		longer := other.force(g, 2*time.Hour)
		shorter := other.force(g, 400*time.Millisecond)
		told := holder.revoked(g.ID, began.until-time.Minute)
		if told.until < told.at-patience || told.until > told.at+400*time.Millisecond {
			t.Errorf("the holder was told that %s are left", told.until-told.at)
		}
		next.ok()
		next.after(holder, g)
		for _, force := range []*call{first, longer, shorter} {
			force.ok()
		}
	})
}

// TestPatienceIsLost: who was told of a grace is told again when somebody takes the
// hold away at once.
func TestPatienceIsLost(t *testing.T) {
	eachStrategy(t, func(t testing.TB, w *world) {
		holder, other := w.sidecar(15*time.Second).lives(), w.sidecar(15*time.Second).lives()
		g := holder.hold(unique())
		first := other.force(g, time.Hour)
		holder.revoked(g.ID, lock.BootTime()+2*time.Hour)
		if err := other.b.ForceRelease(t.Context(), g.Resource, g.ID, 0); err != nil {
			t.Fatal(err)
		}
		if told := holder.revoked(g.ID, lock.BootTime()); told.until != 0 {
			t.Errorf("the holder was told that the grace ends at %s", told.until)
		}
		first.ok()
	})
}

// TestHeartbeatTellsOfForce: no event is ever read. The next heartbeat after a
// forced release tells of it, and all that follow until the hold is released.
func TestHeartbeatTellsOfForce(t *testing.T) {
	eachStrategy(t, func(t testing.TB, w *world) {
		holder, other := w.sidecar(15*time.Second), w.sidecar(15*time.Second)
		g, kept, atOnce := holder.hold(unique()), holder.hold(unique()), holder.hold(unique())
		news := func() []lock.Event {
			t.Helper()
			var news []lock.Event
			w.eventually("a heartbeat is answered", func() bool {
				got, err := holder.l.Heartbeat(t.Context())
				news = append(news, got...)
				return err == nil
			})
			return news
		}
		if got := news(); len(got) > 0 {
			t.Fatalf("news when nothing has happened: %+v", got)
		}
		other.force(g, time.Hour)
		for range 2 {
			got := news()
			if len(got) != 1 || got[0].Kind != lock.Revoked || got[0].ID != g.ID || got[0].Resource != g.Resource {
				t.Fatalf("news after a forced release: %+v", got)
			}
			if left := got[0].Until - lock.BootTime(); left > time.Hour || left < 50*time.Minute {
				t.Errorf("%s are left of an hour", left)
			}
		}
		if err := holder.l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Fatal(err)
		}
		if got := news(); len(got) > 0 {
			t.Fatalf("news after the release: %+v", got)
		}

		if err := other.b.ForceRelease(t.Context(), atOnce.Resource, atOnce.ID, 0); err != nil {
			t.Fatal(err)
		}
		var got []lock.Event
		w.eventually("a heartbeat tells", func() bool { got = news(); return len(got) > 0 })
		if len(got) != 1 || got[0].Kind != lock.Revoked || got[0].ID != atOnce.ID || got[0].Until != 0 {
			t.Fatalf("news after a forced release without a grace: %+v", got)
		}
		if err := holder.l.Release(t.Context(), kept.Resource, kept.ID); err != nil {
			t.Error(err)
		}
	})
}
