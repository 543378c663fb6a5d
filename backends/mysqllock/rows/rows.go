// Package rows has each hold also be a row lock of MySQL or MariaDB, so that programs
// that lock the same rows without a sidecar are kept out, and keep out.
//
// The engine (package sqllock) decides among sidecars: queue, fences, leases, guards.
// What it has granted takes a row lock, too: an open transaction that has SELECT … FOR
// UPDATE, or a shared row lock, on the row of the resource, on a connection of its own
// (a link). While a stranger has locked the row, the link waits for it in the server.
// Who waits in the engine needs no link.
//
// When a link ends the row is free for strangers at that moment, so the hold is lost,
// and that is noticed at once by the end of its socket. The server ends a link that was
// silent for the TTL and a second (wait_timeout), so a machine that vanished keeps nobody out for
// much longer than its lease.
//
// What this way of locking cannot do: downgrade a hold, hold more locks than there may
// be connections, and keep a hold over the loss of its connection. It needs one primary
// server: row locks are not replicated, nor seen by the other nodes of a Galera cluster.
package rows

import (
	_ "embed" // the schema
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/locksidecar/locksidecar/backends/sqllock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// usualConnections is how many a backend opens unless the URL says otherwise, and
	// engineConnections how many of them are for the engine's requests.
	usualConnections, engineConnections = 64, 8
)

//go:embed schema.sql
var schema string

// Schema is the text that makes the table of row locks, with a prefix and no database
// in its name.
func Schema(prefix string) string { return schemaOf("`" + prefix + "row`") }

func schemaOf(table string) string { return strings.ReplaceAll(schema, "{row}", table) }

// Open makes a Backend. It does not ask the server anything. The error is
// lock.ErrInvalid. observe may be nil.
func Open(cfg mysql.Config, observe lock.Observe) (*sqllock.Backend, error) {
	return openTold(cfg, observe, func(*foreign) {})
}

// openTold is Open, and tells of the row locks of each lease.
func openTold(cfg mysql.Config, observe lock.Observe, opened func(*foreign)) (*sqllock.Backend, error) {
	o := sqllock.OptionsOf(cfg.SQL)
	most := cfg.MaxConnections
	if most == 0 {
		most = usualConnections
	}
	if least := engineConnections + 2; most < least {
		cfg.Options.Refuse("max-connections", fmt.Sprintf("must be at least %d with strategy=row", least))
	}
	if err := cfg.Options.Err(); err != nil {
		return nil, err
	}
	if observe == nil {
		observe = func(string, time.Duration, error) {}
	}
	s := &slots{most: int64(most - engineConnections), all: most}
	o.MaxConnections = engineConnections
	o.Beside = &sqllock.Beside{
		Look:    "SELECT name FROM " + cfg.Table("row") + " LIMIT 0",
		Tables:  schemaOf(cfg.Table("row")),
		Recheck: rowWait, // the link's wait wakes it
		Open: func(lo lock.LeaseOptions, server string, ev sqllock.Events) (sqllock.Foreign, error) {
			f, err := open(cfg, observe, s, lo.TTL, server, ev)
			if err != nil {
				return nil, err
			}
			opened(f)
			return f, nil
		},
	}
	return sqllock.Open(mysql.New(cfg, observe), o)
}

// slots count the links of all leases.
type slots struct {
	used atomic.Int64
	most int64
	all  int // connections
}

// take counts one more link, if there may be one.
func (s *slots) take() error {
	if s.used.Add(1) > s.most {
		s.used.Add(-1)
		return &lock.LimitError{Limit: fmt.Sprintf("locks at a time, for with strategy=row each needs a connection (max-connections=%d)", s.all), Max: int(s.most)}
	}
	return nil
}

func (s *slots) put() { s.used.Add(-1) }
