package backends

import (
	"errors"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/lock"
)

// TestSeveralURLs: what is done to a store's URL is done to each of several.
func TestSeveralURLs(t *testing.T) {
	const two = "redis://:secret@a mysql://u:secret@b/db"
	if got := Redact(two); strings.Contains(got, "secret") || !strings.Contains(got, "@a mysql://") {
		t.Errorf("Redact = %s", got)
	}
	if got := WithoutMigration(two); got != two+"?migrate=false" {
		t.Errorf("WithoutMigration = %s", got)
	}
	if got, err := WithPasswordFile("redis://a redis://b", "/p"); err != nil || strings.Count(got, "password-file=") != 2 {
		t.Errorf("WithPasswordFile = %s, %v", got, err)
	}
	if _, err := WithPasswordFile(two, "/p"); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("WithPasswordFile of URLs with passwords = %v", err)
	}
}

// TestOpenStore: what cannot be shards is refused, and what was opened is closed.
func TestOpenStore(t *testing.T) {
	wrapped := 0
	open := func(store string) error {
		wrapped = 0
		b, err := OpenStore(store, nil, func(b lock.Backend) lock.Backend { wrapped++; return b }, nil)
		if err != nil {
			return err
		}
		return b.Close()
	}
	for store, want := range map[string]int{"embedded:": 1, "redis://a": 1, "redis://a redis://b": 2, "redis://a?shard=x  redis://a?shard=y etcd://c": 3} {
		if err := open(store); err != nil || wrapped != want {
			t.Errorf("OpenStore(%s) = %v with %d stores, want %d", store, err, wrapped, want)
		}
	}
	for store, want := range map[string]string{
		"redis://a embedded:":                 "cannot be a shard",
		"redis://a redis://a":                 "twice",
		"redis://a?shard=x redis://b?shard=x": "twice",
		"redis://a redis://b?none=1":          "none",
		"redis://a http://b":                  "http",
		"redis://a?shard=x":                   "shard",
	} {
		if err := open(store); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("OpenStore(%s) = %v, want ErrInvalid with %q", store, err, want)
		}
	}
}
