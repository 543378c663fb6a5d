package mydb

import "github.com/locksidecar/locksidecar/backends/storeurl"

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
