package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The keeper has ended a lease at one server, and the sidecar of that lease had moved to another one before. The keeper stands
// still while it clears away, and goes on at the other server, where the lease lives. It takes nothing away there.
func TestSweepOfALeaseThatLivesElsewhere(t *testing.T) {
	t.Parallel()
	for m, texts := range map[lock.Mode]struct{ stops, ends string }{
		lock.Exclusive: {stops: "x_lease=? AND name>?", ends: "l.x_shared=0"},
		lock.Shared:    {stops: `_hold" WHERE lease=? AND name>=?`, ends: "SELECT fence, crowd"},
	} {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			again(t, func(t testing.TB) { testSweepOfALeaseThatLivesElsewhere(t, m, texts.stops, texts.ends) })
		})
	}
}

func testSweepOfALeaseThatLivesElsewhere(t testing.TB, m lock.Mode, stops, ends string) {
	s := testengine.New(t, testengine.Postgres)
	keepers, road := testengine.Through(t, s), testengine.Through(t, s)
	g := newGate(t, dialect(t, with(keepers.URL(), "timeout=3s")), stops, ends)
	keeper := g.sidecar(time.Minute)
	_, l := sidecar(t, road.URL(), 3*time.Second)
	stopKeeper := keepBeating(t, keeper)
	hold(t, l, "r", m)
	fork := forkBeside(t, s, l)
	lead(t, road, fork, l)
	stop := keepBeating(t, l)
	g.comes(g.stopped, "the keeper clears away")
	stopKeeper()
	lead(t, keepers, fork, keeper)
	g.opens()
	g.comes(g.over, "that is over")
	for _, e := range append(stop(), beat(t, l)...) {
		t.Errorf("%s: got %v; its lease lives", e.Resource, e.Kind)
	}
}

// PgBouncer leads the keeper to the other server, and no heartbeat of the keeper has met that one yet. Nobody is granted there what
// the lease has.
func TestSweepBehindPgBouncer(t *testing.T) {
	t.Parallel()
	again(t, testSweepBehindPgBouncer)
}

func testSweepBehindPgBouncer(t testing.TB) {
	const ttl = 4 * time.Second
	s := testengine.New(t, testengine.PostgresBouncer)
	g := newGate(t, dialect(t, with(s.URL(), "timeout=3s")), "l.x_shared=0", "l.x_shared=0")
	keeper := g.sidecar(ttl)
	stopKeeper := keepBeating(t, keeper)
	road := testengine.Through(t, s)
	road.Retarget(testengine.Nodes(t, s)[0].Addr()) // past PgBouncer
	_, l := sidecar(t, road.URL(), ttl)
	held := hold(t, l, "r", lock.Exclusive)
	fork := forkBeside(t, s, l)
	lead(t, road, fork, l)
	stop := keepBeating(t, l)
	g.comes(g.stopped, "the keeper clears away")
	_, other := sidecar(t, fork.URL(), ttl)
	stopOther := keepBeating(t, other)
	eventually(t, "the other server grants", func() error {
		_, err := other.Acquire(t.Context(), try(string(lock.NewHoldID())))
		return err
	})
	stopKeeper()
	testengine.LeadBouncer(t, s, fork)
	news := stop()
	relies := time.Now().Add(ttl)
	if news = append(news, beat(t, l)...); len(news) > 0 {
		t.Fatalf("news of a lease that lives: %+v", news)
	}
	g.opens()
	g.comes(g.over, "that is over")
	if _, err := other.Acquire(t.Context(), try("r")); err == nil {
		isOver(t, relies, held)
	} else if !errors.Is(err, lock.ErrHeld) {
		t.Error(err)
	}
	for _, e := range beat(t, l) {
		t.Errorf("%s: got %v; its lease lives", e.Resource, e.Kind)
	}
	stopOther()
}

// A lease is closed at one server, and before what it has is cleared away there PgBouncer leads to another one, on which it lives. It is
// closed there, too: what it has does not wait there for the end of its TTL.
func TestCloseBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
		t.Run(m.String(), func(t *testing.T) {
			t.Parallel()
			again(t, func(t testing.TB) { testCloseBehindPgBouncer(t, m) })
		})
	}
}

func testCloseBehindPgBouncer(t testing.TB, m lock.Mode) {
	const asks = "x_lease IN ("
	s := testengine.New(t, testengine.PostgresBouncer)
	g := newGate(t, dialect(t, with(s.URL(), "timeout=3s")), asks, asks)
	l := g.sidecar(lock.MaxTTL)
	hold(t, l, "r", m)
	fork := forkBeside(t, s, l)
	var closed sync.WaitGroup
	closed.Go(func() { _ = l.Close(context.WithoutCancel(t.Context())) })
	g.comes(g.stopped, "it clears away")
	testengine.LeadBouncer(t, s, fork)
	g.opens()
	closed.Wait()
	if there, over := rowOf(t, fork, l); there && !over {
		t.Error("it lives at the other server")
	}
}

// A lease is closed when another server has taken over, and before a heartbeat has met that. It is closed there: what it has does not wait
// for the end of its TTL.
func TestCloseBeforeAHeartbeat(t *testing.T) {
	t.Parallel()
	again(t, testCloseBeforeAHeartbeat)
}

func testCloseBeforeAHeartbeat(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	road := testengine.Through(t, s)
	_, l := sidecar(t, road.URL(), lock.MaxTTL)
	hold(t, l, "r", lock.Exclusive)
	fork := forkBeside(t, s, l)
	lead(t, road, fork) // and no lease with it
	eventually(t, "all connections to the first server are given up", func() error {
		if _, err := l.Acquire(t.Context(), try("r")); err == nil || !strings.Contains(err.Error(), "answers the heartbeats") {
			return fmt.Errorf("it may be asked: %w", err)
		}
		return nil
	})
	err := l.Close(t.Context())
	if _, over := rowOf(t, fork, l); !over {
		t.Errorf("it lives at the other server; the error of Close was: %v", err)
	}
}

// rowOf is what a server knows of a lease.
func rowOf(t testing.TB, at testengine.Server, l lock.Lease) (there, over bool) {
	t.Helper()
	h := &harness{&served.Store{Server: at}}
	for _, r := range h.execute(t, "SELECT ended FROM {lease} WHERE id=?", []byte(l.ID())) {
		return true, r.Bool(0)
	}
	return false, false
}

// isOverAt waits until a server knows that a lease is over.
func isOverAt(t testing.TB, at testengine.Server, l lock.Lease) {
	t.Helper()
	eventually(t, "the lease is over", func() error {
		if there, over := rowOf(t, at, l); there && !over {
			return errors.New("it lives")
		}
		return nil
	})
}

// mayGrant has a server grant that has taken over, before the grace is over.
func mayGrant(t testing.TB, s testengine.Server) {
	t.Helper()
	(&harness{&served.Store{Server: s}}).execute(t, "UPDATE {meta} SET text="+server+" WHERE name='server'")
}

// shifted is a clock that can be moved ahead.
func shifted() (clock lock.Clock, ahead *atomic.Int64) {
	ahead = new(atomic.Int64)
	return func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) }, ahead
}

// keeperRounds waits until the keeper of a server has made some rounds.
func keeperRounds(t testing.TB, s testengine.Server, n int) {
	t.Helper()
	h := &harness{&served.Store{Server: s}}
	for ; n > 0; n-- {
		var was int64
		eventually(t, "the keeper makes its rounds", func() error {
			round := h.execute(t, "SELECT value FROM {meta} WHERE name='keeper'")[0].Int(0)
			if was == 0 {
				was = round
			}
			if round == was {
				return errors.New("it does not")
			}
			return nil
		})
	}
}

// A lease was over at one server, long ago. At another one, to which the keeper has come, it lives, and ends now. Its row stays for as
// long as that of any other lease: what comes late of it is found by that.
func TestRowOfALeaseThatWasOverElsewhere(t *testing.T) {
	t.Parallel()
	again(t, testRowOfALeaseThatWasOverElsewhere)
}

func testRowOfALeaseThatWasOverElsewhere(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	keepers, road := testengine.Through(t, s), testengine.Through(t, s)
	clock, ahead := shifted()
	b, err := sqllock.Open(dialect(t, with(keepers.URL(), "timeout=3s")), sqllock.Options{Migrate: true, FailoverGrace: -1, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	keeper := openSoon(t, b, lock.MaxTTL)()
	_, l := sidecar(t, road.URL(), 3*time.Second)
	stopKeeper := keepBeating(t, keeper)
	fork := forkBeside(t, s, l)
	lead(t, road, fork, l)
	stop := keepBeating(t, l)
	isOverAt(t, s, l)
	stopKeeper()
	lead(t, keepers, fork, keeper)
	keepBeating(t, keeper)
	mayGrant(t, fork)
	keeperRounds(t, fork, 3)
	ahead.Store(int64(2 * time.Minute))
	if there, over := rowOf(t, fork, l); !there || over {
		t.Fatalf("there: %v, over: %v; it is renewed there", there, over)
	}
	stop()
	isOverAt(t, fork, l)
	keeperRounds(t, fork, 3)
	if there, _ := rowOf(t, fork, l); !there {
		t.Error("its row is gone as soon as it is over")
	}
}

// A lease was over at one server, long ago, and the keeper is about to delete its row there. PgBouncer leads that request to
// another one, where the lease has ended just now. Its row stays there.
func TestRowOfALeaseBehindPgBouncer(t *testing.T) {
	t.Parallel()
	again(t, testRowOfALeaseBehindPgBouncer)
}

func testRowOfALeaseBehindPgBouncer(t testing.TB) {
	const deletes = `_lease" WHERE id=? AND ended>0`
	s := testengine.New(t, testengine.PostgresBouncer)
	g := newGate(t, dialect(t, with(s.URL(), "timeout=3s")), deletes, deletes)
	clock, ahead := shifted()
	g.clock = clock
	keeper := g.sidecar(lock.MaxTTL)
	stopKeeper := keepBeating(t, keeper)
	road := testengine.Through(t, s)
	road.Retarget(testengine.Nodes(t, s)[0].Addr()) // past PgBouncer
	_, l := sidecar(t, road.URL(), 3*time.Second)
	fork := forkBeside(t, s, l)
	lead(t, road, fork, l)
	stop := keepBeating(t, l)
	isOverAt(t, s, l)
	keeperRounds(t, s, 3) // it has noted when it saw that
	ahead.Store(int64(2 * time.Minute))
	g.comes(g.stopped, "the keeper is about to delete the row")
	stop()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	stopKeeper()
	mayGrant(t, fork)
	testengine.LeadBouncer(t, s, fork)
	g.opens()
	g.comes(g.over, "the request is carried out")
	if there, over := rowOf(t, fork, l); !there || !over {
		t.Errorf("there: %v, over: %v; want its row to stay", there, over)
	}
}

// keepBeating renews a lease until stop is called, which gives the news.
func keepBeating(t testing.TB, l lock.Lease) (stop func() []lock.Event) {
	ctx, cancel := context.WithCancel(t.Context())
	var news []lock.Event
	var beats sync.WaitGroup
	beats.Go(func() {
		for ctx.Err() == nil {
			more, _ := l.Heartbeat(context.WithoutCancel(ctx))
			news = append(news, more...)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	stop = func() []lock.Event {
		cancel()
		beats.Wait()
		return news
	}
	t.Cleanup(func() { stop() })
	return stop
}

// gate stops a sidecar that clears away, or has a server grant, as it stops where its machine stands still.
type gate struct {
	*Dialect
	t           testing.TB
	clock       lock.Clock // nil: the usual one
	stops, ends string     // are in the request that is stopped, and in the one that clears away

	stopped, open, over chan struct{}
	stop, opens, end    func()
}

// newGate makes a gate. stopped is closed when the request is stopped, opens lets it go on, and over is closed when something
// was cleared away, and its connection given back.
func newGate(t testing.TB, d *Dialect, stops, ends string) *gate {
	g := &gate{Dialect: d, t: t, stops: stops, ends: ends, stopped: make(chan struct{}), open: make(chan struct{}), over: make(chan struct{})}
	g.stop = sync.OnceFunc(func() { close(g.stopped) })
	g.opens = sync.OnceFunc(func() { close(g.open) })
	g.end = sync.OnceFunc(func() { close(g.over) })
	return g
}

// sidecar opens a lease behind the gate that lives as long as the test.
func (g *gate) sidecar(ttl time.Duration) lock.Lease {
	g.t.Helper()
	b, err := sqllock.Open(g, sqllock.Options{Migrate: true, FailoverGrace: -1, Clock: g.clock})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = b.Close() })
	l := openSoon(g.t, b, ttl)()
	g.t.Cleanup(g.opens)
	return l
}

// comes waits.
func (g *gate) comes(c chan struct{}, what string) {
	g.t.Helper()
	eventually(g.t, what, func() error {
		select {
		case <-c:
			return nil
		default:
			return errors.New("not yet")
		}
	})
}

// pass lets a request pass, and tells whether it clears away.
func (g *gate) pass(command string, batch []sqllock.Statement) (clears bool) {
	has := func(text string) bool {
		return slices.Contains([]string{"sweep", "end", "keeper"}, command) && slices.ContainsFunc(batch, func(s sqllock.Statement) bool { return strings.Contains(s.SQL, text) })
	}
	if has(g.stops) {
		g.stop()
		<-g.open
	}
	return has(g.ends)
}

// Open implements sqllock.Dialect.
func (g *gate) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	p, err := g.Dialect.Open(o)
	return gatedPool{p, g}, err
}

type gatedPool struct {
	sqllock.Pool
	g *gate
}

func (p gatedPool) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	clears := p.g.pass(command, batch)
	res, err := p.Pool.Do(ctx, command, batch...)
	if clears {
		p.g.end()
	}
	return res, err
}

func (p gatedPool) Conn(ctx context.Context) (sqllock.Conn, error) {
	c, err := p.Pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: c, g: p.g}, nil
}

type gatedConn struct {
	sqllock.Conn
	g      *gate
	clears bool
}

func (c *gatedConn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	c.clears = c.g.pass(command, batch) || c.clears
	return c.Conn.Do(ctx, command, batch...)
}

func (c *gatedConn) Close() {
	if c.Conn.Close(); c.clears {
		c.g.end()
	}
}
