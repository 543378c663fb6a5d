package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t testing.TB, url string, ttl time.Duration) (*sqllock.Backend, lock.Lease) {
	t.Helper()
	b := openAt(t, with(url, "timeout=3s"))
	return b, leaseOf(t, b, ttl)
}

// leaseOf opens a lease of a backend. Both live as long as the test.
func leaseOf(t testing.TB, b *sqllock.Backend, ttl time.Duration) lock.Lease {
	t.Helper()
	t.Cleanup(func() { _ = b.Close() })
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
		_ = l.Close(ctx) // the server may be gone
	})
	go func() {
		for range l.Events() { // nobody reacts
		}
	}()
	return backendtest.Timed(l, ttl, opened)
}

func request(r string, m lock.Mode) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: lock.Resource(r), Mode: m, Owner: lock.Owner{Session: "test"}.Encode()}
}

func hold(t testing.TB, l lock.Lease, r string, m lock.Mode) lock.Grant {
	t.Helper()
	q := request(r, m)
	var g lock.Grant
	eventually(t, "it is granted", func() (err error) {
		if g, err = l.Acquire(t.Context(), q); err != nil && !errors.Is(err, lock.ErrUnavailable) {
			t.Fatalf("Acquire: %v", err)
		}
		return err
	})
	return g
}

// app is a connection of an app, which may do no more than the documentation says.
func app(t testing.TB, s testengine.Server) *pgx.Conn {
	t.Helper()
	root := openPool(t, dialect(t, s.URL()), sqllock.PoolOptions{Size: 1})
	do(t, root, statement("GRANT USAGE ON SCHEMA public TO "+testengine.User),
		statement("GRANT SELECT, UPDATE (guards) ON public.locksidecar_lock, public.locksidecar_hold TO "+testengine.User),
		statement("GRANT SELECT, UPDATE (version, value, written, ends) ON public.locksidecar_record TO "+testengine.User))
	url := strings.Replace(s.URL(), "root@", testengine.User+":"+testengine.Password+"@", 1)
	c, err := pgx.Connect(t.Context(), url+"?sslmode=disable&default_query_exec_mode=exec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// levels are the isolation levels.
var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

func beginAt(t testing.TB, c *pgx.Conn, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := c.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err == nil {
		_, err = tx.Exec(t.Context(), "SELECT 1 FROM pg_class LIMIT 1") // from here on it has a snapshot
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// passes runs a guard, and tells whether the app may commit.
func passes(t testing.TB, tx pgx.Tx, g *lock.Guard) bool {
	t.Helper()
	args := make([]any, len(g.Args))
	for i, a := range g.Args {
		args[i] = a
	}
	tag, err := tx.Exec(t.Context(), sqllock.Numbered(g.SQL), args...)
	var refused *pgconn.PgError
	if err != nil && (!errors.As(err, &refused) || refused.Code != codeSerialization) {
		t.Fatalf("guard: %v", err)
	}
	return err == nil && tag.RowsAffected() == 1
}

// The guard passes at every isolation level as long as the app has the lock, waiters
// may come and go after its snapshot; and not after it was taken away, whether that
// is in its snapshot or not.
func TestGuard(t *testing.T) {
	s := testengine.New(t, testengine.Postgres)
	b, l := sidecar(t, s.URL(), 30*time.Second)
	_, other := sidecar(t, s.URL(), 30*time.Second)
	for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared} {
		for _, level := range levels {
			t.Run(mode.String()+" "+string(level), func(t *testing.T) {
				r := t.Name()
				g := hold(t, l, r, mode)
				if g.Guard.Dialect != "postgresql" {
					t.Errorf("dialect %q", g.Guard.Dialect)
				}
				tx := beginAt(t, app(t, s), level)
				ctx, cancel := context.WithCancel(t.Context())
				gone := make(chan error, 1)
				go func() {
					_, err := other.Acquire(ctx, request(r, lock.Exclusive))
					gone <- err
				}()
				eventually(t, "somebody waits", func() error {
					st, err := b.Get(t.Context(), lock.Resource(r))
					if err == nil && len(st.Waiters) == 0 {
						err = errors.New("nobody waits")
					}
					return err
				})
				cancel()
				if err := <-gone; !errors.Is(err, context.Canceled) {
					t.Errorf("the waiter: %v", err)
				}
				if !passes(t, tx, g.Guard) {
					t.Error("the guard of a lock that is held does not pass")
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}

				tx = beginAt(t, app(t, s), level)
				if err := b.ForceRelease(t.Context(), lock.Resource(r), g.ID, 0); err != nil {
					t.Fatal(err)
				}
				next := hold(t, other, r, lock.Exclusive)
				if passes(t, tx, g.Guard) {
					t.Error("the guard of a lock that was lost passes in a transaction that is older than the loss")
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
				tx = beginAt(t, app(t, s), level)
				if passes(t, tx, g.Guard) || !passes(t, tx, next.Guard) {
					t.Error("a guard passes that must not, or does not that must")
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
				if err := other.Release(t.Context(), next.Resource, next.ID); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// Readers run their guards at the same time, and a guard's transaction keeps everybody
// out who would be excluded, whatever has become of the lease, until it ends.
func TestGuardKeepsOthersOut(t *testing.T) {
	roads(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared} {
			r := t.Name() + mode.String()
			g := hold(t, l, r, mode)
			tx := beginAt(t, app(t, s), pgx.ReadCommitted)
			if !passes(t, tx, g.Guard) {
				t.Error("the guard does not pass")
			}
			if mode == lock.Shared {
				second := hold(t, other, r, mode)
				tx := beginAt(t, app(t, s), pgx.ReadCommitted)
				if !passes(t, tx, second.Guard) {
					t.Error("the guard of a second reader does not pass")
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Error(err)
				}
				if err := other.Release(t.Context(), second.Resource, second.ID); err != nil {
					t.Error(err)
				}
			}
			forced := make(chan error, 1)
			go func() { forced <- b.ForceRelease(context.Background(), lock.Resource(r), g.ID, 0) }()
			granted := make(chan error, 1)
			go func() {
				g, err := other.Acquire(context.Background(), request(r, lock.Exclusive))
				if err == nil {
					err = other.Release(context.Background(), g.Resource, g.ID)
				}
				granted <- err
			}()
			hold(t, other, r+"/free", lock.Exclusive) // others do not notice
			select {
			case err := <-granted:
				t.Errorf("another was granted the lock beside an open guard: %v", err)
			case <-time.After(3 * rowWait / 2): // longer than anybody waits for a row
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-forced; err != nil && !errors.Is(err, lock.ErrUnavailable) { // it may have given up
				t.Errorf("ForceRelease: %v", err)
			}
			if err := <-granted; err != nil {
				t.Errorf("the next holder: %v", err)
			}
		}
	})
}
