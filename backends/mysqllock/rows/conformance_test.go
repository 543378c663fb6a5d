package rows

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(4)
	goleak.VerifyTestMain(testengine.Main(m))
}

func TestConformance(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			// Connections go on after a fault: they are the holds.
			backendtest.Run(t, &harness{&served.Store{Server: manyConnections(t, testengine.New(t, kind)), Wakeups: "GET_LOCK", KeepRoads: true, OpenAt: func(t testing.TB, url string) lock.Backend {
				return openAt(t, fmt.Sprintf("%s?max-connections=%d&timeout=2s", url, connections)) // other tests use the machine too
			}}})
		})
	}
}

var kinds = []*testengine.Kind{testengine.MariaDB, testengine.MySQL}

// manyConnections lets a server have more than the usual number of connections:
// each hold and each waiter has one, and the suite runs many tests at a time.
func manyConnections(t testing.TB, s testengine.Server) testengine.Server {
	t.Helper()
	exec(t, s.URL(), "SET GLOBAL max_connections=2000")
	return s
}

// exec runs statements past all backends.
func exec(t testing.TB, url, query string, args ...any) {
	t.Helper()
	p := admin(t, url)
	defer func() { _ = p.Close() }()
	if _, err := p.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func admin(t testing.TB, url string) *sql.DB {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(cfg, mysql.ConnectOptions{Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return sql.OpenDB(c)
}

type harness struct{ *served.Store }

var (
	_ backendtest.Impatient      = (*harness)(nil)
	_ backendtest.Limited        = (*harness)(nil)
	_ backendtest.CounterDeleter = (*harness)(nil)
)

func openAt(t testing.TB, url string) *sqllock.Backend {
	t.Helper()
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *harness) Limits() backendtest.Limits {
	return backendtest.Limits{Permits: "a row lock is exclusive or shared", MinHold: "a row lock ends with its transaction", Detached: "a row lock ends with its transaction", Downgrade: "a transaction cannot make a row lock weaker", Holds: connections - engineConnections}
}

// connections are those of each backend.
const connections = 200

// Patience makes the harness a backendtest.Impatient.
func (h *harness) Patience(ttl time.Duration) time.Duration { return ttl / 2 }

func (h *harness) Exceptions() map[string]string {
	return map[string]string{
		"HeartbeatCost": "each hold is a connection, and each connection is renewed",
		"Restart":       "a hold is lost with its connection, and that is told: see TestRestart",
		"MassRestart":   "a hold is lost with its connection, and that is told: see TestRestart",
	}
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	exec(t, h.Server.URL(), "DELETE FROM locksidecar_lock WHERE name=?", []byte(r))
}

// Restart makes the harness a backendtest.Restarter.
func (h *harness) Restart(t testing.TB) {
	testengine.Restart(t, h.Server, testengine.KeepData)
	manyConnections(t, h.Server)
}

// scanOne is for a query with one column and one row.
func scanOne[T any](t testing.TB, url, query string, args ...any) (v T) {
	t.Helper()
	p := admin(t, url)
	defer func() { _ = p.Close() }()
	if err := p.QueryRowContext(context.Background(), query, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
