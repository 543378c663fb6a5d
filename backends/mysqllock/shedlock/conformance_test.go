package shedlock

import (
	"context"
	"database/sql"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(4)
	goleak.VerifyTestMain(testengine.Main(m))
}

var kinds = []*testengine.Kind{testengine.MariaDB, testengine.MySQL}

func TestConformance(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			backendtest.Run(t, &harness{&served.Store{Server: testengine.New(t, kind), Wakeups: "GET_LOCK", OpenAt: func(t testing.TB, url string) lock.Backend {
				return openAt(t, url+"?timeout=2s") // other tests use the machine too
			}}})
		})
	}
}

type harness struct{ *served.Store }

var (
	_ backendtest.Limited        = (*harness)(nil)
	_ backendtest.CounterDeleter = (*harness)(nil)
	_ backendtest.Lighter        = (*harness)(nil)
	_ backendtest.Impatient      = (*harness)(nil)
)

func openAt(t testing.TB, url string) *Backend {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(url, "timeout=") { // a busy machine may stand still
		cfg.Timeout = 3 * time.Second
	}
	b, err := Open(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *harness) Limits() backendtest.Limits {
	return backendtest.Limits{
		Sharing:   "ShedLock's locks are exclusive",
		Permits:   "ShedLock's locks are exclusive",
		Detached:  "its row says when the lock ends, and not whose it is",
		Downgrade: "ShedLock's locks are exclusive",
		LongNames: "ShedLock's table takes 64 characters",
	}
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	exec(t, h.Server.URL(), "DELETE FROM locksidecar_lock WHERE name=?", []byte(r))
}

// Lighter makes the harness a backendtest.Lighter: the tables of the sidecars have the whole
// in another run of the suite, and ShedLock's in TestManyRows. With LOCKSIDECAR_TEST_FULL as many
// locks come and go here, with a restart of the server after.
func (h *harness) Lighter() bool { return true }

// Patience makes the harness a backendtest.Impatient.
func (h *harness) Patience(ttl time.Duration) time.Duration { return ttl / 2 }

func (h *harness) Exceptions() map[string]string {
	return map[string]string{"HeartbeatCost": "each heartbeat writes the row of each hold"}
}

// direct is one connection of the test's own, past all backends.
func direct(t testing.TB, url string) *sql.DB {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(cfg, mysql.ConnectOptions{Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	p := sql.OpenDB(c)
	p.SetMaxOpenConns(1)
	return p
}

func exec(t testing.TB, url, query string, args ...any) {
	t.Helper()
	p := direct(t, url)
	defer func() { _ = p.Close() }()
	if _, err := p.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

// scan gives one column of the only row of an answer.
func scan[T any](t testing.TB, url string, column int, query string, args ...any) (v T) {
	t.Helper()
	p := direct(t, url)
	defer func() { _ = p.Close() }()
	rows, err := p.QueryContext(context.Background(), query, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		columns, err := rows.Columns()
		if err != nil {
			t.Fatal(err)
		}
		dest := make([]any, len(columns))
		for i := range dest {
			dest[i] = new(sql.RawBytes)
		}
		dest[column] = &v
		if err := rows.Scan(dest...); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return v
}
