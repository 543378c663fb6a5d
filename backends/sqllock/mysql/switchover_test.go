package mysql

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Of two servers, of which now the one and now the other takes writes, one is asked.
func TestPoolLeavesOldServer(t *testing.T) {
	first, second := testengine.New(t, testengine.MariaDB), testengine.New(t, testengine.MariaDB)
	t.Run("Heartbeats", func(t *testing.T) { poolFollowsHeartbeats(t, first, second) })
	t.Run("FirstLease", func(t *testing.T) { firstLeaseKeepsItsServer(t, first, second) })
}

// The heartbeats have moved to another server: idle connections to the old one, which
// is alive and read-only, are used no more. Nor is a host that was the last to take a
// connection.
func poolFollowsHeartbeats(t testing.TB, first, second testengine.Server) {
	url := strings.Replace(first.URL(), "/locksidecar", ","+mustParse(t, second.URL()).Addrs[0]+"/locksidecar", 1)
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	p := b.pool(t)
	one, err := p.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other, err := p.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	old := one.Server()
	one.Close()
	other.Close()
	old1 := openAt(t, first.URL())
	t.Cleanup(func() { _ = old1.Close() })
	execute(t, old1, "SET GLOBAL read_only=1")
	next := openAt(t, second.URL())
	t.Cleanup(func() { _ = next.Close() })
	c, err := next.pool(t).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	server := c.Server()
	c.Close()
	if server == old {
		t.Fatalf("both servers are %s", server)
	}
	asks := func(server string) {
		t.Helper()
		p.Trust(server)
		for range 4 {
			if got := rows(t, b, "SELECT "+Identity)[0].Text(0); got != server {
				t.Errorf("asked %s, the heartbeats go to %s", got, server)
			}
		}
	}
	asks(server)
	// And back, while the one that took the last connection still takes writes.
	execute(t, old1, "SET GLOBAL read_only=0")
	asks(old)
}

// A lease is opened on the server that has taken over, while the lease before, whose
// heartbeats went to the old one, is not closed yet: requests go to the new server.
func TestNextLeaseIsOnTheNewServer(t *testing.T) { again(t, testNextLeaseIsOnTheNewServer) }

func testNextLeaseIsOnTheNewServer(t testing.TB) {
	first, second := testengine.New(t, testengine.MariaDB), testengine.New(t, testengine.MariaDB)
	road := testengine.Through(t, first)
	b, l := sidecar(t, with(road.URL(), "failover-grace=0s"), 30*time.Second)
	road.Inject(testengine.Sever)
	eventually(t, "a heartbeat on another connection", func() error { _, err := l.Heartbeat(t.Context()); return err })
	if err := l.Release(t.Context(), unique("r"), lock.NewHoldID()); !errors.Is(err, lock.ErrNotHolder) {
		t.Fatal(err) // and a connection to the old server is there
	}
	sidecar(t, second.URL(), 30*time.Second) // it has the tables
	road.Retarget(mustParse(t, second.URL()).Addrs[0])
	next, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 30 * time.Second, Sidecar: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = next.Close(context.WithoutCancel(t.Context())) })
	testengine.Crash(t, first, testengine.KeepData)
	eventually(t, "the new server grants", func() error {
		if _, err := next.Heartbeat(t.Context()); err != nil {
			return err
		}
		_, err := next.Acquire(t.Context(), exclusive(unique("r")))
		return err
	})
}

// The old primary is read-only and alive, with all its connections: bells, and those who
// ring them, go with the heartbeats to the new one.
func TestBellsFollowTheHeartbeats(t *testing.T) {
	t.Parallel()
	again(t, testBellsFollowTheHeartbeats)
}

func testBellsFollowTheHeartbeats(t testing.TB) {
	s := testengine.New(t, testengine.MariaDBPair)
	url := with(s.URL(), "failover-grace=0s")
	var deaf atomic.Int64 // bells that were not there
	b := openWith(t, url, func(command string, _ time.Duration, err error) {
		if command == "ring" && err != nil {
			deaf.Add(1)
		}
	})
	t.Cleanup(func() { _ = b.Close() })
	l := leaseOf(t, b)
	_, other := sidecar(t, url, 30*time.Second)
	handOver := func() {
		t.Helper()
		r := unique("r")
		g := hold(t, l, r)
		next := acquire(t, other, exclusive(r))
		eventually(t, "it waits", func() error { return waits(t, b, r) })
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		if err := other.Release(t.Context(), r, next.granted().ID); err != nil {
			t.Fatal(err)
		}
	}
	handOver()
	testengine.FailOver(t, s, testengine.KeepData)
	for _, l := range []lock.Lease{l, other} {
		eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	}
	for _, id := range []lock.LeaseID{l.ID(), other.ID()} {
		eventually(t, "the bell is on the new server", func() error {
			if number(t, b, "SELECT COALESCE(IS_USED_LOCK(?), 0)", bellName(id)) == 0 {
				return errors.New("it is not")
			}
			return nil
		})
	}
	before := deaf.Load()
	handOver()
	if n := deaf.Load() - before; n > 0 {
		t.Errorf("%d bells were rung where they are not", n)
	}
}

// The server that opened the first lease is the one that is asked, though a host in front of
// it takes writes again: one connection that fails does not lead there.
func firstLeaseKeepsItsServer(t testing.TB, first, second testengine.Server) {
	admin, _ := sidecar(t, first.URL(), 30*time.Second) // both have tables
	sidecar(t, second.URL(), 30*time.Second)
	execute(t, admin, "SET GLOBAL read_only=1")
	road := testengine.Through(t, second)
	url := strings.Replace(first.URL(), "/locksidecar", ","+mustParse(t, road.URL()).Addrs[0]+"/locksidecar", 1)
	_, l := sidecar(t, url, 30*time.Second)
	g := hold(t, l, "r")
	execute(t, admin, "SET GLOBAL read_only=0")
	road.Inject(testengine.Cut)
	if _, err := l.Acquire(t.Context(), exclusive("other")); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("Acquire while the server cannot be reached: %v", err)
	}
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Error(err)
	}
}

// keepBeating has a lease live until stop, which waits for the heartbeat under way.
func keepBeating(t testing.TB, l lock.Lease) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var beats sync.WaitGroup
	beats.Go(func() {
		for ctx.Err() == nil {
			_, _ = l.Heartbeat(context.WithoutCancel(ctx))
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	})
	stop = func() {
		cancel()
		beats.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// A sidecar saw a server take over, and was then cut off for a while. Meanwhile the first server was the primary again, and now that one
// takes over once more. It grants nothing for the whole grace all the same.
func TestGraceAfterAWhileAway(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{20 * time.Second, time.Hour} {
		t.Run(away.String(), func(t *testing.T) {
			t.Parallel()
			again(t, func(t testing.TB) { testGraceAfterAWhileAway(t, away) })
		})
	}
}

func testGraceAfterAWhileAway(t testing.TB, away time.Duration) {
	const ttl = 4 * time.Second
	s := testengine.New(t, testengine.MariaDB)
	road := testengine.Through(t, s)
	var ahead atomic.Int64
	b := openClock(t, road.URL(), func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) })
	open := func() (lock.Lease, error) {
		return b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
	}
	var l lock.Lease
	eventually(t, "a lease is opened", func() (err error) {
		l, err = open()
		return err
	})
	_, holder := sidecar(t, s.URL(), ttl)
	stop := keepBeating(t, holder)
	fork := testengine.ForkMySQL(t, s, testengine.MariaDB)
	_ = l.Close(t.Context())
	road.Retarget(mustParse(t, fork.URL()).Addrs[0])
	road.Inject(testengine.Sever)
	eventually(t, "the other server is seen", func() error {
		l, err := open()
		if err == nil {
			_ = l.Close(t.Context())
			t.Fatal("it grants at once")
		}
		if !strings.Contains(err.Error(), "another server has taken over") {
			return err
		}
		return nil
	})
	ahead.Add(int64(away))
	stop()
	var g lock.Grant
	var relies time.Time
	eventually(t, "the first server grants", func() (err error) {
		relies = time.Now().Add(ttl)
		if err = beat(t.Context(), holder); err == nil {
			g, err = holder.Acquire(t.Context(), exclusive("r"))
		}
		return err
	})
	eventually(t, "a lease is opened at the other one", func() (err error) {
		l, err = open()
		return err
	})
	defer func() { _ = l.Close(context.WithoutCancel(t.Context())) }()
	hold(t, l, "r")
	if early := time.Until(relies); early > 0 {
		t.Errorf("broken law: two holders: granted %s before %s relies on it no more", early, g.ID)
	}
}

// A server has taken over after it had been told of a grant, and the one before may have taken that away since, and granted others. Who
// asks for it gets another fence (promise 2), which the store has, too, and the guard finds the hold.
func TestFenceOfAGrantOfTheServerBefore(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, with(s.URL(), "prefix=before_"), lock.MaxTTL)
		app := newApp(t, b, "")
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(3)} {
			q := exclusive(unique("r"))
			q.Mode, q.MinHold = m, time.Minute
			ask := func() (g lock.Grant) {
				t.Helper()
				eventually(t, "it is granted", func() (err error) { g, err = l.Acquire(t.Context(), q); return err })
				return g
			}
			before := ask()
			execute(t, b, "UPDATE {meta} SET value=? WHERE name='server'", int64(before.Fence/lock.FenceRange)+2)
			g := ask()
			if g.Fence <= before.Fence {
				t.Errorf("broken law: %s: the fence is %d, and may have been larger than %d before", m, g.Fence, before.Fence)
			}
			if again := ask(); again.Fence != g.Fence {
				t.Errorf("%s: asked once more, the fence is %d, and not %d", m, again.Fence, g.Fence)
			}
			if tx := app.begin(1); !tx.guarded(g.Guard) {
				t.Errorf("%s: the guard does not find the hold", m)
			} else {
				tx.rollBack()
			}
			for range 2 { // as a hold, and as what keeps others out after that
				st, err := b.Get(t.Context(), q.Resource)
				if err != nil || len(st.Holders) != 1 || st.Holders[0].Fence != g.Fence {
					t.Errorf("%s: the store has %+v (%v), and the app has %d", m, st.Holders, err, g.Fence)
				}
				if err := l.Release(t.Context(), q.Resource, q.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
					t.Error(err)
				}
			}
		}
	})
}
