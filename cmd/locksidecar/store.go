package main

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/backends/mysqllock"
	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/session"
)

// storeFlags say which store to use and how; serve has them, and run, which can
// be its own sidecar.
type storeFlags struct {
	url          string
	urlFile      string
	passwordFile string
	migrate      bool
	ttl          time.Duration
	namespace    string
	name         string
}

func addStore(cmd *cobra.Command, store, storeHelp string) *storeFlags {
	s := &storeFlags{}
	f := cmd.Flags()
	f.StringVar(&s.url, "store", store, storeHelp)
	f.StringVar(&s.urlFile, "store-file", "", "file whose only line is the URL for --store, for URLs with secrets in them")
	f.StringVar(&s.passwordFile, "store-password-file", "", "file whose only line is the password to put into the store's URL")
	f.BoolVar(&s.migrate, "migrate", true, "MySQL and MariaDB: make and update the tables; else see locksidecar schema")
	f.DurationVar(&s.ttl, "ttl", session.DefaultTTL, "how long the store keeps locks when the sidecar dies, 500ms to 10m")
	f.StringVar(&s.namespace, "namespace", "", "put before every resource name in the store: NAMESPACE/name")
	f.StringVar(&s.name, "name", "", "name of this sidecar in lists (default $POD_NAME, else the host's name)")
	config.Rivals(f, "store", "store-file")
	complete(cmd, "store", backends.Schemes()...)
	return s
}

// given reports whether a store was named.
func (s *storeFlags) given() bool { return s.url != "" || s.urlFile != "" }

// resolve gives the store's URL with all its secrets.
func (s *storeFlags) resolve() (string, error) {
	raw := s.url
	if s.urlFile != "" {
		var err error
		if raw, err = config.ReadSecret(s.urlFile); err != nil {
			return "", usage("--store-file: %w", err)
		}
	}
	if !s.migrate {
		raw = withoutMigration(raw)
	}
	if s.passwordFile == "" {
		return raw, nil
	}
	password, err := config.ReadSecret(s.passwordFile)
	if err != nil {
		return "", usage("--store-password-file: %w", err)
	}
	return withPassword(raw, password)
}

// withoutMigration tells the store to leave its tables alone, if it is one that
// has tables.
func withoutMigration(raw string) string {
	scheme, _, _ := strings.Cut(raw, ":")
	if !slices.Contains(mysqllock.Schemes, scheme) {
		return raw
	}
	mark := "?"
	if strings.Contains(raw, "?") {
		mark = "&"
	}
	return raw + mark + "migrate=false"
}

// withPassword puts a password into a URL. It does not parse the URL, because
// those of clusters name several hosts, which net/url does not take.
func withPassword(raw, password string) (string, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return "", usage("--store-password-file: the store %s takes no password", backends.Redact(raw))
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	user, hosts := "", rest[:end]
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		user, hosts = hosts[:at], hosts[at+1:]
	}
	if _, _, has := strings.Cut(user, ":"); has {
		return "", usage("--store-password-file: the store's URL has a password already")
	}
	return scheme + "://" + user + ":" + url.UserPassword("", password).String()[1:] + "@" + hosts + rest[end:], nil
}
