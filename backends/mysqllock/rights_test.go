package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testengine.Main(m)) }

// The rights that docs/stores/mysql.md names are enough, with every strategy.
func TestRights(t *testing.T) {
	for _, kind := range []*testengine.Kind{testengine.MariaDB, testengine.MySQL} {
		t.Run(kind.String(), func(t *testing.T) {
			s := testengine.Shared(t, kind)
			const grants = "CREATE DATABASE locks;" +
				"CREATE USER sidecar IDENTIFIED BY 'secret'; GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON locks.* TO sidecar;" +
				"CREATE USER reader IDENTIFIED BY 'secret'; GRANT SELECT, UPDATE ON locks.* TO reader"
			administer(t, s, grants)
			t.Cleanup(func() { administer(t, s, "DROP USER sidecar, reader; DROP DATABASE locks") })
			url := strings.Replace(strings.Replace(s.URL(), "root@", "sidecar:secret@", 1), "/"+testengine.Database, "/locks?timeout=5s&strategy=", 1)
			for _, strategy := range Strategies {
				t.Run(strategy, func(t *testing.T) { handOver(t, url+strategy) })
			}
		})
	}
}

func administer(t *testing.T, s testengine.Server, statements string) {
	t.Helper()
	cfg, err := mysql.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(cfg, mysql.ConnectOptions{Wait: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	defer func() { _ = db.Close() }()
	if _, err := db.ExecContext(context.Background(), statements); err != nil {
		t.Fatal(err)
	}
}

// handOver has one sidecar release what another waits for, and runs its guard.
func handOver(t *testing.T, url string) {
	var leases []lock.Lease
	var last lock.Backend
	for range 2 {
		b, err := Open(url, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		last = b
		var l lock.Lease
		for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // row waits out the server's start
			if l, err = b.OpenLease(t.Context(), lock.LeaseOptions{TTL: 20 * time.Second, Sidecar: "rights"}); err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { _ = l.Close(context.Background()) })
		go func() {
			for range l.Events() {
			}
		}()
		leases = append(leases, l)
	}
	ask := func() lock.Request { return lock.Request{ID: lock.NewHoldID(), Resource: "r", Mode: lock.Exclusive} }
	g, err := leases[0].Acquire(t.Context(), ask())
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	q := ask()
	go func() {
		_, err := leases[1].Acquire(context.Background(), q)
		granted <- err
	}()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if st, err := last.Get(t.Context(), "r"); err == nil && len(st.Waiters) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the second sidecar does not wait")
		}
	}
	if g.Guard != nil {
		runGuard(t, url, g.Guard)
	}
	keepRecord(t, url, last.(lock.RecordGuarder))
	if err := leases[0].Release(t.Context(), "r", g.ID); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if err := beat(t.Context(), l); err != nil {
			t.Error(err)
		}
	}
	if err := leases[1].Release(t.Context(), "r", q.ID); err != nil {
		t.Error(err)
	}
}

// keepRecord does all that there is with a record, and runs its guard.
func keepRecord(t *testing.T, url string, b lock.RecordGuarder) {
	ctx, rec := t.Context(), func(version string) lock.Record { return lock.Record{Version: version} }
	all, list := b.ListRecords(ctx, "", lock.Page{})
	if err := errors.Join(list, b.WriteRecord(ctx, "r", "", rec("v1"), time.Hour), b.WriteRecord(ctx, "r", "v1", rec("v2"), time.Hour)); err != nil || len(all) > 0 {
		t.Fatalf("records: %v, %v", all, err)
	}
	runGuard(t, url, b.RecordGuard("r", "v2", rec("app"), time.Hour)) // and roll back
	if err := b.DeleteRecord(ctx, "r", "v2"); err != nil {
		t.Error(err)
	}
}

// runGuard is the app.
func runGuard(t *testing.T, url string, g *lock.Guard) {
	cfg, err := mysql.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", fmt.Sprintf("reader:secret@tcp(%s)/", cfg.Addrs[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var args []any
	for _, a := range g.Args {
		args = append(args, a)
	}
	if strings.HasPrefix(g.SQL, "UPDATE") {
		res, err := tx.ExecContext(t.Context(), g.SQL, args...)
		if err != nil {
			t.Fatalf("guard %s: %v", g.SQL, err)
		}
		if n, _ := res.RowsAffected(); n != 1 {
			t.Errorf("guard %s: %d rows", g.SQL, n)
		}
		return
	}
	var one int
	if err := tx.QueryRowContext(t.Context(), g.SQL, args...).Scan(&one); err != nil {
		t.Errorf("guard %s: %v", g.SQL, err)
	}
}

// beat sends one heartbeat, for its outcome alone.
func beat(ctx context.Context, l lock.Lease) error {
	_, err := l.Heartbeat(ctx)
	return err
}
