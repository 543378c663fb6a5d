package mysql

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/backends/sqllock"
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

// store is a backend with its dialect.
type store struct {
	*sqllock.Backend
	d    *Dialect
	once sync.Once
	p    sqllock.Pool
}

func openAt(t testing.TB, url string) *store { return openWith(t, url, nil) }

func openWith(t testing.TB, url string, observe lock.Observe) *store {
	t.Helper()
	cfg := mustParse(t, url)
	b, err := Open(cfg, observe)
	if err != nil {
		t.Fatal(err)
	}
	return &store{Backend: b, d: New(cfg, nil)}
}

// openClock opens a backend with a clock of its own.
func openClock(t testing.TB, url string, clock lock.Clock) *store {
	t.Helper()
	d := New(mustParse(t, url), nil)
	b, err := sqllock.Open(d, sqllock.Options{Migrate: true, LogKeep: sqllock.DefaultLogKeep, FailoverGrace: -1, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return &store{Backend: b, d: d}
}

func mustParse(t testing.TB, url string) mydb.Config {
	t.Helper()
	cfg, err := mydb.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// pool is one of the test's own.
func (s *store) pool(t testing.TB) sqllock.Pool {
	t.Helper()
	s.once.Do(func() {
		p, err := s.d.Open(sqllock.PoolOptions{Size: 2, Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		s.p = p
		t.Cleanup(func() { _ = p.Close() })
	})
	return s.p
}

// names puts the names of tables into a statement.
func (s *store) names(statement string) string {
	return sqllock.Schema(statement, s.d.cfg.Table)
}

// execute carries out a statement with {names} of tables.
func execute(t testing.TB, s *store, statement string, args ...any) {
	t.Helper()
	if _, err := s.pool(t).Do(context.Background(), "test", sqllock.Statement{SQL: s.names(statement), Args: args}); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// rows asks for rows.
func rows(t testing.TB, s *store, query string, args ...any) []sqllock.Row {
	t.Helper()
	res, err := s.pool(t).Do(context.Background(), "test", sqllock.Statement{SQL: s.names(query), Args: args})
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return res[0].Rows
}

// number asks for one number.
func number(t testing.TB, s *store, query string, args ...any) int64 {
	t.Helper()
	all := rows(t, s, query, args...)
	if len(all) == 0 {
		return 0
	}
	return all[0].Int(0)
}

func (h *harness) road(b lock.Backend) *testengine.Proxy {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.roads[b]
}

func (h *harness) TTL() time.Duration            { return time.Second }
func (h *harness) Recheck() time.Duration        { return time.Second }
func (h *harness) Exceptions() map[string]string { return nil }

// direct gives a backend of the test's own, past all roads.
func (h *harness) direct(t testing.TB) *store {
	b := openAt(t, with(h.server.URL(), "timeout=3s"))
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	execute(t, h.direct(t), "DELETE FROM {lock} WHERE name=?", []byte(r))
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
	b := h.direct(t)
	where := "performance_schema"
	if strings.Contains(rows(t, b, "SELECT VERSION()")[0].Text(0), "MariaDB") {
		where = "information_schema"
	}
	return number(t, b, "SELECT variable_value FROM "+where+".global_status WHERE variable_name='Questions'")
}

var _ backendtest.Insider = (*harness)(nil)

// Leftovers makes the harness a backendtest.Insider. A row of the table lock stays
// for its fence, what was given up for a while.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	t.Helper()
	b := openAt(t, with(h.server.URL(), "timeout=3s"))
	defer func() { _ = b.Close() }()
	p := prefix + "%"
	for _, r := range rows(t, b, `
SELECT 'lock', name FROM {lock} WHERE name LIKE ? AND x_id IS NOT NULL
UNION ALL SELECT 'hold', name FROM {hold} WHERE name LIKE ?
UNION ALL SELECT 'queue', name FROM {queue} WHERE name LIKE ?
UNION ALL SELECT 'note', name FROM {note} WHERE name LIKE ? AND kind=2 AND grace>0`, p, p, p, p) {
		left = append(left, fmt.Sprintf("row %q of %s", r.Text(1), r.Text(0)))
	}
	return left
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
