package shedlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const patience = 20 * time.Second

// onEach runs a test on both kinds of server.
func onEach(t *testing.T, server func(testing.TB, *testengine.Kind) testengine.Server, f func(t *testing.T, s testengine.Server)) {
	for _, kind := range kinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f(t, server(t, kind))
		})
	}
}

// sidecar opens a backend and a lease that live as long as the test.
func sidecar(t *testing.T, url string, ttl time.Duration) (*Backend, *lease) {
	t.Helper()
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "sidecar of " + t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.Close(ctx) // the server may be gone
	})
	return b, l.(*lease)
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain until %s: %v", patience, what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// unique is a name of this run of the test that fits ShedLock's table.
func unique(t *testing.T) lock.Resource {
	return lock.Resource(strings.TrimPrefix(t.Name(), "Test") + "/" + random())
}

// random is for names of one run.
func random() string { return string(lock.NewHoldID())[:8] }

func request(r lock.Resource) lock.Request {
	return lock.Request{ID: lock.NewHoldID(), Resource: r, Mode: lock.Exclusive, Owner: lock.Owner{Session: "test"}.Encode()}
}

func hold(t *testing.T, l *lease, r lock.Resource) lock.Grant {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	g, err := l.Acquire(ctx, request(r))
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

// held tries what must be taken, and gives who has it.
func held(t *testing.T, l *lease, r lock.Resource) lock.Status {
	t.Helper()
	q := request(r)
	q.Try = true
	g, err := l.Acquire(t.Context(), q)
	var held *lock.HeldError
	if !errors.Is(err, lock.ErrHeld) || !errors.As(err, &held) {
		t.Fatalf("try of what is held: got %+v, %v; want ErrHeld", g, err)
	}
	return held.Status
}

// The statements of ShedLock, with the time zone that its sessions have.
const (
	shedInsert = "SET time_zone=@@GLOBAL.time_zone; INSERT IGNORE INTO shedlock(name, lock_until, locked_at, locked_by) " +
		"VALUES(?, TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), ?)"
	shedUpdate = "SET time_zone=@@GLOBAL.time_zone; UPDATE shedlock SET lock_until = TIMESTAMPADD(MICROSECOND, ?, UTC_TIMESTAMP(3)), " +
		"locked_at = UTC_TIMESTAMP(3), locked_by = ? WHERE name = ? AND lock_until <= UTC_TIMESTAMP(3)"
)

// shedLocks is ShedLock's try to lock: it reports whether it has the lock.
func shedLocks(t *testing.T, s testengine.Server, r lock.Resource, d time.Duration) bool {
	t.Helper()
	p := direct(t, s.URL())
	defer func() { _ = p.Close() }()
	ctx := context.Background()
	res, err := p.Exec(ctx, "test", shedInsert, string(r), d.Microseconds(), "java-host")
	if err == nil && res.Affected[1] == 0 {
		res, err = p.Exec(ctx, "test", shedUpdate, d.Microseconds(), "java-host", string(r))
	}
	if err != nil {
		t.Fatal(err)
	}
	return res.Affected[1] > 0
}

// What ShedLock holds is seen, and waited for; what is released it can take at once.
func TestBesideShedLock(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 10*time.Minute)
		r := unique(t)
		start := time.Now()
		if !shedLocks(t, s, r, time.Second) {
			t.Fatal("a new lock is not free")
		}
		for what, st := range map[string]lock.Status{"the refusal": held(t, l, r), "Get": get(t, b, r), "List": list(t, b, string(r))} {
			if st.Resource != r || len(st.Holders) != 1 || st.Holders[0].Sidecar != "java-host" || st.Holders[0].ID != "" || st.Holders[0].Age > time.Minute {
				t.Errorf("%s has %+v, want what java-host holds", what, st)
			}
		}
		if err := b.ForceRelease(t.Context(), r, "", 0); !errors.Is(err, lock.ErrNotHolder) {
			t.Errorf("ForceRelease of what ShedLock holds: %v", err)
		}
		g := hold(t, l, r)
		if took := time.Since(start); took < time.Second {
			t.Errorf("granted %s after ShedLock has locked for a second", took)
		}
		if shedLocks(t, s, r, time.Second) {
			t.Fatal("ShedLock has locked what is held")
		}
		if by := scan[string](t, s.URL(), 0, "SELECT locked_by FROM shedlock WHERE name=?", string(r)); by != "sidecar?of?"+t.Name()+"/"+string(g.ID) {
			t.Errorf("locked_by is %q", by)
		}
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		if !shedLocks(t, s, r, 0) {
			t.Error("ShedLock cannot lock what was released")
		}
		hold(t, l, r)
	})
}

func get(t *testing.T, b *Backend, r lock.Resource) lock.Status {
	t.Helper()
	st, err := b.Get(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func list(t *testing.T, b *Backend, prefix string) lock.Status {
	t.Helper()
	all, err := b.List(t.Context(), prefix, lock.Page{Limit: 10})
	if err != nil || len(all) != 1 {
		t.Fatalf("List has %+v, %v; want one lock", all, err)
	}
	return all[0]
}

// Whatever somebody else does to the table is found out by the next heartbeat.
func TestTakenAway(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 10*time.Minute)
		for what, query := range map[string]string{
			"taken":   "UPDATE shedlock SET locked_by='thief' WHERE name=?",
			"ended":   "UPDATE shedlock SET lock_until='2020-01-01' WHERE name=?",
			"deleted": "DELETE FROM shedlock WHERE name=?",
		} {
			r := unique(t) + lock.Resource("/"+what)
			kept, g := hold(t, l, r+"/kept"), hold(t, l, r)
			exec(t, s.URL(), query, string(r))
			news, err := l.Heartbeat(t.Context())
			if err != nil {
				t.Fatalf("%s: Heartbeat: %v", what, err)
			}
			if want := (lock.Event{Kind: lock.Vanished, Resource: r, ID: g.ID}); len(news) != 1 || news[0] != want {
				t.Errorf("%s: the heartbeat brings %+v, want %+v", what, news, want)
			}
			if err := l.Release(t.Context(), r, g.ID); !errors.Is(err, lock.ErrNotHolder) {
				t.Errorf("%s: Release: %v", what, err)
			}
			if st := get(t, b, r); len(st.Holders) > 0 && st.Holders[0].ID == g.ID {
				t.Errorf("%s: Get has %+v", what, st)
			}
			if err := l.Release(t.Context(), kept.Resource, kept.ID); err != nil {
				t.Errorf("%s: Release of another hold: %v", what, err)
			}
		}
	})
}

// Waiters go on when somebody deletes the row.
func TestRowDeletedUnderWaiters(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL(), lock.MinTTL*4)
		_, other := sidecar(t, s.URL(), 10*time.Minute)
		r := unique(t)
		hold(t, other, r)
		done := make(chan error, 1)
		go func() {
			_, err := l.Acquire(t.Context(), request(r))
			done <- err
		}()
		eventually(t, "it waits", func() error {
			_ = beat(t.Context(), l)
			if st := get(t, b, r); len(st.Waiters) == 0 {
				return errors.New("nobody waits")
			}
			return nil
		})
		exec(t, s.URL(), "DELETE FROM shedlock WHERE name=?", string(r))
		eventually(t, "it is granted", func() error {
			_ = beat(t.Context(), l)
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				return nil
			default:
				return errors.New("it waits")
			}
		})
	})
}

// A late copy of a request that was given up is not carried out.
func TestLateCopy(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		q := request(unique(t))
		e := &entry{q: q, by: l.by(q.ID), woken: make(chan struct{}), unsure: true} // it was sent and had no answer
		l.mu.Lock()
		l.entries[q.ID] = e
		l.mu.Unlock()
		if err := l.Release(t.Context(), q.Resource, q.ID); !errors.Is(err, lock.ErrNotHolder) {
			t.Fatalf("Release: %v", err)
		}
		a := &attempt{l: l, e: e, q: q}
		for _, there := range []bool{false, true} {
			if fence, err := a.take(t.Context(), there); fence != 0 || err != nil {
				t.Errorf("the late copy was granted: %d, %v", fence, err)
			}
		}
		if err := a.queue(t.Context()); err != nil || a.placed() {
			t.Errorf("the late copy has a place in the queue, %v", err)
		}
		if st, err := a.state(t.Context()); err != nil || !st.gone || st.mine {
			t.Errorf("the state is %+v, %v", st, err)
		}
		hold(t, l, q.Resource) // others are not in the way of that
	})
}

// lock_until is never before the end of the lease as the sidecar counts it,
// whenever the grant comes.
func TestGrantDuringHeartbeat(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		const ttl = 10 * time.Minute
		_, l := sidecar(t, s.URL(), ttl)
		q := request(unique(t))
		left := func() time.Duration {
			t.Helper()
			return time.Duration(scan[int64](t, s.URL(), 0, "SET time_zone=@@GLOBAL.time_zone; "+
				"SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(3), lock_until) FROM shedlock WHERE name=?", string(q.Resource))) * time.Microsecond
		}
		shorten := func() {
			t.Helper()
			exec(t, s.URL(), "SET time_zone=@@GLOBAL.time_zone; UPDATE shedlock SET lock_until=UTC_TIMESTAMP(3) + INTERVAL 1 MINUTE WHERE name=?", string(q.Resource))
		}
		a := &attempt{l: l, e: &entry{q: q, by: l.by(q.ID), woken: make(chan struct{})}, q: q}
		l.mu.Lock()
		l.entries[q.ID] = a.e
		l.mu.Unlock()
		sent := lock.BootTime()
		fence, err := a.take(t.Context(), false)
		if err != nil || fence == 0 {
			t.Fatalf("take: %d, %v", fence, err)
		}
		shorten()
		// A heartbeat that was sent later is carried out before the answer is there.
		if err := beat(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if d := left(); d > 2*time.Minute {
			t.Fatalf("the heartbeat knows of a hold that is not granted yet: %s are left", d)
		}
		if ok, err := a.settle(t.Context(), fence, sent); !ok || err != nil {
			t.Fatalf("settle: %t, %v", ok, err)
		}
		if d := left(); d < ttl-patience {
			t.Errorf("after the grant %s are left of %s", d, ttl)
		}
		// The other way about: the answer is there before the heartbeat's, which was
		// sent later and did not know of the hold.
		shorten()
		l.mu.Lock()
		a.e.sent = 0
		l.mu.Unlock()
		if left := l.renew(lock.BootTime(), nil); len(left) != 1 || left[0] != a.e {
			t.Errorf("a heartbeat counts that did not know of a hold: %v", left)
		}
		if err := beat(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		if d := left(); d < ttl-patience {
			t.Errorf("after the heartbeat %s are left of %s", d, ttl)
		}
	})
}

// A transaction that has locked one row keeps nobody from others, and is waited
// for on its own.
func TestRowLockedByOthers(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		g, other := hold(t, l, unique(t)), hold(t, l, unique(t)+"/other")
		p := direct(t, s.URL())
		defer func() { _ = p.Close() }()
		if _, err := p.Exec(t.Context(), "test", "START TRANSACTION; SELECT 1 FROM shedlock WHERE name=? FOR UPDATE", string(g.Resource)); err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), other.Resource, other.ID); err != nil {
			t.Errorf("Release of another hold: %v", err)
		}
		beaten := make(chan error, 1)
		go func() { beaten <- beat(context.Background(), l) }()
		time.Sleep(1500 * time.Millisecond) // longer than a statement waits for a row
		if _, err := p.Exec(t.Context(), "test", "COMMIT"); err != nil {
			t.Fatal(err)
		}
		if err := <-beaten; err != nil {
			t.Errorf("Heartbeat: %v", err)
		}
		if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
}

// A release that comes to the row before a heartbeat that was there earlier, but
// had to wait for another row, is not undone by it: in a statement it is always
// the time at which the statement began.
func TestReleaseBeforeSlowHeartbeat(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		_, other := sidecar(t, s.URL(), 10*time.Minute)
		first := hold(t, l, unique(t))
		g := hold(t, l, first.Resource+"/then")
		p := direct(t, s.URL())
		defer func() { _ = p.Close() }()
		if _, err := p.Exec(t.Context(), "test", "START TRANSACTION; SELECT 1 FROM shedlock WHERE name=? FOR UPDATE", string(first.Resource)); err != nil {
			t.Fatal(err)
		}
		beaten := make(chan error, 1)
		go func() { beaten <- beat(context.Background(), l) }()
		time.Sleep(100 * time.Millisecond) // it waits for the first row then
		if err := l.Release(t.Context(), g.Resource, g.ID); err != nil {
			t.Errorf("Release: %v", err)
		}
		if _, err := p.Exec(t.Context(), "test", "COMMIT"); err != nil {
			t.Fatal(err)
		}
		if err := <-beaten; err != nil {
			t.Errorf("Heartbeat: %v", err)
		}
		q := request(g.Resource)
		q.Try = true
		if _, err := other.Acquire(t.Context(), q); err != nil {
			t.Errorf("what was released is not free: %v", err)
		}
		held(t, other, first.Resource)
	})
}

// A server that takes no writes for a while has cost nothing when it does again.
func TestReadOnly(t *testing.T) {
	onEach(t, testengine.New, func(t *testing.T, s testengine.Server) {
		_, l := sidecar(t, s.URL(), 10*time.Minute)
		g := hold(t, l, "r")
		exec(t, s.URL(), "CREATE USER plain IDENTIFIED BY 'x'; GRANT ALL ON locksidecar.* TO plain")
		plain := strings.Replace(s.URL(), "root@", "plain:x@", 1)
		_, other := sidecar(t, plain, 10*time.Minute)
		exec(t, s.URL(), "SET GLOBAL read_only=1")
		if err := beat(t.Context(), other); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Heartbeat: got %v, want ErrUnavailable", err)
		}
		if _, err := other.Acquire(t.Context(), request("x")); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Acquire: got %v, want ErrUnavailable", err)
		}
		exec(t, s.URL(), "SET GLOBAL read_only=0")
		if err := beat(t.Context(), other); err != nil {
			t.Errorf("Heartbeat when writes are taken again: %v", err)
		}
		if st := held(t, other, "r"); st.Holders[0].ID != g.ID {
			t.Errorf("held is %+v", st)
		}
	})
}

// A clock that jumps ahead ends everything, as it does for ShedLock, and the
// sidecar is told.
func TestClockJumps(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.MariaDBFakeTime, testengine.MySQLFakeTime} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			s := testengine.New(t, kind)
			_, l := sidecar(t, s.URL(), 10*time.Minute)
			hold(t, l, "r")
			testengine.ShiftClock(t, s, -5*time.Minute)
			if err := beat(t.Context(), l); err != nil {
				t.Errorf("Heartbeat after a jump back: %v", err)
			}
			_, other := sidecar(t, s.URL(), 10*time.Minute)
			held(t, other, "r")
			testengine.ShiftClock(t, s, time.Hour)
			if err := beat(t.Context(), l); !errors.Is(err, lock.ErrLeaseLost) {
				t.Errorf("Heartbeat after a jump ahead: got %v, want ErrLeaseLost", err)
			}
			_, other = sidecar(t, s.URL(), 10*time.Minute)
			hold(t, other, "r")
		})
	}
}

// A table that was there before, as ShedLock's documentation has it, will do.
// Names that its collation takes for the same are one lock.
func TestTableOfOthers(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
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

// texts puts the names of a backend's tables into a text.
func texts(b *Backend, text string) string { return replaceNames(text, b.name) }

// What leases left that ended is cleared away.
func TestReap(t *testing.T) {
	onEach(t, testengine.Shared, func(t *testing.T, s testengine.Server) {
		prefix := "reap_" + random() + "_"
		b, l := sidecar(t, s.URL()+"?prefix="+prefix, 10*time.Minute)
		g := hold(t, l, unique(t))
		_, dead := sidecar(t, s.URL()+"?prefix="+prefix, 10*time.Minute)
		hold(t, dead, unique(t)+"/dead")
		exec(t, s.URL(), texts(b, "UPDATE {shed_lease} SET until='2020-01-01' WHERE id=?; INSERT INTO {shed_gone} VALUES ('x', ?)"), []byte(dead.id), []byte(dead.id))
		if _, err := l.looks.Exec(t.Context(), "reap", b.sql.reap); err != nil {
			t.Fatal(err)
		}
		left := scan[string](t, s.URL(), 0, texts(b, "SELECT CONCAT((SELECT GROUP_CONCAT(id) FROM {shed_lease}), ' ', "+
			"(SELECT GROUP_CONCAT(id) FROM {shed_hold}), ' ', (SELECT COUNT(*) FROM {shed_gone}))"))
		if want := fmt.Sprintf("%s %s 0", l.id, g.ID); left != want {
			t.Errorf("left are %s, want %s", left, want)
		}
		if err := beat(t.Context(), dead); !errors.Is(err, lock.ErrLeaseLost) {
			t.Errorf("Heartbeat of a lease that ended: %v", err)
		}
	})
}

// beat sends one heartbeat, for its outcome alone.
func beat(ctx context.Context, l lock.Lease) error {
	_, err := l.Heartbeat(ctx)
	return err
}
