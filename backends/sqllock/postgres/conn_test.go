package postgres

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = time.Minute

func dialect(t testing.TB, url string) *Dialect {
	t.Helper()
	cfg, err := Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := cfg.Options.Err(); err != nil {
		t.Fatal(err)
	}
	return NewDialect(cfg, nil)
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

func openPool(t testing.TB, d *Dialect, o sqllock.PoolOptions) sqllock.Pool {
	t.Helper()
	p, err := d.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func do(t testing.TB, p interface {
	Do(context.Context, string, ...sqllock.Statement) ([]sqllock.Result, error)
}, batch ...sqllock.Statement) []sqllock.Result {
	t.Helper()
	rs, err := p.Do(t.Context(), "test", batch...)
	if err != nil {
		t.Fatal(err)
	}
	if len(rs) != len(batch) {
		t.Fatalf("%d results of %d statements", len(rs), len(batch))
	}
	return rs
}

func statement(sql string, args ...any) sqllock.Statement {
	return sqllock.Statement{SQL: sql, Args: args}
}

// again runs a test, and once more where the machine was too busy for it. It is not for tests of what
// happens without an answer.
func again(t *testing.T, test func(t testing.TB)) {
	t.Helper()
	backendtest.Again(t, test, os.ErrDeadlineExceeded, context.DeadlineExceeded)
}

// roads are the ways to a server: to itself, and through PgBouncer in transaction mode.
func roads(t *testing.T, f func(t testing.TB, s testengine.Server)) {
	t.Helper()
	for _, kind := range []*testengine.Kind{testengine.Postgres, testengine.PostgresBouncer} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			again(t, func(t testing.TB) { f(t, testengine.Shared(t, kind)) })
		})
	}
}

func TestBatch(t *testing.T) {
	roads(t, func(t testing.TB, s testengine.Server) {
		p := openPool(t, dialect(t, s.URL()), sqllock.PoolOptions{Size: 2, Wait: true})
		table := "public.batch_" + string(lock.NewHoldID())
		do(t, p, statement("CREATE TABLE "+table+" (n BIGINT PRIMARY KEY, b BYTEA, s SMALLINT, m TEXT)"))
		rs := do(t, p,
			statement("INSERT INTO "+table+" VALUES (?, ?, ?, ?), (2, ?, 0, '')", int64(1), []byte("a\x00\\b"), true, "text", nil),
			statement("UPDATE "+table+" SET n=n+? WHERE n<? RETURNING n", int64(10), int64(2)),
			statement("SELECT n, b, s, m, n=11 FROM "+table+" ORDER BY n"),
			statement("INSERT INTO "+table+" (n) VALUES (?) ON CONFLICT DO NOTHING", int64(11)),
			statement("DELETE FROM "+table+" WHERE m=?", "text"),
		)
		if rs[0].Affected != 2 || rs[1].Affected != 1 || rs[1].Value != 11 || rs[3].Affected != 0 || rs[4].Affected != 1 {
			t.Errorf("got %+v", rs)
		}
		rows := rs[2].Rows
		if len(rows) != 2 || !rows[0].Null(1) || rows[0].Bool(4) || rows[1].Int(0) != 11 || rows[1].Text(1) != "a\x00\\b" || !rows[1].Bool(2) || rows[1].Text(3) != "text" || !rows[1].Bool(4) {
			t.Errorf("got the rows %v", rows)
		}

		// A batch is carried out as a whole, or not at all, and the connection goes on.
		d := &Dialect{}
		_, err := p.Do(t.Context(), "test", statement("DELETE FROM "+table), statement("SELECT * FROM public.missing"))
		if d.Class(err) != sqllock.Missing {
			t.Errorf("got %v of class %d", err, d.Class(err))
		}
		if n := do(t, p, statement("SELECT COUNT(*) FROM "+table))[0].Rows[0].Int(0); n != 1 {
			t.Errorf("%d rows are left", n)
		}
	})
}

// A transaction of several trips stays on one connection of the server, and what is
// left open is rolled back.
func TestTransaction(t *testing.T) {
	roads(t, func(t testing.TB, s testengine.Server) {
		d := dialect(t, s.URL())
		p := openPool(t, d, sqllock.PoolOptions{Size: 2, Wait: true})
		table := "public.transaction_" + string(lock.NewHoldID())
		do(t, p, statement("CREATE TABLE "+table+" (n BIGINT PRIMARY KEY)"), statement("INSERT INTO "+table+" VALUES (1)"))
		locked := statement("SELECT n FROM " + table + " FOR UPDATE NOWAIT")
		c, err := p.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		do(t, c, statement("START TRANSACTION"), locked)
		if _, err := p.Do(t.Context(), "test", locked); d.Class(err) != sqllock.Blocked {
			t.Errorf("got %v for a locked row", err)
		}
		start := time.Now()
		if _, err := p.Do(t.Context(), "test", statement("UPDATE "+table+" SET n=2")); d.Class(err) != sqllock.Blocked || time.Since(start) < rowWait {
			t.Errorf("got %v after %s for a locked row", err, time.Since(start))
		}
		do(t, c, statement("UPDATE "+table+" SET n=3"), statement("COMMIT"))
		do(t, c, statement("START TRANSACTION"), statement("UPDATE "+table+" SET n=4"))
		c.Close()
		if n := do(t, p, locked)[0].Rows[0].Int(0); n != 3 {
			t.Errorf("the row has %d", n)
		}
	})
}

// No setting of the server, the database or the role changes what our statements mean.
func TestSettingsOfOthers(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.Postgres, testengine.PostgresBouncer} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind)
			p := openPool(t, dialect(t, s.URL()), sqllock.PoolOptions{Size: 1})
			for _, setting := range []string{
				"default_transaction_isolation='serializable'", "synchronous_commit=off", "statement_timeout=300", "lock_timeout=300",
				"idle_in_transaction_session_timeout=300", "bytea_output='escape'", "DateStyle='German'", "search_path=nowhere",
			} {
				do(t, p, statement("ALTER ROLE root SET "+setting))
			}
			// Of connections that are new at the server, too.
			testengine.Restart(t, s, testengine.KeepData)
			p = openPool(t, dialect(t, s.URL()), sqllock.PoolOptions{Size: 1})
			eventually(t, "the server answers", func() error {
				_, err := p.Do(t.Context(), "test", statement("SELECT 1"))
				return err
			})
			rs := do(t, p, statement("SELECT current_setting('transaction_isolation') || current_setting('synchronous_commit') || current_setting('lock_timeout')"),
				statement("SELECT 'x'::bytea FROM pg_sleep(0.5)"))
			if got := rs[0].Rows[0].Text(0); got != "read committedlocal1s" {
				t.Errorf("got %s", got)
			}
			if got := rs[1].Rows[0].Text(0); got != "x" {
				t.Errorf("got %s", got)
			}
		})
	}
}

// What was sent on a connection that the server had closed while it was idle never
// leaves.
func TestIdleConnectionEnds(t *testing.T) {
	s := testengine.Shared(t, testengine.Postgres)
	road := testengine.Through(t, s)
	p := openPool(t, dialect(t, road.URL()), sqllock.PoolOptions{Size: 1})
	for range 3 {
		do(t, p, statement("SELECT 1"))
		road.Inject(testengine.Sever)
	}
}

// A connection that was idle for longer than a request may take is used again.
func TestIdleConnectionStays(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // in which a busy machine answers
	s := testengine.Shared(t, testengine.Postgres)
	d := dialect(t, s.URL())
	from, err := d.servers(d.cfg.Addrs, limit)
	if err != nil {
		t.Fatal(err)
	}
	p := sqllock.NewPool(sqllock.PoolOptions{Size: 1}, time.Second, d.observe, func(ctx context.Context, server string) (sqllock.Link, error) {
		return from.open(ctx, server)
	})
	t.Cleanup(func() { _ = p.Close() })
	number := func() int64 {
		t.Helper()
		c, err := p.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Number()
	}
	do(t, p, statement("SELECT 1"))
	first := number()
	time.Sleep(2 * limit)
	if again := number(); again != first {
		t.Errorf("connection %d after %d", again, first)
	}
}

// The driver reads from a connection in the background once a write was slow, and goes
// on when it is idle: that is not in the way of its next use.
func TestReadInTheBackground(t *testing.T) {
	d := dialect(t, testengine.Shared(t, testengine.Postgres).URL())
	from, err := d.servers(d.cfg.Addrs, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	k, err := from.open(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	reads := make(chan struct{})
	go func() {
		defer close(reads)
		_, _ = k.raw.Read(make([]byte, 1))
	}()
	time.Sleep(10 * time.Millisecond) // whether it reads already cannot be seen
	alive := make(chan bool, 1)
	go func() { alive <- k.Alive() }()
	select {
	case there := <-alive:
		if !there {
			t.Error("the connection is not there")
		}
	case <-time.After(patience):
		t.Error("it waits for the reader")
	}
	_ = k.raw.Close()
	<-reads
}

// Of an answer that does not come the outcome is unclear, after no more than the limit.
func TestAnswerLost(t *testing.T) {
	s := testengine.Shared(t, testengine.Postgres)
	road := testengine.Through(t, s)
	d := dialect(t, with(road.URL(), "timeout=300ms"))
	p := openPool(t, d, sqllock.PoolOptions{Size: 1})
	do(t, p, statement("SELECT 1"))
	road.Inject(testengine.HoldReplies)
	start := time.Now()
	_, err := p.Do(t.Context(), "test", statement("SELECT 1"))
	if took := time.Since(start); d.Class(err) != sqllock.Unclear || took < 300*time.Millisecond || took > patience {
		t.Errorf("got %v after %s", err, took)
	}
	if _, err := p.Do(t.Context(), "test", statement("SELECT 1")); d.Class(err) != sqllock.NotSent {
		t.Errorf("got %v for a connection that cannot be made", err)
	}
	if err := road.Heal(); err != nil {
		t.Fatal(err)
	}
	do(t, p, statement("SELECT 1"))
}

// A standby takes no writes. Of several hosts the one that does is taken, also when
// they change places.
func TestStandby(t *testing.T) { again(t, testStandby) }

func testStandby(t testing.TB) {
	s := testengine.New(t, testengine.PostgresPair)
	standby := testengine.PostgresReplica(t, s)
	d := dialect(t, standby.URL())
	_, err := openPool(t, d, sqllock.PoolOptions{Size: 1}).Do(t.Context(), "test", statement("SELECT 1"))
	if d.Class(err) != sqllock.NotSent || !strings.Contains(d.Hint(err), "standby") || !errors.Is(err, errReadOnly) {
		t.Errorf("got %v %s", err, d.Hint(err))
	}
	_, hosts, _ := strings.Cut(s.URL(), "@")
	p := openPool(t, dialect(t, strings.Replace(standby.URL(), "@", "@"+strings.Split(hosts, "/")[0]+",", 1)), sqllock.PoolOptions{Size: 1})
	id := func() string {
		rs := do(t, p, statement("SELECT "+server))
		return rs[0].Rows[0].Text(0)
	}
	first := id()
	testengine.FailOver(t, s, testengine.KeepData)
	if second := id(); second == first {
		t.Errorf("both call themselves %s", first)
	}
}

// A pool that trusts a server uses no connection to another, such as a copy of it.
func TestTrust(t *testing.T) { again(t, testTrust) }

func testTrust(t testing.TB) {
	s := testengine.New(t, testengine.Postgres)
	fork := testengine.ForkPostgres(t, s)
	road := testengine.Through(t, s)
	d := dialect(t, road.URL())
	p := openPool(t, d, sqllock.PoolOptions{Size: 2})
	id := func() string { return do(t, p, statement("SELECT "+server))[0].Rows[0].Text(0) }
	first := id()
	testengine.Restart(t, s, testengine.KeepData)
	if again := id(); again != first {
		t.Errorf("%s calls itself %s after a restart", first, again)
	}
	road.Retarget(testengine.Nodes(t, fork)[0].Addr())
	if same := id(); same != first {
		t.Errorf("a connection went from %s to %s", first, same)
	}
	p.Trust("another")
	if _, err := p.Do(t.Context(), "test", statement("SELECT 1")); d.Class(err) != sqllock.NotSent {
		t.Errorf("got %v from a server that is not trusted", err)
	}
	p.Trust("")
	second := id()
	if second == first {
		t.Errorf("both call themselves %s", first)
	}
	p.Trust(second)
	id()
}

// A bell that is rung is heard, where a session of our own can be had.
func TestBell(t *testing.T) {
	roads(t, func(t testing.TB, s testengine.Server) {
		d := dialect(t, s.URL())
		p := openPool(t, d, sqllock.PoolOptions{Size: 2})
		var rang, without atomic.Int64
		id := lock.NewLeaseID()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil && without.Load() == 0 {
				if err := d.Listen(ctx, id, "", func() { rang.Add(1) }); errors.Is(err, sqllock.ErrNoBells) {
					without.Add(1)
				}
			}
		}()
		defer func() {
			cancel()
			<-done
		}()
		if rs := do(t, p, statement("SELECT 1")); len(rs) != 1 {
			t.Error(rs)
		}
		if s == testengine.Shared(t, testengine.PostgresBouncer) {
			eventually(t, "it says that there is none", func() error {
				if without.Load() == 0 {
					return errors.New("it did not")
				}
				return nil
			})
			if rang.Load() != 0 {
				t.Error("a bell behind PgBouncer")
			}
			return
		}
		wait := func(n int64) {
			t.Helper()
			eventually(t, "the bell is heard", func() error {
				if rang.Load() < n {
					return errors.New("silence")
				}
				return nil
			})
		}
		wait(1)
		if err := d.Ring(t.Context(), p, []lock.LeaseID{lock.NewLeaseID(), id}); err != nil {
			t.Error(err)
		}
		wait(2)
	})
}

var eventually = backendtest.Eventually

// Where no notification arrives, others would wait for what an arbiter has parked.
func TestWhereNobodyTellsThatOthersWait(t *testing.T) { again(t, testWhereNobodyTellsThatOthersWait) }

func testWhereNobodyTellsThatOthersWait(t testing.TB) {
	for kind, tells := range map[*testengine.Kind]bool{testengine.Postgres: true, testengine.PostgresBouncer: false} {
		b := openAt(t, testengine.Shared(t, kind).URL())
		t.Cleanup(func() { _ = b.Close() })
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		eventually(t, kind.String(), func() error {
			if lock.TellsContended(l) != tells {
				return errors.New("it says the contrary")
			}
			return nil
		})
	}
}

// A server that is too old, or takes no writes, is refused; server_version_num is as
// PostgreSQL's releases have it.
func TestServerCheck(t *testing.T) {
	for _, tt := range []struct {
		version int64
		standby bool
		want    string
	}{
		{130000, false, ""}, {130023, false, ""}, {150018, false, ""}, {180001, false, ""},
		{120022, false, "the server's version is 12.22; 13 is the oldest that can be used"},
		{120022, true, "the server's version is 12.22"},
		{150018, true, "takes no writes"},
	} {
		if err := usable(tt.version, tt.standby); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%d, standby %t: %v, want %q", tt.version, tt.standby, err, tt.want)
		}
	}
}
