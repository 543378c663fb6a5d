package shedlock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/shedlock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/internal/javatest"
	"github.com/locksidecar/locksidecar/internal/testengine"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	interopTTL = 30 * time.Second
	patience   = time.Minute
)

// TestShedLock: Java services that use ShedLock on the time of the database and
// apps behind sidecars exclude each other by the name of a lock, whatever the
// server takes for the local time. (ShedLock's columns are TIMESTAMP, which the
// server converts from and to the time zone of the connection: all connections
// must have the same.)
func TestShedLock(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Java programs")
	}
	for _, e := range []struct {
		kind         *testengine.Kind
		driver, more string // of JDBC
		zone         string // of the server: another one than the machine's, so that who takes the one for the other is seen
	}{
		{testengine.MariaDB, "mariadb", "", "+05:30"},
		{testengine.MySQL, "mysql", "?allowPublicKeyRetrieval=true&sslMode=DISABLED", "-08:00"},
	} {
		t.Run(e.kind.String()+e.zone, func(t *testing.T) {
			t.Parallel()
			i := &interop{server: testengine.New(t, e.kind)}
			i.setZone(t, e.zone)
			u, err := url.Parse(i.server.URL())
			if err != nil {
				t.Fatal(err)
			}
			password, _ := u.User.Password()
			i.database = javatest.Database{
				URL:  "jdbc:" + e.driver + "://" + u.Host + u.Path + e.more,
				User: u.User.Username(), Password: password, Table: "shedlock",
			}
			t.Run("Counter", i.counter)
			t.Run("TakeTurns", i.takeTurns)
			t.Run("EndOfLease", func(t *testing.T) { i.endOfLease(t, 0) })
			t.Run("MinHold", func(t *testing.T) { i.endOfLease(t, 5*time.Second) })
		})
	}
}

// interop is one server and how Java reaches it.
type interop struct {
	server   testengine.Server
	database javatest.Database
}

func (i *interop) config(t *testing.T) mysql.Config {
	t.Helper()
	cfg, err := mysql.Parse(i.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Timeout = 10 * time.Second // a busy machine may stand still
	return cfg
}

// setZone makes a time zone that of all new connections.
func (i *interop) setZone(t *testing.T, zone string) {
	t.Helper()
	c, err := mysql.NewConnector(i.config(t), mysql.ConnectOptions{Wait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	p := sql.OpenDB(c)
	defer func() { _ = p.Close() }()
	if _, err := p.ExecContext(context.Background(), "SET GLOBAL time_zone = ?", zone); err != nil {
		t.Fatal(err)
	}
}

// sidecar opens a backend and a lease on it. It makes the table.
func (i *interop) sidecar(t *testing.T, name string) (*javatest.Sidecar, lock.Backend) {
	t.Helper()
	b, err := shedlock.Open(i.config(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return javatest.NewSidecar(t, b, name, interopTTL), b
}

// counter: two Java processes and two sidecars increment one counter.
func (i *interop) counter(t *testing.T) {
	const (
		sides      = 2
		perPeer    = 25
		goroutines = 3 // of a sidecar
		perRoutine = 10
		name       = "nightly-report"
	)
	c := javatest.NewCounter(t)
	var sidecars []*javatest.Sidecar
	var peers []*javatest.Peer
	for n := range sides {
		side, _ := i.sidecar(t, fmt.Sprintf("sidecar-%d", n))
		sidecars = append(sidecars, side)
		peers = append(peers, javatest.ShedLock(t, c, fmt.Sprintf("java-%d", n), i.database, name))
	}
	var all sync.WaitGroup
	for n := range sides {
		all.Go(func() {
			if err := peers[n].Count(javatest.Write, perPeer); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if err := sidecars[n].Count(t.Context(), c, name, goroutines, javatest.Write, perRoutine); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	c.Check(t, sides*(perPeer+goroutines*perRoutine))
}

// takeTurns: each side finds the lock held while the other has it, and gets it
// when the other lets go.
func (i *interop) takeTurns(t *testing.T) {
	const name = "take-turns"
	side, b := i.sidecar(t, "sidecar")
	peer := javatest.ShedLock(t, javatest.NewCounter(t), "java", i.database, name)
	for range 3 {
		if !peer.Enter(javatest.Write, patience) {
			t.Fatal("Java does not get a free lock")
		}
		if _, err := side.Try(t.Context(), name, javatest.Write); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("a try beside Java: %v, want ErrHeld", err)
		}
		if st, err := b.Get(t.Context(), name); err != nil || len(st.Holders) != 1 {
			t.Errorf("beside Java the holders are %+v, %v", st.Holders, err)
		}
		peer.Leave(javatest.Write)
		id, err := side.Take(t.Context(), name, javatest.Write)
		if err != nil {
			t.Fatalf("after Java: %v", err)
		}
		if peer.Enter(javatest.Write, 0) {
			t.Error("Java gets the lock that we have")
			peer.Leave(javatest.Write)
		}
		if err := side.Release(t.Context(), name, id); err != nil {
			t.Fatal(err)
		}
	}
}

// endOfLease: what a sidecar held that ended without a word is free for Java
// when its lease and its MinHold are over, and not before.
func (i *interop) endOfLease(t *testing.T, least time.Duration) {
	const ttl = 4 * time.Second // a busy machine may stand still for a second or two
	name := "end-of-lease-" + least.String()
	peer := javatest.ShedLock(t, javatest.NewCounter(t), "java", i.database, name)
	b, err := shedlock.Open(i.config(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	l, err := b.OpenLease(t.Context(), lock.LeaseOptions{TTL: ttl, Sidecar: "dead"})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for range l.Events() {
		}
	})
	defer func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil && !errors.Is(err, lock.ErrLeaseLost) {
			t.Error(err)
		}
		all.Wait()
	}()
	began := time.Now()
	q := lock.Request{ID: lock.NewHoldID(), Resource: lock.Resource(name), Mode: lock.Exclusive, Owner: lock.Owner{}.Encode(), MinHold: least}
	if _, err := l.Acquire(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if !peer.Enter(javatest.Write, patience) {
		t.Fatal("Java does not get the lock of a lease that is over")
	}
	if took := time.Since(began); took < max(ttl, least) {
		t.Errorf("Java has the lock %s after the acquire on a lease of %s, with a MinHold of %s", took, ttl, least)
	}
	peer.Leave(javatest.Write)
}
