package rows

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// app is an app's own transaction.
type app struct {
	t    *testing.T
	conn *sql.Conn
}

func begin(t *testing.T, url string) *app {
	t.Helper()
	p := admin(t, url)
	t.Cleanup(func() { _ = p.Close() })
	conn, err := p.DB.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	a := &app{t: t, conn: conn}
	a.exec("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ") // as most apps have it
	a.exec("SET NAMES latin1")
	a.exec("START TRANSACTION")
	a.exec("SELECT 1") // it has a view of the data from before
	return a
}

func (a *app) exec(query string) {
	a.t.Helper()
	if _, err := a.conn.ExecContext(context.Background(), query); err != nil {
		a.t.Fatal(err)
	}
}

// holds runs the guard and reports whether the app may commit.
func (a *app) holds(g lock.Grant) bool {
	a.t.Helper()
	args := make([]any, len(g.Guard.Args))
	for i, arg := range g.Guard.Args {
		args[i] = arg
	}
	var one int
	err := a.conn.QueryRowContext(context.Background(), g.Guard.SQL, args...).Scan(&one)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		a.t.Fatalf("guard: %v", err)
	}
	return err == nil
}

// An app that slept past the end of its hold finds out before it commits.
func TestGuardOfLostHold(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		_, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
			q := request(name(t)+lock.Resource("/größe/"+m.String()), m)
			g, err := l.Acquire(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			if g.Guard.Dialect != string(l.dialect) {
				t.Errorf("the guard is for %q on %s", g.Guard.Dialect, l.dialect)
			}
			sleepy := begin(t, s.URL())
			w := queue(t, b, other, request(q.Resource, lock.Exclusive))
			exec(t, s.URL(), fmt.Sprintf("KILL %d", connection(t, b, g.ID)))
			next := w.granted(t)
			if sleepy.holds(g) {
				t.Errorf("%s: the guard of the lost hold says that it may commit", m)
			}
			if !begin(t, s.URL()).holds(next) {
				t.Errorf("%s: the guard of the holder says that it may not commit", m)
			}
			sleepy.exec("ROLLBACK")
			event(t, l, lock.Event{Kind: lock.Vanished, Resource: q.Resource, ID: g.ID})
		}
	})
}

// Once the guard has run, nobody is granted the resource before the app's
// transaction has ended; others who read are not in the way of each other.
func TestGuardKeepsOthersOut(t *testing.T) {
	onEach(t, func(t *testing.T, s testengine.Server) {
		_, l := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		b, other := sidecar(t, s.URL()+noGrace, 10*time.Minute)
		for _, m := range []lock.Mode{lock.Exclusive, lock.Shared} {
			q := request(name(t)+lock.Resource("/"+m.String()), m)
			g, err := l.Acquire(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			a := begin(t, s.URL())
			if !a.holds(g) {
				t.Fatalf("%s: the guard of the holder says that it may not commit", m)
			}
			if m == lock.Shared { // another reader comes, and commits
				q := request(q.Resource, lock.Shared)
				g, err := other.Acquire(t.Context(), q)
				if err != nil {
					t.Fatalf("another reader: %v", err)
				}
				reader := begin(t, s.URL())
				if !reader.holds(g) {
					t.Error("the guard of another reader says that it may not commit")
				}
				reader.exec("COMMIT")
				if err := other.Release(t.Context(), q.Resource, q.ID); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.Release(t.Context(), q.Resource, q.ID); err != nil { // a paused app must not wedge its sidecar
				t.Errorf("%s: Release: %v", m, err)
			}
			held(t, other, q.Resource, lock.Exclusive)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := other.Acquire(ctx, request(q.Resource, lock.Exclusive)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: a wait that ends while the app's transaction is open: %v", m, err)
			}
			w := &waiting{q: request(q.Resource, lock.Exclusive), done: make(chan struct{})}
			go func() {
				defer close(w.done)
				w.grant, w.err = other.Acquire(context.Background(), w.q)
			}()
			time.Sleep(100 * time.Millisecond)
			select {
			case <-w.done:
				t.Fatalf("%s: while the app's transaction is open another got %+v, %v", m, w.grant, w.err)
			default:
			}
			a.exec("COMMIT")
			if next := w.granted(t); next.Fence <= g.Fence {
				t.Errorf("fence %d after %d", next.Fence, g.Fence)
			}
			if st, err := b.Get(t.Context(), q.Resource); err != nil || len(st.Holders) != 1 {
				t.Errorf("Get: %+v, %v", st, err)
			}
		}
	})
}
