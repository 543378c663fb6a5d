package shedlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// The statements of ShedLock.
const (
	shedInsert = "INSERT IGNORE INTO shedlock(name, lock_until, locked_at, locked_by) " +
		"VALUES(?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), ?)"
	shedUpdate = "UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), " +
		"locked_at = UTC_TIMESTAMP(3), locked_by = ? WHERE name = ? AND lock_until <= UTC_TIMESTAMP(3)"
)

// shedLocks is ShedLock's try to lock: it reports whether it has the lock.
func shedLocks(t testing.TB, s testengine.Server, r lock.Resource, d time.Duration) bool {
	t.Helper()
	p := direct(t, s.URL())
	defer func() { _ = p.Close() }()
	do := func(query string, args ...any) int64 {
		t.Helper()
		res, err := p.ExecContext(context.Background(), query, args...)
		if err != nil {
			t.Fatal(err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	do("SET time_zone=@@GLOBAL.time_zone")
	return do(shedInsert, string(r), d.Microseconds(), "java-host") > 0 || do(shedUpdate, d.Microseconds(), "java-host", string(r)) > 0
}

// TestBesideShedLock: what ShedLock holds is seen, and waited for; what is released it
// can take at once.
func TestBesideShedLock(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 10*time.Minute)
		r := unique(t)
		start := time.Now()
		if !shedLocks(t, s, r, 2*time.Second) {
			t.Fatal("a new lock is not free")
		}
		for what, st := range map[string]lock.Status{"the refusal": held(t, l, r), "Get": get(t, b, r), "List": list(t, b, string(r))} {
			if st.Resource != r || len(st.Holders) != 1 || st.Holders[0].Sidecar != "java-host" || st.Holders[0].ID != "" || st.Holders[0].Age > time.Minute || len(st.Waiters) > 0 {
				t.Errorf("%s has %+v, want what java-host holds", what, st)
			}
		}
		if err := b.ForceRelease(t.Context(), r, "", 0); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("ForceRelease of what ShedLock holds: %v", err)
		}
		q := request(r)
		granted := make(chan error, 1)
		go func() { _, err := l.Acquire(context.Background(), q); granted <- err }()
		eventually(t, "the request waits behind ShedLock", func() error {
			if st := get(t, b, r); len(st.Holders) != 1 || st.Holders[0].Sidecar != "java-host" || len(st.Waiters) != 1 || st.Waiters[0].ID != q.ID || st.Waiters[0].Fence != 0 {
				return errors.New("it does not")
			}
			return nil
		})
		if err := <-granted; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 2*time.Second {
			t.Errorf("granted %s after ShedLock has locked for two seconds", took)
		}
		if st := get(t, b, r); len(st.Holders) != 1 || st.Holders[0].ID != q.ID || st.Holders[0].Fence == 0 {
			t.Errorf("Get has %+v", st)
		}
		if shedLocks(t, s, r, time.Second) {
			t.Fatal("ShedLock has locked what is held")
		}
		if by := scan[string](t, s.URL(), 0, "SELECT locked_by FROM shedlock WHERE name=?", string(r)); by != "sidecar?of?"+t.Name()+"/"+string(q.ID) {
			t.Errorf("locked_by is %q", by)
		}
		if err := l.Release(t.Context(), r, q.ID); err != nil {
			t.Fatal(err)
		}
		if !shedLocks(t, s, r, 0) {
			t.Error("ShedLock cannot lock what was released")
		}
		hold(t, l, r)
	})
}

// TestHandOverIsNoStranger: a lock goes from one sidecar to the next while somebody looks.
// He sees the one before or after that, and not that a stranger holds it.
func TestHandOverIsNoStranger(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		b, other := sidecar(t, s.URL(), 10*time.Minute)
		for _, before := range []bool{true, false} {
			r := unique(t)
			g, q := hold(t, l, r), request(r)
			next := make(chan error, 1)
			go func() { _, err := other.Acquire(context.Background(), q); next <- err }()
			eventually(t, "the next one waits", func() error {
				if st := get(t, b, r); len(st.Waiters) != 1 {
					return errors.New("it does not")
				}
				return nil
			})
			looker := openAt(t, s.URL())
			looker.pool = &interrupted{Pool: looker.pool, before: before, once: sync.OnceFunc(func() {
				if err := l.Release(t.Context(), r, g.ID); err != nil {
					t.Error(err)
				}
				if err := <-next; err != nil {
					t.Error(err)
				}
			})}
			st := get(t, looker, r)
			if len(st.Holders) != 1 || st.Holders[0].ID != g.ID && st.Holders[0].ID != q.ID || len(st.Waiters) > 0 && (st.Holders[0].ID != g.ID || st.Waiters[0].ID != q.ID) {
				t.Errorf("while %s hands over to %s somebody sees %+v", g.ID, q.ID, st)
			}
			if err := looker.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// interrupted is a pool beside whose first request something happens.
type interrupted struct {
	sqllock.Pool
	before bool
	once   func()
}

func (p *interrupted) Do(ctx context.Context, command string, batch ...sqllock.Statement) ([]sqllock.Result, error) {
	if p.before {
		p.once()
	}
	res, err := p.Pool.Do(ctx, command, batch...)
	p.once()
	return res, err
}

// TestTakenAway: whatever somebody else does to the table is found out by the next
// heartbeat, and who waits in the engine goes on.
func TestTakenAway(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 10*time.Minute)
		for what, query := range map[string]string{
			"taken":   "UPDATE shedlock SET locked_by='thief', lock_until='2020-01-01' WHERE name=?",
			"ended":   "UPDATE shedlock SET lock_until='2020-01-01' WHERE name=?",
			"deleted": "DELETE FROM shedlock WHERE name=?",
		} {
			r := unique(t) + lock.Resource("/"+what)
			kept, g := hold(t, l, r+"/kept"), hold(t, l, r)
			q := request(r)
			next := make(chan error, 1)
			go func() { _, err := l.Acquire(context.Background(), q); next <- err }()
			eventually(t, "another waits", func() error {
				if st := get(t, b, r); len(st.Waiters) != 1 {
					return errors.New("nobody does")
				}
				return nil
			})
			exec(t, s.URL(), query, string(r))
			news, err := l.Heartbeat(t.Context())
			if err != nil {
				t.Fatalf("%s: Heartbeat: %v", what, err)
			}
			if want := (lock.Event{Kind: lock.Vanished, Resource: r, ID: g.ID}); len(news) != 1 || news[0] != want {
				t.Errorf("%s: the heartbeat brings %+v, want %+v", what, news, want)
			}
			if err := <-next; err != nil {
				t.Errorf("%s: the next one: %v", what, err)
			}
			if err := l.Release(t.Context(), r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("%s: Release: %v", what, err)
			}
			for _, id := range []lock.HoldID{q.ID, kept.ID} {
				name := r
				if id == kept.ID {
					name = kept.Resource
				}
				if err := l.Release(t.Context(), name, id); err != nil {
					t.Errorf("%s: Release of another hold: %v", what, err)
				}
			}
		}
	})
}

// TestRowLockedByOthers: a transaction that has locked one row of ShedLock's table keeps
// nobody from others, and costs the lease nothing.
func TestRowLockedByOthers(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 30*time.Second)
		g, other, kept := hold(t, l, unique(t)), hold(t, l, unique(t)+"/other"), hold(t, l, unique(t)+"/kept")
		p := direct(t, s.URL())
		defer func() { _ = p.Close() }()
		if _, err := p.ExecContext(t.Context(), "START TRANSACTION; SELECT 1 FROM shedlock WHERE name=? FOR UPDATE", string(g.Resource)); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), other.Resource, other.ID); err != nil {
			t.Errorf("Release of another hold: %v", err)
		}
		before := untilOf(t, s, kept.Resource)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err := l.Heartbeat(ctx); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Heartbeat while it is not known whether a hold is there: %v", err)
		}
		if after := untilOf(t, s, kept.Resource); after <= before {
			t.Errorf("another hold lasts until %s, and before until %s", after, before)
		}
		if _, err := p.ExecContext(t.Context(), "COMMIT"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
		for _, g := range []lock.Grant{g, kept} {
			if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
	})
}

// TestReleaseOfLockedRow: a release comes while somebody has locked the row of ShedLock's
// table, for longer than it waits. It is given back when it can be.
func TestReleaseOfLockedRow(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 10*time.Minute)
		g := hold(t, l, unique(t))
		p := direct(t, s.URL())
		defer func() { _ = p.Close() }()
		if _, err := p.ExecContext(t.Context(), "START TRANSACTION; SELECT 1 FROM shedlock WHERE name=? FOR UPDATE", string(g.Resource)); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
		if err := l.Release(t.Context(), g.Resource, g.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("Release again: %v", err)
		}
		if _, err := p.ExecContext(t.Context(), "COMMIT"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "ShedLock can lock it", func() error {
			if !shedLocks(t, s, g.Resource, 0) {
				return errors.New("it cannot")
			}
			return nil
		})
		if st := get(t, b, g.Resource); len(st.Holders)+len(st.Waiters) > 0 {
			t.Errorf("Get has %+v", st)
		}
	})
}

func untilOf(t testing.TB, s testengine.Server, r lock.Resource) string {
	t.Helper()
	return scan[string](t, s.URL(), 0, "SELECT lock_until FROM shedlock WHERE name=?", string(r))
}

// TestReleaseBeforeSlowHeartbeat: a release that comes to the row before a heartbeat that
// was there earlier, but had to wait for another row, is not undone by it.
func TestReleaseBeforeSlowHeartbeat(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		first := hold(t, l, unique(t))
		g := hold(t, l, first.Resource+"/then")
		p := direct(t, s.URL())
		defer func() { _ = p.Close() }()
		if _, err := p.ExecContext(t.Context(), "START TRANSACTION; SELECT 1 FROM shedlock WHERE name=? FOR UPDATE", string(first.Resource)); err != nil {
			t.Fatal(err)
		}
		beaten := make(chan error, 1)
		go func() { beaten <- beat(context.Background(), l) }()
		time.Sleep(100 * time.Millisecond) // it is at the first row then
		if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
		if _, err := p.ExecContext(t.Context(), "COMMIT"); err != nil {
			t.Fatal(err)
		}
		if err := <-beaten; err != nil {
			t.Errorf("Heartbeat: %v", err)
		}
		if !shedLocks(t, s, g.Resource, 0) {
			t.Error("what was released is not free")
		}
		if shedLocks(t, s, first.Resource, 0) {
			t.Error("what is held is free")
		}
	})
}

// TestReadOnly: a server that takes no writes for a while has cost nothing when it does
// again.
func TestReadOnly(t *testing.T) {
	onEach(t, testengine.New, func(t testing.TB, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		g := hold(t, l, "r")
		exec(t, s.URL(), "CREATE USER plain IDENTIFIED BY 'x'; GRANT ALL ON locksidecar.* TO plain")
		plain := strings.Replace(s.URL(), "root@", "plain:x@", 1)
		_, other := sidecar(t, plain, 10*time.Minute)
		exec(t, s.URL(), "SET GLOBAL read_only=1")
		if err := beat(t.Context(), other); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Heartbeat: got %v, want ErrUnavailable", err)
		}
		q := request("x")
		if _, err := other.Acquire(t.Context(), q); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Acquire: got %v, want ErrUnavailable", err)
		}
		exec(t, s.URL(), "SET GLOBAL read_only=0")
		eventually(t, "a heartbeat is answered when writes are taken again", func() error { return beat(t.Context(), other) })
		if st := held(t, other, "r"); len(st.Holders) != 1 || st.Holders[0].ID != g.ID {
			t.Errorf("held is %+v", st)
		}
	})
}

// TestClockJumps: a clock that jumps ahead lets ShedLock in, as it does among services
// that use ShedLock, and the sidecar is told. Other sidecars are kept out all the same,
// until it knows.
func TestClockJumps(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.MariaDBFakeTime, testengine.MySQLFakeTime} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind)
			_, l := sidecar(t, s.URL(), 10*time.Minute)
			_, other := sidecar(t, s.URL(), 10*time.Minute)
			g := hold(t, l, "r")
			testengine.ShiftClock(t, s, -5*time.Minute)
			if err := beat(t.Context(), l); err != nil {
				t.Errorf("Heartbeat after a jump back: %v", err)
			}
			held(t, other, "r")
			testengine.ShiftClock(t, s, time.Hour)
			held(t, other, "r")
			var news []lock.Event
			eventually(t, "a heartbeat is answered", func() (err error) { news, err = l.Heartbeat(t.Context()); return err })
			if want := (lock.Event{Kind: lock.Vanished, Resource: "r", ID: g.ID}); len(news) != 1 || news[0] != want {
				t.Errorf("after a jump ahead the heartbeat brings %+v, want %+v", news, want)
			}
			hold(t, other, "r")
		})
	}
}

// TestTableOfOthers: a table that was there before, as ShedLock's documentation has it,
// will do. Names that its collation takes for the same are one lock.
func TestTableOfOthers(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		exec(t, s.URL(), "CREATE TABLE IF NOT EXISTS theirs (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, "+
			"locked_at TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name)) CHARACTER SET latin1")
		url := s.URL() + "?table=theirs&prefix=theirs_"
		b, l := sidecar(t, url, 10*time.Minute)
		_, other := sidecar(t, url, 10*time.Minute)
		g := hold(t, l, "Größe")
		held(t, other, "GRÖßE ")
		if st := held(t, other, "Größe"); len(st.Holders) != 1 || st.Holders[0].ID != g.ID || len(get(t, b, "Größe").Holders) != 1 {
			t.Errorf("held is %+v", st)
		}
		next := make(chan error, 1)
		go func() {
			_, err := other.Acquire(t.Context(), request("GRÖßE "))
			next <- err
		}()
		if err := beat(t.Context(), l); err != nil {
			t.Error(err)
		}
		select {
		case ev := <-l.Events():
			t.Errorf("the event %+v", ev)
		case err := <-next:
			t.Errorf("granted beside another: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		if err := l.Release(t.Context(), "Größe", g.ID); err != nil {
			t.Error(err)
		}
		if err := <-next; err != nil {
			t.Errorf("Acquire of what was released: %v", err)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestForceOfSilent: a forced release without a grace hands on at once, although the
// holder's sidecar hears of nothing.
func TestForceOfSilent(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		road := testengine.Through(t, s)
		_, l := sidecar(t, road.URL(), 10*time.Minute)
		b, other := sidecar(t, s.URL(), 10*time.Minute)
		g := hold(t, l, unique(t))
		road.Inject(testengine.HoldAll)
		defer func() { _ = road.Heal() }()
		if err := b.ForceRelease(t.Context(), g.Resource, g.ID, 0); err != nil {
			t.Fatal(err)
		}
		hold(t, other, g.Resource)
	})
}

// TestSwitchOver: another server has taken over, and the old one is alive and read-only,
// with the connections to it. ShedLock's row is made to last on the new one.
func TestSwitchOver(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.MariaDBPair, testengine.MySQLPair} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind)
			b, l := sidecar(t, s.URL()+"?failover-grace=0s", time.Minute)
			g := hold(t, l, "r")
			if st, err := b.Get(t.Context(), "r"); err != nil || len(st.Holders) != 1 { // keeps a connection to the old server
				t.Fatal(st, err)
			}
			testengine.FailOver(t, s, testengine.KeepData)
			before := untilOf(t, s, "r")
			eventually(t, "a heartbeat is answered", func() error { return beat(t.Context(), l) })
			if after := untilOf(t, s, "r"); after <= before {
				t.Errorf("on the new server it lasts until %s, and before until %s", after, before)
			}
			if shedLocks(t, s, "r", time.Second) {
				t.Error("ShedLock has locked what is held")
			}
			if !shedLocks(t, s, "java", time.Minute) {
				t.Error("ShedLock has not locked what is free")
			}
			if st, err := b.Get(t.Context(), "java"); err != nil || len(st.Holders) != 1 {
				t.Errorf("Get of what ShedLock has locked on the new server: %+v, %v", st, err)
			}
			if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCloseBesideAFrozenService: a service that has frozen in a transaction on one row is not
// in the way of the other locks of a sidecar that stops.
func TestCloseBesideAFrozenService(t *testing.T) {
	onEach(t, testengine.Shared, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 10*time.Minute)
		stuck, other := unique(t)+"/1", unique(t)+"/2"
		hold(t, l, stuck)
		hold(t, l, other)
		java := direct(t, s.URL())
		defer func() { _ = java.Close() }()
		for _, q := range []string{"START TRANSACTION", "UPDATE shedlock SET locked_by=locked_by WHERE name='" + string(stuck) + "'"} {
			if _, err := java.ExecContext(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := l.Close(ctx); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Close: %v, want what is left", err)
		}
		for _, r := range []lock.Resource{stuck, other} {
			if st, err := b.Backend.Get(t.Context(), r); err != nil || len(st.Holders) > 0 {
				t.Errorf("the engine has %+v, %v", st, err)
			}
		}
		if !shedLocks(t, s, other, time.Second) {
			t.Error("a row that nobody had locked was not given back")
		}
	})
}
