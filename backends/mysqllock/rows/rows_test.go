package rows

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Once a writer waits for its row, no reader passes it any more.
func TestWriterKeepsReadersOut(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		reader := request(r, lock.Shared)
		if _, err := l.Acquire(t.Context(), reader); err != nil {
			t.Fatal(err)
		}
		writer := queue(t, b, l, request(r, lock.Exclusive))
		eventually(t, "readers are kept out", func() error {
			q := request(r, lock.Shared)
			q.Try = true
			if _, err := l.Acquire(t.Context(), q); !errors.Is(err, lock.ErrHeld) {
				return errors.Join(fmt.Errorf("try: %w", err), l.Release(t.Context(), r, q.ID))
			}
			return nil
		})
		if err := l.Release(t.Context(), r, reader.ID); err != nil {
			t.Fatal(err)
		}
		writer.granted(t)
	})
}

// Apps that lock the row themselves are kept out, and keep out.
func TestAppsWithoutSidecar(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		g := hold(t, l, r)
		app := admin(t, s.URL())
		defer func() { _ = app.Close() }()
		try := func() error {
			_, err := app.Exec(t.Context(), "test", "SELECT 1 FROM locksidecar_row WHERE name=? FOR UPDATE NOWAIT", []byte(r))
			return err
		}
		if err := try(); !mydb.LockWait(err) {
			t.Errorf("an app that wants the row gets %v", err)
		}
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		conn, err := app.DB.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := app.ExecOn(t.Context(), conn, "test", "START TRANSACTION; SELECT 1 FROM locksidecar_row WHERE name=? FOR UPDATE", []byte(r)); err != nil {
			t.Fatal(err)
		}
		held(t, l, r, lock.Shared)
		w := queue(t, b, l, request(r, lock.Exclusive))
		if _, err := app.ExecOn(t.Context(), conn, "test", "COMMIT"); err != nil {
			t.Fatal(err)
		}
		w.granted(t)
	})
}

// Calls with the same id are one request.
func TestSameRequest(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		g := hold(t, l, r)
		q := request(r, lock.Exclusive)
		first := queue(t, b, l, q)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := l.Acquire(ctx, q); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second call whose wait ends: %v", err)
		}
		second := queue(t, b, l, q)
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		if g1, g2 := first.granted(t), second.granted(t); g1 != g2 {
			t.Errorf("two calls with one id were granted %+v and %+v", g1, g2)
		}
	})
}

// A request whose outcome is unknown is carried on by the next with its id.
func TestUnknownWait(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		road := testengine.Through(t, s)
		_, l := sidecar(t, road.URL()+noGrace, 10*time.Minute)
		b, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		g := hold(t, other, r)
		q := request(r, lock.Exclusive)
		road.Inject(testengine.HoldReplies)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := l.Acquire(ctx, q); !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("Acquire without an answer: got %v, want ErrUnavailable", err)
		}
		if err := road.Heal(); err != nil {
			t.Fatal(err)
		}
		w := queue(t, b, l, q)
		if err := other.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		w.granted(t)
	})
}

// The number of connections is bounded, and the error says so.
func TestMaxConnections(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		const locks = 4
		most := viewConnections + sideConnections + 1 + locks
		b, l := sidecar(t, fmt.Sprintf("%s%s&max-connections=%d", s.URL(), noGrace, most), 10*time.Minute)
		var grants []lock.Grant
		for i := range locks {
			grants = append(grants, hold(t, l, name(t)+lock.Resource(fmt.Sprint(i))))
		}
		q := request(name(t), lock.Exclusive)
		_, err := l.Acquire(t.Context(), q)
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), fmt.Sprintf("max-connections=%d", most)) {
			t.Errorf("one lock too many: got %v, want ErrUnavailable because of max-connections", err)
		}
		if err := l.Release(t.Context(), q.Resource, q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what was refused: %v", err)
		}
		if err := l.Release(t.Context(), grants[0].Resource, grants[0].ID); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Acquire(t.Context(), q); err != nil {
			t.Errorf("Acquire when there is room again: %v", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := b.links.Load(); n != 0 {
			t.Errorf("%d links are counted after Close", n)
		}
	})
	cfg, err := mydb.Parse("mysql://localhost/db?max-connections=5")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg, nil); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), "max-connections") {
		t.Errorf("Open with too few connections: %v", err)
	}
}

// Whoever may not end another account's connection asks its sidecar to do it.
func TestForceByOtherAccount(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		app := openAt(t, strings.Replace(s.URL(), "root@", testengine.User+":"+testengine.Password+"@", 1)+noGrace)
		defer func() { _ = app.Close() }()
		r := name(t)
		g := hold(t, l, r)
		w := queue(t, b, l, request(r, lock.Exclusive))
		if err := app.ForceRelease(t.Context(), r, w.q.ID, time.Minute); err != nil {
			t.Errorf("ForceRelease of a waiter: %v", err)
		}
		if w.wait(t); !errors.Is(w.err, lock.ErrNotHolder) {
			t.Errorf("a waiter that was forced got %v", w.err)
		}
		if err := app.ForceRelease(t.Context(), r, g.ID, 0); err != nil {
			t.Errorf("ForceRelease: %v", err)
		}
		event(t, l, lock.Event{Kind: lock.Revoked, Resource: r, ID: g.ID})
		hold(t, l, r)
	})
}

// Forced releases never hit another hold that uses the same link.
func TestForceHitsNobodyElse(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		r := name(t)
		for i := range 40 {
			g := hold(t, l, r)
			forced := make(chan error, 1)
			go func() { forced <- b.ForceRelease(context.Background(), r, g.ID, time.Duration(i%2)*time.Millisecond) }()
			time.Sleep(time.Duration(i%5) * 200 * time.Microsecond)
			if err := l.Release(t.Context(), r, g.ID); err != nil && !errors.Is(err, lock.ErrNotHolder) {
				t.Fatal(err)
			}
			next := hold(t, l, r+"/next")
			if err := <-forced; err != nil && !errors.Is(err, lock.ErrNotHolder) {
				t.Fatal(err)
			}
			if err := l.Release(t.Context(), next.Resource, next.ID); err != nil {
				t.Fatalf("round %d: Release of another hold: %v", i, err)
			}
		}
		for {
			select {
			case ev := <-l.Events():
				if ev.Kind != lock.Revoked || ev.Resource != r {
					t.Errorf("got the event %+v", ev)
				}
				continue
			default:
			}
			break
		}
	})
}

func TestSchemaMissing(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		prefix := "missing_" + string(lock.NewHoldID())[:8] + "_"
		b := openAt(t, s.URL()+noGrace+"&migrate=false&prefix="+prefix)
		defer func() { _ = b.Close() }()
		_, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second})
		if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "locksidecar schema mysql") {
			t.Errorf("OpenLease without tables: got %v, want ErrUnavailable that says what to do", err)
		}
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

// Rows of links that are gone are cleared away, and those of others stay.
func TestReap(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		prefix := "reap_" + string(lock.NewHoldID())[:8] + "_"
		b, l := sidecar(t, s.URL()+noGrace+"&prefix="+prefix, 10*time.Minute)
		table := b.cfg.Table("row_hold")
		g := hold(t, l, "held")
		insert := "INSERT INTO " + table + " (id, name, lease, link, mode, fence, sidecar, owner, since) VALUES (?, 'x', 'gone', 'gone', 'X', 1, '', '', ?)"
		exec(t, s.URL(), insert, "old", "2020-01-01")
		exec(t, s.URL(), insert, "new", "2999-01-01")
		exec(t, s.URL(), "UPDATE "+table+" SET since='2020-01-01' WHERE id=?", []byte(g.ID))
		if all, err := b.List(t.Context(), "", lock.Page{Limit: 10}); err != nil || len(all) != 1 || all[0].Resource != "held" {
			t.Errorf("List has %+v, %v; want what is held", all, err)
		}
		if _, err := l.side.Exec(t.Context(), "reap", b.sql.reap); err != nil {
			t.Fatal(err)
		}
		if left := scanOne[string](t, s.URL(), "SELECT GROUP_CONCAT(id ORDER BY id='new') FROM "+table); left != string(g.ID)+",new" {
			t.Errorf("left are %s", left)
		}
	})
}

// TLS lies between the driver and the socket that is watched.
func TestTLS(t *testing.T) {
	s := testengine.Shared(t, testengine.MySQL) // it has a certificate of its own making
	b, l := sidecar(t, s.URL()+noGrace+"&tls=true&tls-skip-verify=true", 10*time.Minute)
	r := name(t)
	g := hold(t, l, r)
	if v := scanOne[string](t, s.URL(), fmt.Sprintf("SELECT CONNECTION_TYPE FROM performance_schema.threads WHERE PROCESSLIST_ID=%d", connection(t, b, g.ID))); v != "SSL/TLS" {
		t.Errorf("the link is %s", v)
	}
	exec(t, s.URL(), fmt.Sprintf("KILL %d", connection(t, b, g.ID)))
	event(t, l, lock.Event{Kind: lock.Vanished, Resource: r, ID: g.ID})
}

func TestWatcher(t *testing.T) {
	w, err := newWatcher()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const count = 100
	var ours, theirs []net.Conn
	for range count {
		c, err := net.Dial("tcp4", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		peer, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs = append(ours, c), append(theirs, peer)
	}
	var mu sync.Mutex
	ended := make(map[int]int)
	var keys []int32
	for i, c := range ours {
		key, err := w.add(c.(syscall.Conn), func() {
			mu.Lock()
			defer mu.Unlock()
			ended[i]++
		})
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	for i := range count {
		switch i % 4 {
		case 0: // the other side ends it
			theirs[i].Close()
		case 1: // nobody wants to know any more
			w.remove(keys[i])
			theirs[i].Close()
		case 2: // there is something to read
			if _, err := theirs[i].Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		case 3: // this side ends it
			ours[i].Close()
		}
	}
	eventually(t, "the ends are told", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(ended) < count/4 {
			return fmt.Errorf("%d were told", len(ended))
		}
		return nil
	})
	time.Sleep(10 * time.Millisecond) // for what should not come
	w.close()
	mu.Lock()
	defer mu.Unlock()
	for i, n := range ended {
		if i%4 != 0 || n != 1 {
			t.Errorf("the end of connection %d was told %d times", i, n)
		}
	}
	for i := range count {
		ours[i].Close()
		theirs[i].Close()
	}
}

// Waiting for another holder is no slow request.
func TestWaitIsNotMeasured(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		var measured atomic.Int64
		cfg, err := mydb.Parse(s.URL() + noGrace)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Open(cfg, func(command string, _ time.Duration, _ error) {
			if command == "wait" || command == "" {
				measured.Add(1)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		r := name(t)
		g := hold(t, l.(*lease), r)
		w := queue(t, b, l.(*lease), request(r, lock.Exclusive))
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		w.granted(t)
		if n := measured.Load(); n != 0 {
			t.Errorf("%d waits were measured as requests to the store", n)
		}
	})
}
