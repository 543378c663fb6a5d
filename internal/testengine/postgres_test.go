package testengine

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// sqlState is the code of a server's error.
func sqlState(err error) string {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return ""
	}
	return e.Code
}

func testPostgresUser(t *testing.T, s Server) {
	if err := postgresExec(within(t, long), Nodes(t, s)[0].Addr(), "DROP TABLE pairs"); err != nil { // root's
		t.Fatal(err)
	}
	withUser := func(who string) client { return newClient(t, strings.Replace(s.URL(), "root@", who+"@", 1)) }
	set(t, withUser(User+":"+Password), "1")
	const wrongPassword = "28P01"
	if err := withUser(User+":x").put(within(t, long), "k", "v"); sqlState(err) != wrongPassword {
		t.Errorf("%v; want error %s", err, wrongPassword)
	}
}

func testPostgresTLS(t *testing.T, s Server) {
	pem, err := os.ReadFile(CA(t, s))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate")
	}
	for name, works := range map[string]bool{"localhost": true, "example.com": false} {
		cfg, err := pgx.ParseConfig(Through(t, s).URL() + "?sslmode=require")
		if err != nil {
			t.Fatal(err)
		}
		cfg.TLSConfig = &tls.Config{RootCAs: roots, ServerName: name}
		c, err := pgx.ConnectConfig(within(t, long), cfg)
		if (err == nil) != works {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = c.Close(t.Context())
		}
	}
}

// The replica of a pair can be read and takes no writes.
func testPostgresReplica(t *testing.T, s Server) {
	set(t, newClient(t, s.URL()), "1")
	replica := newClient(t, PostgresReplica(t, s).URL())
	eventually(t, "the replica has it", func() bool {
		got, err := replica.get(within(t, long), keys(t)[0])
		return err == nil && got == "1"
	})
	const readOnly = "25006"
	if err := replica.put(within(t, long), "k", "v"); sqlState(err) != readOnly {
		t.Errorf("%v; want error %s", err, readOnly)
	}
}

// A fork knows what its origin knew, and goes its own way.
func TestForkPostgres(t *testing.T) {
	t.Parallel()
	origin(t, Postgres)
	first := New(t, Postgres)
	a := newClient(t, first.URL())
	put := func(c client, key string) {
		t.Helper()
		if err := c.put(within(t, long), key, "x"); err != nil {
			t.Fatal(err)
		}
	}
	put(a, "before")
	fork := ForkPostgres(t, first)
	put(a, "after")
	b := newClient(t, fork.URL())
	for key, want := range map[string]string{"before": "x", "after": ""} {
		if got, err := b.get(within(t, long), key); err != nil || got != want {
			t.Errorf("the fork has %q for %s, %v; want %q", got, key, err, want)
		}
	}
	put(b, "own")
}

func TestShiftClockOfPostgres(t *testing.T) {
	t.Parallel()
	origin(t, Postgres)
	s := New(t, PostgresFakeTime)
	for _, by := range []time.Duration{0, time.Hour, -24 * time.Hour, 0} {
		ShiftClock(t, s, by)
		var now float64
		err := postgresDo(within(t, long), Nodes(t, s)[0].Addr(), func(c *pgx.Conn) error {
			return c.QueryRow(t.Context(), "SELECT extract(epoch FROM clock_timestamp())::float8").Scan(&now)
		})
		if err != nil {
			t.Fatal(err)
		}
		if off := now - float64(time.Now().UnixMicro())/1e6 - by.Seconds(); math.Abs(off) > 5 {
			t.Errorf("the clock is ahead by %v more than %s", off, by)
		}
	}
}
