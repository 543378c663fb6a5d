package tables

import (
	"context"
	"database/sql"
	"strings"
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

// kinds are the servers on which everything is tested.
var kinds = []*testengine.Kind{testengine.MariaDB, testengine.MySQL}

func TestConformance(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			backendtest.Run(t, &harness{server: testengine.New(t, kind), roads: make(map[lock.Backend]*testengine.Proxy)})
		})
	}
}

// harness gives every backend a road of its own to the server.
type harness struct {
	server testengine.Server

	mu    sync.Mutex
	roads map[lock.Backend]*testengine.Proxy
}

func (h *harness) Open(t testing.TB) lock.Backend {
	road := testengine.Through(t, h.server)
	b := openAt(t, with(road.URL(), "timeout=3s")) // other tests use the machine too
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

func (h *harness) road(b lock.Backend) *testengine.Proxy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roads[b]
}

func (h *harness) TTL() time.Duration     { return time.Second }
func (h *harness) Recheck() time.Duration { return maxRecheck }

// crowds is why the tests of ten thousand on one resource are left out.
const crowds = "whoever waits reads the rows of all that hold and wait: left to the issue \"Never held twice (2)\""

func (h *harness) Exceptions() map[string]string {
	return map[string]string{
		"CrowdOnOne":   crowds,
		"CrowdGranted": crowds,
	}
}

// direct gives a backend of the test's own, past all roads.
func (h *harness) direct(t testing.TB) *Backend {
	b := openAt(t, h.server.URL())
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	execute(t, h.direct(t), "DELETE FROM {lock} WHERE name=?", []byte(r))
}

// execute carries out a statement with {names} of tables.
func execute(t testing.TB, b *Backend, statement string, args ...any) {
	t.Helper()
	if _, err := b.exec(context.Background(), "test", replaceNames(statement, b.cfg.Table), args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// number asks for one number.
func number(t testing.TB, b *Backend, query string, args ...any) int64 {
	t.Helper()
	var n int64
	err := b.query(context.Background(), "test", func(_ int, rows *sql.Rows) error { return rows.Scan(&n) }, replaceNames(query, b.cfg.Table), args...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// LoseReplies makes the harness a backendtest.Faulter.
func (h *harness) LoseReplies(t testing.TB, b lock.Backend) func() {
	road := h.road(b)
	heal := sync.OnceFunc(func() {
		if err := road.Heal(); err != nil {
			t.Error(err)
		}
		road.Inject(testengine.Sever)
	})
	t.Cleanup(heal)
	road.Inject(testengine.HoldReplies)
	return heal
}

// DropWakeups makes the harness a backendtest.WakeupDropper.
func (h *harness) DropWakeups(t testing.TB, b lock.Backend) func() {
	road := h.road(b)
	restore := sync.OnceFunc(func() {
		if err := road.Heal(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	road.Mute("GET_LOCK")
	return restore
}

// Restart makes the harness a backendtest.Restarter.
func (h *harness) Restart(t testing.TB) { testengine.Restart(t, h.server, testengine.KeepData) }

// Commands makes the harness a backendtest.CommandCounter.
func (h *harness) Commands(t testing.TB) int64 {
	var n int64
	b := h.direct(t)
	err := b.query(context.Background(), "test", func(_ int, rows *sql.Rows) error {
		var name string
		return rows.Scan(&name, &n)
	}, "SHOW GLOBAL STATUS LIKE 'Questions'")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// exclusive is a request for what a test names.
func exclusive(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive, Owner: lock.Owner{Session: "test"}.Encode()}
}

// with adds an option to a URL.
func with(url, option string) string {
	if strings.Contains(url, "?") {
		return url + "&" + option
	}
	return url + "?" + option
}
