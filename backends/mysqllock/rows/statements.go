package rows

import (
	"database/sql"
	"encoding/hex"
	"strconv"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// now is the server's time: for fences, and for people.
const (
	now    = "UTC_TIMESTAMP(6)"
	micros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + now + ")"
)

// statements are the texts of all requests, with the names of the tables.
type statements struct {
	prefix string // of named locks

	look     string
	addRow   string
	grantX   string // the last fence, and who holds
	grantS   string
	addFence string
	wait     string
	forget   string
	drop     string
	reap     string
	status   string
	list     string
	find     string
	revoke   string
	revoked  string
	known    string
	revokeOf string
	outOf    string // out of the queue
	held     string
	user     string // of a named lock
}

func newStatements(cfg *mydb.Config) statements {
	row, fence, hold := cfg.Table("row"), cfg.Table("row_fence"), cfg.Table("row_hold")
	columns := "id, name, lease, link, mode, fence, sidecar, owner, since"
	alive := "IS_USED_LOCK(CONCAT('" + cfg.Prefix + "', link)) IS NOT NULL"
	// While one holds alone nobody else does, and beside a reader no writer: what
	// says so is of links that are gone, though the server may not have freed
	// their named locks yet. Whether such a hold was forced, its lease wants to see.
	others := "UPDATE " + hold + " SET link='-' WHERE name=? AND fence>0 AND id<>?"
	// Who was marked while it waited stays as it was: it is not to have a hold that
	// whoever marked it ends without a grace. See attempt.fence.
	out := hold + ".fence=0 AND " + hold + ".grace IS NOT NULL, " + hold
	granted := "ON DUPLICATE KEY UPDATE link=IF(" + out + ".link, VALUES(link)), since=IF(" + out + ".since, VALUES(since)), fence=IF(" + out + ".fence, VALUES(fence))"
	show := "SELECT name, id, mode, fence, TIMESTAMPDIFF(MICROSECOND, since, " + now + "), lease, sidecar, owner, grace IS NOT NULL FROM " + hold
	return statements{
		prefix: cfg.Prefix,
		look: "SELECT name FROM " + row + " LIMIT 0; SELECT name, fence FROM " + fence + " LIMIT 0; " +
			"SELECT " + columns + ", revoked, grace, known FROM " + hold + " LIMIT 0",
		addRow: "INSERT IGNORE INTO " + row + " (name) VALUES (?)",
		grantX: "START TRANSACTION; INSERT INTO " + fence + " (name, fence) VALUES (?, LAST_INSERT_ID(" + micros + ")) " +
			"ON DUPLICATE KEY UPDATE fence=LAST_INSERT_ID(GREATEST(fence+1, VALUES(fence))); " + others + "; " +
			"INSERT INTO " + hold + " (" + columns + ") VALUES (?,?,?,?,?,LAST_INSERT_ID(),?,?," + now + ") " + granted + "; COMMIT",
		// It leaves the fence alone, also in the sense that it waits for nobody's guard.
		grantS: others + " AND mode='X'; " +
			"INSERT INTO " + hold + " (" + columns + ") SELECT ?,?,?,?,?,LAST_INSERT_ID(fence),?,?," + now + " FROM " + fence + " WHERE name=? " + granted,
		addFence: "INSERT IGNORE INTO " + fence + " (name, fence) VALUES (?, " + micros + ")",
		wait: "INSERT INTO " + hold + " (" + columns + ") VALUES (?,?,?,?,?,0,?,?," + now + ") " +
			"ON DUPLICATE KEY UPDATE link=VALUES(link), fence=0, since=VALUES(since)",
		forget: "DELETE FROM " + hold + " WHERE id=? AND lease=?",
		drop:   "DELETE FROM " + hold + " WHERE lease=?",
		// Not at once: the lease that a forced hold belonged to wants to see why it is gone.
		reap:   "DELETE FROM " + hold + " WHERE NOT (" + alive + ") AND COALESCE(revoked + INTERVAL grace MICROSECOND, since) < " + now + " - INTERVAL 1 MINUTE",
		status: show + " WHERE name=? AND " + alive + " ORDER BY since, id",
		list:   show + " WHERE name>=? AND name<? AND name>? AND " + alive + " ORDER BY name, since, id",
		find:   "SELECT link, fence=0 FROM " + hold + " WHERE id=? AND name=? AND " + alive,
		revoke: "UPDATE " + hold + " SET grace=LEAST(COALESCE(grace, ?), ?), revoked=" + now + " " +
			"WHERE id=? AND link=? AND (fence=0)=?",
		revoked:  "SELECT id, grace, COALESCE(known, -1) FROM " + hold + " WHERE lease=? AND grace IS NOT NULL",
		known:    "UPDATE " + hold + " SET known=? WHERE id=? AND lease=? AND (known IS NULL OR known>?)",
		revokeOf: "SELECT id FROM " + hold + " WHERE id=? AND grace IS NOT NULL",
		outOf:    "SELECT id FROM " + hold + " WHERE id=? AND grace IS NOT NULL AND fence=0",
		held:     "SELECT COALESCE(known, -1) FROM " + hold + " WHERE id=? AND " + alive,
		user:     "SELECT IS_USED_LOCK(?)",
	}
}

// lockRow is the statement that waits for, or tries to get, a row lock.
func lockRow(cfg *mydb.Config, d mydb.Dialect, m lock.Mode, try bool) string {
	how := "FOR UPDATE"
	if m == lock.Shared {
		how = d.ForShare()
	}
	if try {
		how += " NOWAIT"
	}
	return "START TRANSACTION; SELECT 1 FROM " + cfg.Table("row") + " WHERE name=? " + how
}

// guardOf is the statement with which an app makes sure, in a transaction of its
// own, that no writer came after its hold: a writer takes a new fence before it
// is granted, and so waits until that transaction has ended. It does not touch
// the row of the resource, which the hold itself has locked.
func guardOf(cfg *mydb.Config, d mydb.Dialect, r lock.Resource, fence int64) *lock.Guard {
	return &lock.Guard{
		Dialect: string(d),
		SQL:     "SELECT 1 FROM " + cfg.Table("row_fence") + " WHERE name=UNHEX(?) AND fence=CAST(? AS SIGNED) " + d.ForShare(),
		Args:    []string{hex.EncodeToString([]byte(r)), strconv.FormatInt(fence, 10)},
	}
}

// letter is a mode in a table.
func letter(m lock.Mode) string {
	if m == lock.Shared {
		return "S"
	}
	return "X"
}

// after is a name behind all that begin with the prefix: no name has this byte.
func after(prefix string) []byte { return []byte(prefix + "\xff") }

func scanNothing(int, *sql.Rows) error { return nil }
