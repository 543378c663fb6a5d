package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// beat renews a lease until the server answers, and gives the news.
func beat(t testing.TB, l lock.Lease) (news []lock.Event) {
	t.Helper()
	eventually(t, "a heartbeat is answered", func() error {
		more, err := l.Heartbeat(t.Context())
		news = append(news, more...)
		return err
	})
	return news
}

// A standby takes over that knows everything: holds stay, nobody else is granted them,
// new grants come after the grace, and fences grow.
func TestFailOver(t *testing.T) { again(t, testFailOver) }

func testFailOver(t testing.TB) {
	s := testengine.New(t, testengine.PostgresPair)
	const grace = 8 * time.Second // longer than a failover takes
	url := with(s.URL(), "failover-grace="+grace.String())
	_, l := sidecar(t, url, 5*time.Minute)
	_, other := sidecar(t, url, 5*time.Minute)
	g := hold(t, l, "r", lock.Exclusive)
	began := time.Now()
	testengine.FailOver(t, s, testengine.KeepData)
	if news := beat(t, l); len(news) > 0 {
		t.Errorf("news of holds that the standby knows: %+v", news)
	}
	beat(t, other)
	try := request("r", lock.Exclusive)
	try.Try = true
	if _, err := other.Acquire(t.Context(), try); !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("somebody else at a lock that is held: %v", err)
	}
	var free lock.Grant
	eventually(t, "the new primary grants", func() (err error) {
		try := request("free", lock.Exclusive)
		try.Try = true
		free, err = other.Acquire(t.Context(), try)
		return err
	})
	if took := time.Since(began); took < grace {
		t.Errorf("the new primary granted %s after the old one was there", took)
	}
	if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
		t.Error(err)
	}
	if next := hold(t, other, "r", lock.Exclusive); next.Fence <= g.Fence {
		t.Errorf("broken law: fence %d after %d", next.Fence, g.Fence)
	}
	_ = other.Release(t.Context(), free.Resource, free.ID)
}

// The old primary goes on, and only the connection of the heartbeat has left it: what
// was granted there is told as lost by the next heartbeat, and requests do not go there
// any more.
func TestOldPrimaryGoesOn(t *testing.T) { again(t, testOldPrimaryGoesOn) }

func testOldPrimaryGoesOn(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, l := sidecar(t, with(road.URL(), "failover-grace=0s"), 5*time.Minute)
	beat(t, l)
	known := hold(t, l, "known", lock.Exclusive)
	fork := testengine.ForkPostgres(t, s)
	unknown := hold(t, l, "unknown", lock.Exclusive)
	road.Retarget(testengine.Nodes(t, fork)[0].Addr())
	terminate(t, s, "SELECT name, id, grace") // those of heartbeats
	var lost []lock.HoldID
	for _, e := range beat(t, l) {
		if e.Kind == lock.Vanished {
			lost = append(lost, e.ID)
		}
	}
	if len(lost) != 1 || lost[0] != unknown.ID {
		t.Errorf("lost are %v, want %s", lost, unknown.ID)
	}
	_, other := sidecar(t, with(fork.URL(), "failover-grace=0s"), 5*time.Minute)
	g := hold(t, other, "new", lock.Exclusive)
	try := request("new", lock.Exclusive)
	try.Try = true
	if _, err := l.Acquire(t.Context(), try); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("a lock that is held at the new primary: %v", err)
	}
	if err := other.Release(t.Context(), g.Resource, g.ID); err != nil {
		t.Error(err)
	}
	if err := l.Release(t.Context(), known.Resource, known.ID); err != nil {
		t.Errorf("Release of what both know: %v", err)
	}
}

// terminate ends the connections whose last statement contains a text.
func terminate(t testing.TB, s testengine.Server, text string) {
	t.Helper()
	h := &harness{&served.Store{Server: s}}
	eventually(t, "a connection was ended", func() error {
		rows := h.execute(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid<>pg_backend_pid() AND position(?::text IN query)>0", text)
		if len(rows) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
}

// An administrator ends all connections: holds stay, and who waits is granted in time,
// by a bell that is there again.
func TestConnectionsTerminated(t *testing.T) {
	s := testengine.New(t, testengine.Postgres)
	_, l := sidecar(t, s.URL(), 30*time.Second)
	_, other := sidecar(t, s.URL(), 30*time.Second)
	g := hold(t, l, "r", lock.Exclusive)
	granted := make(chan error, 1)
	go func() {
		g, err := other.Acquire(t.Context(), request("r", lock.Exclusive))
		if err == nil {
			err = other.Release(t.Context(), g.Resource, g.ID)
		}
		granted <- err
	}()
	terminate(t, s, "locksidecar")
	terminate(t, s, "LISTEN")
	if news := beat(t, l); len(news) > 0 {
		t.Errorf("news of holds that are there: %+v", news)
	}
	eventually(t, "the lock is released", func() error {
		err := l.Release(t.Context(), g.Resource, g.ID)
		if errors.Is(err, lock.ErrNotHolder) {
			err = nil
		}
		return err
	})
	select {
	case err := <-granted:
		if err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the waiter waits")
	}
}

// Where the tables are missing and may not be made, or the role has no rights, the
// error says what to do.
func TestRights(t *testing.T) { again(t, testRights) }

func testRights(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	asApp := strings.Replace(s.URL(), "root@", testengine.User+":"+testengine.Password+"@", 1)
	open := func(url string) error {
		b := openAt(t, url)
		defer func() { _ = b.Close() }()
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Second, Sidecar: t.Name()})
		if err == nil {
			_ = l.Close(t.Context())
			err = errors.Join(b.WriteRecord(t.Context(), "r", "", recordOf("v1"), time.Hour), b.WriteRecord(t.Context(), "r", "v1", recordOf("v2"), time.Hour), b.DeleteRecord(t.Context(), "r", "v2"))
		}
		return err
	}
	wants := func(url, want string) {
		t.Helper()
		if err := open(url); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), testengine.Password) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	wants(with(asApp, "migrate=false"), "locksidecar schema postgres")
	wants(strings.Replace(s.URL(), "root@", testengine.User+":wrong@", 1), "user or password")
	wants(strings.Replace(s.URL(), "/"+testengine.Database, "/none", 1), "does not exist")

	// Made by the owner from the printed text, with the rights of the documentation.
	text, err := Schema("tables", storeurl.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := pgx.Connect(t.Context(), s.URL()+"?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Close(t.Context()) })
	apply := func(text string) {
		t.Helper()
		if _, err := owner.PgConn().Exec(t.Context(), text).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	apply(text)
	apply(text) // it can be applied again
	wants(with(asApp, "migrate=false"), "lacks a privilege")
	apply("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + testengine.User)
	if err := open(with(asApp, "migrate=false")); err != nil {
		t.Errorf("with the rights of the documentation: %v", err)
	}
	// In a schema of its own, which it makes itself.
	if err := open(with(asApp, "schema=app_locks")); err != nil {
		t.Errorf("with a schema of its own: %v", err)
	}
	if _, err := Schema("row", storeurl.DefaultPrefix); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a strategy that there is not: %v", err)
	}
}

// A lease that was renewed by another server is over at the one to which its sidecar is
// led back. That sidecar can open a new one there.
func TestNewLeaseAtTheOldServer(t *testing.T) { again(t, testNewLeaseAtTheOldServer) }

func testNewLeaseAtTheOldServer(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	b, l := sidecar(t, with(road.URL(), "failover-grace=0s"), 6*time.Second)
	fork := forkBeside(t, s, l)
	lead := func(to testengine.Server) {
		road.Retarget(testengine.Nodes(t, to)[0].Addr())
		road.Inject(testengine.Sever)
	}
	lead(fork)
	beat(t, l)
	sidecar(t, s.URL(), time.Second) // it ends what is not renewed here
	h := &harness{&served.Store{Server: s}}
	eventually(t, "the lease is over at the old server", func() error {
		beat(t, l) // else it ends itself at the other one
		if rows := h.execute(t, "SELECT 1 FROM {lease} WHERE id=? AND ended=1", []byte(l.ID())); len(rows) == 0 {
			return errors.New("it lives")
		}
		return nil
	})
	lead(s)
	eventually(t, "the sidecar knows", func() error {
		if _, err := l.Heartbeat(t.Context()); !errors.Is(err, lock.ErrLeaseLost) {
			return errors.New("it does not")
		}
		return nil
	})
	eventually(t, "a new lease is opened", func() error {
		next, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second, Sidecar: t.Name()})
		if err == nil {
			err = next.Close(t.Context())
		}
		return err
	})
}

// The new server has as a waiter who was granted at the old one: another waiter before
// it was forced out there. It holds nothing any more, and its next heartbeat says so.
func TestHolderWhoWaitsOnTheNewServer(t *testing.T) { again(t, testHolderWhoWaitsOnTheNewServer) }

func testHolderWhoWaitsOnTheNewServer(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	first, a := sidecar(t, with(s.URL(), "failover-grace=0s"), 5*time.Minute)
	_, w := sidecar(t, with(s.URL(), "failover-grace=0s"), 5*time.Minute)
	_, b := sidecar(t, with(road.URL(), "failover-grace=0s"), 5*time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	defer waits.Wait()
	defer cancel()
	queued := func(l lock.Lease, waiters int) (lock.HoldID, <-chan lock.Grant) {
		q, granted := request("r", lock.Exclusive), make(chan lock.Grant, 1)
		waits.Go(func() {
			if g, err := l.Acquire(ctx, q); err == nil {
				granted <- g
			}
		})
		eventually(t, "it stands in the queue", func() error {
			st, err := first.Get(t.Context(), "r")
			if err == nil && len(st.Waiters) != waiters {
				err = errors.New("not yet")
			}
			return err
		})
		return q.ID, granted
	}
	g := hold(t, a, "r", lock.Exclusive)
	gone, _ := queued(w, 1)
	_, granted := queued(b, 2)
	fork := testengine.ForkPostgres(t, s)

	if err := first.ForceRelease(t.Context(), "r", gone, 0); err != nil {
		t.Fatal(err)
	}
	if err := a.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	got := <-granted
	road.Retarget(testengine.Nodes(t, fork)[0].Addr())
	road.Inject(testengine.Sever)
	if news := beat(t, b); len(news) != 1 || news[0].Kind != lock.Vanished || news[0].ID != got.ID {
		t.Errorf("Heartbeat: got %+v, want that %s has vanished", news, got.ID)
	}
}

// What a lease has left is cleared away soon, however many others are over of which nothing
// is left. Here it was left because an app had locked the row, as its guard does.
func TestSweepBehindManyThatAreOver(t *testing.T) { again(t, testSweepBehindManyThatAreOver) }

func testSweepBehindManyThatAreOver(t testing.TB) {
	h := newHarness(t, testengine.Postgres)
	b, l := sidecar(t, h.Server.URL(), 10*time.Second)
	beats, stop := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	tasks.Go(func() {
		for beats.Err() == nil {
			_, _ = l.Heartbeat(beats)
			time.Sleep(100 * time.Millisecond)
		}
	})
	const many, atATime = 200, 8
	var opens sync.WaitGroup
	for range atATime {
		opens.Go(func() {
			for range many / atATime {
				over, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 10 * time.Second, Sidecar: t.Name()})
				if err == nil {
					err = over.Close(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	opens.Wait()
	_, dead := sidecar(t, h.Server.URL(), 2*time.Second)
	hold(t, dead, "r", lock.Exclusive)
	app, err := pgx.Connect(t.Context(), h.Server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = app.Close(context.WithoutCancel(t.Context())) }()
	for _, q := range []string{"BEGIN", "SELECT 1 FROM " + dialect(t, h.Server.URL()).cfg.Table("lock") + " WHERE name='r' FOR UPDATE"} {
		if _, err := app.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the lease is over", func() error {
		if rows := h.execute(t, "SELECT 1 FROM {lease} WHERE id=? AND ended=1", []byte(dead.ID())); len(rows) == 0 {
			return errors.New("it lives")
		}
		return nil
	})
	time.Sleep(time.Second) // it was swept, but for what is locked
	if len(h.Leftovers(t, "r")) == 0 {
		t.Fatal("nothing was left")
	}
	if _, err := app.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is cleared away", func() error {
		if left := h.Leftovers(t, "r"); len(left) > 0 {
			return fmt.Errorf("%q", left)
		}
		return nil
	})
}

// Somebody drops the tables while sidecars are at work. They make them again, and grant nothing before the TTL
// of those who had locks is over.
func TestTablesAreDropped(t *testing.T) {
	t.Parallel()
	roads(t, func(t testing.TB, s testengine.Server) {
		const ttl = 5 * time.Second
		url := with(s.URL(), "schema=dropped")
		root := openPool(t, dialect(t, s.URL()), sqllock.PoolOptions{Size: 1})
		drop := statement("DROP SCHEMA IF EXISTS dropped CASCADE")
		do(t, root, drop)            // where the test is run again
		b, l := sidecar(t, url, ttl) // has found new tables just now, and nothing in the way
		_, holder := sidecar(t, url, ttl)
		hold(t, holder, "r", lock.Exclusive)
		dropped := time.Now()
		do(t, root, drop)
		var next lock.Lease
		eventually(t, "a lease is opened on new tables", func() (err error) {
			next, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "next"})
			return err
		})
		t.Cleanup(func() { _ = next.Close(context.WithoutCancel(t.Context())) })
		hold(t, next, "r", lock.Exclusive)
		if after := time.Since(dropped); after < ttl {
			t.Errorf("broken law: the lock was granted %s after its holder's tables were dropped, and its TTL is %s", after, ttl)
		}
		for _, l := range []lock.Lease{l, holder} {
			eventually(t, "the lease is lost that the new tables do not know", func() error {
				if _, err := l.Heartbeat(t.Context()); !errors.Is(err, lock.ErrLeaseLost) {
					return fmt.Errorf("got %w", err)
				}
				return nil
			})
		}
	})
}
