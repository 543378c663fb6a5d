package backends

import (
	"errors"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

func TestOpen(t *testing.T) {
	for _, raw := range []string{Default, Example, "redis+cluster://a,b", "zk://h", "etcd://a,b/locks", "mysql://h/db", "mariadb://h/db"} {
		b, err := Open(raw, nil)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if err := b.Close(); err != nil {
			t.Errorf("close %s: %v", raw, err)
		}
	}
	for raw, want := range map[string]string{
		"":             "is not a URL",
		"redis":        "is not a URL",
		"memcached://": "scheme \"memcached\" is not one of embedded, redis",
		"embedded:x":   "has something after embedded:",
		"mysql://h":    "lacks the name of the database",
		"redis://a,b":  "names several hosts",
		"zk://u@h":     "must have a user and a password",
		"etcd://u@h":   "must have a user and a password",
	} {
		if b, err := Open(raw, nil); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) || b != nil {
			t.Errorf("%q: %v, %v; want %q", raw, b, err, want)
		}
	}
}

func TestWithoutMigration(t *testing.T) {
	for raw, want := range map[string]string{
		"mysql://u@h/db":           "mysql://u@h/db?migrate=false",
		"mariadb://u@h/db":         "mariadb://u@h/db?migrate=false",
		"mysql://u@h/db?prefix=x_": "mysql://u@h/db?prefix=x_&migrate=false",
		"redis://h":                "redis://h",
		"embedded:":                "embedded:",
	} {
		if got := WithoutMigration(raw); got != want {
			t.Errorf("%s without migration: %q; want %q", raw, got, want)
		}
	}
}

func TestPrivate(t *testing.T) {
	for raw, want := range map[string]bool{"embedded:": true, "redis://h": false, "nothing": false} {
		if got := Private(raw); got != want {
			t.Errorf("%s: private %t", raw, got)
		}
	}
}

// Each kind tells people how its URLs look.
func TestHelp(t *testing.T) {
	help := Help("  ")
	for _, k := range kinds {
		if !strings.Contains(help, "\n  "+k.schemes[0]+":") && !strings.HasPrefix(help, "  "+k.schemes[0]+":") {
			t.Errorf("no line for %s in\n%s", k.schemes[0], help)
		}
	}
	for _, tables := range WithTables() {
		if sql, err := tables.Schema(tables.Strategies[0], tables.Prefix); err != nil || !strings.Contains(sql, "CREATE TABLE") {
			t.Errorf("%s: %v", tables.Store, err)
		}
	}
}
