package mysql

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

// app is what an app does in the same database: money that each transaction
// moves, and the guard just before the commit.
type app struct {
	t  testing.TB
	db *sql.DB
}

// newApp connects as an account that may run guards and nothing more in the tables of
// locks, and change the app's own, with a character set and an SQL mode of its own.
// params are for the driver.
func newApp(t testing.TB, b *store, params string) *app {
	t.Helper()
	user := "guard_" + string(lock.NewHoldID())[:8]
	execute(t, b, "CREATE TABLE IF NOT EXISTS account (id INT PRIMARY KEY, money BIGINT NOT NULL) ENGINE=InnoDB")
	execute(t, b, "CREATE USER "+user+" IDENTIFIED BY 'secret'")
	execute(t, b, "GRANT SELECT (name, x_id, fence, guards), UPDATE (guards) ON {lock} TO "+user)
	execute(t, b, "GRANT SELECT (name, id, since, guards), UPDATE (guards) ON {hold} TO "+user)
	execute(t, b, "GRANT SELECT (name, version, ends), UPDATE (version, value, written, ends) ON {record} TO "+user)
	execute(t, b, "GRANT SELECT, INSERT, UPDATE ON "+b.d.cfg.Database+".account TO "+user)
	db, err := sql.Open("mysql", fmt.Sprintf("%s:secret@tcp(%s)/%s?charset=latin1&sql_mode='ANSI_QUOTES,NO_BACKSLASH_ESCAPES'&interpolateParams=false%s", user, b.d.cfg.Addrs[0], b.d.cfg.Database, params))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return &app{t: t, db: db}
}

// transfer is a transaction that has changed an account and is not committed.
type transfer struct {
	app *app
	tx  *sql.Tx
}

func (a *app) begin(account int) *transfer {
	a.t.Helper()
	tx, err := a.db.BeginTx(context.Background(), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	t := &transfer{app: a, tx: tx}
	a.t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.ExecContext(context.Background(), "INSERT INTO account VALUES (?, 1) ON DUPLICATE KEY UPDATE money=money+1", account); err != nil {
		a.t.Fatal(err)
	}
	return t
}

// snapshot has the transaction read, so that under REPEATABLE READ it reads as of now from here
// on. (DO takes no snapshot.)
func (t *transfer) snapshot() {
	t.app.t.Helper()
	var n int
	if err := t.tx.QueryRowContext(context.Background(), "SELECT COUNT(*) FROM account").Scan(&n); err != nil {
		t.app.t.Fatal(err)
	}
}

// guarded runs the guard.
func (t *transfer) guarded(g *lock.Guard) bool {
	t.app.t.Helper()
	var args []any
	for _, a := range g.Args {
		args = append(args, a)
	}
	res, err := t.tx.ExecContext(context.Background(), g.SQL, args...)
	if err != nil {
		t.app.t.Fatalf("guard %s: %v", g.SQL, err)
	}
	n, _ := res.RowsAffected()
	return n == 1
}

func (t *transfer) rollBack() {
	t.app.t.Helper()
	if err := t.tx.Rollback(); err != nil {
		t.app.t.Fatal(err)
	}
}

func (t *transfer) commit() {
	t.app.t.Helper()
	if err := t.tx.Commit(); err != nil {
		t.app.t.Fatal(err)
	}
}

// eachKind runs a test on each kind of server, at the same time.
func eachKind(t *testing.T, test func(t testing.TB, s testengine.Server)) {
	t.Helper()
	inEachKind(t, func(t *testing.T, s testengine.Server) {
		again(t, func(t testing.TB) { test(t, s) })
	})
}

// inEachKind does so with a test that is not run again.
func inEachKind(t *testing.T, test func(t *testing.T, s testengine.Server)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			test(t, testengine.Shared(t, kind))
		})
	}
}

// unique is a name of this test alone.
func unique(s string) lock.Resource { return lock.Resource(s + "/" + string(lock.NewHoldID())[:8]) }

// acquiring is an Acquire under way.
type acquiring struct {
	t     testing.TB
	done  chan struct{}
	grant lock.Grant
	err   error
}

func acquire(t testing.TB, l lock.Lease, q lock.Request) *acquiring {
	return acquiringBy(t, func(ctx context.Context) (lock.Grant, error) { return l.Acquire(ctx, q) })
}

// insist asks again when an answer is lost, as sidecars do.
func insist(t testing.TB, l lock.Lease, q lock.Request) *acquiring {
	return acquiringBy(t, func(ctx context.Context) (g lock.Grant, err error) {
		for g, err = l.Acquire(ctx, q); errors.Is(err, lock.ErrUnavailable) && ctx.Err() == nil; g, err = l.Acquire(ctx, q) {
			time.Sleep(10 * time.Millisecond)
		}
		return g, err
	})
}

func acquiringBy(t testing.TB, ask func(context.Context) (lock.Grant, error)) *acquiring {
	a := &acquiring{t: t, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); <-a.done })
	go func() {
		defer close(a.done)
		a.grant, a.err = ask(ctx)
	}()
	return a
}

func (a *acquiring) granted() lock.Grant {
	a.t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		if a.t.Failed() { // it may be for that
			a.t.FailNow()
		}
		a.t.Fatalf("not granted after %s", patience)
	}
	if a.err != nil {
		a.t.Fatalf("Acquire: %v", a.err)
	}
	return a.grant
}

func (a *acquiring) pending(d time.Duration) {
	a.t.Helper()
	select {
	case <-a.done:
		a.t.Fatalf("Acquire has returned %+v, %v", a.grant, a.err)
	case <-time.After(d):
	}
}

// The holder's app is paused past the end of its lease and goes on when another
// has the lock: it cannot commit.
func TestGuardKeepsOutTheLate(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, other := sidecar(t, s.URL(), 30*time.Second)
		r := unique("Größe/'\"\\%")
		var g lock.Grant
		eventually(t, "a lease of the shortest kind has the lock", func() (err error) { // a busy machine may let it end before
			g, err = leaseFor(t, b, lock.MinTTL).Acquire(t.Context(), exclusive(r))
			return err
		})
		app := newApp(t, b, "")
		late := app.begin(1)
		next := acquire(t, other, exclusive(r)).granted() // the paused one sends no heartbeats
		if late.guarded(g.Guard) {
			t.Error("the guard of the late holder found its hold")
		}
		late.rollBack()
		intime := app.begin(2)
		if !intime.guarded(next.Guard) {
			t.Error("the guard of the holder did not find its hold")
		}
		intime.commit()
	})
}

// The guard comes first: the lease may end, but the lock goes to nobody else
// before the transaction does.
func TestGuardHoldsOffTheNext(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		// In tables of its own: elsewhere the keeper may be the lease of another test
		// that is not renewed, and is replaced only after a TTL of half a minute.
		url := own(t, s, "guardnext_")
		b, _ := sidecar(t, url, lock.MinTTL) // makes the tables
		r := unique("r")
		a := newApp(t, b, "")
		paused, g, intime := soonOver(t, b, a, exclusive(r))
		other, l := sidecar(t, url, 30*time.Second)
		keepAlive(t, t.Context(), l)
		next := acquire(t, l, exclusive(r))
		eventually(t, "the lease is over", func() error {
			if n := number(t, other, "SELECT COUNT(*) FROM {lease} WHERE id=? AND ended=0", []byte(paused.ID())); n > 0 {
				return errors.New("it is there")
			}
			return nil
		})
		next.pending(1500 * time.Millisecond) // longer than a statement waits for a row
		try := exclusive(r)
		try.Try = true
		start := time.Now()
		if _, err := l.Acquire(t.Context(), try); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("a try beside an open transaction with a guard: %v", err)
		}
		if took := time.Since(start); took > patience/2 {
			t.Errorf("a try beside an open transaction with a guard took %s", took)
		}
		intime.commit()
		late := a.begin(1)
		next.granted()
		if late.guarded(g.Guard) {
			t.Error("the guard found the hold after the lock was granted to another")
		}
	})
}

// soonOver takes a hold on a lease that nobody renews, and runs its guard in a transaction
// that stays open: again where the machine is so busy that the lease ends before.
func soonOver(t testing.TB, b *store, a *app, q lock.Request) (l lock.Lease, g lock.Grant, tx *transfer) {
	t.Helper()
	eventually(t, "the guard finds a hold that is soon over", func() (err error) {
		q.ID, q.Try = lock.NewHoldID(), false
		l = leaseFor(t, b, lock.MinTTL)
		if g, err = l.Acquire(t.Context(), q); err != nil {
			return errors.Join(err, l.Close(context.WithoutCancel(t.Context())))
		}
		if tx = a.begin(1); !tx.guarded(g.Guard) {
			tx.rollBack()
			return errors.New("it does not")
		}
		return nil
	})
	return l, g, tx
}

// A release waits for the transaction too, and is not forgotten when its caller
// waits no longer.
func TestGuardAndRelease(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		r := unique("r")
		g := hold(t, l, r)
		tx := newApp(t, b, "").begin(1)
		if !tx.guarded(g.Guard) {
			t.Fatal("the guard of the holder did not find its hold")
		}
		next := insist(t, other, exclusive(r))
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := l.Release(ctx, r, g.ID); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Release beside an open transaction with a guard: %v", err)
		}
		next.pending(100 * time.Millisecond)
		tx.commit()
		next.granted()
	})
}

// The guard of an exclusive hold is good after its downgrade, and that of a
// shared hold keeps writers off and no readers.
func TestGuardOfShared(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		keepAlive(t, t.Context(), l)
		keepAlive(t, t.Context(), other)
		r := unique("r")
		g := hold(t, l, r)
		a := newApp(t, b, "")
		tx := a.begin(1)
		if !tx.guarded(g.Guard) {
			t.Error("the guard did not find the exclusive hold")
		}
		tx.commit()
		if err := l.Downgrade(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		tx = a.begin(2)
		if !tx.guarded(g.Guard) {
			t.Error("the guard did not find the hold after its downgrade")
		}
		tx.commit()

		q := exclusive(r)
		q.Mode = lock.Shared
		reader, err := l.Acquire(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		q.ID = lock.NewHoldID()
		beside, err := other.Acquire(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		tx = a.begin(3)
		tx2 := newApp(t, b, "").begin(4)
		if !tx.guarded(reader.Guard) || !tx2.guarded(beside.Guard) {
			t.Error("the guards of two readers did not find their holds")
		}
		q.ID = lock.NewHoldID()
		q.Try = true
		third, err := other.Acquire(t.Context(), q)
		if err != nil {
			t.Errorf("a third reader: %v", err)
		}
		tx.commit()
		tx2.commit()
		for _, g := range []lock.Grant{beside, third} {
			if err := other.Release(t.Context(), r, g.ID); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, reader, tx = soonOver(t, b, a, q)
		writer := acquire(t, other, exclusive(r))
		writer.pending(lock.MinTTL + time.Second) // the lease of the reader dies
		tx.commit()
		writer.granted()
		if a.begin(5).guarded(reader.Guard) {
			t.Error("the guard found the reader's hold after the lock was granted to a writer")
		}
	})
}

// keepAlive renews a lease until ctx ends.
func keepAlive(t testing.TB, ctx context.Context, l lock.Lease) (done chan struct{}) {
	done = make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_ = beat(ctx, l)
			time.Sleep(lock.MinTTL / 10)
		}
	}()
	t.Cleanup(func() { <-done })
	return done
}
