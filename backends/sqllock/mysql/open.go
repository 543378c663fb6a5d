package mysql

import (
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/lock"
)

// Options are what a URL says of the engine. What is wrong there is the error of
// cfg.Options.Err.
func Options(cfg mydb.Config) sqllock.Options {
	o := sqllock.Options{Migrate: cfg.Migrate, MaxConnections: cfg.MaxConnections, FailoverGrace: -1}
	o.LogKeep = cfg.Options.Duration("log-keep", sqllock.DefaultLogKeep, 0, 10*365*24*time.Hour)
	if cfg.Options.Has("failover-grace") {
		o.FailoverGrace = cfg.Options.Duration("failover-grace", 0, 0, lock.MaxTTL)
	}
	return o
}

// Open makes a Backend for what a URL says. It does not ask the server anything.
// The error is lock.ErrInvalid. observe may be nil.
func Open(cfg mydb.Config, observe lock.Observe) (*sqllock.Backend, error) {
	o := Options(cfg)
	if err := cfg.Options.Err(); err != nil {
		return nil, err
	}
	return sqllock.Open(New(cfg, observe), o)
}

// Schema is the text that makes the tables, with a prefix and no database in their
// names.
func Schema(prefix string) string {
	return sqllock.Schema(schema, func(table string) string { return "`" + prefix + table + "`" })
}
