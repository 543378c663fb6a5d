package mydb

import (
	"crypto/tls"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/storeurl"
)

// Schemes are the URL schemes. They mean the same: which of the two a server
// is, it says itself.
var Schemes = []string{"mysql", "mariadb"}

// DefaultPrefix is the usual prefix of the names of tables.
const DefaultPrefix = "locksidecar_"

const (
	defaultTimeout = time.Second
	defaultPort    = "3306"
)

// Config is what a URL says, as far as all strategies share it.
type Config struct {
	Addrs          []string // host:port, tried in this order; the first that takes writes is used
	Socket         string   // path of a Unix socket, in place of Addrs
	User, Password string
	Database       string
	Prefix         string        // of the names of tables
	Migrate        bool          // create and change tables as needed
	Timeout        time.Duration // of one request, without the time that it may wait for a row
	MaxConnections int           // 0: as the strategy likes
	TLS            *tls.Config   // nil: none

	// Options are where a strategy reads options of its own. Whoever has read
	// all calls its Err.
	Options *storeurl.Options
}

// plainName is what the names of tables and databases are made of: it needs no
// care in any place of a statement, nor in a file name of the server.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_$-]+$`)

// Parse reads a URL:
//
//	mysql://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?OPTION=VALUE&…]
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
		return Config{}, storeurl.Invalid("lacks the name of the database: mysql://HOST[:PORT]/DATABASE")
	}
	if len(c.Database) > 64 || !plainName.MatchString(c.Database) {
		return Config{}, storeurl.Invalid("has a database name with other characters than letters, digits, _, $ and -, or more than 64")
	}
	c.Socket = o.String("socket", "")
	c.Prefix = o.String("prefix", DefaultPrefix)
	if CheckPrefix(c.Prefix) != nil {
		o.Refuse("prefix", prefixRule)
	}
	c.Migrate = o.Bool("migrate", true)
	c.Timeout = o.Duration("timeout", defaultTimeout, 10*time.Millisecond, time.Minute)
	c.MaxConnections = o.Int("max-connections", 0, 1, 10_000)
	c.TLS = o.TLS(false)
	return c, nil
}

const prefixRule = "must have at most 32 letters, digits, _, $ and -"

// CheckPrefix refuses what the names of tables must not begin with. The error is
// lock.ErrInvalid.
func CheckPrefix(prefix string) error {
	if len(prefix) > 32 || prefix != "" && !plainName.MatchString(prefix) {
		return storeurl.Invalid("option prefix " + prefixRule)
	}
	return nil
}

// Table is the name of a table of ours in a statement, with its database: so it
// is the same from whatever connection.
func (c *Config) Table(name string) string {
	return "`" + c.Database + "`.`" + c.Prefix + name + "`"
}
