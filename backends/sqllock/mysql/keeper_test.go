package mysql

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A keeper with a long TTL dies together with a holder with a short one: the holder is
// noticed in time, also where nobody waits.
func TestLongKeeperDies(t *testing.T) {
	t.Parallel()
	again(t, testLongKeeperDies)
}

func testLongKeeperDies(t testing.TB) {
	s := testengine.New(t, testengine.MariaDB)
	url := own(t, s, "keeper_")
	mortal := func(ttl time.Duration) (*store, lock.Lease) {
		b := openAt(t, url)
		opened := lock.BootTime()
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "mortal"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			defer cancel()
			_ = l.Close(ctx)
		})
		return b, backendtest.Timed(l, ttl, opened)
	}
	keeper, _ := mortal(2 * time.Minute)
	holder, h := mortal(5 * time.Second)
	_, l := sidecar(t, url, 5*time.Second)
	keepAlive(t, t.Context(), l)
	hold(t, h, "r")
	_ = keeper.Close()
	_ = holder.Close()
	start := time.Now()
	for {
		q := exclusive("r")
		q.Try = true
		_, err := l.Acquire(t.Context(), q)
		if err == nil {
			break
		}
		if !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatal(err)
		}
		if time.Since(start) > 90*time.Second { // the lease of the keeper lasts longer
			t.Fatalf("held %s after its sidecar died", time.Since(start))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// Only the keeper reads all leases: of idle sidecars, all others read one row with each
// heartbeat, however many they are.
func TestOnlyTheKeeperReadsAllLeases(t *testing.T) {
	t.Parallel()
	again(t, testOnlyTheKeeperReadsAllLeases)
}

func testOnlyTheKeeperReadsAllLeases(t testing.TB) {
	const sidecars, rounds = 8, 2
	url := own(t, testengine.Shared(t, testengine.MariaDB), "readers_")
	var reads [sidecars]atomic.Int64
	var leases [sidecars]lock.Lease
	for i := range sidecars {
		d := &watchedDialect{Dialect: New(mustParse(t, url), nil), reads: &reads[i]}
		engine, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = engine.Close() })
		// A keeper that is silent for its TTL is replaced. This one is not, however busy the
		// machine is. Opening reads all leases once.
		leases[i] = leaseFor(t, &store{Backend: engine, d: d.Dialect}, lock.MaxTTL)
		reads[i].Store(0)
	}
	for range rounds {
		first := reads[0].Load()
		eventually(t, "the keeper, which came first, reads all leases", func() error {
			if reads[0].Load() == first {
				return errors.New("it does not")
			}
			return nil
		})
		for _, l := range leases {
			if err := beat(t.Context(), l); err != nil {
				t.Error(err)
			}
		}
	}
	for i := range sidecars {
		if n := reads[i].Load(); i > 0 && n > 0 {
			t.Errorf("sidecar %d, which is not the keeper, has read all leases %d times", i, n)
		}
	}
}

// watchedDialect counts the statements that read all leases.
type watchedDialect struct {
	*Dialect
	reads *atomic.Int64
}

func (d *watchedDialect) Open(o sqllock.PoolOptions) (sqllock.Pool, error) {
	p, err := d.Dialect.Open(o)
	return &watchedPool{Pool: p, d: d}, err
}

func (d *watchedDialect) count(batch []sqllock.Statement) {
	for _, s := range batch {
		if strings.Contains(s.SQL, d.cfg.Table("lease")) && strings.HasPrefix(s.SQL, "SELECT") && !strings.Contains(s.SQL, "id=") && !strings.Contains(s.SQL, "id IN") {
			d.reads.Add(1)
		}
	}
}

type watchedPool struct {
	sqllock.Pool
	d *watchedDialect
}

func (p *watchedPool) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	p.d.count(batch)
	return p.Pool.Do(ctx, command, batch...)
}

func (p *watchedPool) Conn(ctx context.Context) (sqllock.Conn, error) {
	c, err := p.Pool.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: c, d: p.d}, nil
}

type watchedConn struct {
	sqllock.Conn
	d *watchedDialect
}

func (c *watchedConn) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	c.d.count(batch)
	return c.Conn.Do(ctx, command, batch...)
}
