package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestConformance(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		backendtest.Run(t, aloneHarness{newHarness(t, testengine.Postgres)})
	})
	t.Run("PgBouncer", func(t *testing.T) {
		backendtest.Run(t, newHarness(t, testengine.PostgresBouncer))
	})
}

// harness gives every backend a road of its own to the server.
type harness struct {
	server testengine.Server

	mu    sync.Mutex
	roads map[lock.Backend]*testengine.Proxy
}

func newHarness(t testing.TB, kind *testengine.Kind) *harness {
	return &harness{server: testengine.New(t, kind), roads: make(map[lock.Backend]*testengine.Proxy)}
}

func (h *harness) Open(t testing.TB) lock.Backend {
	road := testengine.Through(t, h.server)
	b := openAt(t, with(road.URL(), "timeout=3s&failover-grace=1500ms")) // other tests use the machine too
	h.mu.Lock()
	h.roads[b] = road
	h.mu.Unlock()
	return b
}

func openAt(t testing.TB, url string) *sqllock.Backend {
	t.Helper()
	b, err := Open(url, nil)
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

func (h *harness) TTL() time.Duration            { return time.Second }
func (h *harness) Recheck() time.Duration        { return time.Second }
func (h *harness) Exceptions() map[string]string { return nil }

// execute carries out a statement with {names} of tables.
func (h *harness) execute(t testing.TB, statement string, args ...any) []sqllock.Row {
	t.Helper()
	d := dialect(t, h.server.URL())
	p, err := d.Open(sqllock.PoolOptions{Size: 1, Long: 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	for _, name := range []string{"lease", "lock", "hold", "queue", "note", "log", "meta"} {
		statement = strings.ReplaceAll(statement, "{"+name+"}", d.cfg.Table(name))
	}
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
	road.Mute("LISTEN")
	return restore
}

// Slow makes the harness a backendtest.Slower.
func (h *harness) Slow(t testing.TB, b lock.Backend, d time.Duration) {
	road := h.road(b)
	t.Cleanup(func() { road.Delay(0) })
	road.Delay(d)
}

// Restart makes the harness a backendtest.Restarter.
func (h *harness) Restart(t testing.TB) { testengine.Restart(t, h.server, testengine.KeepData) }

var _ backendtest.Insider = (*harness)(nil)

// Leftovers makes the harness a backendtest.Insider. A row of the table lock stays
// for its fence, what was given up for a while.
func (h *harness) Leftovers(t testing.TB, prefix string) (left []string) {
	t.Helper()
	const like = "position(?::bytea IN name)=1"
	args := []any{[]byte(prefix), []byte(prefix), []byte(prefix), []byte(prefix)}
	for _, r := range h.execute(t, `SELECT 'lock', name FROM {lock} WHERE `+like+` AND x_id IS NOT NULL
UNION ALL SELECT 'hold', name FROM {hold} WHERE `+like+`
UNION ALL SELECT 'queue', name FROM {queue} WHERE `+like+`
UNION ALL SELECT 'note', name FROM {note} WHERE kind=2 AND grace>0 AND `+like, args...) {
		left = append(left, fmt.Sprintf("row %q of %s", r.Text(1), r.Text(0)))
	}
	return left
}

// aloneHarness is for a server that is reached directly.
type aloneHarness struct{ *harness }

// Fork makes the harness a backendtest.Switcher.
func (h aloneHarness) Fork(t testing.TB) func(toFork bool, bs ...lock.Backend) {
	first := testengine.Nodes(t, h.server)[0].Addr()
	fork := testengine.Nodes(t, testengine.ForkPostgres(t, h.server))[0].Addr()
	led := make(map[lock.Backend]bool)
	lead := func(toFork bool, bs ...lock.Backend) {
		for _, b := range bs {
			to := first
			if toFork {
				to = fork
			}
			led[b] = true
			road := h.road(b)
			road.Retarget(to)
			road.Inject(testengine.Sever)
		}
	}
	t.Cleanup(func() {
		for b := range led {
			lead(false, b)
		}
	})
	return lead
}

// OwnClock makes the harness a backendtest.ClockShifter.
func (h aloneHarness) OwnClock(t testing.TB) (backendtest.Harness, func(by time.Duration)) {
	own := newHarness(t, testengine.PostgresFakeTime)
	return aloneHarness{own}, func(by time.Duration) { testengine.ShiftClock(t, own.server, by) }
}

// Commands makes the harness a backendtest.CommandCounter. The server counts
// transactions, after those of a connection are over for a second.
func (h aloneHarness) Commands(t testing.TB) int64 {
	rows := h.execute(t, "SELECT sum(xact_commit+xact_rollback)::bigint FROM pg_stat_database WHERE datname=current_database()")
	return rows[0].Int(0)
}
