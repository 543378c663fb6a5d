package rows

import (
	"context"
	"database/sql"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
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
			backendtest.Run(t, &harness{server: manyConnections(t, testengine.New(t, kind)), roads: make(map[lock.Backend]*testengine.Proxy)})
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
	if _, err := p.Exec(context.Background(), "test", query, args...); err != nil {
		t.Fatal(err)
	}
}

func admin(t testing.TB, url string) *mydb.Pool {
	t.Helper()
	cfg, err := mydb.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := mydb.NewConnector(cfg, mydb.ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return mydb.NewPool(c, 1, nil)
}

// harness gives every backend a road of its own to the server.
type harness struct {
	server testengine.Server

	mu    sync.Mutex
	roads map[lock.Backend]*testengine.Proxy
}

var (
	_ backendtest.Limited        = (*harness)(nil)
	_ backendtest.Faulter        = (*harness)(nil)
	_ backendtest.Restarter      = (*harness)(nil)
	_ backendtest.CounterDeleter = (*harness)(nil)
)

func (h *harness) Open(t testing.TB) lock.Backend {
	road := testengine.Through(t, h.server)
	b := openAt(t, road.URL()+"?restart-grace=1s&max-connections=200&timeout=2s") // other tests use the machine too
	h.mu.Lock()
	h.roads[b] = road
	h.mu.Unlock()
	return b
}

func openAt(t testing.TB, url string) *Backend {
	t.Helper()
	cfg, err := mydb.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (h *harness) TTL() time.Duration { return time.Second }

// Recheck is the poll for forced holds, and the wait for the row of a link that
// was cut.
func (h *harness) Recheck() time.Duration { return linkWait }

func (h *harness) Limits() backendtest.Limits {
	return backendtest.Limits{
		Downgrade: "a transaction cannot make a row lock weaker",
		Order:     "InnoDB decides who is next, and a wait begins anew every few seconds",
	}
}

const manyHolds = "each hold is a connection, so there cannot be thousands"

func (h *harness) Exceptions() map[string]string {
	return map[string]string{
		"ManyHolds":     manyHolds,
		"HeartbeatCost": "each hold is a connection, and each connection is renewed",
		"MassClosed":    manyHolds,
		"MassExpires":   manyHolds,
		"MassRestart":   manyHolds,
		"CrowdOnOne":    manyHolds,
		"CrowdGranted":  manyHolds,
		"FirstRequestOfDead": "the server ends each connection on its own: a hold's may be over a moment before the lease's, " +
			"which then still answers a heartbeat: left to the issue \"Never held twice (2)\"",
	}
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	exec(t, h.server.URL(), "DELETE FROM locksidecar_row_fence WHERE name=?", []byte(r))
}

// LoseReplies makes the harness a backendtest.Faulter. It does not break the
// connections in the end: that would end the holds, which they are.
func (h *harness) LoseReplies(t testing.TB, b lock.Backend) func() {
	h.mu.Lock()
	road := h.roads[b]
	h.mu.Unlock()
	heal := sync.OnceFunc(func() {
		if err := road.Heal(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(heal)
	road.Inject(testengine.HoldReplies)
	return heal
}

// Restart makes the harness a backendtest.Restarter.
func (h *harness) Restart(t testing.TB) {
	testengine.Restart(t, h.server, testengine.KeepData)
	manyConnections(t, h.server)
}

// scanOne is for a query with one column and one row.
func scanOne[T any](t testing.TB, url, query string, args ...any) (v T) {
	t.Helper()
	p := admin(t, url)
	defer func() { _ = p.Close() }()
	if err := p.Query(context.Background(), "test", func(_ int, rows *sql.Rows) error { return rows.Scan(&v) }, query, args...); err != nil {
		t.Fatal(err)
	}
	return v
}
