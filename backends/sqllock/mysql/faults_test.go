package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// held is a transaction of a stranger's that keeps rows locked.
type held struct {
	t    testing.TB
	b    *store
	conn sqllock.Conn
}

func stranger(t testing.TB, b *store) *held {
	t.Helper()
	p, err := b.d.Open(sqllock.PoolOptions{Size: 1, Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := p.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := &held{t: t, b: b, conn: conn}
	t.Cleanup(func() {
		conn.Close()
		_ = p.Close()
	})
	h.do("START TRANSACTION")
	return h
}

func (h *held) do(statement string, args ...any) {
	h.t.Helper()
	if _, err := h.conn.Do(context.Background(), "test", sqllock.Statement{SQL: h.b.names(statement), Args: args}); err != nil {
		h.t.Fatalf("%s: %v", statement, err)
	}
}

// errorsOf opens a backend that counts the errors of a number.
func errorsOf(t testing.TB, url string, code uint16) (*store, *atomic.Int64) {
	t.Helper()
	n := new(atomic.Int64)
	b := openWith(t, url, func(_ string, _ time.Duration, err error) {
		if Code(err) == code {
			n.Add(1)
		}
	})
	t.Cleanup(func() { _ = b.Close() })
	return b, n
}

func leaseOf(t testing.TB, b *store) lock.Lease {
	t.Helper()
	return leaseFor(t, b, 30*time.Second)
}

func leaseFor(t testing.TB, b *store, ttl time.Duration) lock.Lease {
	t.Helper()
	var l lock.Lease
	var opened time.Duration
	eventually(t, "a lease is opened", func() (err error) {
		opened = lock.BootTime()
		l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: t.Name()})
		return err
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx)
	})
	return backendtest.Timed(l, ttl, opened)
}

// Somebody keeps the row of the resource locked for longer than a statement
// waits for it.
func TestLockWait(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, waits := errorsOf(t, s.URL(), 1205)
		l := leaseOf(t, b)
		r := unique("r")
		if err := l.Release(t.Context(), r, hold(t, l, r).ID); err != nil {
			t.Fatal(err)
		}
		other := stranger(t, b)
		other.do("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE", []byte(r))
		a := acquire(t, l, exclusive(r))
		eventually(t, "a statement has waited in vain", func() error {
			if waits.Load() == 0 {
				return errors.New("none yet")
			}
			return nil
		})
		a.pending(0)
		other.do("ROLLBACK")
		if err := l.Release(t.Context(), r, a.granted().ID); err != nil {
			t.Error(err)
		}
	})
}

// A deadlock with a stranger's transaction, which InnoDB ends by rolling back
// ours, because it has changed less.
func TestDeadlock(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, deadlocks := errorsOf(t, s.URL(), 1213)
		l := leaseOf(t, b)
		r := unique("r")
		g := hold(t, l, r)
		waiting := acquire(t, leaseOf(t, b), exclusive(r))
		eventually(t, "it waits", func() error { return waits(t, b, r) })
		other := stranger(t, b)
		for i := range 20 {
			other.do("INSERT INTO {note} (name, id, lease, kind, era) VALUES (?, ?, '', 1, 0)", []byte(unique("other")), []byte(fmt.Sprint(i)))
		}
		other.do("UPDATE {queue} SET owner=NULL WHERE name=?", []byte(r))
		released := make(chan error, 1)
		go func() { released <- l.Release(context.Background(), r, g.ID) }()
		eventually(t, "the release waits for the row of the waiter", func() error {
			if number(t, b, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'DELETE FROM%' AND info LIKE ?", "%_queue%"+string(r)+"%") == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		other.do("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE", []byte(r))
		eventually(t, "the deadlock is found", func() error {
			if deadlocks.Load() == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		other.do("ROLLBACK")
		if err := <-released; err != nil {
			t.Errorf("Release through a deadlock: %v", err)
		}
		waiting.granted()
	})
}

// waits is nil when somebody waits for a resource.
func waits(t testing.TB, b *store, r lock.Resource) error {
	t.Helper()
	if st, err := b.Get(t.Context(), r); err != nil || len(st.Waiters) == 0 {
		return fmt.Errorf("nobody waits: %+v, %w", st, err)
	}
	return nil
}

// The connection is killed while a statement on it waits.
func TestConnectionKilled(t *testing.T) {
	inEachKind(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		r := unique("r")
		if err := l.Release(t.Context(), r, hold(t, l, r).ID); err != nil {
			t.Fatal(err)
		}
		other := stranger(t, b)
		other.do("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE", []byte(r))
		q := exclusive(r)
		a := acquire(t, l, q)
		eventually(t, "its connection is killed", func() error {
			id := number(t, b, "SELECT COALESCE(MAX(id), 0) FROM information_schema.processlist WHERE info LIKE 'UPDATE%x_id=%' AND info LIKE ? AND id<>CONNECTION_ID()", "%"+string(q.ID)+"%")
			if id == 0 {
				return errors.New("it does not wait")
			}
			execute(t, b, "KILL ?", id)
			return nil
		})
		select {
		case <-a.done:
		case <-time.After(patience):
			t.Fatal("Acquire goes on after its connection was killed")
		}
		if !errors.Is(a.err, lock.ErrUnavailable) {
			t.Errorf("Acquire on a connection that was killed: %v", a.err)
		}
		other.do("ROLLBACK")
		g, err := l.Acquire(t.Context(), q)
		if err != nil {
			t.Fatalf("Acquire again: %v", err)
		}
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Error(err)
		}
	})
}

// A copy of a request that was given up comes late: it is not granted. First for a
// resource that has no row, then for one that has.
func TestLateCopy(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		r := unique("r")
		for range 2 {
			road := testengine.Through(t, s)
			_, late := sidecar(t, with(road.URL(), "timeout=500ms&max-connections=2"), 30*time.Second)
			q := exclusive(r)
			road.Inject(testengine.HoldRequests)
			if _, err := late.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
				t.Fatalf("Acquire whose request is on its way: %v", err)
			}
			if err := road.Heal(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is given up", func() error {
				if err := beat(t.Context(), late); err != nil { // after that it has both connections again
					return err
				}
				err := late.Release(t.Context(), r, q.ID)
				if errors.Is(err, lock.ErrNotHolder) {
					return nil
				}
				return err
			})
			g := hold(t, l, r)
			if err := l.Release(t.Context(), r, g.ID); err != nil {
				t.Error(err)
			}
			if st, err := b.Get(t.Context(), r); err != nil || len(st.Holders) > 0 {
				t.Errorf("a late copy was granted: %+v, %v", st, err)
			}
		}
	})
}

// The clock of the server jumps, back and forth, while locks are held.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	for _, kind := range []*testengine.Kind{testengine.MariaDBFakeTime, testengine.MySQLFakeTime} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind)
			const ttl = 3 * time.Second // a busy machine may stand still for a second or two
			_, l := sidecar(t, s.URL(), ttl)
			_, other := sidecar(t, s.URL(), ttl)
			for _, l := range []lock.Lease{l, other} {
				ctx, stop := context.WithCancel(t.Context())
				done := keepAlive(t, ctx, l)
				t.Cleanup(func() { stop(); <-done })
			}
			last := lock.Fence(0)
			r := unique("r")
			for _, by := range []time.Duration{0, time.Hour, -time.Hour, 48 * time.Hour, 0} {
				g := hold(t, l, r)
				next := acquire(t, other, exclusive(r))
				testengine.ShiftClock(t, s, by)
				next.pending(ttl + time.Second/2) // both leases live for longer than their TTL
				if g.Fence <= last {
					t.Errorf("broken law: fence %d after %d", g.Fence, last)
				}
				if err := l.Release(t.Context(), r, g.ID); err != nil {
					t.Fatalf("Release after the clock was set to %s: %v", by, err)
				}
				g2 := next.granted()
				if g2.Fence <= g.Fence {
					t.Errorf("broken law: fence %d after %d", g2.Fence, g.Fence)
				}
				last = g2.Fence
				if err := other.Release(t.Context(), r, g2.ID); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// The administrator has a taste of his own, and changes the server to read only
// for a while.
func TestOddServer(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind)
			admin := openAt(t, s.URL())
			defer func() { _ = admin.Close() }()
			settings := []string{
				"sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,NO_AUTO_VALUE_ON_ZERO,PAD_CHAR_TO_FULL_LENGTH'", "time_zone='+05:45'",
				"init_connect='SET autocommit=0, timestamp=12345, sql_safe_updates=1, sql_select_limit=1, character_set_client=latin1, completion_type=1'",
				"character_set_server=latin1", "innodb_lock_wait_timeout=50", "binlog_format=ROW",
			}
			if kind == testengine.MariaDB {
				settings = append(settings, "tx_isolation='SERIALIZABLE'", "max_statement_time=0.2", "idle_transaction_timeout=1")
				settings[0] = strings.Replace(settings[0], "'ANSI", "'SIMULTANEOUS_ASSIGNMENT,ANSI", 1)
			} else {
				settings = append(settings, "transaction_isolation='SERIALIZABLE'", "max_execution_time=200")
			}
			for _, set := range settings {
				execute(t, admin, "SET GLOBAL "+set)
			}
			url := strings.Replace(s.URL(), "root@", testengine.User+":"+testengine.Password+"@", 1)
			b, l := sidecar(t, url, 30*time.Second)
			_, other := sidecar(t, url, 30*time.Second)
			for _, name := range []string{`it's`, `back\slash`, `"quoted"`, `\'`, "日本"} {
				r := unique(name)
				g := hold(t, l, r)
				st, err := b.Get(t.Context(), r)
				if err != nil || len(st.Holders) != 1 || st.Holders[0].ID != g.ID || st.Holders[0].Age > time.Minute || st.Holders[0].Owner.Session != "test" {
					t.Errorf("%q: Get: %+v, %v", name, st, err)
				}
				next := acquire(t, other, exclusive(r))
				next.pending(20 * time.Millisecond)
				if err := l.Release(t.Context(), r, g.ID); err != nil {
					t.Errorf("%q: Release: %v", name, err)
				}
				if err := other.Release(t.Context(), r, next.granted().ID); err != nil {
					t.Errorf("%q: Release: %v", name, err)
				}
			}

			r := unique("r")
			g := hold(t, l, r)
			execute(t, admin, "SET GLOBAL read_only=1")
			for what, err := range map[string]error{
				"Acquire":   func() error { _, err := l.Acquire(t.Context(), exclusive(unique("r"))); return err }(),
				"Release":   l.Release(t.Context(), r, g.ID),
				"Heartbeat": beat(t.Context(), l),
			} {
				if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "takes no writes") {
					t.Errorf("%s on a server that is read only: %v", what, err)
				}
			}
			execute(t, admin, "SET GLOBAL read_only=0")
			if err := beat(t.Context(), l); err != nil {
				t.Errorf("Heartbeat afterwards: %v", err)
			}
			next := acquire(t, other, exclusive(r)) // the release was owed
			if err := other.Release(t.Context(), r, next.granted().ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// Of several hosts the one that takes writes is used, also when that changes.
func TestHosts(t *testing.T) { again(t, testHosts) }

func testHosts(t testing.TB) {
	first, second := testengine.New(t, testengine.MariaDB), testengine.New(t, testengine.MariaDB)
	both := strings.Replace(strings.Replace(first.URL(), "root@", testengine.User+":"+testengine.Password+"@", 1), "/locksidecar", ","+mustParse(t, second.URL()).Addrs[0]+"/locksidecar", 1)
	readOnly := func(s testengine.Server, on int) {
		b := openAt(t, s.URL())
		defer func() { _ = b.Close() }()
		execute(t, b, fmt.Sprintf("SET GLOBAL read_only=%d", on))
	}
	made := openAt(t, first.URL())
	defer func() { _ = made.Close() }()
	leaseOf(t, made)
	readOnly(first, 1)
	_, l := sidecar(t, both, 30*time.Second)
	g := hold(t, l, "r")
	on := func(s testengine.Server) int64 {
		b := openAt(t, s.URL())
		defer func() { _ = b.Close() }()
		return number(t, b, "SELECT COUNT(*) FROM {lock} WHERE x_id=?", []byte(g.ID))
	}
	if on(second) != 1 {
		t.Error("the lock is not on the server that takes writes")
	}
	readOnly(second, 1)
	readOnly(first, 0)
	if err := beat(t.Context(), l); err == nil {
		t.Error("Heartbeat on a server that takes no writes any more: nil")
	}
	eventually(t, "the lease is known to be lost", func() error {
		switch err := beat(t.Context(), l); { // the other server does not know it
		case errors.Is(err, lock.ErrLeaseLost):
			return nil
		case err == nil:
			return errors.New("a heartbeat is answered")
		default:
			return fmt.Errorf("heartbeat: %w", err)
		}
	})
}

func TestTLS(t *testing.T) { again(t, testTLS) }

func testTLS(t testing.TB) {
	s := testengine.Shared(t, testengine.MySQL) // makes itself a certificate
	b, l := sidecar(t, with(s.URL(), "tls=true&tls-skip-verify=true"), 30*time.Second)
	hold(t, l, unique("r"))
	if all := rows(t, b, "SELECT variable_value FROM performance_schema.session_status WHERE variable_name='Ssl_cipher'"); len(all) != 1 || all[0].Text(0) == "" {
		t.Errorf("the connection has the cipher %v", all)
	}
	strict := openAt(t, with(s.URL(), "tls=true"))
	defer func() { _ = strict.Close() }()
	if err := strict.Ping(t.Context()); !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of nobody's: %v", err)
	}
}
