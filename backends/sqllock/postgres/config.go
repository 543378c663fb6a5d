package postgres

import (
	"strings"

	"github.com/locksidecar/locksidecar/backends/storeurl"
)

// Schemes are the URL schemes. They mean the same.
var Schemes = []string{"postgres", "postgresql"}

const (
	defaultPort   = "5432"
	defaultSchema = "public"
)

// Config is what a URL says.
type Config struct {
	storeurl.SQL
	Listen []string // host:port for notifications, in place of Addrs
	Schema string   // of the tables
}

// Parse reads a URL:
//
//	postgres://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?OPTION=VALUE&…]
func Parse(raw string) (Config, error) {
	u, err := storeurl.ParseSQL(raw, defaultPort, Schemes)
	if err != nil {
		return Config{}, err
	}
	o := u.Options
	c := Config{SQL: u, Schema: o.String("schema", defaultSchema)}
	if listen := o.String("listen", ""); listen != "" {
		c.Listen = (&storeurl.URL{Hosts: strings.Split(listen, ",")}).Addrs(defaultPort)
	}
	if !storeurl.IsName(c.Schema, 32) {
		o.Refuse("schema", storeurl.NameRule)
	}
	c.TLS = readTLS(o)
	return c, nil
}

// readTLS reads the options of TLS as all stores have them, or sslmode as whoever
// uses PostgreSQL knows it.
func readTLS(o *storeurl.Options) *storeurl.TLS {
	mode := o.OneOf("sslmode", "", "", "disable", "require", "verify-full")
	if mode == "disable" && o.Bool("tls", false) {
		o.Refuse("sslmode", "says another thing than tls")
	}
	c := o.TLS(mode == "require" || mode == "verify-full")
	if mode == "require" {
		c.TrustAnybody() // as it is everywhere
	}
	return c
}

// Table is the name of a table of ours in a statement, with its schema: so it is
// the same whatever the search_path is.
func (c *Config) Table(name string) string { return `"` + c.Schema + `"."` + c.Prefix + name + `"` }
