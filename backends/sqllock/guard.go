package sqllock

import (
	"encoding/hex"
	"strings"

	"github.com/locksidecar/locksidecar/lock"
)

// guard is the statement by which an app makes sure of a hold in its own transaction.
//
// It writes the row that the hold is on, which nobody writes but grants, ends of holds
// and their guards. Whoever would grant the resource to another has to write that row, so
// it waits until the app's transaction has ended; so does a release, and a forced one. It
// does not matter whether the lease has ended meanwhile: as long as the row says so,
// nobody else has the lock. A hold that was downgraded stays on its row.
//
// It writes, and does not only lock: XA PREPARE of MariaDB lets go of locks on rows
// that were not changed.
//
// Names and ids are hexadecimal, so the arguments are ASCII and the character set of
// the app's connection does not matter.
//
// wanted: the request has one, see guards; else it is nil.
func (b *Backend) guard(r lock.Resource, id lock.HoldID, m lock.Mode, wanted bool) *lock.Guard {
	if !wanted {
		return nil
	}
	q := b.sql
	text := q.guardX
	if m != lock.Exclusive {
		text = q.guardS
	}
	return &lock.Guard{
		Dialect: b.d.Kind(), SQL: text,
		Args: []string{hex.EncodeToString([]byte(r)), hex.EncodeToString([]byte(id))},
	}
}

// guards tells whether the grant of a request has a guard.
func (b *Backend) guards(w lock.GuardWish) bool {
	return w == lock.WithGuard || w == lock.UsualGuard && !b.o.NoGuards
}

// guardText is the text of guards.
func (q *statements) guardText(table, id string) string {
	text := q.words("UPDATE {" + table + "} SET guards=guards+1 WHERE name=<hex> AND " + id + "=<hex>")
	return strings.ReplaceAll(text, "<hex>", q.w.Unhex)
}
