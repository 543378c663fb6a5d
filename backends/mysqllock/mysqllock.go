// Package mysqllock keeps locks in MySQL or MariaDB, in one of several ways,
// which the URL names by its option strategy:
//
//   - tables, the usual one: holds and queues are rows; see package sqllock.
//   - row: a hold has a row lock beside, so that it excludes programs that lock the same
//     rows without a sidecar; see package rows.
//   - shedlock: a hold has one in ShedLock's table beside, so that it excludes services
//     that use ShedLock; see package shedlock.
//
// The engine of tables decides in all of them: with one prefix on one database, sidecars
// exclude each other whatever their strategies are.
package mysqllock

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/backends/mysqllock/rows"
	"github.com/locksidecar/locksidecar/backends/mysqllock/shedlock"
	"github.com/locksidecar/locksidecar/backends/sqllock/mysql"
	"github.com/locksidecar/locksidecar/backends/storeurl"
	"github.com/locksidecar/locksidecar/lock"
)

// Schemes are the URL schemes that Open takes. They mean the same.
var Schemes = mysql.Schemes

// The strategies.
const (
	Tables   = "tables"
	Row      = "row"
	ShedLock = "shedlock"
)

// Strategies are the values of the option strategy; the first is the usual one.
var Strategies = []string{Tables, Row, ShedLock}

// Open makes a Backend for a URL, see docs/stores/mysql.md for its form. It does
// not ask the server anything, so a server that is down is no error here.
// The error is lock.ErrInvalid. observe may be nil.
func Open(rawURL string, observe lock.Observe) (lock.Backend, error) {
	cfg, err := mysql.Parse(rawURL)
	if err != nil {
		return nil, err
	}
	switch strategy := cfg.Options.String("strategy", Tables); strategy {
	case Tables:
		return backend(mysql.Open(cfg, observe))
	case Row:
		return backend(rows.Open(cfg, observe))
	case ShedLock:
		return backend(shedlock.Open(cfg, observe))
	default:
		return nil, unknown(strategy)
	}
}

// backend keeps a nil pointer from becoming an interface that is not nil.
func backend[B lock.Backend](b B, err error) (lock.Backend, error) {
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Schema is the SQL that makes the tables of a strategy, in whatever database is
// current where it is applied. The error is lock.ErrInvalid.
func Schema(strategy, prefix string) (string, error) {
	if err := storeurl.CheckPrefix(prefix); err != nil {
		return "", err
	}
	switch strategy {
	case Tables:
		return mysql.Schema(prefix), nil
	case Row:
		return mysql.Schema(prefix) + rows.Schema(prefix), nil
	case ShedLock:
		return mysql.Schema(prefix) + shedlock.Schema(), nil
	default:
		return "", unknown(strategy)
	}
}

func unknown(strategy string) error {
	return storeurl.Invalid(fmt.Sprintf("option strategy is %q, and must be one of %s", strategy, strings.Join(Strategies, ", ")))
}
