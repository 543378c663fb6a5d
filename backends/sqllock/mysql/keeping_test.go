package mysql

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// own gives a test tables of its own on the shared server.
func own(t testing.TB, s testengine.Server, prefix string) string {
	t.Helper()
	url := with(s.URL(), "prefix="+prefix)
	t.Cleanup(func() {
		b := openAt(t, url)
		defer func() { _ = b.Close() }()
		for _, name := range []string{"lease", "lock", "hold", "queue", "note", "least", "handle", "record", "log", "meta"} {
			execute(t, b, "DROP TABLE IF EXISTS {"+name+"}")
		}
	})
	return url
}

func TestSchema(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
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
			execute(t, b, strings.TrimSuffix(strings.TrimSpace(Schema("schema_")), ";"))
		}
		execute(t, b, "UPDATE {meta} SET value=3 WHERE name='schema'")
		if err := open(with(url, "migrate=false")); err != nil {
			t.Error(err)
		}

		user := "nobody_" + string(lock.NewHoldID())[:8]
		execute(t, b, "CREATE USER "+user)
		execute(t, b, "GRANT SELECT ON "+b.d.cfg.Database+".* TO "+user)
		says(open(strings.Replace(url, "root@", user+"@", 1)), "lacks a privilege")
		says(open(strings.Replace(url, "root@", user+":wrong@", 1)), "user or password")
	})
}

// Idle rows, notes and the old end of the log go, in bounded steps. Time is the
// keeper's own, for what must not come too soon.
func TestReap(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		var ahead atomic.Int64
		clock := func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) }
		b := openClock(t, own(t, s, "reap_"), clock)
		l := leaseOf(t, b)
		keepAlive(t, t.Context(), l)
		take := func(r lock.Resource) lock.Grant {
			g := hold(t, l, r)
			if err := l.Release(t.Context(), r, g.ID); err != nil {
				t.Fatal(err)
			}
			return g
		}
		for i := range 5 {
			take(lock.Resource(fmt.Sprint("idle", i)))
		}
		last := take("idle0")
		// As if the clock had been an hour behind at that time.
		execute(t, b, "UPDATE {lock} SET fence=fence-3600000000 WHERE name IN ('idle0', 'idle1')")
		kept := hold(t, l, "held")
		execute(t, b, "UPDATE {lock} SET fence=5 WHERE name='held'")
		q := exclusive("held")
		waiting := acquire(t, l, q)
		eventually(t, "it waits", func() error { return waits(t, b, "held") })
		if err := b.ForceRelease(t.Context(), "held", q.ID, 0); err != nil { // leaves a note
			t.Fatal(err)
		}
		<-waiting.done
		none := func(what, query string) {
			t.Helper()
			eventually(t, what, func() error {
				if n := number(t, b, query); n > 0 {
					return fmt.Errorf("%d are there", n)
				}
				return nil
			})
		}
		is := func(query string, want int64) {
			t.Helper()
			if got := number(t, b, query); got != want {
				t.Errorf("%s: got %d, want %d", query, got, want)
			}
		}
		eventually(t, "the floor is raised", func() error {
			if number(t, b, "SELECT value FROM {meta} WHERE name='floor'") == 0 {
				return errors.New("it is not")
			}
			return nil
		})
		execute(t, b, "UPDATE {log} SET at=at-2*86400000000, event='old' WHERE name='idle4'")
		none("the old end of the log is deleted", "SELECT COUNT(*) FROM {log} WHERE event='old'") // so the keeper has noted when it raised the floor
		is("SELECT COUNT(*) FROM {lock} WHERE name LIKE 'idle%'", 5)                              // not at the same time
		ahead.Add(int64(2 * time.Minute))
		none("idle rows are deleted", "SELECT COUNT(*) FROM {lock} WHERE name IN ('idle0', 'idle1')")
		is("SELECT COUNT(*) FROM {lock} WHERE name LIKE 'idle%'", 3)
		is("SELECT COUNT(*) FROM {lock} WHERE name='held'", 1)
		is("SELECT COUNT(*) FROM {note}", 1)
		for range 3 {
			era := number(t, b, "SELECT value FROM {meta} WHERE name='era'")
			ahead.Add(int64(16 * time.Minute))
			eventually(t, "the era is over", func() error {
				if number(t, b, "SELECT value FROM {meta} WHERE name='era'") == era {
					return errors.New("it is not")
				}
				return nil
			})
		}
		none("notes are deleted", "SELECT COUNT(*) FROM {note}")
		// A row that is made again begins at the floor at least.
		const high = 9_000_000_000_000_000
		execute(t, b, "UPDATE {meta} SET value=? WHERE name='floor'", int64(high))
		if g := take("idle0"); g.Fence < lock.FenceOf(high) || g.Fence <= last.Fence {
			t.Errorf("the row of idle0 was made again and grants fence %d", g.Fence)
		}
		if err := l.Release(t.Context(), "held", kept.ID); err != nil {
			t.Error(err)
		}
	})
}

// After the connection of the heartbeats was another, what the store has lost is
// told, and what only the store knows is released: a replica that lagged by a
// grant and a release has taken over.
func TestMemoriesAreCompared(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		b, l := sidecar(t, road.URL(), 30*time.Second)
		kept, vanished, stale := hold(t, l, unique("kept")), hold(t, l, unique("vanished")), unique("stale")
		execute(t, b, "UPDATE {lock} SET x_id=NULL, x_lease=NULL WHERE name=?", []byte(vanished.Resource))
		execute(t, b, "INSERT INTO {lock} (name, fence, x_id, x_lease, x_since) VALUES (?, 1, 'stale', ?, 1)", []byte(stale), []byte(l.ID()))
		road.Inject(testengine.Sever)
		var news []lock.Event
		eventually(t, "a heartbeat gets through", func() (err error) {
			news, err = l.Heartbeat(t.Context())
			return err
		})
		if diff := cmp.Diff([]lock.Event{{Kind: lock.Vanished, Resource: vanished.Resource, ID: vanished.ID}}, news); diff != "" {
			t.Errorf("news of the hold that vanished (-want +got):\n%s", diff)
		}
		eventually(t, "what only the store knew is released", func() error {
			if st, err := b.Get(t.Context(), stale); err != nil || len(st.Holders) > 0 {
				return fmt.Errorf("it is there: %+v, %w", st, err)
			}
			return nil
		})
		if err := l.Release(t.Context(), kept.Resource, kept.ID); err != nil {
			t.Errorf("Release of what both knew: %v", err)
		}
	})
}

// Whoever forced a release dies before its grace is over.
func TestForcerDies(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		forcer := openAt(t, s.URL())
		go func() {
			for range l.Events() { // it is told, and goes on
			}
		}()
		r := unique("r")
		g := hold(t, l, r)
		next := acquire(t, other, exclusive(r))
		eventually(t, "the waiter is in the queue", func() error {
			return waits(t, b, r)
		})
		const grace = 3 * time.Second
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		forced := make(chan error, 1)
		go func() { forced <- forcer.ForceRelease(ctx, r, g.ID, grace) }()
		eventually(t, "the hold is revoked", func() error {
			st, err := b.Get(t.Context(), r)
			if err == nil && len(st.Holders) == 1 && st.Holders[0].ID == g.ID && !st.Holders[0].Revoked {
				err = errors.New("it is not")
			}
			return err
		})
		cancel()
		if err := <-forced; err != nil && !errors.Is(err, context.Canceled) {
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

// Everything that happens to a resource is in the log in the end, whichever way it
// went. (Each sidecar writes its own part, with times that it knows to some
// milliseconds, so the order of what two of them did is as good as that.)
func TestLog(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		ob, other := sidecar(t, s.URL(), 30*time.Second)
		began := number(t, b, "SELECT CAST(UNIX_TIMESTAMP()*1000000 AS SIGNED)")
		r := unique("r")
		var want []string
		event := func(event string, l lock.Lease, id lock.HoldID, fence lock.Fence) {
			want = append(want, fmt.Sprintf("%s %s %s %d", event, l.ID(), id, fence/lock.FenceRange)) // the log has the store's number
		}
		release := func(l lock.Lease, g lock.Grant) {
			t.Helper()
			if err := l.Release(t.Context(), r, g.ID); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
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
			return waits(t, b, r)
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
		if err := ob.ForceRelease(t.Context(), r, g.ID, 0); err != nil {
			t.Fatal(err)
		}
		<-l.Events()
		if err := l.Release(t.Context(), r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release of what was forced: %v", err)
		}
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
			for _, r := range rows(t, b, "SELECT event, lease, hold, fence FROM {log} WHERE name=? ORDER BY at, id", []byte(r)) {
				got = append(got, fmt.Sprintf("%s %s %s %d", r.Text(0), r.Text(1), r.Text(2), r.Int(3)))
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
		minute := time.Minute.Microseconds()
		if n := number(t, b, "SELECT COUNT(*) FROM {log} WHERE name=? AND at NOT BETWEEN ? AND UNIX_TIMESTAMP(NOW(6))*1000000", []byte(r), began-minute); n > 0 {
			t.Errorf("%d rows have a strange time", n)
		}
	})
}

// What an app's transaction keeps from the Close of its lease is cleared away by others, and
// the log says of it what has become of the lease all the same: it was closed.
func TestLogOfClosedLease(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		alone, awaited := hold(t, l, unique("alone")), hold(t, l, unique("awaited"))
		next := acquire(t, other, exclusive(awaited.Resource))
		eventually(t, "it waits", func() error { return waits(t, b, awaited.Resource) })
		q := exclusive(awaited.Resource)
		behind := acquire(t, l, q)
		eventually(t, "another waits", func() error {
			if n := number(t, b, "SELECT COUNT(*) FROM {queue} WHERE name=?", []byte(q.Resource)); n != 2 {
				return fmt.Errorf("%d wait", n)
			}
			return nil
		})
		transaction := newApp(t, b, "").begin(1)
		if !transaction.guarded(alone.Guard) || !transaction.guarded(awaited.Guard) {
			t.Fatal("the guard has found no hold")
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-behind.done
		if n := number(t, b, "SELECT COUNT(*) FROM {lock} WHERE x_lease=?", []byte(l.ID())); n != 2 {
			t.Fatalf("Close has left %d of 2 holds whose rows were locked", n)
		}
		transaction.commit()
		next.granted()
		want := []string{"release " + string(alone.ID), "release " + string(awaited.ID), "cancel " + string(q.ID)}
		eventually(t, "what was closed is in the log", func() error {
			var got []string
			for _, r := range rows(t, b, "SELECT event, hold FROM {log} WHERE name IN (?, ?) AND lease=? AND event NOT IN ('acquire', 'queue')",
				[]byte(alone.Resource), []byte(awaited.Resource), []byte(l.ID())) {
				got = append(got, r.Text(0)+" "+r.Text(1))
			}
			if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
	})
}

// Without a log everything else is as always.
func TestNoLog(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
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
		if n := number(t, b, "SELECT COUNT(*) FROM {log}"); n > 0 {
			t.Errorf("%d rows of the log", n)
		}
	})
}

// Somebody drops the tables while sidecars are at work. They make them again, and grant nothing before the TTL
// of those who had locks is over.
func TestTablesAreDropped(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		const ttl = 5 * time.Second
		url := own(t, s, "dropped_")
		b, l := sidecar(t, url, ttl) // has found new tables just now, and nothing in the way
		_, holder := sidecar(t, url, ttl)
		g := hold(t, holder, "r")
		dropped := time.Now()
		for _, name := range []string{"lease", "lock", "hold", "queue", "note", "least", "handle", "record", "log", "meta"} {
			execute(t, b, "DROP TABLE {"+name+"}")
		}
		if _, err := holder.Acquire(t.Context(), exclusive("other")); !errors.Is(err, lock.ErrUnavailable) && !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("a request without tables: %v", err)
		}
		var next lock.Lease
		eventually(t, "a lease is opened on new tables", func() (err error) {
			next, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "next"})
			return err
		})
		t.Cleanup(func() { _ = next.Close(context.WithoutCancel(t.Context())) })
		n := hold(t, next, "r")
		if after := time.Since(dropped); after < ttl {
			t.Errorf("broken law: the lock was granted %s after its holder's tables were dropped, and its TTL is %s", after, ttl)
		}
		if n.Fence <= g.Fence {
			t.Errorf("broken law: fence %d after %d", n.Fence, g.Fence)
		}
		for _, l := range []lock.Lease{l, holder} {
			if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
				t.Errorf("a heartbeat of a lease that the new tables do not know: %v", err)
			}
		}
	})
}
