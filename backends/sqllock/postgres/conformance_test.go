package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestConformance(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		backendtest.Run(t, aloneHarness{newHarness(t, testengine.Postgres)})
	})
	t.Run("PgBouncer", func(t *testing.T) {
		h := newHarness(t, testengine.PostgresBouncer)
		h.Light = true
		backendtest.Run(t, h)
	})
}

type harness struct{ *served.Store }

func newHarness(t testing.TB, kind *testengine.Kind) *harness {
	return &harness{&served.Store{Server: testengine.New(t, kind), Wakeups: "LISTEN", OpenAt: func(t testing.TB, url string) lock.Backend {
		return openAt(t, with(url, "timeout=3s&failover-grace=1500ms")) // other tests use the machine too
	}}}
}

// Crowd makes the harness a backendtest.Crowder. On MariaDB there are more than the engine counts.
func (h *harness) Crowd() int { return 2000 }

func openAt(t testing.TB, url string) *sqllock.Backend {
	t.Helper()
	b, err := Open(patient(url), nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// execute carries out a statement with {names} of tables.
func (h *harness) execute(t testing.TB, statement string, args ...any) []sqllock.Row {
	t.Helper()
	d := dialect(t, h.Server.URL())
	p, err := d.Open(sqllock.PoolOptions{Size: 1, Long: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	statement = sqllock.Named(statement, d.cfg.Table)
	rs, err := p.Do(context.Background(), "test", sqllock.Statement{SQL: statement, Args: args})
	if err != nil {
		t.Errorf("%s: %v", statement, err)
		return nil
	}
	return rs[0].Rows
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	h.execute(t, "DELETE FROM {lock} WHERE name=?", []byte(r))
}

var _ backendtest.Insider = (*harness)(nil)

// Leftovers makes the harness a backendtest.Insider. A row of the table lock stays
// for its fence, what was given up for a while.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	t.Helper()
	const like = "position(?::bytea IN name)=1"
	args := []any{[]byte(prefix), []byte(prefix), []byte(prefix), []byte(prefix), []byte(prefix), []byte(prefix)}
	for _, r := range h.execute(t, `SELECT 'lock', name FROM {lock} WHERE `+like+` AND x_id IS NOT NULL
UNION ALL SELECT 'hold', name FROM {hold} WHERE `+like+`
UNION ALL SELECT 'queue', name FROM {queue} WHERE `+like+`
UNION ALL SELECT 'record', name FROM {record} WHERE `+like+`
UNION ALL SELECT 'handle', name FROM {handle} WHERE `+like+`
UNION ALL SELECT 'note', name FROM {note} WHERE kind=2 AND grace>0 AND `+like, args...) {
		left = append(left, fmt.Sprintf("row %q of %s", r.Text(1), r.Text(0)))
	}
	return left
}

// aloneHarness is for a server that is reached directly.
type aloneHarness struct{ *harness }

// Fork makes the harness a backendtest.Switcher.
func (h aloneHarness) Fork(t testing.TB) func(toFork bool, bs ...lock.Backend) {
	return h.Lead(t, testengine.ForkPostgres(t, h.Server))
}

// OwnServer makes the harness a backendtest.Apart.
func (h aloneHarness) OwnServer(t testing.TB) backendtest.Harness {
	return aloneHarness{newHarness(t, testengine.Postgres)}
}

// OwnClock makes the harness a backendtest.ClockShifter.
func (h aloneHarness) OwnClock(t testing.TB) (backendtest.Harness, func(by time.Duration)) {
	own := newHarness(t, testengine.PostgresFakeTime)
	return aloneHarness{own}, func(by time.Duration) { testengine.ShiftClock(t, own.Server, by) }
}

// Commands makes the harness a backendtest.CommandCounter. The server counts
// transactions, after those of a connection are over for a second.
func (h aloneHarness) Commands(t testing.TB) int64 {
	rows := h.execute(t, "SELECT sum(xact_commit+xact_rollback)::bigint FROM pg_stat_database WHERE datname=current_database()")
	if len(rows) != 1 {
		t.Fatal("the server has not said how many")
	}
	return rows[0].Int(0)
}
