package sqllock

import (
	"encoding/hex"
	"strconv"
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
// Where a statement that finds no row keeps others from inserting near the place where the
// row would be (Words.Gaps), it names the row by a number that grows from row to row of the
// whole table: at, which is the fence on the row of a resource, and the time of the grant in
// hold. So what a guard of a hold that is over keeps free lies in the past, where nobody
// inserts: whenever a row goes, there is one with a greater number, see posts.go.
//
// Names and ids are hexadecimal, so the arguments are ASCII and the character set of
// the app's connection does not matter.
//
// wanted: the request has one, see guards; else it is nil.
func (b *Backend) guard(r lock.Resource, id lock.HoldID, m lock.Mode, wanted bool, at int64) *lock.Guard {
	if !wanted {
		return nil
	}
	q := b.sql
	text := q.guardX
	if m != lock.Exclusive {
		text = q.guardS
	}
	args := []string{hex.EncodeToString([]byte(r)), hex.EncodeToString([]byte(id))}
	if q.w.Gaps {
		args = append(args, strconv.FormatInt(at, 10))
	}
	return &lock.Guard{Dialect: b.d.Kind(), SQL: text, Args: args}
}

// guards tells whether the grant of a request has a guard.
func (b *Backend) guards(w lock.GuardWish) bool {
	return w == lock.WithGuard || w == lock.UsualGuard && !b.o.NoGuards
}

// guardText is the text of guards.
func (q *statements) guardText(table, id, at string) string {
	by, found := "", ""
	if q.w.Gaps { // else the server goes by the primary key
		by, found = " FORCE INDEX (guard)", " AND "+at+"=CAST(? AS SIGNED)"
	}
	text := q.words("UPDATE {" + table + "}" + by + " SET guards=guards+1 WHERE name=<hex> AND " + id + "=<hex>" + found)
	return strings.ReplaceAll(text, "<hex>", q.w.Unhex)
}
