// Package postgres is the dialect of PostgreSQL.
//
// It keeps no state in sessions, so that a pooler such as PgBouncer may stand in
// between and give each transaction whichever connection is free: settings are
// made for one transaction at a time, and statements are not prepared by name.
// Where a connection leads to the server itself, which it finds out, it saves
// both. Only notifications need such a connection, and they are hints.
package postgres

import (
	"crypto/tls"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/storeurl"
)

// Schemes are the URL schemes. They mean the same.
var Schemes = []string{"postgres", "postgresql"}

// DefaultPrefix is the usual prefix of the names of tables.
const DefaultPrefix = "locksidecar_"

const (
	defaultTimeout = time.Second
	defaultPort    = "5432"
	defaultSchema  = "public"
	prefixRule     = "must have at most 32 letters, digits, _, $ and -"
)

// Config is what a URL says.
type Config struct {
	Addrs          []string // host:port, tried in this order; the first that takes writes is used
	Socket         string   // path of a Unix socket, in place of Addrs
	Listen         []string // host:port for notifications, in place of Addrs
	User, Password string
	Database       string
	Schema, Prefix string        // of the names of tables
	Migrate        bool          // create tables as needed
	Timeout        time.Duration // of one request, without the time that it may wait for a row
	MaxConnections int           // 0: as usual
	TLS            *tls.Config   // nil: none

	// Options are where options are read that are not of the connection. Whoever has
	// read all calls its Err.
	Options *storeurl.Options
}

// plainName is what the names of tables and schemas are made of: it needs no care
// between quotes.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_$-]+$`)

// Parse reads a URL:
//
//	postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?OPTION=VALUE&…]
func Parse(raw string) (Config, error) {
	u, err := storeurl.Parse(raw)
	if err != nil {
		return Config{}, err
	}
	if u.Scheme != Schemes[0] && u.Scheme != Schemes[1] {
		return Config{}, storeurl.Invalid(fmt.Sprintf("scheme %q is not one of %s", u.Scheme, strings.Join(Schemes, ", ")))
	}
	o := u.Options
	c := Config{Addrs: u.Addrs(defaultPort), User: u.User, Password: u.Password, Database: u.Path, Options: o}
	if c.Database == "" {
		return Config{}, storeurl.Invalid("lacks the name of the database: postgres://HOST[:PORT]/DATABASE")
	}
	c.Socket = o.String("socket", "")
	if listen := o.String("listen", ""); listen != "" {
		c.Listen = (&storeurl.URL{Hosts: strings.Split(listen, ",")}).Addrs(defaultPort)
	}
	c.Schema = o.String("schema", defaultSchema)
	if len(c.Schema) > 32 || !plainName.MatchString(c.Schema) {
		o.Refuse("schema", prefixRule)
	}
	c.Prefix = o.String("prefix", DefaultPrefix)
	if CheckPrefix(c.Prefix) != nil {
		o.Refuse("prefix", prefixRule)
	}
	c.Migrate = o.Bool("migrate", true)
	c.Timeout = o.Duration("timeout", defaultTimeout, 10*time.Millisecond, time.Minute)
	c.MaxConnections = o.Int("max-connections", 0, 1, 10_000)
	c.TLS = readTLS(o)
	return c, nil
}

// readTLS reads the options of TLS as all stores have them, or sslmode as whoever
// uses PostgreSQL knows it.
func readTLS(o *storeurl.Options) *tls.Config {
	mode := o.OneOf("sslmode", "", "", "disable", "require", "verify-full")
	if mode == "disable" && o.Bool("tls", false) {
		o.Refuse("sslmode", "says another thing than tls")
	}
	c := o.TLS(mode == "require" || mode == "verify-full")
	if c != nil && mode == "require" && c.RootCAs == nil {
		c.InsecureSkipVerify = true // as it is everywhere
	}
	return c
}

// CheckPrefix refuses what the names of tables must not begin with. The error is
// lock.ErrInvalid.
func CheckPrefix(prefix string) error {
	if len(prefix) > 32 || prefix != "" && !plainName.MatchString(prefix) {
		return storeurl.Invalid("option prefix " + prefixRule)
	}
	return nil
}

// Table is the name of a table of ours in a statement, with its schema: so it is
// the same whatever the search_path is.
func (c *Config) Table(name string) string { return `"` + c.Schema + `"."` + c.Prefix + name + `"` }
