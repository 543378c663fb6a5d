package mysql

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestParse(t *testing.T) {
	c, err := Parse("mariadb://u:p%40ss@a:1,b/locks?prefix=x_&timeout=2s&migrate=false&max-connections=7&own=1")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Addrs, []string{"a:1", "b:3306"}) || c.User != "u" || c.Password != "p@ss" || c.Prefix != "x_" ||
		c.Timeout != 2*time.Second || c.Migrate || c.MaxConnections != 7 || c.TLS != nil {
		t.Errorf("got %+v", c)
	}
	if got, want := c.Table("lock"), "`locks`.`x_lock`"; got != want {
		t.Errorf("Table: got %s, want %s", got, want)
	}
	if err := c.Options.Err(); err == nil || !strings.Contains(err.Error(), "option own is not known") {
		t.Errorf("an option that nobody has read: %v", err)
	}
	if c, err = Parse("mysql://localhost/db?socket=/run/s"); err != nil || c.Socket != "/run/s" || c.Prefix != "locksidecar_" || !c.Migrate || c.Timeout != time.Second {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for raw, want := range map[string]string{
		"postgres://a/b":                      "scheme",
		"mysql://u:secret@a":                  "lacks the name of the database",
		"mysql://a/b`c":                       "database name",
		"mysql://a/b/c":                       "database name",
		"mysql://a/b?prefix=a.b":              "option prefix",
		"mysql://a/b?timeout=1":               "option timeout",
		"mysql://a/b?migrate=perhaps":         "option migrate",
		"mysql://a/b?max-connections=0":       "option max-connections",
		"mysql://a/b?tls=true&tls-ca=/no/ca":  "option tls-ca",
		"mysql://u:secret@a/b?tls-cert=/no/c": "option tls-",
	} {
		c, err := Parse(raw)
		if err == nil {
			err = c.Options.Err()
		}
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want an InvalidError with %q", raw, err, want)
		}
	}
}

func TestServerCheck(t *testing.T) {
	for _, tt := range []struct {
		product product
		version string
		ok      bool
	}{
		{MySQL, "8.0.36", true}, {MySQL, "9.7.4-2", true}, {MySQL, "5.7.44-log", false},
		{MariaDB, "10.11.19-MariaDB-0+deb12u1", true}, {MariaDB, "11.4.2-MariaDB", true}, {MariaDB, "10.5.9-MariaDB", false},
		{MySQL, "strange", true},
	} {
		if err := check(tt.product, tt.version); (err == nil) != tt.ok {
			t.Errorf("%s %s: %v", tt.product, tt.version, err)
		}
	}
}
