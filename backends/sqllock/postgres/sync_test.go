package postgres

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/backendtest/served"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// The server waits for a standby that is away: it answers no commit, and does not notice that who asked for it is gone. A busy sidecar
// does not fill the server with connections that wait, neither before its lease is over nor after that.
func TestStandbyIsAway(t *testing.T) {
	const ttl, apps, size, most = 3 * time.Second, 100, 4, 2 * (4 + 3)
	s := testengine.New(t, testengine.Postgres)
	h := &harness{&served.Store{Server: s}}
	b, err := sqllock.Open(dialect(t, with(s.URL(), "timeout=300ms")),
		sqllock.Options{Migrate: true, FailoverGrace: -1, MaxConnections: size, LogKeep: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	l := leaseOf(t, b, ttl)
	waitFor := func(name string) {
		h.execute(t, "ALTER SYSTEM SET synchronous_standby_names='"+name+"'")
		h.execute(t, "SELECT pg_reload_conf()")
		eventually(t, "it is set", func() error {
			if is := h.execute(t, "SELECT current_setting('synchronous_standby_names')")[0].Text(0); is != name {
				return fmt.Errorf("it waits for %q", is)
			}
			return nil
		})
	}
	waitFor("away")
	stop := backendtest.AtWork(t, b, l, ttl, apps)
	waiting := func() int64 {
		return h.execute(t, "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name='locksidecar' AND wait_event='SyncRep'")[0].Int(0)
	}
	eventually(t, "a commit waits", func() error {
		if waiting() == 0 {
			return errors.New("none does")
		}
		return nil
	})
	n := int64(0)
	for end := time.Now().Add(6 * ttl); time.Now().Before(end); time.Sleep(ttl / 10) {
		n = max(n, waiting())
	}
	if t.Logf("%d connections wait", n); n > most {
		t.Errorf("%d connections wait, of a sidecar that has %d", n, size+3)
	}
	waitFor("") // all have an answer
	eventually(t, "none waits", func() error {
		if n := waiting(); n > 0 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	stop()
}
