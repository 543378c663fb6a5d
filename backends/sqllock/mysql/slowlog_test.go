package mysql

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// A connection that sleeps until its bell rings is no slow query, whatever the server
// takes for one.
func TestSleeperIsNotInTheSlowLog(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind) // what is set below is the whole server's
			b := openAt(t, s.URL())
			t.Cleanup(func() { _ = b.Close() })
			execute(t, b, "SET GLOBAL log_output='TABLE'")
			execute(t, b, "SET GLOBAL long_query_time=0.1") // of connections that are made from now on
			execute(t, b, "SET GLOBAL slow_query_log=ON")

			d := New(mustParse(t, s.URL()), nil)
			p, err := d.Open(sqllock.PoolOptions{Size: 1, Long: 1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = p.Close() })
			id := lock.NewLeaseID()
			var rung atomic.Int64
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = d.Listen(ctx, id, "", func() { rung.Add(1) })
			}()
			t.Cleanup(func() { stop(); <-done })
			sleeps := func() error {
				if number(t, b, "SELECT COUNT(*) FROM information_schema.processlist WHERE info='SELECT SLEEP(60)' AND time>=1") == 0 {
					return errors.New("it does not")
				}
				return nil
			}
			eventually(t, "it sleeps", sleeps)
			before := rung.Load()
			eventually(t, "it has slept again since", func() error { // the first sleep is in the log by then
				if err := d.Ring(t.Context(), p, []lock.LeaseID{id}); err != nil {
					return err
				}
				if rung.Load() < before+2 {
					return errors.New("it has not")
				}
				return nil
			})
			// Another statement as slow is there.
			if _, err := p.Do(t.Context(), "test", sqllock.Statement{SQL: "SELECT SLEEP(0.5)"}); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a slow query is in the log", func() error {
				if number(t, b, "SELECT COUNT(*) FROM mysql.slow_log WHERE sql_text LIKE '%SLEEP(0.5)%' AND sql_text NOT LIKE '%slow_log%'") == 0 {
					return errors.New("it is not")
				}
				return nil
			})
			if n := number(t, b, "SELECT COUNT(*) FROM mysql.slow_log WHERE sql_text LIKE '%SLEEP(60)%' AND sql_text NOT LIKE '%slow_log%' AND sql_text NOT LIKE '%processlist%'"); n > 0 {
				t.Errorf("the sleeper is in the slow log, %d times", n)
			}
		})
	}
}
