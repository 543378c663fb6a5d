package mysql

import (
	"errors"

	"github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/backends/sqllock"
)

const (
	missing  = " (run `locksidecar schema mysql` and apply what it prints, or let the sidecar do it: migrate=true)"
	login    = " (user or password of the store's URL are wrong)"
	denied   = " (the database account lacks a privilege: see docs/stores/mysql.md)"
	readOnly = " (the server takes no writes: is it a replica?)"
)

// codes are what the server's errors mean, by their numbers in MySQL's and MariaDB's
// references; others are Refused.
var codes = map[uint16]struct {
	class   sqllock.Class
	useless bool   // the connection must not be used again: of several servers, another may take writes
	hint    string // for people
}{
	1213: {class: sqllock.Conflict},                               // deadlock
	1020: {class: sqllock.Conflict},                               // MariaDB: the row has changed since it was read
	1205: {class: sqllock.Blocked},                                // innodb_lock_wait_timeout; the server may have rolled back the statement only
	3572: {class: sqllock.Blocked},                                // NOWAIT
	1146: {class: sqllock.Missing, hint: missing},                 // table
	1054: {class: sqllock.Missing, hint: missing},                 // column
	1049: {class: sqllock.Missing, hint: missing},                 // database
	1290: {class: sqllock.Refused, useless: true, hint: readOnly}, // --read-only, --super-read-only
	1792: {class: sqllock.Refused, useless: true, hint: readOnly}, // the transaction is read only
	1836: {class: sqllock.Refused, useless: true, hint: readOnly}, // the server is in that mode
	1045: {class: sqllock.Refused, hint: login},
	1044: {class: sqllock.Refused, hint: denied}, // database
	1142: {class: sqllock.Refused, hint: denied}, // table
	1143: {class: sqllock.Refused, hint: denied}, // column
	1227: {class: sqllock.Refused, hint: denied}, // another one
	1665: {class: sqllock.Refused, hint: " (set binlog_format to ROW or MIXED)"},
}

// Code is the number of the server's error, or 0 when it is none.
func Code(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// Interrupted: KILL QUERY ended the statement.
func Interrupted(err error) bool { return Code(err) == 1317 }

// Class implements sqllock.Dialect.
func (*Dialect) Class(err error) sqllock.Class { return Class(err) }

// Class says what an error means for its request.
func Class(err error) sqllock.Class {
	n := Code(err)
	switch known, ok := codes[n]; {
	case errors.As(err, new(*sqllock.NotSentError)):
		return sqllock.NotSent
	case ok:
		return known.class
	case n != 0:
		return sqllock.Refused
	default:
		return sqllock.Unclear
	}
}

// Hint implements sqllock.Dialect.
func (*Dialect) Hint(err error) string {
	if errors.Is(err, errReadOnly) {
		return readOnly
	}
	return codes[Code(err)].hint
}
