package postgres

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A server that had taken over for a moment, and was left again, takes over once more: it
// grants nothing for the whole grace all the same.
func TestGraceOfAServerThatWasSeenBefore(t *testing.T) { again(t, testGraceOfAServerThatWasSeenBefore) }

func testGraceOfAServerThatWasSeenBefore(t testing.TB) {
	const ttl = 4 * time.Second
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, l := sidecar(t, road.URL(), ttl)
	_, holder := sidecar(t, s.URL(), ttl)
	beats := func(n int) {
		for range n {
			beat(t, l)
			beat(t, holder)
			time.Sleep(100 * time.Millisecond)
		}
	}
	beats(1)
	fork := forkBeside(t, s, l, holder)
	takeOver := func(to testengine.Server) {
		h := &harness{&served.Store{Server: to}}
		round := func() int64 { return h.execute(t, "SELECT value FROM {meta} WHERE name='keeper'")[0].Int(0) }
		was := round()
		road.Retarget(testengine.Nodes(t, to)[0].Addr())
		road.Inject(testengine.Sever)
		eventually(t, "the keeper is there", func() error {
			beats(1)
			if round() == was {
				return errors.New("it is not")
			}
			return nil
		})
	}
	takeOver(fork)
	takeOver(s)
	beats(60) // longer than the grace
	g := hold(t, holder, "r", lock.Exclusive)
	relies := time.Now().Add(ttl) // its last heartbeat may be as late as this
	beat(t, holder)
	road.Retarget(testengine.Nodes(t, fork)[0].Addr())
	road.Inject(testengine.Sever)
	eventually(t, "the new server grants", func() error {
		beat(t, l)
		_, err := l.Acquire(t.Context(), try("r"))
		return err
	})
	isOver(t, relies, g)
}

// Sidecars are led to another server and back: the first one bears its own mark, and does
// not know what the other one has granted. Whose heartbeats come from there takes that mark
// from it, and nothing is granted for the whole grace.
func TestOldServerIsDoubted(t *testing.T) { again(t, testOldServerIsDoubted) }

func testOldServerIsDoubted(t testing.TB) {
	const ttl = 4 * time.Second
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, l := sidecar(t, road.URL(), ttl)
	_, holder := sidecar(t, road.URL(), ttl)
	fork := forkBeside(t, s, l, holder)
	lead(t, road, fork, l, holder)
	var g lock.Grant
	eventually(t, "the other server grants", func() (err error) {
		beat(t, l)
		beat(t, holder)
		g, err = holder.Acquire(t.Context(), try("r"))
		return err
	})
	relies := time.Now().Add(ttl) // its last heartbeat may be as late as this
	beat(t, holder)
	lead(t, road, s, l)
	eventually(t, "the first server grants", func() error {
		beat(t, l)
		_, err := l.Acquire(t.Context(), try("r"))
		return err
	})
	isOver(t, relies, g)
}

// A grant whose answer was lost is taken away by force and given to somebody else, and a
// standby takes over that lacks both. Who asks there again is not told of the grant while the
// other one may rely on it, and then with a larger fence (promise 2).
func TestNewServerLacksTheForcedRelease(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for m, grants := range map[lock.Mode]string{lock.Exclusive: "x_id", lock.Shared: `_hold" (name`} {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, testengine.Postgres)
			road := testengine.Through(t, s)
			_, l := sidecar(t, with(road.URL(), "failover-grace=4s"), time.Minute) // however long it is cut off
			admin, holder := sidecar(t, s.URL(), ttl)
			q := request("r", m)
			lost := road.LoseReply(grants, testengine.Cut)
			if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
				t.Fatalf("Acquire without an answer: %v", err)
			}
			<-lost
			fork := forkBeside(t, s, holder)
			if err := admin.ForceRelease(t.Context(), "r", q.ID, 0); err != nil {
				t.Fatal(err)
			}
			g := hold(t, holder, "r", lock.Exclusive)
			relies := time.Now().Add(ttl) // its last heartbeat may be as late as this
			beat(t, holder)
			if err := road.Heal(); err != nil {
				t.Fatal(err)
			}
			road.Retarget(testengine.Nodes(t, fork)[0].Addr())
			road.Inject(testengine.Sever)
			beat(t, l)
			granted := make(chan error, 1)
			var next lock.Grant
			go func() {
				var err error
				next, err = l.Acquire(t.Context(), q)
				for errors.Is(err, lock.ErrUnavailable) && t.Context().Err() == nil {
					next, err = l.Acquire(t.Context(), q)
				}
				granted <- err
			}()
			eventually(t, "the new server grants", func() error {
				beat(t, l)
				select {
				case err := <-granted:
					return err
				default:
					return errors.New("not yet")
				}
			})
			isOver(t, relies, g)
			if next.Fence <= g.Fence {
				t.Errorf("broken law: the fence is %d, and was %d before", next.Fence, g.Fence)
			}
		})
	}
}

// The lease that was opened last is closed before its heartbeats have come back to the first
// server, and those of another one have: that server is doubted once, and grants again.
func TestLastLeaseIsClosedElsewhere(t *testing.T) { again(t, testLastLeaseIsClosedElsewhere) }

func testLastLeaseIsClosedElsewhere(t testing.TB) {
	const ttl = 3 * time.Second
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	b, l := sidecar(t, road.URL(), ttl)
	last, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	fork := forkBeside(t, s, l, last)
	lead(t, road, fork, l, last)
	lead(t, road, s, l)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_ = last.Close(ctx) // what is asked is not asked of the first server
	_, next := sidecar(t, s.URL(), ttl)
	for range 2 { // also after some heartbeats
		eventually(t, "the first server grants", func() error {
			beat(t, l)
			beat(t, next)
			_, err := l.Acquire(t.Context(), try(string(lock.NewHoldID())))
			return err
		})
	}
}

// A lease is lost in a failover, and is closed while the next one is being opened on the new
// server, where a connection to the old one is still there: requests go to the new server.
func TestLeaseIsOpenedWhileTheLastOneIsClosed(t *testing.T) {
	again(t, testLeaseIsOpenedWhileTheLastOneIsClosed)
}

func testLeaseIsOpenedWhileTheLastOneIsClosed(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	b, l := sidecar(t, with(road.URL(), "failover-grace=0s"), 30*time.Second)
	fork := forkBeside(t, s, l)
	road.Retarget(testengine.Nodes(t, fork)[0].Addr())
	road.Inject(testengine.Sever)
	beat(t, l) // requests go to the fork from now on
	if err := l.Release(t.Context(), "r", lock.NewHoldID()); !errors.Is(err, lock.ErrNotHolder) {
		t.Fatal(err) // and a connection to it is there
	}
	road.Retarget(testengine.Nodes(t, s)[0].Addr())
	resume := testengine.Pause(t, s)
	before := road.Conns()
	next := openSoon(t, b, 30*time.Second)
	eventually(t, "the next lease has a connection", func() error {
		if road.Conns() == before {
			return errors.New("it has not")
		}
		return nil
	})
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	resume()
	grants(t, next())
}

// The answer of the old server to a heartbeat comes when its lease is closed, and before the
// next one is open: requests go to the server on which that one is opened.
func TestLateAnswerToALeaseThatIsClosed(t *testing.T) { again(t, testLateAnswerToALeaseThatIsClosed) }

func testLateAnswerToALeaseThatIsClosed(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	requests, beats := testengine.Through(t, s), testengine.Through(t, s)
	b, err := sqllock.Open(forked{dialect(t, with(requests.URL(), "timeout=3s")), dialect(t, with(beats.URL(), "timeout=20s"))},
		sqllock.Options{Migrate: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l := openSoon(t, b, 30*time.Second)()
	fork := forkBeside(t, s, l)
	beats.Retarget(testengine.Nodes(t, fork)[0].Addr())
	held := beats.LoseReply("renewed=", testengine.HoldReplies)
	beats.Inject(testengine.Sever)
	var late sync.WaitGroup
	defer late.Wait()
	late.Go(func() {
		for late := false; !late; { // until one is on its way
			_, _ = l.Heartbeat(context.Background())
			select {
			case <-held:
				late = true
			default:
			}
		}
	})
	<-held
	beats.Retarget(testengine.Nodes(t, s)[0].Addr())
	before := beats.Conns()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := openSoon(t, b, 30*time.Second)
	eventually(t, "the next lease has a connection", func() error {
		if beats.Conns() == before {
			return errors.New("it has not")
		}
		return nil
	})
	if err := beats.Heal(); err != nil {
		t.Fatal(err)
	}
	grants(t, next())
}

// Heartbeats lead back to the old server, and there the next lease is opened, when requests
// still go to the other one: the old server is doubted all the same, and grants nothing for
// the whole grace.
func TestOldServerIsDoubtedByTheNextLease(t *testing.T) {
	again(t, testOldServerIsDoubtedByTheNextLease)
}

func testOldServerIsDoubtedByTheNextLease(t testing.TB) {
	const ttl = 4 * time.Second
	s := testengine.New(t, testengine.Postgres)
	requests, beats, all := testengine.Through(t, s), testengine.Through(t, s), testengine.Through(t, s)
	b, err := sqllock.Open(forked{dialect(t, with(requests.URL(), "timeout=3s")), dialect(t, with(beats.URL(), "timeout=3s"))},
		sqllock.Options{Migrate: true, FailoverGrace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l := openSoon(t, b, ttl)()
	_, holder := sidecar(t, all.URL(), ttl)
	fork := forkBeside(t, s, l, holder)
	for _, road := range []*testengine.Proxy{requests, beats, all} {
		road.Retarget(testengine.Nodes(t, fork)[0].Addr())
		road.Inject(testengine.Sever)
	}
	var g lock.Grant
	eventually(t, "the other server grants", func() (err error) {
		beat(t, l)
		beat(t, holder)
		g, err = holder.Acquire(t.Context(), try("r"))
		return err
	})
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	relies := time.Now().Add(ttl) // its last heartbeat may be as late as this
	beat(t, holder)
	beats.Retarget(testengine.Nodes(t, s)[0].Addr())
	var next lock.Lease
	eventually(t, "the next lease is opened", func() (err error) {
		next, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	defer func() { _ = next.Close(context.WithoutCancel(t.Context())) }()
	requests.Retarget(testengine.Nodes(t, s)[0].Addr())
	requests.Inject(testengine.Sever)
	eventually(t, "the first server grants", func() error {
		beat(t, next)
		_, err := next.Acquire(t.Context(), try("r"))
		return err
	})
	isOver(t, relies, g)
}

// lead leads all connections of a road to another server, and leases with them.
func lead(t testing.TB, road *testengine.Proxy, to testengine.Server, leases ...lock.Lease) {
	t.Helper()
	road.Retarget(testengine.Nodes(t, to)[0].Addr())
	road.Inject(testengine.Sever)
	for _, l := range leases {
		beat(t, l)
	}
}

// try asks for a lock without waiting.
func try(resource string) lock.Request {
	q := request(resource, lock.Exclusive)
	q.Try = true
	return q
}

// isOver tells whether a holder relies on its hold no more, now that another one has it.
func isOver(t testing.TB, relies time.Time, g lock.Grant) {
	t.Helper()
	if early := time.Until(relies); early > 0 {
		t.Errorf("broken law: two holders: granted %s before %s relies on it no more", early, g.ID)
	}
}

// openSoon opens a lease beside what the test does.
func openSoon(t testing.TB, b *sqllock.Backend, ttl time.Duration) (get func() lock.Lease) {
	t.Helper()
	var l lock.Lease
	var err error
	var opened sync.WaitGroup
	opened.Go(func() {
		l, err = b.OpenLease(context.WithoutCancel(t.Context()), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
	})
	t.Cleanup(func() {
		opened.Wait()
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_ = l.Close(ctx) // the server may be gone
		}
	})
	return func() lock.Lease {
		t.Helper()
		if opened.Wait(); err != nil {
			t.Fatal(err)
		}
		return l
	}
}

// grants tells whether a lease is granted what nobody has, also after some heartbeats.
func grants(t testing.TB, l lock.Lease) {
	t.Helper()
	for range 2 {
		eventually(t, "the server grants", func() error {
			_, err := l.Acquire(t.Context(), try(string(lock.NewHoldID())))
			return err
		})
		beat(t, l)
	}
}

// forkBeside forks a server, and renews leases meanwhile, however long that takes.
func forkBeside(t testing.TB, s testengine.Server, leases ...lock.Lease) testengine.Server {
	t.Helper()
	forked := make(chan struct{})
	var beats sync.WaitGroup
	beats.Go(func() {
		for {
			for _, l := range leases {
				_, _ = l.Heartbeat(context.Background())
			}
			select {
			case <-forked:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	defer beats.Wait()
	defer close(forked)
	return testengine.ForkPostgres(t, s)
}

// forked has a road of its own for heartbeats.
type forked struct {
	*Dialect
	beats *Dialect
}

func (d forked) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	if o.Lasting > 0 {
		return d.beats.Open(o)
	}
	return d.Dialect.Open(o)
}

// The answer of the old server, that a waiter was granted, comes after the heartbeats
// have moved to a new one, where it still waits. It is not granted by that.
func TestLateAnswerOfTheOldServer(t *testing.T) { again(t, testLateAnswerOfTheOldServer) }

func testLateAnswerOfTheOldServer(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	slow, quick := testengine.Through(t, s), testengine.Through(t, s)
	first, a := sidecar(t, s.URL(), 30*time.Second)
	b, err := sqllock.Open(forked{dialect(t, with(slow.URL(), "timeout=10s")), dialect(t, with(quick.URL(), "timeout=3s"))},
		sqllock.Options{Migrate: true, FailoverGrace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	beat(t, l)
	g := hold(t, a, "r", lock.Exclusive)
	ctx, cancel := context.WithCancel(t.Context())
	granted := make(chan lock.Grant, 1)
	done := make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		if g, err := l.Acquire(ctx, request("r", lock.Exclusive)); err == nil {
			granted <- g
		}
	}()
	eventually(t, "it stands in the queue", func() error {
		st, err := first.Get(t.Context(), "r")
		if err == nil && len(st.Waiters) != 1 {
			err = errors.New("not yet")
		}
		return err
	})
	time.Sleep(2 * time.Second) // looks come once a second by now
	fork := testengine.Nodes(t, testengine.ForkPostgres(t, s))[0].Addr()
	slow.Inject(testengine.HoldReplies)
	if err := a.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	slow.Retarget(fork)
	quick.Retarget(fork)
	quick.Inject(testengine.Sever)
	beat(t, l)
	if err := slow.Heal(); err != nil {
		t.Fatal(err)
	}
	select {
	case g := <-granted:
		news := beat(t, l)
		t.Errorf("granted by the old server: %+v; the next heartbeat says %+v", g, news)
	case <-time.After(4 * time.Second):
	}
}
