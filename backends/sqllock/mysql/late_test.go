package mysql

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// An app is frozen in its transaction, behind the guard of a hold that is over. Other locks
// are granted: under READ COMMITTED always, and under REPEATABLE READ where the guard was of
// an exclusive hold and the row of its resource is still there. Where no row is, that level keeps
// others from making one near it, and docs/stores/mysql.md says so.
func TestLateGuardLeavesOtherLocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		level  string
		mode   lock.Mode
		absent bool // the keeper has deleted the row meanwhile
	}{
		"exclusive, REPEATABLE READ":        {"REPEATABLE-READ", lock.Exclusive, false},
		"exclusive, READ COMMITTED":         {"READ-COMMITTED", lock.Exclusive, false},
		"exclusive, absent, READ COMMITTED": {"READ-COMMITTED", lock.Exclusive, true},
		"shared, READ COMMITTED":            {"READ-COMMITTED", lock.Shared, true},
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t testing.TB, s testengine.Server) {
				url := own(t, s, "late_")
				b, l := sidecar(t, url, 10*time.Minute)
				_, other := sidecar(t, url, 10*time.Minute)
				params := "&transaction_isolation='" + c.level + "'"
				if strings.Contains(rows(t, b, "SELECT VERSION()")[0].Text(0), "MariaDB") {
					params = "&tx_isolation='" + c.level + "'"
				}
				late := exclusive("m")
				late.Mode = c.mode
				g, err := l.Acquire(t.Context(), late)
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Release(t.Context(), late.Resource, late.ID); err != nil {
					t.Fatal(err)
				}
				if c.absent {
					execute(t, b, "DELETE FROM {lock} WHERE name=?", []byte(late.Resource))
					time.Sleep(2 * time.Second) // so that nothing is left in the index
				}
				frozen := newApp(t, b, params).begin(int(time.Now().UnixNano() % 1e9))
				if frozen.guarded(g.Guard) {
					t.Error("the guard of a hold that is over has found it")
				}
				for _, mode := range []lock.Mode{lock.Exclusive, lock.Shared} {
					for _, r := range []lock.Resource{"a", "m-", "z"} {
						q := exclusive(r)
						q.Mode = mode
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						_, err := other.Acquire(ctx, q)
						cancel()
						if err != nil {
							t.Fatalf("%s %s, beside the late guard: %v", mode, r, err)
						}
						if err := other.Release(t.Context(), r, q.ID); err != nil {
							t.Error(err)
						}
					}
				}
				frozen.rollBack()
			})
		})
	}
}
