// Package backends knows all stores. It opens a store by its URL and has the help texts
// of each, so no package above needs to know a store by name.
package backends

import (
	"fmt"
	"slices"
	"strings"

	"github.com/locksidecar/locksidecar/backends/caslock/etcd"
	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/backends/mysqllock"
	"github.com/locksidecar/locksidecar/backends/redislock"
	"github.com/locksidecar/locksidecar/backends/sqllock/postgres"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/backends/zklock"
	"github.com/locksidecar/locksidecar/lock"
)

// URLs for people who have none yet.
const (
	Default = "embedded:"                  // needs nothing
	Example = "redis://redis.example:6379" // for help texts: a store that several sidecars share

	Example1 = "redis://locks-1.example" // and three that are shards
	Example2 = "redis://locks-2.example"
	Example3 = "redis://locks-3.example"
)

// kind is what there is to know of one kind of store.
type kind struct {
	schemes []string
	help    string // the forms of its URL, a line each
	private bool   // its locks keep nobody out beyond the process
	open    func(rawURL string, observe lock.Observe) (lock.Backend, error)
	tables  *Tables // nil: it has none that somebody must make
}

var kinds = []kind{
	{
		schemes: []string{"embedded"},
		help:    "embedded:                                    in the sidecar's memory: the apps of one socket (default)",
		private: true,
		open:    openEmbedded,
	},
	{
		schemes: redislock.Schemes,
		help: `redis://[USER:PASSWORD@]HOST[:PORT][/DB]     Redis; rediss:// with TLS
redis+sentinel://HOST[:PORT],…/MASTER        Redis behind Sentinel
redis+cluster://HOST[:PORT],…                Redis Cluster`,
		open: func(raw string, observe lock.Observe) (lock.Backend, error) {
			return opened(redislock.Open(raw, observe))
		},
	},
	{
		schemes: zklock.Schemes,
		help:    "zk://[USER:PASSWORD@]HOST[:PORT],…[/CHROOT]  ZooKeeper; zks:// with TLS",
		open:    func(raw string, observe lock.Observe) (lock.Backend, error) { return opened(zklock.Open(raw, observe)) },
	},
	{
		schemes: etcd.Schemes,
		help:    "etcd://[USER:PASSWORD@]HOST[:PORT],…[/PREFIX] etcd; etcds:// with TLS",
		open:    func(raw string, observe lock.Observe) (lock.Backend, error) { return opened(etcd.Open(raw, observe)) },
	},
	{
		schemes: mysqllock.Schemes,
		help:    "mysql://[USER:PASSWORD@]HOST[:PORT]/DATABASE MySQL or MariaDB",
		open:    mysqllock.Open,
		tables: &Tables{
			Store:      "mysql",
			About:      "mysql, for MySQL and MariaDB alike",
			Client:     "mysql locks",
			Strategies: mysqllock.Strategies,
			Prefix:     storeurl.DefaultPrefix,
			Schema:     mysqllock.Schema,
		},
	},
	{
		schemes: postgres.Schemes,
		help:    "postgres://[USER:PASSWORD@]HOST[:PORT]/DB    PostgreSQL",
		open: func(raw string, observe lock.Observe) (lock.Backend, error) {
			return opened(postgres.Open(raw, observe))
		},
		tables: &Tables{
			Store:      "postgres",
			About:      "postgres",
			Client:     "psql locks",
			Strategies: postgres.Strategies,
			Prefix:     storeurl.DefaultPrefix,
			Schema:     postgres.Schema,
		},
	},
}

// Schemes are the URL schemes that Open takes.
func Schemes() []string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.schemes...)
	}
	return all
}

// Help are the forms of URLs, for people: lines that begin with indent.
func Help(indent string) string {
	var lines strings.Builder
	for _, k := range kinds {
		for line := range strings.SplitSeq(k.help, "\n") {
			lines.WriteString(indent + line + "\n")
		}
	}
	return strings.TrimSuffix(lines.String(), "\n")
}

// find is the kind of a URL.
func find(rawURL string) (kind, bool) {
	scheme, _ := storeurl.Scheme(rawURL)
	i := slices.IndexFunc(kinds, func(k kind) bool { return slices.Contains(k.schemes, scheme) })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// Open makes a backend for a URL. It does not ask the store anything, so a
// store that is down is no error here. The error is lock.ErrInvalid.
// observe, which may be nil, is told of every request to the store; the
// embedded store has none.
func Open(rawURL string, observe lock.Observe) (lock.Backend, error) {
	k, ok := find(rawURL)
	if ok {
		return k.open(rawURL, observe)
	}
	scheme, ok := storeurl.Scheme(rawURL)
	if !ok {
		return nil, storeurl.Invalid("is not a URL such as " + Default + " or " + Example)
	}
	return nil, storeurl.Invalid(fmt.Sprintf("scheme %q is not one of %s", scheme, strings.Join(Schemes(), ", ")))
}

func openEmbedded(rawURL string, _ lock.Observe) (lock.Backend, error) {
	if rawURL != Default {
		return nil, storeurl.Invalid("has something after " + Default)
	}
	return embedded.New(), nil
}

// opened keeps a nil pointer from becoming an interface that is not nil.
func opened[B lock.Backend](b B, err error) (lock.Backend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Private reports whether the locks of a store keep nobody out beyond the process
// that has opened it.
func Private(store string) bool {
	k, ok := find(store)
	return ok && k.private
}

// Redact makes the URLs of a store fit to be shown: passwords become "xxxxx".
func Redact(store string) string {
	shown, _ := each(store, func(rawURL string) (string, error) { return storeurl.Redact(rawURL), nil })
	return shown
}

// WithPasswordFile names, in each URL, which has no password, a file with it, which is read again for
// each connection. The error is lock.ErrInvalid: it has one, or the store takes none.
func WithPasswordFile(store, path string) (string, error) {
	return each(store, func(rawURL string) (string, error) { return storeurl.WithPasswordFile(rawURL, path) })
}

// WithoutMigration tells the store to leave its tables alone, if it is one that
// has tables.
func WithoutMigration(store string) string {
	all, _ := each(store, func(rawURL string) (string, error) {
		if k, ok := find(rawURL); ok && k.tables != nil {
			return storeurl.WithOption(rawURL, "migrate", "false"), nil
		}
		return rawURL, nil
	})
	return all
}
