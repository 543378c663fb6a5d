package mysql

import (
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Thousands of names that were taken once go in a short time, and so do thousands of records
// that are over. One app is frozen behind a guard that came too late, and so keeps the row of an
// idle name locked: that is in nobody's way.
func TestReapManyIdle(t *testing.T) {
	t.Parallel()
	again(t, testReapManyIdle)
}

func testReapManyIdle(t testing.TB) {
	s := testengine.New(t, testengine.MariaDB)
	var ahead atomic.Int64
	clock := func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) }
	b := openClock(t, own(t, s, "many_"), clock)
	l := leaseOf(t, b)
	keepAlive(t, t.Context(), l)
	execute(t, b, "INSERT INTO {lock} (name, fence) SELECT CONCAT('idle', seq), (UNIX_TIMESTAMP()-3600)*1000000 FROM seq_1_to_3000")
	execute(t, b, "INSERT INTO {record} (name, version, value, written, ends) SELECT CONCAT('over', seq), 'v', '', 1, 2 FROM seq_1_to_9000")
	g := hold(t, l, "late")
	if err := l.Release(t.Context(), "late", g.ID); err != nil {
		t.Fatal(err)
	}
	frozen := newApp(t, b, "").begin(1)
	g.Guard.Args[0] = hex.EncodeToString([]byte("idle1500"))
	g.Guard.Args[2] = fmt.Sprint(number(t, b, "SELECT fence FROM {lock} WHERE name='idle1500'"))
	if frozen.guarded(g.Guard) {
		t.Fatal("the guard found a hold that was released")
	}
	keeperDeletes(t, b, &ahead, 1, "SELECT COUNT(*) FROM {lock} WHERE name<>'late' AND name<x'ff'")
	eventually(t, "all records that are over are deleted", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {record}"); n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
	frozen.rollBack()
}

// Thousands of rows whose time is over go in a short time, also where one app is frozen that keeps those which come
// first locked.
func TestReapManyLapsed(t *testing.T) {
	t.Parallel()
	s := testengine.Shared(t, testengine.MariaDB)
	b, l := sidecar(t, own(t, s, "lapsed_"), 30*time.Second)
	keepAlive(t, t.Context(), l)
	frozen := newApp(t, b, "").begin(1)
	for i, r := range []lock.Resource{"locked", "free"} {
		g := hold(t, l, r)
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		if i == 0 && frozen.guarded(g.Guard) {
			t.Fatal("the guard found a hold that was released")
		}
		execute(t, b, fmt.Sprintf("INSERT INTO {least} (name, id, mode, asked, fence, sidecar, since, ends) SELECT ?, seq, 2, 0, 1, '', 1, %d FROM seq_1_to_%d", i+1, 600+i*14_400), []byte(r))
	}
	execute(t, b, "INSERT INTO {handle} (name, id, hash) SELECT name, id, id FROM {least} WHERE name='free'")
	eventually(t, "all that nobody has locked is gone", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {least} WHERE name='free'"); n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
	if n := number(t, b, "SELECT COUNT(*) FROM {handle}"); n > 0 {
		t.Errorf("%d handles are left", n)
	}
	frozen.rollBack()
	eventually(t, "the others are gone, too", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {least}"); n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
}

// When the note of a name is forgotten, its row can go like any other.
func TestForgottenNoteFreesItsRow(t *testing.T) {
	t.Parallel()
	again(t, testForgottenNoteFreesItsRow)
}

func testForgottenNoteFreesItsRow(t testing.TB) {
	s := testengine.New(t, testengine.MariaDB)
	var ahead atomic.Int64
	clock := func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) }
	b := openClock(t, own(t, s, "noted_"), clock)
	l := leaseOf(t, b)
	keepAlive(t, t.Context(), l)
	g, q := hold(t, l, "r"), exclusive("r")
	waiting := acquire(t, l, q)
	eventually(t, "it waits", func() error { return waits(t, b, "r") })
	if err := b.ForceRelease(t.Context(), "r", q.ID, 0); err != nil { // leaves a note
		t.Fatal(err)
	}
	<-waiting.done
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the keeper does its chores", func() error {
		if number(t, b, "SELECT value FROM {meta} WHERE name='floor'") == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	time.Sleep(time.Second) // all of a step
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
	eventually(t, "the note is forgotten, and its row is free", func() error {
		if n, c := number(t, b, "SELECT COUNT(*) FROM {note}"), number(t, b, "SELECT COUNT(*) FROM {lock} WHERE crowd=1"); n+c > 0 {
			return fmt.Errorf("there are %d notes, and %d crowded rows", n, c)
		}
		return nil
	})
}

// The log has no more rows than it may, however young they are: of more than one batch
// too many, the newest are left.
func TestLogHasItsLimit(t *testing.T) {
	t.Parallel()
	again(t, testLogHasItsLimit)
}

func testLogHasItsLimit(t testing.TB) {
	const most, callers, pairs = 50, 16, 40
	s := testengine.Shared(t, testengine.MariaDB)
	d := New(mustParse(t, own(t, s, "log_")), nil)
	engine, err := sqllock.Open(d, sqllock.Options{Migrate: true, LogKeep: sqllock.DefaultLogKeep, LogRows: most, FailoverGrace: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	b := &store{Backend: engine, d: d}
	l := leaseOf(t, b)
	keepAlive(t, t.Context(), l)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for range pairs {
				q := exclusive(lock.Resource(fmt.Sprint("r", i)))
				_, err := l.Acquire(t.Context(), q)
				if err == nil {
					err = l.Release(t.Context(), q.Resource, q.ID)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	eventually(t, "all is in the log", func() error {
		if last := number(t, b, "SELECT MAX(id) FROM {log}"); last <= 2*callers*pairs { // with the opening of the lease
			return fmt.Errorf("its last row is %d", last)
		}
		return nil
	})
	eventually(t, "what is too much is deleted, and no more", func() error {
		if n := number(t, b, "SELECT MAX(id)-MIN(id)+1 FROM {log}"); n != most {
			return fmt.Errorf("there are %d rows", n)
		}
		return nil
	})
}

// The keeper has raised the floor at one server, and comes to another one that has taken over. That one does not have this floor, and
// its clock is behind. What the keeper deletes there it has raised the floor for there: a row that is made again does not begin with
// a smaller fence.
func TestReapAtAnotherServer(t *testing.T) {
	t.Parallel()
	again(t, testReapAtAnotherServer)
}

func testReapAtAnotherServer(t testing.TB) {
	s := testengine.New(t, testengine.MariaDB)
	road := testengine.Through(t, s)
	var ahead atomic.Int64
	d := New(mustParse(t, patient(road.URL())), nil)
	b, err := sqllock.Open(d, sqllock.Options{
		Migrate: true, FailoverGrace: 100 * time.Millisecond,
		Clock: func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l := leaseFor(t, &store{Backend: b, d: d}, lock.MaxTTL)
	keepAlive(t, t.Context(), l)
	g := hold(t, l, "idle")
	if err := l.Release(t.Context(), "idle", g.ID); err != nil {
		t.Fatal(err)
	}
	at, half := openAt(t, s.URL()), (30 * time.Minute).Microseconds()
	t.Cleanup(func() { _ = at.Close() })
	execute(t, at, "UPDATE {lock} SET fence=fence-? WHERE name='idle'", half) // it was half an hour ago
	was := lock.FenceOf(number(t, at, "SELECT fence FROM {lock} WHERE name='idle'"))
	fork := testengine.ForkMySQL(t, s, testengine.MariaDBFakeTime)
	testengine.ShiftClock(t, fork, -time.Hour)
	there := openAt(t, fork.URL())
	t.Cleanup(func() { _ = there.Close() })
	execute(t, there, "UPDATE {meta} SET value=0 WHERE name='floor'") // it lags by as much as that
	raised := func(at *store) {
		t.Helper()
		eventually(t, "the floor is raised", func() error {
			if number(t, at, "SELECT value FROM {meta} WHERE name='floor'") == 0 {
				return errors.New("it is not")
			}
			return nil
		})
	}
	raised(at)
	time.Sleep(500 * time.Millisecond) // and the keeper has the answer
	road.Retarget(mustParse(t, fork.URL()).Addrs[0])
	road.Inject(testengine.Sever)
	ahead.Add(int64(2 * time.Minute))
	raised(there)
	if g := hold(t, l, "idle"); g.Fence <= was {
		t.Errorf("broken law: fence %d after %d", g.Fence, was)
	}
}

// The keeper has seen an era at one server for nearly as long as that lasts, and comes to another one where the same era starts just
// then. It lasts as long there as anywhere else, and notes of the one before stay.
func TestEraAtAnotherServer(t *testing.T) {
	t.Parallel()
	again(t, testEraAtAnotherServer)
}

func testEraAtAnotherServer(t testing.TB) {
	s := testengine.New(t, testengine.MariaDB)
	road := testengine.Through(t, s)
	var ahead atomic.Int64
	d := New(mustParse(t, patient(road.URL())), nil)
	b, err := sqllock.Open(d, sqllock.Options{
		Migrate: true, FailoverGrace: 100 * time.Millisecond, LogKeep: time.Hour,
		Clock: func() time.Duration { return lock.BootTime() + time.Duration(ahead.Load()) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	l := leaseFor(t, &store{Backend: b, d: d}, lock.MaxTTL)
	keepAlive(t, t.Context(), l)
	g := hold(t, l, "r")
	if err := l.Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	at := openAt(t, s.URL())
	t.Cleanup(func() { _ = at.Close() })
	const era = "SELECT value FROM {meta} WHERE name='era'"
	// steps waits until the keeper has done its chores at a server. The log comes after the notes.
	steps := func(at *store, n int) {
		t.Helper()
		for range n {
			execute(t, at, "INSERT INTO {log} (at, event, name, hold, lease, fence, note) VALUES (1, 'old', '', '', '', 0, '')")
			eventually(t, "the keeper does its chores", func() error {
				if number(t, at, "SELECT COUNT(*) FROM {log} WHERE event='old'") > 0 {
					return errors.New("it does not")
				}
				return nil
			})
		}
	}
	steps(at, 2)
	if n := number(t, at, era); n != 0 {
		t.Fatalf("it is in era %d", n)
	}
	fork := testengine.ForkMySQL(t, s, testengine.MariaDB)
	there := openAt(t, fork.URL())
	t.Cleanup(func() { _ = there.Close() })
	execute(t, there, "UPDATE {lock} SET crowd=1 WHERE name='r'")
	execute(t, there, "INSERT INTO {note} (name, id, lease, kind, era) VALUES ('r', 'x', ?, 1, 0)", []byte(l.ID()))
	execute(t, there, "UPDATE {meta} SET value=1 WHERE name='era'") // by the keeper there
	ahead.Add(int64(16 * time.Minute))
	eventually(t, "the era is over", func() error {
		if n := number(t, at, era); n != 1 {
			return fmt.Errorf("it is %d", n)
		}
		return nil
	})
	steps(at, 2)
	ahead.Add(int64(14 * time.Minute))
	road.Retarget(mustParse(t, fork.URL()).Addrs[0])
	road.Inject(testengine.Sever)
	steps(there, 1)
	ahead.Add(int64(2 * time.Minute)) // it has been there for so long
	steps(there, 3)
	if n := number(t, there, era); n != 1 {
		t.Errorf("it is in era %d there, and the one before began two minutes ago", n)
	}
	if number(t, there, "SELECT COUNT(*) FROM {note}") == 0 {
		t.Error("a note is forgotten that was written two minutes ago")
	}
}
