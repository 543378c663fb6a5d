package postgres

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/locksidecar/locksidecar/backends/sqllock"
)

// Codes of the server's errors (SQLSTATE), as PostgreSQL's appendix A lists them.
const (
	codeReadOnly      = "25006"
	codeSerialization = "40001"
)

const (
	missing  = " (run `locksidecar schema postgres` and apply what it prints, or let the sidecar do it: migrate=true)"
	login    = " (user or password of the store's URL are wrong)"
	readOnly = " (the server takes no writes: is it a standby?)"
)

// codes are what errors of the server mean; others are Refused.
var codes = map[string]struct {
	class   sqllock.Class
	useless bool   // the connection must not be used again
	hint    string // for people
}{
	codeSerialization: {class: sqllock.Conflict},
	"40P01":           {class: sqllock.Conflict},                // deadlock
	"0A000":           {class: sqllock.Conflict, useless: true}, // the table of a prepared statement has changed
	"26000":           {class: sqllock.Conflict, useless: true}, // a prepared statement is not there,
	"42P05":           {class: sqllock.Conflict, useless: true}, // or there already
	"55P03":           {class: sqllock.Blocked},                 // NOWAIT, and lock_timeout
	"42P01":           {class: sqllock.Missing, hint: missing},  // table
	"42703":           {class: sqllock.Missing, hint: missing},  // column
	"3F000":           {class: sqllock.Missing, hint: missing},  // schema
	codeReadOnly:      {class: sqllock.Refused, useless: true, hint: readOnly},
	"28000":           {class: sqllock.Refused, hint: login},
	"28P01":           {class: sqllock.Refused, hint: login},
	"3D000":           {class: sqllock.Refused, hint: " (the database of the store's URL does not exist)"},
	"42501":           {class: sqllock.Refused, hint: " (the role lacks a privilege: see docs/stores/postgres.md)"},
	"53300":           {class: sqllock.Refused, hint: " (the server's max_connections are used up)"},
}

// code is that of the server's error, or empty when it is none.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// answered tells whether the server itself said that the request failed, and
// goes on with the connection. What ends the connection leaves the outcome open.
func answered(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && !strings.HasPrefix(e.Code, "57P") && e.Severity != "FATAL" && e.SeverityUnlocalized != "FATAL"
}

// Class implements sqllock.Dialect.
func (*Dialect) Class(err error) sqllock.Class {
	if errors.As(err, new(*sqllock.NotSentError)) {
		return sqllock.NotSent
	}
	if !answered(err) {
		return sqllock.Unclear
	}
	if known, ok := codes[code(err)]; ok {
		return known.class
	}
	return sqllock.Refused
}

// Hint implements sqllock.Dialect.
func (*Dialect) Hint(err error) string {
	if errors.Is(err, errReadOnly) {
		return readOnly
	}
	return codes[code(err)].hint
}

var errReadOnly = errors.New("the server takes no writes (pg_is_in_recovery, or default_transaction_read_only)")
