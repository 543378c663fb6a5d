package mysql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

// Who waits writes nothing that the holder's guard writes: with a snapshot from before
// the waiter came it works all the same.
func TestGuardAfterWaiter(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		params := "&transaction_isolation='REPEATABLE-READ'"
		if strings.Contains(rows(t, b, "SELECT VERSION()")[0].Text(0), "MariaDB") {
			params = "&tx_isolation='REPEATABLE-READ'&innodb_snapshot_isolation=ON"
		}
		r := unique("r")
		g := hold(t, l, r)
		tx := newApp(t, b, params).begin(int(time.Now().UnixNano() % 1e9))
		tx.snapshot()
		next := acquire(t, other, exclusive(r))
		eventually(t, "it waits", func() error { return waits(t, b, r) })
		if !tx.guarded(g.Guard) {
			t.Error("the guard of the holder did not find its hold")
		}
		tx.commit()
		if err := l.Release(t.Context(), r, g.ID); err != nil {
			t.Fatal(err)
		}
		next.granted()
	})
}

// A forced release begins, a waiter is forced out, and one gives up whose request had no
// answer: the guard of the holder works all the same, with a snapshot from before that.
func TestGuardAfterOthersWereForced(t *testing.T) {
	inEachKind(t, func(t *testing.T, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		params := "&transaction_isolation='REPEATABLE-READ'"
		if strings.Contains(rows(t, b, "SELECT VERSION()")[0].Text(0), "MariaDB") {
			params = "&tx_isolation='REPEATABLE-READ'&innodb_snapshot_isolation=ON"
		}
		ob, other := sidecar(t, s.URL(), 30*time.Second)
		a := newApp(t, b, params)
		for what, do := range map[string]func(r lock.Resource, g lock.Grant){
			"the release is forced": func(r lock.Resource, g lock.Grant) {
				ctx, cancel := context.WithCancel(t.Context())
				forced := make(chan struct{})
				go func() { defer close(forced); _ = ob.ForceRelease(ctx, r, g.ID, time.Hour) }()
				eventually(t, "its release is forced", func() error {
					if st, err := b.Get(t.Context(), r); err != nil || len(st.Holders) != 1 || !st.Holders[0].Revoked {
						return fmt.Errorf("%+v, %w", st, err)
					}
					return nil
				})
				cancel()
				<-forced
			},
			"a waiter is forced out": func(r lock.Resource, _ lock.Grant) {
				q := exclusive(r)
				w := acquire(t, other, q)
				eventually(t, "it waits", func() error { return waits(t, b, r) })
				if err := ob.ForceRelease(t.Context(), r, q.ID, 0); err != nil {
					t.Fatal(err)
				}
				<-w.done
			},
		} {
			t.Run(what, func(t *testing.T) {
				r := unique("r")
				g := hold(t, l, r)
				tx := a.begin(int(time.Now().UnixNano() % 1e9))
				tx.snapshot()
				do(r, g)
				var args []any
				for _, a := range g.Guard.Args {
					args = append(args, a)
				}
				if res, err := tx.tx.ExecContext(t.Context(), g.Guard.SQL, args...); err != nil {
					t.Errorf("guard: %v", err)
				} else if n, _ := res.RowsAffected(); n != 1 {
					t.Error("the guard of the holder did not find its hold")
				}
				_ = tx.tx.Commit()
				if err := l.Release(t.Context(), r, g.ID); err != nil {
					t.Fatal(err)
				}
			})
		}
	})
}

// XA PREPARE of MariaDB lets go of locks on rows that were not changed. The guard
// changes its row.
func TestGuardThroughPrepare(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		r := unique("r")
		g := hold(t, l, r)
		app := newApp(t, b, "")
		conn, err := app.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		xid := "'" + string(lock.NewHoldID()) + "'"
		do := func(text string, args ...any) {
			t.Helper()
			if _, err := conn.ExecContext(context.Background(), text, args...); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
		}
		do("XA START " + xid)
		do(g.Guard.SQL, g.Guard.Args[0], g.Guard.Args[1], g.Guard.Args[2])
		do("XA END " + xid)
		do("XA PREPARE " + xid)
		released := make(chan error, 1)
		go func() { released <- l.Release(context.WithoutCancel(t.Context()), r, g.ID) }()
		select {
		case err := <-released:
			t.Errorf("a release between XA PREPARE and XA COMMIT: %v", err)
		case <-time.After(1500 * time.Millisecond): // longer than a statement waits for a row
		}
		do("XA COMMIT " + xid)
		if err := <-released; err != nil {
			t.Error(err)
		}
	})
}

// Apps are frozen in their guards, more than the pool has connections: whoever has to do
// with other locks does not notice.
func TestFrozenAppsLeaveOthers(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		url := with(s.URL(), "max-connections=4")
		b, l := sidecar(t, url, 30*time.Second)
		ob, other := sidecar(t, url, 30*time.Second)
		keepAlive(t, t.Context(), l)
		keepAlive(t, t.Context(), other)
		app := newApp(t, b, "")
		var frozen []*transfer
		var waiting []*acquiring
		for i := range 12 {
			g := hold(t, l, unique("frozen"))
			tx := app.begin(1000 + i)
			if !tx.guarded(g.Guard) {
				t.Fatal("the guard of the holder did not find its hold")
			}
			frozen = append(frozen, tx)
			waiting = append(waiting, acquire(t, other, exclusive(g.Resource)))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			if err := l.Release(ctx, g.Resource, g.ID); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Release beside an open guard: %v", err)
			}
			cancel()
		}
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			r := unique("free")
			g, err := other.Acquire(ctx, exclusive(r))
			if err == nil {
				err = ob.ForceRelease(ctx, r, g.ID, 0)
			}
			cancel()
			if err != nil {
				t.Fatalf("another lock beside frozen apps: %v", err)
			}
		}
		for _, tx := range frozen {
			tx.commit()
		}
		for _, w := range waiting {
			w.granted()
		}
	})
}

// An app is frozen in a transaction with the guards of many shared holds, and their sidecar is
// dead. What else that sidecar has had is free.
func TestSweepBesideManyFrozenGuards(t *testing.T) {
	t.Parallel()
	again(t, testSweepBesideManyFrozenGuards)
}

func testSweepBesideManyFrozenGuards(t testing.TB) {
	url := own(t, testengine.Shared(t, testengine.MariaDB), "frozenmany_")
	b := openAt(t, url)
	t.Cleanup(func() { _ = b.Close() })
	l := leaseFor(t, b, 3*time.Second)
	ctx, die := context.WithCancel(t.Context())
	defer die()
	alive := keepAlive(t, ctx, l)
	const locked = 200
	var guards []*lock.Guard
	name := func(i int) lock.Resource { return lock.Resource(fmt.Sprintf("r%03d", i)) }
	for i := range locked + 1 {
		q := exclusive(name(i))
		q.Mode = lock.Shared
		g, err := l.Acquire(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		guards = append(guards, g.Guard)
	}
	tx := newApp(t, b, "").begin(8)
	for _, g := range guards[:locked] {
		if !tx.guarded(g) {
			t.Fatal("the guard of the holder did not find its hold")
		}
	}
	_, other := sidecar(t, url, 3*time.Second)
	keepAlive(t, t.Context(), other)
	die()
	<-alive
	w := acquire(t, other, exclusive(name(locked)))
	w.granted()
	tx.rollBack()
}

// A row is there, and the backend does not know that: it sends the UPDATE that takes it and
// the INSERT of a new one together. The INSERT fails, the row is locked by somebody, and the
// wait is over before the request is sent again. So it says that it has left nothing, and
// the UPDATE must not have.
func TestNothingIsLeftOfHalfARequest(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t testing.TB, s testengine.Server) {
		url := own(t, s, "half_")
		known, old := sidecar(t, url, 10*time.Minute)
		r := unique("r")
		if err := old.Release(t.Context(), r, hold(t, old, r).ID); err != nil {
			t.Fatal(err)
		}
		execute(t, known, "CREATE TRIGGER "+known.d.cfg.Database+".half_first BEFORE INSERT ON {lock} FOR EACH ROW SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO=1213")
		locker := stranger(t, known)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		locked := make(chan struct{})
		failed := sync.OnceFunc(func() {
			cancel()
			go func() {
				defer close(locked)
				_, _ = locker.conn.Do(context.Background(), "test", sqllock.Statement{SQL: locker.b.names("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE"), Args: []any{[]byte(r)}})
			}()
			select {
			case <-locked:
			case <-time.After(300 * time.Millisecond): // the transaction that has failed is still open
			}
		})
		b := openWith(t, url, func(_ string, _ time.Duration, err error) {
			if Code(err) == 1213 {
				failed()
			}
		})
		t.Cleanup(func() { _ = b.Close() })
		l := leaseOf(t, b)
		g, err := l.Acquire(ctx, exclusive(r))
		if ctx.Err() == nil {
			t.Fatal("the INSERT has not failed")
		}
		<-locked
		locker.conn.Close()
		switch st, failure := known.Get(t.Context(), r); {
		case failure != nil:
			t.Fatal(failure)
		case err == nil && (len(st.Holders) != 1 || st.Holders[0].ID != g.ID), err != nil && len(st.Holders) > 0:
			t.Errorf("Acquire: %v, and then there are the holders %+v", err, st.Holders)
		}
	})
}

// A waiter that comes while a quick release waits for the row is seen by it.
func TestReleaseSeesLateWaiter(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		b, l := sidecar(t, s.URL(), 30*time.Second)
		_, other := sidecar(t, s.URL(), 30*time.Second)
		r := unique("r")
		g := hold(t, l, r)
		// The transaction of the waiter, in slow motion.
		waiter := stranger(t, b)
		waiter.do("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE", []byte(r))
		released := make(chan error, 1)
		go func() { released <- l.Release(context.WithoutCancel(t.Context()), r, g.ID) }()
		eventually(t, "the release waits for the row", func() error {
			if number(t, b, "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE%x_id=NULL%' AND info LIKE ?", "%"+string(g.ID)+"%") == 0 {
				return errors.New("it does not")
			}
			return nil
		})
		q := exclusive(r)
		waiter.do("INSERT INTO {queue} (name, seq, id, lease, mode, since) VALUES (?, 1, ?, ?, 1, 1)", []byte(r), []byte(q.ID), []byte(other.ID()))
		waiter.do("COMMIT")
		if err := <-released; err != nil {
			t.Fatal(err)
		}
		if n := number(t, b, "SELECT COUNT(*) FROM {lock} WHERE name=? AND x_id=?", []byte(r), []byte(q.ID)); n != 1 {
			t.Error("the waiter was not granted by the release")
		}
	})
}

// Many sidecars take a resource for the first time, at the same moment.
func TestFirstTakersDoNotDeadlock(t *testing.T) {
	eachKind(t, func(t testing.TB, s testengine.Server) {
		var deadlocks atomic.Int64
		var leases []lock.Lease
		for range 12 {
			b, n := errorsOf(t, s.URL(), 1213)
			t.Cleanup(func() { deadlocks.Add(n.Load()) })
			for range 4 {
				leases = append(leases, leaseOf(t, b))
			}
		}
		for range 3 {
			r := unique("first")
			var wg sync.WaitGroup
			for _, l := range leases {
				wg.Go(func() {
					q := exclusive(r)
					q.Try = true
					if g, err := l.Acquire(t.Context(), q); err == nil {
						err = l.Release(t.Context(), r, g.ID)
						if err != nil {
							t.Error(err)
						}
					} else if !errors.Is(err, lock.ErrHeld) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
		if n := deadlocks.Load(); n > 0 {
			t.Errorf("%d deadlocks", n)
		}
	})
}

// All connections of many sidecars are cut at once, as by a failover. Each compares what it
// has with the store: it reads the rows of its own lease, however many names there are.
func TestComparisonReadsOwnRows(t *testing.T) { again(t, testComparisonReadsOwnRows) }

func testComparisonReadsOwnRows(t testing.TB) {
	const sidecars, holds, names = 8, 25, 50_000
	s := testengine.New(t, testengine.MariaDB)
	road := testengine.Through(t, s)
	b, first := sidecar(t, with(s.URL(), "timeout=20s"), 5*time.Minute) // the statement for all names takes long
	hold(t, first, "hot")
	execute(t, b, fmt.Sprintf("INSERT INTO {lock} (name, fence) SELECT CONCAT('name', seq), UNIX_TIMESTAMP()*1000000 FROM seq_1_to_%d", names))
	var leases [sidecars]lock.Lease
	for i := range leases {
		_, leases[i] = sidecar(t, with(road.URL(), "timeout=5s"), 5*time.Minute)
		for n := range holds {
			hold(t, leases[i], lock.Resource(fmt.Sprintf("%d/%d", i, n)))
		}
		acquire(t, leases[i], exclusive("hot"))
	}
	eventually(t, "all wait", func() error {
		if n := number(t, b, "SELECT COUNT(*) FROM {queue}"); n != sidecars {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	read := func() int64 {
		return number(t, b, "SELECT CAST(SUM(variable_value) AS SIGNED) FROM information_schema.global_status WHERE variable_name LIKE 'HANDLER_READ%'")
	}
	before := read()
	for range 3 {
		road.Inject(testengine.Sever)
		var beats sync.WaitGroup
		errs := make([]error, sidecars)
		for i, l := range leases {
			beats.Go(func() {
				for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
					if errs[i] = beat(t.Context(), l); errs[i] == nil || time.Now().After(deadline) {
						return
					}
				}
			})
		}
		beats.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "each has compared", func() error {
		if n := read() - before; n < 3*sidecars*holds {
			return fmt.Errorf("%d rows were read", n)
		}
		return nil
	})
	if n := read() - before; n > names {
		t.Errorf("3 comparisons of %d leases with %d holds each have read %d rows", sidecars, holds, n)
	}
	if n := number(t, b, "SELECT COUNT(*) FROM {lock} WHERE x_id IS NOT NULL"); n != sidecars*holds+1 {
		t.Errorf("%d holds are left of %d", n, sidecars*holds+1)
	}
}

// An idle sidecar asks little, and keeps its connections.
func TestIdleLoad(t *testing.T) {
	t.Parallel()
	var all []*idle
	for _, kind := range kinds { // at the same time, in the place of one test
		all = append(all, startIdle(t, testengine.New(t, kind)))
	}
	for tries := 1; ; tries++ { // what a busy machine lets fail is asked again
		for _, i := range all {
			i.begin()
		}
		began := time.Now()
		time.Sleep(26 * time.Second) // longer than any connection but those that last
		over := ""
		for _, i := range all {
			over += i.over(time.Since(began))
		}
		if over == "" {
			break
		}
		if tries == 3 {
			t.Fatal(over)
		}
	}
	for _, i := range all {
		i.connections()
	}
}

// idle are two sidecars on one server: the keeper, and another.
type idle struct {
	t        testing.TB
	b        *store
	leases   []lock.Lease
	requests atomic.Int64
}

func startIdle(t testing.TB, s testengine.Server) *idle {
	t.Helper()
	i := &idle{t: t, b: openAt(t, s.URL())}
	t.Cleanup(func() { _ = i.b.Close() })
	for range 2 {
		b := openWith(t, s.URL(), func(string, time.Duration, error) { i.requests.Add(1) })
		t.Cleanup(func() { _ = b.Close() })
		l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 40 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		i.leases = append(i.leases, l)
	}
	return i
}

// begin counts from here, with leases that do not end meanwhile.
func (i *idle) begin() {
	i.t.Helper()
	for _, l := range i.leases {
		if err := beat(i.t.Context(), l); err != nil {
			i.t.Fatal(err)
		}
	}
	i.requests.Store(0)
}

// over says what was too much since it was asked last; empty: nothing was.
func (i *idle) over(after time.Duration) string {
	n := i.requests.Load()
	if float64(n) <= 2*0.5*after.Seconds() {
		return ""
	}
	return fmt.Sprintf("%s: two idle sidecars have sent %d requests in %s\n", i.b.d.cfg.Addrs, n, after)
}

func (i *idle) connections() {
	t := i.t
	t.Helper()
	before := globalStatus(t, i.b, "Connections")
	if err := beat(t.Context(), i.leases[1]); err != nil {
		t.Fatal(err)
	}
	if n := globalStatus(t, i.b, "Connections") - before; n > 2 { // the keeper's, and the test's
		t.Errorf("%s: a heartbeat after that has made %d connections", i.b.d.cfg.Addrs, n)
	}
	if n := number(t, i.b, "SELECT COUNT(*) FROM information_schema.processlist WHERE user='root'"); n > 2*3+2 {
		t.Errorf("%s: two idle sidecars have %d connections", i.b.d.cfg.Addrs, n)
	}
}
