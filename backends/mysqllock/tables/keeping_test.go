package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// own gives a test tables of its own on the shared server.
func own(t *testing.T, s testengine.Server, prefix string) string {
	t.Helper()
	url := with(s.URL(), "prefix="+prefix)
	t.Cleanup(func() {
		b := openAt(t, url)
		defer func() { _ = b.Close() }()
		for _, name := range tableNames {
			execute(t, b, "DROP TABLE IF EXISTS {"+name+"}")
		}
	})
	return url
}

func TestSchema(t *testing.T) {
	eachKind(t, func(t *testing.T, s testengine.Server) {
		url := own(t, s, "schema_")
		open := func(url string) error {
			b := openAt(t, url)
			defer func() { _ = b.Close() }()
			l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: time.Second})
			if err == nil {
				err = l.Close(t.Context())
			}
			return err
		}
		says := func(err error, want string) {
			t.Helper()
			if !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want ErrUnavailable with %q", err, want)
			}
		}
		says(open(with(url, "migrate=false")), "locksidecar schema mysql")
		var wg sync.WaitGroup
		for range 4 { // at the same time
			wg.Go(func() {
				if err := open(url); err != nil {
					t.Errorf("open a lease where there are no tables yet: %v", err)
				}
			})
		}
		wg.Wait()
		if err := open(with(url, "migrate=false")); err != nil {
			t.Error(err)
		}
		b := openAt(t, url)
		defer func() { _ = b.Close() }()
		execute(t, b, "UPDATE {meta} SET value=99 WHERE name='schema'")
		says(open(url), "use a newer sidecar")
		execute(t, b, "UPDATE {meta} SET value=0 WHERE name='schema'")
		says(open(url), "locksidecar schema mysql")
		// What a person applies does the same as the sidecar, also twice.
		for range 2 {
			execute(t, b, strings.ReplaceAll(strings.TrimSuffix(strings.TrimSpace(Schema("schema_")), ";"), "%", ""))
		}
		execute(t, b, "UPDATE {meta} SET value=1 WHERE name='schema'")
		if err := open(with(url, "migrate=false")); err != nil {
			t.Error(err)
		}

		user := "nobody_" + string(lock.NewHoldID())[:8]
		execute(t, b, "CREATE USER "+user+"; GRANT SELECT ON "+b.cfg.Database+".* TO "+user)
		says(open(strings.Replace(url, "root@", user+"@", 1)), "lacks a privilege")
		says(open(strings.Replace(url, "root@", user+":wrong@", 1)), "user or password")
	})
}

// What dead leases left, idle rows and the old end of the log go.
func TestReap(t *testing.T) {
	eachKind(t, func(t *testing.T, s testengine.Server) {
		url := own(t, s, "reap_")
		b, l := sidecar(t, url, 30*time.Second)
		const high = 9_000_000_000_000_000 // as if the clock had been far ahead
		for i := range 5 {
			g := hold(t, l, lock.Resource(fmt.Sprint("idle", i)))
			if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
				t.Fatal(err)
			}
		}
		execute(t, b, "UPDATE {lock} SET fence=fence-3600000000 WHERE name IN ('idle0', 'idle1')")
		g := hold(t, l, "held")
		execute(t, b, "UPDATE {lock} SET fence=5 WHERE name='held'")
		dead := []byte("dead")
		execute(t, b, "INSERT INTO {lock} (name, fence, readers, waiters, gone, x_id, x_lease, x_since) VALUES ('x', 1, 0, 1, 1, 'a', ?, NOW(6)), ('s', 1, 1, 0, 0, NULL, NULL, NULL);"+
			"INSERT INTO {hold} (name, id, lease, fence, since) VALUES ('s', 'b', ?, 1, NOW(6));"+
			"INSERT INTO {queue} (name, seq, id, lease, mode, since) VALUES ('x', 1, 'c', ?, 'S', NOW(6));"+
			"INSERT INTO {gone} (name, id, lease, at) VALUES ('x', 'd', ?, NOW(6));"+
			"INSERT INTO {news} (lease, id, kind, name, fence, grace, at) VALUES (?, 'c', 'g', 'x', 1, 0, NOW(6));"+
			"UPDATE {log} SET at=NOW(6) - INTERVAL 8 DAY, event='old' WHERE id=2",
			dead, dead, dead, dead, dead)
		eventually(t, "everything is reaped", func() error { // the lease does it too, now and then
			if err := b.reap(t.Context()); err != nil {
				return err
			}
			if n := number(t, b, "SELECT COUNT(*) FROM {log} WHERE event='old'"); n > 0 { // the last to go
				return errors.New("it is not")
			}
			return nil
		})
		for what, want := range map[string]int64{
			"SELECT COUNT(*) FROM {hold}":                                               0,
			"SELECT COUNT(*) FROM {queue}":                                              0,
			"SELECT COUNT(*) FROM {gone}":                                               0,
			"SELECT COUNT(*) FROM {news}":                                               0,
			"SELECT COUNT(*) FROM {log} WHERE event='old'":                              0,
			"SELECT COUNT(*) FROM {log} WHERE id=1":                                     1,
			"SELECT COUNT(*) FROM {log} WHERE event='expire'":                           3,
			"SELECT COUNT(*) FROM {lock} WHERE name LIKE 'idle%'":                       3,
			"SELECT COUNT(*) FROM {lock} WHERE name='held'":                             1,
			"SELECT COALESCE(SUM(readers+waiters+gone), 0) FROM {lock}":                 0,
			"SELECT COUNT(*) FROM {lock} WHERE x_id IS NOT NULL AND name<>'held'":       0,
			"SELECT COUNT(*) FROM {meta} WHERE name='floor' AND value>1700000000000000": 1,
		} {
			if got := number(t, b, what); got != want {
				t.Errorf("%s: got %d, want %d", what, got, want)
			}
		}
		// A row that is made again begins at the floor at least.
		execute(t, b, "UPDATE {meta} SET value=? WHERE name='floor'", int64(high))
		if g := hold(t, l, "idle0"); g.Fence <= lock.FenceOf(high) {
			t.Errorf("the row of idle0 was made again and grants fence %d", g.Fence)
		}
		if err := l.Release(t.Context(), "held", g.ID); err != nil {
			t.Error(err)
		}
	})
}

// After the connection of the heartbeats was another, what the store has lost is
// told, and what only the store knows is released: a replica that lagged by a
// grant and a release has taken over.
func TestMemoriesAreCompared(t *testing.T) {
	eachKind(t, func(t *testing.T, s testengine.Server) {
		road := testengine.Through(t, s)
		b, l := sidecar(t, road.URL(), 30*time.Second)
		kept, vanished, stale := hold(t, l, unique("kept")), hold(t, l, unique("vanished")), unique("stale")
		execute(t, b, "UPDATE {lock} SET x_id=NULL, x_lease=NULL WHERE name=?", []byte(vanished.Resource))
		execute(t, b, "INSERT INTO {lock} (name, fence, x_id, x_lease, x_since) VALUES (?, 1, 'stale', ?, NOW(6))", []byte(stale), []byte(l.id))
		road.Inject(testengine.Sever)
		var news []lock.Event
		eventually(t, "a heartbeat gets through", func() (err error) {
			news, err = l.Heartbeat(t.Context())
			return err
		})
		if diff := cmp.Diff([]lock.Event{{Kind: lock.Vanished, Resource: vanished.Resource, ID: vanished.ID}}, news); diff != "" {
			t.Errorf("news of the hold that vanished (-want +got):\n%s", diff)
		}
		if st, err := b.Get(t.Context(), stale); err != nil || len(st.Holders) > 0 {
			t.Errorf("what only the store knew: %+v, %v", st, err)
		}
		if err := l.Release(t.Context(), kept.Resource, kept.ID); err != nil {
			t.Errorf("Release of what both knew: %v", err)
		}
	})
}

// Whoever forced a release dies before its grace is over.
func TestForcerDies(t *testing.T) {
	eachKind(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		forcer := openAt(t, s.URL())
		r := unique("r")
		g := hold(t, l, r)
		next := acquire(t, other, exclusive(r))
		eventually(t, "the waiter is in the queue", func() error {
			if st, err := b.Get(t.Context(), r); err != nil || len(st.Waiters) == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		const grace = 700 * time.Millisecond
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := forcer.ForceRelease(ctx, r, g.ID, grace); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ForceRelease: %v", err)
		}
		if err := forcer.Close(); err != nil {
			t.Error(err)
		}
		next.granted()
		if took := time.Since(start); took < grace {
			t.Errorf("granted %s after a forced release with a grace of %s", took, grace)
		}
	})
}

// A lease keeps no more than it needs.
func TestNothingIsKept(t *testing.T) {
	b, l := sidecar(t, testengine.Shared(t, testengine.MariaDB).URL(), 30*time.Second)
	_, other := sidecar(t, testengine.Shared(t, testengine.MariaDB).URL(), 30*time.Second)
	r := unique("r")
	for range 3 * tidyNews {
		g := hold(t, l, r)
		next := acquire(t, other, exclusive(r))
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		if err := other.Release(t.Context(), r, next.granted().ID); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the news are cleared away", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {news} WHERE lease=?", []byte(other.id)); n > tidyNews {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	})
	for _, l := range []*lease{l, other} {
		l.mu.Lock()
		if len(l.entries) > 0 || l.waiters != 0 {
			t.Errorf("%d entries and %d waiters are kept", len(l.entries), l.waiters)
		}
		l.mu.Unlock()
	}
}

// Everything that happens to a resource is in the log in the end, in its order,
// whichever way it went.
func TestLog(t *testing.T) {
	eachKind(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		r := unique("r")
		var want []string
		event := func(event string, l *lease, id lock.HoldID, fence lock.Fence) {
			want = append(want, fmt.Sprintf("%s %s %s %d", event, l.id, id, fence/lock.FenceRange)) // the log has the store's number
		}
		release := func(l *lease, g lock.Grant) {
			t.Helper()
			if err := l.Release(t.Context(), r, g.ID); err != nil {
				t.Fatal(err)
			}
		}
		for range 60 { // more than a trail has room for
			g := hold(t, l, r)
			event("acquire", l, g.ID, g.Fence)
			release(l, g)
			event("release", l, g.ID, g.Fence)
		}
		g := hold(t, l, r)
		event("acquire", l, g.ID, g.Fence)
		q := exclusive(r)
		next := acquire(t, other, q)
		eventually(t, "it waits", func() error {
			if st, err := b.Get(t.Context(), r); err != nil || len(st.Waiters) == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		event("queue", other, q.ID, 0)
		release(l, g)
		event("release", l, g.ID, g.Fence)
		g2 := next.granted()
		event("grant", other, g2.ID, g2.Fence)
		release(other, g2)
		event("release", other, g2.ID, g2.Fence)
		g = hold(t, l, r)
		event("acquire", l, g.ID, g.Fence)
		if err := l.Downgrade(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		event("downgrade", l, g.ID, g.Fence)
		release(l, g)
		event("release", l, g.ID, g.Fence)
		g = hold(t, l, r)
		event("acquire", l, g.ID, g.Fence)
		if err := other.b.ForceRelease(t.Context(), r, g.ID, 0); err != nil {
			t.Fatal(err)
		}
		<-l.Events()
		event("force", l, g.ID, g.Fence)
		g = hold(t, l, r)
		event("acquire", l, g.ID, g.Fence)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		event("release", l, g.ID, g.Fence)
		g = hold(t, other, r)
		event("acquire", other, g.ID, g.Fence)
		release(other, g)
		event("release", other, g.ID, g.Fence)
		eventually(t, "all is in the log", func() error {
			var got []string
			if err := b.query(t.Context(), "test", func(_ int, rows *sql.Rows) error {
				var event, lease, hold string
				var fence int64
				err := rows.Scan(&event, &lease, &hold, &fence)
				got = append(got, fmt.Sprintf("%s %s %s %d", event, lease, hold, fence))
				return err
			}, replaceNames("SELECT event, lease, hold, fence FROM {log} WHERE name=? ORDER BY id", b.cfg.Table), []byte(r)); err != nil {
				return err
			}
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
		if n := number(t, b, "SELECT COUNT(*) FROM {log} WHERE name=? AND (at<NOW(6) - INTERVAL 1 MINUTE OR at>NOW(6))", []byte(r)); n > 0 {
			t.Errorf("%d rows have a strange time", n)
		}
	})
}

// Without a log everything else is as always.
func TestNoLog(t *testing.T) {
	eachKind(t, func(t *testing.T, s testengine.Server) {
		url := with(own(t, s, "nolog_"), "log-keep=0s")
		b, l := sidecar(t, url, 30*time.Second)
		_, other := sidecar(t, url, 30*time.Second)
		r := unique("r")
		for range 3 {
			g := hold(t, l, r)
			next := acquire(t, other, exclusive(r))
			if err := l.Release(t.Context(), r, g.ID); err != nil {
				t.Fatal(err)
			}
			if err := other.Release(t.Context(), r, next.granted().ID); err != nil {
				t.Fatal(err)
			}
		}
		hold(t, l, r)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := number(t, b, "SELECT COUNT(*) FROM {log} WHERE id>1"); n > 0 {
			t.Errorf("%d rows of the log", n)
		}
	})
}

func TestTrail(t *testing.T) {
	const since, until = "2026-01-02 03:04:05.000006", "2026-01-02 03:04:06.000007"
	one := append(trailOf("id \x00;", "lease", 42), "1"+since+until+";"...)
	two := append(trailOf("b", "l", 43), "0"+since+until+";"...)
	want := []logged{
		{at: since, event: "acquire", id: "id \x00;", lease: "lease", fence: 42},
		{at: until, event: "release", id: "id \x00;", lease: "lease", fence: 42},
		{at: until, event: "release", id: "b", lease: "l", fence: 43},
	}
	if diff := cmp.Diff(want, readTrail(append(one, two...)), cmp.AllowUnexported(logged{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i := range two {
		if got := readTrail(two[:i]); i < len(two)-1 && len(got) > 0 {
			t.Errorf("the first %d bytes of a trail give %+v", i, got)
		}
	}
	if longest := len(trailOf(lock.HoldID(strings.Repeat("x", maxID)), lock.LeaseID(strings.Repeat("x", maxID)), 1<<62)) + 2 + 2*timeLength; maxTrail+longest > 4000 {
		t.Errorf("a trail may be %d bytes long", maxTrail+longest)
	}
}
