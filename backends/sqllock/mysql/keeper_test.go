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

// What the server reads for a heartbeat is the same among 8 sidecars and among 32. Beside that the
// keeper reads one row a lease in each of its rounds: all that grows with the sidecars is one round.
func TestReadingsOfManySidecars(t *testing.T) {
	t.Parallel()
	again(t, func(t testing.TB) {
		few, many := rowsOfABeat(t, 8), rowsOfABeat(t, 32)
		t.Logf("rows read for a heartbeat: %.1f among 8 sidecars, %.1f among 32", few, many)
		if few < 1 || many > few+4 {
			t.Errorf("rows read for a heartbeat: %.1f among 8 sidecars, %.1f among 32", few, many)
		}
	})
}

// rowsOfABeat is how many rows the server reads for a heartbeat of one of so many sidecars,
// without those of the rounds.
func rowsOfABeat(t testing.TB, sidecars int) float64 {
	t.Helper()
	const each = 10
	url := testengine.New(t, testengine.MariaDB).URL()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	var rounds atomic.Int64
	leases := make([]lock.Lease, sidecars)
	for i := range leases {
		d := &watchedDialect{Dialect: New(mustParse(t, url), nil), reads: &rounds}
		engine, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: -1})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = engine.Close() })
		leases[i] = leaseFor(t, &store{Backend: engine, d: d.Dialect}, lock.MaxTTL)
	}
	read := func() int64 {
		return number(t, b, "SELECT variable_value FROM information_schema.global_status WHERE variable_name='ROWS_READ'")
	}
	before, round := read(), rounds.Load()
	for range each {
		for _, l := range leases {
			if err := beat(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := read() - before - (rounds.Load()-round)*int64(sidecars)
	return float64(all) / float64(sidecars*each)
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
