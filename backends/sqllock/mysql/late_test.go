package mysql

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// An app is frozen in its transaction behind a guard: of a hold that is there, of one that is
// over, or of one whose row the keeper has deleted since. Other locks are granted, of names that
// had a row and of new ones, whatever the level of that transaction is.
func TestLateGuardLeavesOtherLocks(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"REPEATABLE-READ", "READ-COMMITTED"} {
		for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(3)} {
			for _, hold := range []string{"held", "over", "reaped"} {
				if hold == "reaped" && mode != lock.Exclusive { // its row goes with its release
					continue
				}
				t.Run(strings.Join([]string{level, mode.String(), hold}, " "), func(t *testing.T) {
					eachKind(t, func(t testing.TB, s testengine.Server) { lateGuard(t, s, level, mode, hold) })
				})
			}
		}
	}
}

func lateGuard(t testing.TB, s testengine.Server, level string, mode lock.Mode, hold string) {
	url := own(t, s, "late_")
	var ahead atomic.Int64
	b := openClock(t, url, func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) })
	l := leaseOf(t, b)
	keepAlive(t, t.Context(), l)
	_, other := sidecar(t, url, 10*time.Minute)
	keepAlive(t, t.Context(), other)
	others := func() {
		t.Helper()
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared, lock.Permits(2)} {
			for _, r := range []lock.Resource{"a", "m-", "z"} {
				q := exclusive(r)
				q.Mode = m
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				_, err := other.Acquire(ctx, q)
				cancel()
				if err != nil {
					t.Fatalf("%s %s, beside the late guard: %v", m, r, err)
				}
				if err := other.Release(t.Context(), r, q.ID); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if hold != "reaped" { // else they are new
		others()
	}
	late := exclusive("m")
	late.Mode = mode
	g, err := l.Acquire(t.Context(), late)
	if err != nil {
		t.Fatal(err)
	}
	if hold != "held" {
		if err := l.Release(t.Context(), late.Resource, late.ID); err != nil {
			t.Fatal(err)
		}
	}
	if hold == "reaped" {
		reapRow(t, b, &ahead, g)
	}
	if hold != "held" {
		time.Sleep(2 * time.Second) // so that nothing is left in the index
	}
	params := "&transaction_isolation='" + level + "'"
	if strings.Contains(rows(t, b, "SELECT VERSION()")[0].Text(0), "MariaDB") {
		params = "&tx_isolation='" + level + "'"
	}
	frozen := newApp(t, b, params).begin(int(time.Now().UnixNano() % 1e9))
	if frozen.guarded(g.Guard) != (hold == "held") {
		t.Errorf("what the guard has found of a hold that is %s", hold)
	}
	others()
	others()
	frozen.rollBack()
}

// reapRow has the keeper delete the row of an exclusive hold that is over, as if the server's
// clock had been an hour behind when it was granted.
func reapRow(t testing.TB, b *store, ahead *atomic.Int64, g lock.Grant) {
	t.Helper()
	const hour = 3600000000
	execute(t, b, "UPDATE {lock} SET fence=fence-? WHERE name=?", int64(hour), []byte(g.Resource))
	if len(g.Guard.Args) > 2 {
		at, _ := strconv.ParseInt(g.Guard.Args[2], 10, 64)
		g.Guard.Args[2] = strconv.FormatInt(at-hour, 10)
	}
	keeperDeletes(t, b, ahead, 0, "SELECT COUNT(*) FROM {lock} WHERE name=?", []byte(g.Resource))
}

// keeperDeletes waits until the keeper has deleted idle rows, so that at most that many are counted, in a time that ahead makes short.
func keeperDeletes(t testing.TB, b *store, ahead *atomic.Int64, atMost int64, count string, args ...any) {
	t.Helper()
	eventually(t, "the floor is raised", func() error {
		if number(t, b, "SELECT value FROM {meta} WHERE name='floor'") == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	var jumped time.Duration
	eventually(t, "the rows are deleted", func() error {
		if now := lock.BootTime(); now >= jumped+10*time.Second { // again where the floor was just raised: it counts from then
			jumped = now
			ahead.Add(int64(2 * time.Minute))
		}
		if n := number(t, b, count, args...); n > atMost {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
}

// stands is a dialect whose keeper stands still before it deletes posts, as it does where its machine stands still.
type stands struct {
	*Dialect
	stopped, open, over chan struct{}
	stop, opens, end    func()
}

func newStands(d *Dialect) *stands {
	s := &stands{Dialect: d, stopped: make(chan struct{}), open: make(chan struct{}), over: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.stopped) })
	s.opens = sync.OnceFunc(func() { close(s.open) })
	s.end = sync.OnceFunc(func() { close(s.over) })
	return s
}

func (s *stands) pass(command string, batch []sqllock.Statement, send func() ([]sqllock.Result, error)) ([]sqllock.Result, error) {
	if text := batch[0].SQL; command == "reap" && strings.HasPrefix(text, "DELETE") && strings.Contains(text, "hold") {
		s.stop()
		<-s.open
		defer s.end()
	}
	return send()
}

func (s *stands) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	p, err := s.Dialect.Open(o)
	return standsPool{p, s}, err
}

type standsPool struct {
	sqllock.Pool
	s *stands
}

func (p standsPool) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	return p.s.pass(command, batch, func() ([]sqllock.Result, error) { return p.Pool.Do(ctx, command, batch...) })
}

func (p standsPool) Conn(ctx context.Context) (sqllock.Conn, error) {
	c, err := p.Pool.Conn(ctx)
	return standsConn{c, p.s}, err
}

type standsConn struct {
	sqllock.Conn
	s *stands
}

func (c standsConn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	return c.s.pass(command, batch, func() ([]sqllock.Result, error) { return c.Conn.Do(ctx, command, batch...) })
}

// The keeper has found two posts, and stands still before it deletes the first of them. Meanwhile another server takes over that has
// only this one. It stays there: an app that is frozen behind a guard is in nobody's way.
func TestPostsAtAnotherServer(t *testing.T) {
	t.Parallel()
	again(t, testPostsAtAnotherServer)
}

func testPostsAtAnotherServer(t testing.TB) {
	s := testengine.New(t, testengine.MariaDB)
	road := testengine.Through(t, s)
	d := newStands(New(mustParse(t, patient(road.URL())), nil))
	engine, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	l := leaseFor(t, &store{Backend: engine, d: d.Dialect}, lock.MaxTTL)
	t.Cleanup(d.opens)
	keepAlive(t, t.Context(), l)
	shared := func(l lock.Lease, r lock.Resource) (g lock.Grant) {
		t.Helper()
		q := exclusive(r)
		q.Mode = lock.Shared
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		g, err := l.Acquire(ctx, q)
		if err == nil {
			err = l.Release(ctx, r, q.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := shared(l, "m")
	fork := testengine.ForkMySQL(t, s, testengine.MariaDB)
	shared(l, "m")
	eventually(t, "the keeper deletes posts", func() error {
		select {
		case <-d.stopped:
			return nil
		default:
			return errors.New("it does not")
		}
	})
	road.Retarget(mustParse(t, fork.URL()).Addrs[0])
	road.Inject(testengine.Sever)
	there, other := sidecar(t, with(fork.URL(), "failover-grace=100ms"), lock.MaxTTL)
	keepAlive(t, t.Context(), other)
	eventually(t, "it is asked there", func() error {
		_, err := l.Acquire(t.Context(), exclusive(unique("r")))
		return err
	})
	d.opens()
	<-d.over
	time.Sleep(2 * time.Second) // so that nothing is left in the index
	frozen := newApp(t, there, "&tx_isolation='REPEATABLE-READ'").begin(1)
	if frozen.guarded(g.Guard) {
		t.Error("the guard has found a hold that is over")
	}
	shared(other, "z")
	frozen.rollBack()
}

// Each release of a shared lock leaves a row, so that no guard that comes late finds its place at
// the end of the index. The keeper deletes all but the last.
func TestPostsAreDeleted(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, own(t, s, "posts_"), 30*time.Second)
		keepAlive(t, t.Context(), l)
		for range 20 {
			q := exclusive("r")
			q.Mode = lock.Shared
			if _, err := l.Acquire(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context(), q.Resource, q.ID); err != nil {
				t.Fatal(err)
			}
		}
		last := number(t, b, "SELECT MAX(since) FROM {hold}")
		eventually(t, "there is one", func() error {
			if n := number(t, b, "SELECT COUNT(*) FROM {hold}"); n != 1 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		if n := number(t, b, "SELECT since FROM {hold}"); n != last {
			t.Errorf("the post as of %d is left, and not the one as of %d", n, last)
		}
	})
}
