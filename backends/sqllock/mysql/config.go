package mysql

import (
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/lock"
)

// Schemes are the URL schemes. They mean the same: which of the two a server
// is, it says itself.
var Schemes = []string{"mysql", "mariadb"}

// Config is what a URL says, as far as all strategies share it.
type Config struct{ storeurl.SQL }

// Parse reads a URL, see storeurl.SQL.
func Parse(raw string) (Config, error) {
	u, err := storeurl.ParseSQL(raw, "3306", Schemes)
	switch {
	case err != nil:
		return Config{}, err
	case !storeurl.IsName(u.Database, 64):
		return Config{}, storeurl.Invalid("has a database name with other characters than letters, digits, _, $ and -, or more than 64")
	}
	u.TLS = u.Options.TLS(false)
	return Config{u}, nil
}

// Table is the name of a table of ours in a statement, with its database: so it
// is the same from whatever connection.
func (c *Config) Table(name string) string {
	return "`" + c.Database + "`.`" + c.Prefix + name + "`"
}

// Open makes a Backend for what a URL says. It does not ask the server anything.
// The error is lock.ErrInvalid. observe may be nil.
func Open(cfg Config, observe lock.Observe) (*sqllock.Backend, error) {
	o := sqllock.OptionsOf(cfg.SQL)
	if err := cfg.Options.Err(); err != nil {
		return nil, err
	}
	return sqllock.Open(New(cfg, observe), o)
}

// Schema is the text that makes the tables, with a prefix and no database in their
// names.
func Schema(prefix string) string {
	w := New(Config{}, nil).Words()
	w.Table = func(table string) string { return "`" + prefix + table + "`" }
	return sqllock.Schema(w)
}
