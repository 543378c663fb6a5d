package postgres

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

func TestParse(t *testing.T) {
	c, err := Parse("postgresql://u:p%40ss@a,b:1/db?prefix=x_&schema=locks&timeout=2s&migrate=false&max-connections=7&listen=c,d:2")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Options.Err(); err != nil {
		t.Fatal(err)
	}
	if c.User != "u" || c.Password != "p@ss" || c.Database != "db" || c.Migrate || c.Timeout != 2*time.Second || c.MaxConnections != 7 || c.TLS != nil ||
		!slices.Equal(c.Addrs, []string{"a:5432", "b:1"}) || !slices.Equal(c.Listen, []string{"c:5432", "d:2"}) || c.Table("lock") != `"locks"."x_lock"` {
		t.Errorf("got %+v", c)
	}
	for raw, want := range map[string]struct {
		tls, verifies bool
	}{
		"postgres://h/d":                     {},
		"postgres://h/d?sslmode=disable":     {},
		"postgres://h/d?tls=true":            {true, true},
		"postgres://h/d?sslmode=require":     {true, false},
		"postgres://h/d?sslmode=verify-full": {true, true},
	} {
		c, err := Parse(raw)
		if err != nil || (c.TLS != nil) != want.tls || want.tls && c.TLS.Config().InsecureSkipVerify == want.verifies {
			t.Errorf("%s: %+v, %v", raw, c.TLS, err)
		}
	}
}

func TestRefusedURLs(t *testing.T) {
	for raw, want := range map[string]string{
		"mysql://h/d":                             `scheme "mysql" is not one of`,
		"postgres://h":                            "lacks the name of the database",
		"postgres://u:secret@h/d?prefix=a.b":      "option prefix must have",
		"postgres://h/d?schema=a%22b":             "option schema must have",
		"postgres://h/d?schema=":                  "option schema must have",
		"postgres://h/d?timeout=1ms":              "option timeout must be",
		"postgres://h/d?sslmode=prefer":           "option sslmode must be one of",
		"postgres://h/d?sslmode=disable&tls=true": "option sslmode says another thing than tls",
		"postgres://h/d?connect_timeout=3":        "option connect_timeout is not known",
	} {
		c, err := Parse(raw)
		if err == nil {
			err = c.Options.Err()
		}
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v, want %q", raw, err, want)
		}
	}
	c, err := Parse("postgres://h:99999/d")
	if err == nil {
		_, err = NewDialect(c, nil).servers(c.Addrs, 0)
	}
	if !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("a port that is none: %v", err)
	}
}

// What the environment has for programs of PostgreSQL changes nothing.
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"PGHOST": "elsewhere", "PGPORT": "1", "PGUSER": "nobody", "PGPASSWORD": "x", "PGDATABASE": "none", "PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/no/file",
		"PGOPTIONS": "-c search_path=x", "PGTARGETSESSIONATTRS": "standby", "PGAPPNAME": "x", "PGCONNECT_TIMEOUT": "1",
	} {
		t.Setenv(name, value)
	}
	cfg, err := Parse("postgres://me@h/d")
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewDialect(cfg, nil).servers(cfg.Addrs, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := c.configs[0]
	if h.Host != "h" || h.Port != 5432 || h.User != "me" || h.Password != "" || h.Database != "d" || h.TLSConfig != nil || h.ValidateConnect != nil ||
		len(h.Fallbacks) != 0 || len(h.RuntimeParams) != 2 || h.ConnectTimeout != 0 {
		t.Errorf("got %+v", h)
	}
}
