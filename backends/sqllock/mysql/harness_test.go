package mysql

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
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
	t.Run("MariaDB", func(t *testing.T) {
		h := newHarness(t, testengine.MariaDB)
		h.ownClock = testengine.MariaDBFakeTime
		backendtest.Run(t, forkable{harness: h, kind: testengine.MariaDB})
	})
	t.Run("MySQL", func(t *testing.T) {
		h := newHarness(t, testengine.MySQL)
		h.ownClock = testengine.MySQLFakeTime
		h.Light = true // MariaDB has the large numbers
		backendtest.Run(t, forkedOnce{forkable{harness: h, kind: testengine.MySQL}})
	})
}

type harness struct {
	*served.Store
	ownClock *testengine.Kind
}

func newHarness(t testing.TB, kind *testengine.Kind) *harness {
	return &harness{Store: &served.Store{Server: testengine.New(t, kind), Wakeups: "GET_LOCK", OpenAt: func(t testing.TB, url string) lock.Backend {
		return openAt(t, with(url, "timeout=3s&failover-grace=1500ms")) // other tests use the machine too
	}}}
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
	cfg := mustParse(t, patient(url))
	b, err := Open(cfg, observe)
	if err != nil {
		t.Fatal(err)
	}
	return &store{Backend: b, d: New(cfg, nil)}
}

// openClock opens a backend with a clock of its own.
func openClock(t testing.TB, url string, clock lock.Clock) *store {
	t.Helper()
	d := New(mustParse(t, patient(url)), nil)
	b, err := sqllock.Open(d, sqllock.Options{Migrate: true, LogKeep: sqllock.DefaultLogKeep, FailoverGrace: -1, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return &store{Backend: b, d: d}
}

func mustParse(t testing.TB, url string) Config {
	t.Helper()
	cfg, err := Parse(url)
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
	return sqllock.Named(statement, s.d.cfg.Table)
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

// direct gives a backend of the test's own, past all roads.
func (h *harness) direct(t testing.TB) *store {
	b := openAt(t, with(h.Server.URL(), "timeout=3s"))
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// DeleteCounter makes the harness a backendtest.CounterDeleter.
func (h *harness) DeleteCounter(t testing.TB, r lock.Resource) {
	execute(t, h.direct(t), "DELETE FROM {lock} WHERE name=?", []byte(r))
}

// Commands makes the harness a backendtest.CommandCounter.
func (h *harness) Commands(t testing.TB) int64 {
	return globalStatus(t, h.direct(t), "Questions")
}

// globalStatus is what a server counts for all.
func globalStatus(t testing.TB, s *store, name string) int64 {
	t.Helper()
	where := "performance_schema"
	if strings.Contains(rows(t, s, "SELECT VERSION()")[0].Text(0), "MariaDB") {
		where = "information_schema"
	}
	return number(t, s, "SELECT variable_value FROM "+where+".global_status WHERE variable_name=?", name)
}

// OwnClock makes the harness a backendtest.ClockShifter.
func (h *harness) OwnClock(t testing.TB) (backendtest.Harness, func(by time.Duration)) {
	own := newHarness(t, h.ownClock)
	return own, func(by time.Duration) { testengine.ShiftClock(t, own.Server, by) }
}

// forkable is a harness of which another server can take over.
type forkable struct {
	*harness
	kind *testengine.Kind
}

// Fork makes the harness a backendtest.Switcher.
func (h forkable) Fork(t testing.TB) func(toFork bool, bs ...lock.Backend) {
	return h.Lead(t, testengine.ForkMySQL(t, h.Server, h.kind))
}

// Freeze makes the harness a backendtest.Freezer.
func (h forkable) Freeze(t testing.TB) func() { return testengine.Pause(t, h.Server) }

// OwnServer makes the harness a backendtest.Apart.
func (h forkable) OwnServer(t testing.TB) backendtest.Harness {
	return forkable{harness: newHarness(t, h.kind), kind: h.kind}
}

// forkedOnce is a harness with MySQL, which needs seconds to start. What is of servers that
// take over, and not of the one or the other product, MariaDB shows.
type forkedOnce struct{ forkable }

// Exceptions makes the harness a backendtest.Harness.
func (h forkedOnce) Exceptions() map[string]string {
	all := make(map[string]string)
	maps.Copy(all, h.forkable.Exceptions())
	for _, name := range []string{
		"ServerLacksGrant", "SlowServerLacksGrant", "ServerLacksGrantInSilence", "ServerLacksRelease", "OldServerLacksRelease", "ArbiterServerLacksParked",
	} {
		all[name] = "MariaDB shows it, and starts faster; MySQL shows OldServerLacksGrant"
	}
	return all
}

var (
	_ backendtest.Insider      = (*harness)(nil)
	_ backendtest.ClockShifter = (*harness)(nil)
	_ backendtest.Switcher     = forkable{}
)

// Leftovers makes the harness a backendtest.Insider. A row of the table lock stays
// for its fence, what was given up for a while.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	t.Helper()
	b := openAt(t, with(h.Server.URL(), "timeout=3s"))
	defer func() { _ = b.Close() }()
	p := prefix + "%"
	for _, r := range rows(t, b, `
SELECT 'lock', name FROM {lock} WHERE name LIKE ? AND x_id IS NOT NULL
UNION ALL SELECT 'hold', name FROM {hold} WHERE name LIKE ?
UNION ALL SELECT 'queue', name FROM {queue} WHERE name LIKE ?
UNION ALL SELECT 'record', name FROM {record} WHERE name LIKE ?
UNION ALL SELECT 'handle', name FROM {handle} WHERE name LIKE ?
UNION ALL SELECT 'note', name FROM {note} WHERE name LIKE ? AND kind=2 AND grace>0`, p, p, p, p, p, p) {
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

// patient has a backend wait for answers for longer than a busy machine stands still, unless
// the URL says otherwise.
func patient(url string) string {
	if strings.Contains(url, "timeout=") {
		return url
	}
	return with(url, "timeout=3s")
}
