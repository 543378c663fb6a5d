package rows

import (
	"database/sql"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// TestGuardOfLostHold: a writer's link is gone, and others are granted what it had. Its
// late guard says so, whether those others write or only read. (Issue 10, 2.2.)
func TestGuardOfLostHold(t *testing.T) {
	onEach(t, func(t testing.TB, s testengine.Server) {
		a, b := open1(t, s.URL(), 10*time.Minute), open1(t, s.URL(), 10*time.Minute)
		for _, had := range []lock.Mode{lock.Exclusive, lock.Shared} {
			for _, next := range []lock.Mode{lock.Exclusive, lock.Shared} {
				r := name(t) + lock.Resource("/größe/"+had.String()+"/"+next.String())
				if had == lock.Shared && next == lock.Shared {
					continue
				}
				g := a.hold(r, had)
				sleepy := begin(t, s.URL())
				w := b.queue(request(r, next))
				kill(t, s, a.connection(g.ID))
				a.lost(g)
				now := w.granted()
				if sleepy.guarded(t, g) {
					t.Errorf("%s: the guard of the lost hold says that it may commit beside a hold that is %s", had, next)
				}
				if err := sleepy.tx.Rollback(); err != nil {
					t.Fatal(err)
				}
				if !begin(t, s.URL()).guarded(t, now) {
					t.Errorf("%s: the guard of the holder says that it may not commit", next)
				}
			}
		}
	})
}

// app is an app's own transaction.
type app struct{ tx *sql.Tx }

func begin(t testing.TB, url string) *app {
	t.Helper()
	p := admin(t, url)
	t.Cleanup(func() { _ = p.Close() })
	tx, err := p.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead}) // as most apps have it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.ExecContext(t.Context(), "SELECT COUNT(*) FROM locksidecar_row"); err != nil { // it has a view of the data from before
		t.Fatal(err)
	}
	return &app{tx}
}

// guarded runs the guard, and tells whether the app may commit.
func (a *app) guarded(t testing.TB, g lock.Grant) bool {
	t.Helper()
	args := make([]any, len(g.Guard.Args))
	for i, arg := range g.Guard.Args {
		args[i] = arg
	}
	res, err := a.tx.ExecContext(t.Context(), g.Guard.SQL, args...)
	if err != nil {
		t.Log(err) // MariaDB: the row has changed since the app's view
		return false
	}
	n, err := res.RowsAffected()
	if err != nil {
		t.Fatal(err)
	}
	return n == 1
}
