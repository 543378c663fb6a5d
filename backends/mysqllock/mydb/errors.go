package mydb

import (
	"database/sql/driver"
	"errors"

	"github.com/go-sql-driver/mysql"
)

// Numbers of the server's errors, as MySQL's and MariaDB's references list them.
const (
	codeDatabaseDenied  = 1044
	codeAccessDenied    = 1045
	codeNoDatabase      = 1049
	codeNoColumn        = 1054
	codeCommandDenied   = 1142
	codeColumnDenied    = 1143
	codeNoTable         = 1146
	codeLockWait        = 1205
	codeDeadlock        = 1213
	codeSpecificDenied  = 1227
	codeOption          = 1290 // --read-only, --super-read-only
	codeInterrupted     = 1317
	codeReadOnlyTx      = 1792
	codeReadOnlyMode    = 1836
	codeCheckRead       = 1020 // MariaDB: the row has changed since it was read
	codeBinlogStatement = 1665
	codeNoWait          = 3572
)

// Code is the number of the server's error, or 0 when it is none.
func Code(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

func is(err error, codes ...uint16) bool {
	n := Code(err)
	for _, c := range codes {
		if n == c && n != 0 {
			return true
		}
	}
	return false
}

// FromServer: the server has answered, so the statement is known to have failed.
// Any other error leaves the outcome open.
func FromServer(err error) bool { return Code(err) != 0 }

// NotSent: the connection was found broken before the request was sent on it, so
// it can be sent again on another.
func NotSent(err error) bool { return errors.Is(err, driver.ErrBadConn) }

// Retryable: another transaction was in the way, and the same may work now.
func Retryable(err error) bool {
	return is(err, codeDeadlock, codeLockWait, codeNoWait, codeCheckRead)
}

// LockWait: a row was locked by another transaction for too long. The server
// may have rolled back the statement only.
func LockWait(err error) bool { return is(err, codeLockWait, codeNoWait) }

// ReadOnly: the server takes no writes, because it is a replica or was made one.
func ReadOnly(err error) bool {
	return is(err, codeOption, codeReadOnlyTx, codeReadOnlyMode) || errors.Is(err, errReadOnly)
}

// Missing: a table, column or database is not there.
func Missing(err error) bool { return is(err, codeNoTable, codeNoColumn, codeNoDatabase) }

// denied: the account lacks a privilege.
func denied(err error) bool {
	return is(err, codeDatabaseDenied, codeAccessDenied, codeCommandDenied, codeColumnDenied, codeSpecificDenied)
}

// Interrupted: KILL QUERY ended the statement.
func Interrupted(err error) bool { return is(err, codeInterrupted) }

// Hint is what a person can do about an error, or empty.
func Hint(err error) string {
	switch {
	case Missing(err):
		return " (run `locksidecar schema mysql` and apply what it prints, or let the sidecar do it: migrate=true)"
	case is(err, codeAccessDenied):
		return " (user or password of the store's URL are wrong)"
	case denied(err):
		return " (the database account lacks a privilege: see docs/stores/mysql.md)"
	case ReadOnly(err):
		return " (the server takes no writes: is it a replica?)"
	case is(err, codeBinlogStatement):
		return " (set binlog_format to ROW or MIXED)"
	}
	return ""
}
