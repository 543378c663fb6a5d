package testengine

import (
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// aheadBy is how far the clock of a server is ahead of ours.
func aheadBy(t *testing.T, c *sqlClient) time.Duration {
	t.Helper()
	for {
		asked := time.Now()
		var now float64
		if err := c.db.QueryRowContext(within(t, long), "SELECT UNIX_TIMESTAMP(NOW(6))").Scan(&now); err != nil {
			t.Fatal(err)
		}
		if time.Since(asked) < time.Second/2 { // the machine did not stand still meanwhile
			return time.Duration((now - float64(asked.UnixMicro())/1e6) * float64(time.Second))
		}
	}
}

func TestShiftClock(t *testing.T) {
	for _, k := range []*Kind{MariaDBFakeTime, MySQLFakeTime} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := New(t, k)
			c := newSQLClient(t, s.URL())
			// A query in the middle of its sleep is not disturbed.
			slept := make(chan error, 1)
			begin := time.Now()
			go func() {
				_, err := c.db.ExecContext(within(t, long), "DO SLEEP(0.5)")
				slept <- err
			}()
			for _, by := range []time.Duration{0, time.Hour, -24 * time.Hour, 1500 * time.Millisecond, -time.Nanosecond} {
				t.Run(by.String(), func(t *testing.T) {
					ShiftClock(t, s, by)
					if got := aheadBy(t, c); math.Abs(float64(got-by)) > float64(time.Second) {
						t.Errorf("the clock is ahead by %v; want %v", got, by)
					}
				})
			}
			if err := <-slept; err != nil {
				t.Error(err)
			}
			if d := time.Since(begin); d < 500*time.Millisecond || d > long {
				t.Errorf("slept for %v; want 500ms", d)
			}
			if got := aheadBy(t, c); math.Abs(float64(got)) > float64(time.Second) {
				t.Errorf("the clock is ahead by %v after the tests", got)
			}
			// Waits for a point in time take what they should.
			ShiftClock(t, s, -time.Hour)
			begin = time.Now()
			if _, err := c.db.ExecContext(within(t, long), "DO SLEEP(0.2)"); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(begin); d < 200*time.Millisecond || d > long {
				t.Errorf("slept for %v; want 200ms", d)
			}
		})
	}
}

// A connection from before the change of parts finds its server read-only.
func testReadOnlyAfterFailOver(t *testing.T, s Server) {
	c := newSQLClient(t, s.URL())
	set(t, c, "1")
	conn, err := c.db.Conn(within(t, long))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, conn) })
	FailOver(t, s, KeepData)
	_, err = conn.ExecContext(within(t, long), "DELETE FROM pairs")
	const readOnly = 1290
	if e := (*mysql.MySQLError)(nil); !errors.As(err, &e) || e.Number != readOnly {
		t.Errorf("%v; want error %d", err, readOnly)
	}
	c.db.SetMaxIdleConns(0) // the others are from before as well
	set(t, c, "2")
}

// A replica that lags behind has taken part in what the primary did: it does not have the
// database at the moment when it is to take over.
func testReplicaCatchesUp(t *testing.T, s Server) {
	p := s.(*pairStore)
	primary, replica := p.roles()
	do := func(n *node, statements ...string) {
		t.Helper()
		if err := p.do(within(t, long), n, statements); err != nil {
			t.Fatal(err)
		}
	}
	do(primary, "CREATE DATABASE other", "CREATE TABLE other.t (a INT PRIMARY KEY)", "INSERT INTO other.t VALUES (1)")
	eventually := func(what, query string) {
		t.Helper()
		if err := poll(within(t, long), func() error {
			return mysqlDo(replica.Addr(), func(db *sql.DB) error {
				var n int
				err := db.QueryRowContext(within(t, long), query).Scan(&n)
				if err == nil && n == 0 {
					err = errors.New("not yet")
				}
				return err
			})
		}); err != nil {
			t.Fatalf("wait until %s: %v", what, err)
		}
	}
	eventually("the replica has the row", "SELECT COUNT(*) FROM other.t")
	if err := mysqlDo(replica.Addr(), func(db *sql.DB) error {
		if _, err := db.ExecContext(within(t, long), "LOCK TABLES other.t READ"); err != nil { // the replica waits for it
			return err
		}
		do(primary, "DROP DATABASE "+Database, "DELETE FROM other.t", "CREATE DATABASE "+Database)
		eventually("the replica is between the two", "SELECT COUNT(*)=0 FROM information_schema.schemata WHERE schema_name='"+Database+"'")
		over := make(chan error, 1)
		go func() { over <- p.FailOver(within(t, long), KeepData) }()
		eventually("the replica is asked to catch up", "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%GTID%WAIT%' OR info LIKE '%WAIT%GTID%'")
		_, err := db.ExecContext(within(t, long), "UNLOCK TABLES")
		return errors.Join(err, <-over)
	}); err != nil {
		t.Fatal(err)
	}
	set(t, newClient(t, s.URL()), "1")
}

func testUserWithPassword(t *testing.T, s Server) {
	withUser := func(who string) client { return newClient(t, strings.Replace(s.URL(), "root@", who+"@", 1)) }
	set(t, withUser(User+":"+Password), "1")
	const denied = 1045
	err := withUser(User+":x").put(within(t, long), "k", "v")
	if e := (*mysql.MySQLError)(nil); !errors.As(err, &e) || e.Number != denied {
		t.Errorf("%v; want error %d", err, denied)
	}
}

func testTLS(t *testing.T, s Server) {
	pem, err := os.ReadFile(CA(t, s))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate")
	}
	_, hosts, _ := splitURL(Through(t, s).URL())
	for name, works := range map[string]bool{"localhost": true, "example.com": false} {
		c := mysql.NewConfig()
		c.Net, c.Addr, c.User, c.DBName, c.Logger = "tcp", hosts[0], "root", Database, &mysql.NopLogger{}
		c.TLS = &tls.Config{RootCAs: roots, ServerName: name}
		connector, err := mysql.NewConnector(c)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		if err := db.PingContext(within(t, long)); (err == nil) != works {
			t.Errorf("%s: %v", name, err)
		}
		closed(t, db)
	}
}

// The program that PATH has under the name mysqld may be MariaDB's.
func TestFindMySQL(t *testing.T) {
	dir := t.TempDir()
	program := func(name, version string) string {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\necho 'mysqld  Ver %s for debian-linux-gnu'\n", version)
		if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		return file
	}
	maria, named := program("maria/mysqld", "10.11.19-MariaDB"), program("named", "8.4.1")
	inPath, cached := program("path/mysqld", "9.7.4"), program("cache/mysql/bin/mysqld", "9.7.4")
	m, err := newLocal(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, closer(m.close)) })
	for _, tt := range []struct{ name, env, path, want string }{
		{"named", named, filepath.Dir(inPath), named},
		{"named is none", maria, filepath.Dir(inPath), inPath},
		{"in PATH", "", filepath.Dir(inPath), inPath},
		{"cached", "", filepath.Dir(maria), cached},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv(mysqldEnv, tt.env)
			t.Setenv("PATH", tt.path+":/usr/bin:/bin")
			got, err := find(t.Context(), m, "MySQL", "cache="+quote(filepath.Join(dir, "cache"))+"\n"+mySQL.find)
			if err != nil || got != tt.want {
				t.Errorf("%s, %v; want %s", got, err, tt.want)
			}
		})
	}
}

type closer func() error

func (c closer) Close() error { return c() }
