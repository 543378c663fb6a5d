package mysql

import (
	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

// Open makes a Backend for what a URL says. It does not ask the server anything.
// The error is lock.ErrInvalid. observe may be nil.
func Open(cfg mydb.Config, observe lock.Observe) (*sqllock.Backend, error) {
	o := sqllock.OptionsOf(cfg.SQL)
	if err := cfg.Options.Err(); err != nil {
		return nil, err
	}
	return sqllock.Open(New(cfg, observe), o)
}

// Schema is the text that makes the tables, with a prefix and no database in their
// names.
func Schema(prefix string) string {
	w := New(mydb.Config{}, nil).Words()
	w.Table = func(table string) string { return "`" + prefix + table + "`" }
	return sqllock.Schema(w)
}
