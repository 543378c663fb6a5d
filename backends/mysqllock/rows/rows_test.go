package rows

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestStrangers: programs that lock the row themselves are kept out, and keep out.
func TestStrangers(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a, b := open1(t, s.URL(), 10*time.Minute), open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		app := newStranger(t, s.URL())
		g := a.hold(r, lock.Exclusive)
		app.refused(r)
		a.release(g)
		app.locks(r)
		a.held(r, lock.Exclusive)
		a.held(r, lock.Shared)
		w := a.queue(request(r, lock.Exclusive))
		next := b.queue(request(r, lock.Exclusive))
		w.blocked()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var held *lock.HeldError
		if _, err := b.Acquire(ctx, request(r, lock.Shared)); !errors.As(err, &held) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that ends: %v", err)
		}
		app.unlocks()
		g = w.granted()
		next.blocked()
		a.release(g)
		if last := next.granted(); last.Fence <= g.Fence {
			t.Errorf("broken law: fence %d after %d", last.Fence, g.Fence)
		}
		b.release(next.grant)
		for _, s := range []*sidecar{a, b} { // readers share with readers
			s.hold(r, lock.Shared)
		}
		app.refused(r)
	})
}

// TestWaitForStrangerEnds: who has waited for a stranger in vain leaves nothing.
func TestWaitForStrangerEnds(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		app := newStranger(t, s.URL())
		app.locks(r)
		q := request(r, lock.Exclusive)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := a.Acquire(ctx, q); done <- err }()
		a.connection(q.ID) // it waits in the server
		cancel()
		var held *lock.HeldError
		if err := <-done; !errors.As(err, &held) || !errors.Is(err, context.Canceled) || held.Position != 1 {
			t.Errorf("Acquire: %v", err)
		}
		if st, err := a.b.Get(t.Context(), r); err != nil || len(st.Holders)+len(st.Waiters) > 0 {
			t.Errorf("Get: %+v, %v", st, err)
		}
		app.unlocks()
		app.gets(r)
	})
}

// TestForceWhileStrangerHolds: whoever waits for a stranger can be forced out.
func TestForceWhileStrangerHolds(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a, b := open1(t, s.URL(), 10*time.Minute), open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		app := newStranger(t, s.URL())
		app.locks(r)
		w := a.queue(request(r, lock.Exclusive))
		a.connection(w.q.ID)
		next := b.queue(request(r, lock.Exclusive))
		if err := b.b.ForceRelease(t.Context(), r, w.q.ID, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if w.wait(); !errors.Is(w.err, lock.ErrNotHolder) {
			t.Errorf("Acquire: %+v, %v", w.grant, w.err)
		}
		next.blocked()
		app.unlocks()
		next.granted()
	})
}

// TestFrozenStranger: a stranger that is frozen with a row locked, and many who wait
// for it, cost one connection for locks, and are in nobody else's way.
func TestFrozenStranger(t *testing.T) {
	const waiters = 100
	onEach(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, fmt.Sprintf("%s?max-connections=%d", s.URL(), engineConnections+3), 10*time.Minute)
		r := name(t)
		app := newStranger(t, s.URL())
		app.locks(r)
		var all []*waiting
		for range waiters {
			all = append(all, a.ask(request(r, lock.Exclusive)))
		}
		eventually(t, "all wait", func() error {
			st, err := a.b.Get(t.Context(), r)
			if n := len(st.Holders) + len(st.Waiters); err == nil && n < waiters {
				err = fmt.Errorf("%d do", n)
			}
			return err
		})
		for i := range 5 {
			g := a.hold(r+lock.Resource(fmt.Sprint("/", i%2)), lock.Exclusive)
			if err := a.beat(); err != nil {
				t.Fatal(err)
			}
			a.release(g)
		}
		if n := a.links(); n > 2 {
			t.Errorf("there are %d links", n)
		}
		app.unlocks()
		for range all {
			var id lock.HoldID
			eventually(t, "one holds", func() error {
				st, err := a.b.Get(t.Context(), r)
				if err == nil && len(st.Holders) != 1 {
					err = errors.New("nobody does")
				}
				if err == nil {
					id = st.Holders[0].ID
				}
				return err
			})
			for _, w := range all {
				if w.q.ID == id {
					a.release(w.granted())
				}
			}
		}
	})
}

// TestMaxConnections: the number of connections is bounded, and the error says so.
func TestMaxConnections(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		const locks = 4
		most := engineConnections + locks
		a := open1(t, fmt.Sprintf("%s?max-connections=%d", s.URL(), most), 10*time.Minute)
		var grants []lock.Grant
		for i := range locks {
			grants = append(grants, a.hold(name(t)+lock.Resource(fmt.Sprint(i)), lock.Exclusive))
		}
		q := request(name(t), lock.Exclusive)
		_, err := a.Acquire(t.Context(), q)
		if limit := (*lock.LimitError)(nil); !errors.As(err, &limit) || limit.Max != locks || !strings.Contains(err.Error(), fmt.Sprintf("max-connections=%d", most)) {
			t.Errorf("one lock too many: got %v, want a LimitError because of max-connections", err)
		}
		if err := a.Release(t.Context(), q.Resource, q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what was refused: %v", err)
		}
		a.release(grants[0])
		a.hold(q.Resource, lock.Exclusive)
		if err := a.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := a.f.slots.used.Load(); n != 0 {
			t.Errorf("%d links are counted after Close", n)
		}
	})
	cfg, err := mysql.Parse("mysql://localhost/db?max-connections=9")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg, nil); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), "max-connections") {
		t.Errorf("Open with too few connections: %v", err)
	}
}

// TestRowDeleted: who waits for a stranger goes on when somebody deletes the row.
func TestRowDeleted(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a := open1(t, s.URL(), 10*time.Minute)
		r := name(t)
		app := newStranger(t, s.URL())
		app.locks(r)
		w := a.queue(request(r, lock.Exclusive))
		a.connection(w.q.ID)
		if err := app.tx("DELETE FROM locksidecar_row WHERE name=?; COMMIT", []byte(r)); err != nil {
			t.Fatal(err)
		}
		w.granted()
		app.refused(r)
	})
}

func TestSchemaMissing(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		prefix := "missing_" + string(lock.NewHoldID())[:8] + "_"
		b := openAt(t, s.URL()+"?migrate=false&prefix="+prefix)
		defer func() { _ = b.Close() }()
		refused := func(what string) {
			t.Helper()
			_, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second})
			if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "locksidecar schema mysql") {
				t.Errorf("OpenLease without %s: got %v, want ErrUnavailable that says what to do", what, err)
			}
		}
		refused("tables")
		other, err := mysql.Parse(s.URL() + "?prefix=" + prefix)
		if err != nil {
			t.Fatal(err)
		}
		engine, err := mysql.Open(other, nil) // another sidecar, with strategy=tables
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = engine.Close() }()
		first, err := engine.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = first.Close(context.Background()) }()
		refused("the table of rows")
		exec(t, s.URL(), Schema(prefix))
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second})
		if err != nil {
			t.Fatalf("OpenLease with the tables of Schema: %v", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestOddSettings: no setting of the server's administrator changes anything.
func TestOddSettings(t *testing.T) {
	alone(t, func(t testing.TB, s testengine.Server) {
		exec(t, s.URL(), "SET GLOBAL sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'; SET GLOBAL time_zone='-11:00'; "+
			"SET GLOBAL innodb_lock_wait_timeout=50; SET GLOBAL wait_timeout=1; SET GLOBAL autocommit=0; "+
			"SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE")
		if strings.HasSuffix(t.Name(), testengine.MariaDB.String()) {
			exec(t, s.URL(), "SET GLOBAL idle_transaction_timeout=1, idle_readonly_transaction_timeout=1, idle_write_transaction_timeout=1")
		}
		a, b := open1(t, s.URL(), 30*time.Second), open1(t, s.URL(), 30*time.Second)
		r := lock.Resource(`odd "name" 'x' \' ü`)
		g := a.hold(r, lock.Exclusive)
		w := b.queue(request(r, lock.Shared))
		time.Sleep(1500 * time.Millisecond) // longer than the server's wait_timeout
		if news, err := a.Heartbeat(t.Context()); err != nil || len(news) > 0 {
			t.Errorf("the heartbeat tells %+v, %v", news, err)
		}
		a.release(g)
		w.granted()
	})
}

// TestTLS: TLS lies between the driver and the socket whose end is noticed.
func TestTLS(t *testing.T) { again(t, testTLS) }

func testTLS(t testing.TB) {
	s := testengine.Shared(t, testengine.MySQL) // it has a certificate of its own making
	a := open1(t, s.URL()+"?tls=true&tls-skip-verify=true", 10*time.Minute)
	g := a.hold(name(t), lock.Exclusive)
	n := a.connection(g.ID)
	if v := scanOne[string](t, s.URL(), fmt.Sprintf("SELECT CONNECTION_TYPE FROM performance_schema.threads WHERE PROCESSLIST_ID=%d", n)); v != "SSL/TLS" {
		t.Errorf("the link is %s", v)
	}
	kill(t, s, n)
	a.lost(g)
}

// TestSocket: the end of a connection is noticed while nobody reads, with or without
// something left to read, and only once.
func TestSocket(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	for what, do := range map[string]func(ours, theirs net.Conn) error{
		"the other side ends it": func(_, theirs net.Conn) error { return theirs.Close() },
		"this side ends it":      func(ours, _ net.Conn) error { return ours.Close() },
		"it says something and ends": func(_, theirs net.Conn) error {
			_, err := theirs.Write([]byte("bye"))
			return errors.Join(err, theirs.Close())
		},
	} {
		t.Run(what, func(t *testing.T) {
			var routines sync.WaitGroup
			ends := make(chan *socket, 2)
			at := dialed{end: func(s *socket) { ends <- s }, spawn: func(f func()) bool { routines.Go(f); return true }}
			ours, err := dial(context.WithValue(t.Context(), dialedKey{}, &at), "tcp4", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = theirs.Close() }()
			if _, err := theirs.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 5)
			if _, err := ours.Read(b); err != nil || string(b) != "hello" {
				t.Errorf("read %q, %v", b, err)
			}
			select {
			case <-ends:
				t.Error("it has not ended yet")
			default:
			}
			if err := do(ours, theirs); err != nil {
				t.Fatal(err)
			}
			select {
			case s := <-ends:
				if s != ours {
					t.Error("another socket has ended")
				}
			case <-time.After(patience):
				t.Error("the end is not noticed")
			}
			routines.Wait()
			_ = ours.Close()
			if len(ends) > 0 {
				t.Error("the end is told twice")
			}
		})
	}
}

// TestWaitIsNotMeasured: waiting for a stranger is no slow request.
func TestWaitIsNotMeasured(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		var measured atomic.Int64
		a := openObserved(t, s.URL(), time.Minute, func(command string, _ time.Duration, _ error) {
			if command == "wait" || command == "" {
				measured.Add(1)
			}
		})
		r := name(t)
		app := newStranger(t, s.URL())
		app.locks(r)
		w := a.queue(request(r, lock.Exclusive))
		a.connection(w.q.ID)
		if err := app.tx("COMMIT"); err != nil {
			t.Fatal(err)
		}
		w.granted()
		if n := measured.Load(); n != 0 {
			t.Errorf("%d waits were measured as requests to the store", n)
		}
	})
}
