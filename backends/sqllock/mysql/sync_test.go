package mysql

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/backendtest"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
)

// With semi-synchronous replication the server waits for a replica that is away: it answers no commit, and does not notice that who
// asked for it is gone. A busy sidecar does not fill the server with connections that wait, neither before its
// lease is over nor after that.
func TestReplicaIsAway(t *testing.T) {
	const ttl, apps, size, most = 3 * time.Second, 100, 4, 3 * (4 + 3)
	s := testengine.New(t, testengine.MariaDBPair) // the replica confirms nothing
	admin := openAt(t, strings.Replace(s.URL(), testengine.User+":"+testengine.Password+"@", "root@", 1))
	t.Cleanup(func() { _ = admin.Close() })
	d := New(mustParse(t, with(s.URL(), "timeout=300ms")), nil)
	b, err := sqllock.Open(d, sqllock.Options{Migrate: true, FailoverGrace: -1, MaxConnections: size, LogKeep: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l := leaseFor(t, &store{Backend: b, d: d}, ttl)
	execute(t, admin, "SET GLOBAL rpl_semi_sync_master_timeout=3600000, GLOBAL rpl_semi_sync_master_wait_no_slave=1,"+
		" GLOBAL rpl_semi_sync_master_wait_point='AFTER_SYNC', GLOBAL rpl_semi_sync_master_enabled=1")
	stop := backendtest.AtWork(t, b, l, ttl, apps)
	connections := func() int64 {
		return number(t, admin, "SELECT COUNT(*) FROM information_schema.processlist WHERE user=?", testengine.User)
	}
	n := int64(0)
	for end := time.Now().Add(4 * ttl); time.Now().Before(end); time.Sleep(ttl / 10) {
		n = max(n, connections())
	}
	if t.Logf("%d connections", n); n > most {
		t.Errorf("the server keeps %d connections of a sidecar that has %d", n, size+3)
	}
	execute(t, admin, "SET GLOBAL rpl_semi_sync_master_enabled=0") // all have an answer
	stop()
	eventually(t, "they are gone", func() error {
		if n := connections(); n > size+3 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}
