package tables

import (
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
)

// statements are the texts of requests, with the names of the tables in them.
//
// A request is often several statements: one round trip. Two rules hold for all
// that change something about a resource:
//
//   - They lock the row of the resource in the table lock first, so any two of
//     them about one resource come one after the other, and deadlocks are rare.
//   - What decides is on that row, or is read by a later statement. A statement
//     reads other tables as they were when it began, and it may have waited for
//     the row since: what it reads elsewhere may be out of date.
type statements struct {
	version                              string
	open, beat, beats, alive, end, close string
	create, take, try, first, give       string
	trails, trailsMoved, oldTrails       string
	load, loadExclusive                  string
	status, names, about, forced         string
	news                                 string
	stuck, mine, sweep, sweepUp, left    string

	orphans, reapNews, goneDead, forgetGone string
	idle, raiseFloor, deleteIdle            string
	oldLog, deleteLog                       string
}

// freeX empties the columns of the exclusive hold.
const freeX = "x_id=NULL, x_lease=NULL, x_owner=NULL, x_since=NULL, x_quick=0, x_mark=NULL, x_grace=NULL"

// logColumns are those of every insertion into the log.
//
// None of them is INSERT … SELECT: that would lock the table's counter against
// all others until its end (innodb_autoinc_lock_mode=1).
const logColumns = "(at, event, name, hold, lease, fence, note)"

// withLog says whether they write the log.
func newStatements(cfg *mydb.Config, withLog bool) *statements {
	replace := func(lines ...string) string {
		text := replaceNames(strings.Join(lines, "\n"), cfg.Table)
		return strings.ReplaceAll(text, "{now}", "CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS SIGNED)")
	}
	// logIf writes a row of the log if the statement before it has found one row.
	// Else it would have the id of the first row, which is always there, and is
	// ignored.
	logIf := func(event, values string) string {
		if !withLog {
			return "DO " + values + ";" // takes the same arguments
		}
		return "INSERT IGNORE INTO {log} (id, at, event, name, hold, lease, fence, note) VALUES (IF(ROW_COUNT()=1, NULL, 1), NOW(6), '" + event + "', " + values + ");"
	}
	trail, room := "", ""
	if withLog {
		trail = "trail=CONCAT(trail, ?, x_quick, x_since, NOW(6), ';'), "
		room = fmt.Sprintf(" AND LENGTH(trail)<%d", maxTrail)
	}
	take := func(name string) string {
		return "UPDATE {lock} SET fence=LAST_INSERT_ID(GREATEST(fence+1, {now})), x_id=?, x_lease=?, x_owner=?, x_since=NOW(6), x_quick=1" +
			" WHERE name=" + name + " AND x_id IS NULL AND readers=0 AND waiters=0 AND gone=0 AND fence>0 AND EXISTS (SELECT 1 FROM {lease} WHERE id=?)"
	}
	// look lets a request leave the row alone where it would have to wait for it:
	// an app may keep it locked by its guard.
	const look = "SET @locksidecar=COALESCE((SELECT x_id IS NULL AND readers=0 AND waiters=0 FROM {lock} WHERE name=?), TRUE);"
	// create makes the row of a resource. Its fence is set by a second statement,
	// which reads a floor that is not older than the row: see reap.go.
	create := func(name, where string) string {
		return "INSERT IGNORE INTO {lock} (name) SELECT ? FROM DUAL " + where + ";" +
			"UPDATE {lock} SET fence=GREATEST(1, {now}, (SELECT value FROM {meta} WHERE name='floor')) WHERE name=" + name + " AND fence=0;"
	}
	const (
		lockRow = "SELECT fence, readers, waiters, gone, tail, x_id, x_lease, x_mark, x_grace, {now}, x_quick, CAST(x_since AS CHAR), trail FROM {lock} WHERE name=? FOR UPDATE;"
		front   = "SELECT q.seq, q.id, q.lease, q.mode, e.id IS NOT NULL FROM {queue} q LEFT JOIN {lease} e ON e.id=q.lease WHERE q.name=? ORDER BY q.seq LIMIT 64;"
		leases  = "EXISTS (SELECT 1 FROM {lease} WHERE id=?), EXISTS (SELECT 1 FROM {lock} l JOIN {lease} e ON e.id=l.x_lease WHERE l.name=?)"
	)
	return &statements{
		version: replace("SELECT value FROM {meta} WHERE name='schema'"),

		open: replace("START TRANSACTION;", "INSERT INTO {lease} (id, beat, ttl_ms, sidecar, opened, renewed) VALUES (?, ?, ?, ?, NOW(6), NOW(6));",
			logIf("open", "'', '', ?, 0, ?"), "COMMIT"),
		beat: replace("UPDATE {lease} SET beat=?, renewed=NOW(6) WHERE id=?;", "SELECT ROW_COUNT();",
			"SELECT name, id, grace FROM {news} WHERE lease=? AND kind='r'"),
		beats: replace("SELECT id, beat, ttl_ms FROM {lease}"),
		alive: replace("SELECT COUNT(*) FROM {lease} WHERE id=?"),
		end: replace("START TRANSACTION;", "DELETE FROM {lease} WHERE id=? AND beat=?;",
			logIf("end", "'', '', ?, 0, ?"), "COMMIT"),
		close: replace("START TRANSACTION;", "DELETE FROM {lease} WHERE id=?;",
			logIf("close", "'', '', ?, 0, ''"), "COMMIT"),

		create: replace("START TRANSACTION;", create("?", ""), "COMMIT"),
		take:   replace(take("?")),
		try:    replace(look, take("IF(@locksidecar, ?, NULL)")),
		first:  replace("START TRANSACTION;", look, create("IF(@locksidecar, ?, NULL)", "WHERE @locksidecar"), take("IF(@locksidecar, ?, NULL)")+";", "COMMIT"),
		give:   replace("UPDATE {lock} SET " + trail + freeX + " WHERE name=? AND x_id=? AND x_lease=? AND waiters=0" + room),
		trails: replace("START TRANSACTION;",
			"SELECT name, trail FROM {lock} WHERE name IN (?names) AND trail<>'' FOR UPDATE SKIP LOCKED"),
		trailsMoved: replace("UPDATE {lock} SET trail='' WHERE name IN (?names);"),
		oldTrails:   replace("SELECT name FROM {lock} WHERE trail<>'' AND fence<{now}-? LIMIT ?"),

		load: replace("START TRANSACTION;", lockRow,
			"SELECT h.id, h.lease, h.fence, h.mark, h.grace, e.id IS NOT NULL FROM {hold} h LEFT JOIN {lease} e ON e.id=h.lease WHERE h.name=? AND (h.id=? OR e.id IS NULL);",
			front,
			"SELECT seq, id, lease, mode FROM {queue} WHERE name=? AND id=?;",
			"SELECT "+leases+", EXISTS (SELECT 1 FROM {gone} WHERE name=? AND id=?)"),
		loadExclusive: replace("START TRANSACTION;", lockRow, front, "SELECT "+leases+", FALSE"),

		// One statement, so that all is as of one moment: who moves from the
		// queue to the holders is in exactly one of them.
		status: replace(
			"SELECT l.name, 0 AS seq, l.x_id AS id, 'X' AS mode, l.fence, l.x_lease AS lease, l.x_owner AS owner, l.x_grace AS grace, TIMESTAMPDIFF(MICROSECOND, l.x_since, NOW(6)) AS age, e.sidecar FROM {lock} l JOIN {lease} e ON e.id=l.x_lease WHERE l.name IN (?names)",
			"UNION ALL SELECT h.name, 0, h.id, 'S', h.fence, h.lease, h.owner, h.grace, TIMESTAMPDIFF(MICROSECOND, h.since, NOW(6)), e.sidecar FROM {hold} h JOIN {lease} e ON e.id=h.lease WHERE h.name IN (?names)",
			"UNION ALL SELECT q.name, q.seq, q.id, q.mode, 0, q.lease, q.owner, NULL, TIMESTAMPDIFF(MICROSECOND, q.since, NOW(6)), e.sidecar FROM {queue} q JOIN {lease} e ON e.id=q.lease WHERE q.name IN (?names)"),
		names: replace("SELECT name FROM {lock} WHERE name>? AND name>=? AND name<? AND (x_id IS NOT NULL OR readers>0 OR waiters>0) ORDER BY name LIMIT ?"),
		about: replace(
			"SELECT 0, l.x_id, 'X', l.fence, l.x_lease, l.x_owner, l.x_grace, TIMESTAMPDIFF(MICROSECOND, l.x_since, NOW(6)), e.sidecar FROM {lock} l JOIN {lease} e ON e.id=l.x_lease WHERE l.name=?",
			"UNION ALL (SELECT 0, h.id, 'S', h.fence, h.lease, h.owner, h.grace, TIMESTAMPDIFF(MICROSECOND, h.since, NOW(6)), e.sidecar FROM {hold} h JOIN {lease} e ON e.id=h.lease WHERE h.name=? LIMIT 10)",
			"UNION ALL SELECT COUNT(*), '', '', 0, '', '', NULL, 0, '' FROM {queue} q JOIN {lease} e ON e.id=q.lease WHERE q.name=? AND q.seq<=(SELECT seq FROM {queue} WHERE name=? AND id=?)"),

		forced: replace(
			"SELECT COALESCE(l.x_mark, 0) FROM {lock} l JOIN {lease} e ON e.id=l.x_lease WHERE l.name=? AND l.x_id=?",
			"UNION ALL SELECT COALESCE(h.mark, 0) FROM {hold} h JOIN {lease} e ON e.id=h.lease WHERE h.name=? AND h.id=?"),

		news: replace("SELECT id, kind, name, fence, grace FROM {news} WHERE lease=?"),

		// What keeps waiters of one lease waiting though it should not, and
		// waiters that have been granted unheard: see recheck.
		stuck: replace(
			"SELECT 'd' AS kind, l.name, l.x_id AS id, 0 AS fence, 0 AS mark FROM {lock} l LEFT JOIN {lease} e ON e.id=l.x_lease WHERE l.name IN (?names) AND l.x_id IS NOT NULL AND e.id IS NULL",
			"UNION ALL SELECT 'd', l.name, '', 0, 0 FROM {lock} l WHERE l.name IN (?names) AND l.x_id IS NULL AND l.readers=0 AND l.waiters>0",
			"UNION ALL SELECT 'd', h.name, h.id, 0, 0 FROM {hold} h LEFT JOIN {lease} e ON e.id=h.lease WHERE h.name IN (?names) AND e.id IS NULL",
			"UNION ALL SELECT 'd', q.name, q.id, 0, 0 FROM {queue} q LEFT JOIN {lease} e ON e.id=q.lease WHERE q.name IN (?names) AND e.id IS NULL",
			"UNION ALL SELECT 'm', l.name, l.x_id, 0, l.x_mark FROM {lock} l WHERE l.name IN (?names) AND l.x_mark IS NOT NULL",
			"UNION ALL SELECT 'm', h.name, h.id, 0, h.mark FROM {hold} h WHERE h.name IN (?names) AND h.mark IS NOT NULL",
			"UNION ALL SELECT 'g', l.name, l.x_id, l.fence, 0 FROM {lock} l WHERE l.name IN (?names) AND l.x_lease=?lease",
			"UNION ALL SELECT 'g', h.name, h.id, h.fence, 0 FROM {hold} h WHERE h.name IN (?names) AND h.lease=?lease"),
		sweep: replace("START TRANSACTION;",
			"SELECT name, x_id, fence, x_quick, CAST(x_since AS CHAR) FROM {lock} WHERE name IN (?names) AND x_lease=?lease AND waiters=0 FOR UPDATE"),
		sweepUp: replace("UPDATE {lock} SET " + freeX + " WHERE name IN (?names) AND x_lease=?lease;"),
		left: replace(
			"SELECT name FROM {lock} WHERE name IN (?names) AND x_lease=?lease",
			"UNION SELECT name FROM {hold} WHERE name IN (?names) AND lease=?lease",
			"UNION SELECT name FROM {queue} WHERE name IN (?names) AND lease=?lease"),

		orphans: replace(
			"(SELECT l.name FROM {lock} l LEFT JOIN {lease} e ON e.id=l.x_lease WHERE l.x_id IS NOT NULL AND e.id IS NULL LIMIT 500)",
			"UNION (SELECT h.name FROM {hold} h LEFT JOIN {lease} e ON e.id=h.lease WHERE e.id IS NULL LIMIT 500)",
			"UNION (SELECT q.name FROM {queue} q LEFT JOIN {lease} e ON e.id=q.lease WHERE e.id IS NULL LIMIT 500)"),
		reapNews: replace("DELETE n FROM {news} n LEFT JOIN {lease} e ON e.id=n.lease WHERE e.id IS NULL"),
		goneDead: replace("SELECT DISTINCT g.name FROM {gone} g LEFT JOIN {lease} e ON e.id=g.lease WHERE e.id IS NULL LIMIT 500"),
		// The row of the resource is locked first, as always.
		forgetGone: replace("START TRANSACTION;",
			"UPDATE {lock} SET gone=gone WHERE name=?;",
			"DELETE g FROM {gone} g LEFT JOIN {lease} e ON e.id=g.lease WHERE g.name=? AND e.id IS NULL;",
			"UPDATE {lock} SET gone=gone-ROW_COUNT() WHERE name=?;", "COMMIT"),

		idle:       replace("SELECT name, fence FROM {lock} WHERE x_id IS NULL AND readers=0 AND waiters=0 AND gone=0 AND trail='' AND fence BETWEEN 1 AND {now}-? LIMIT ?"),
		raiseFloor: replace("UPDATE {meta} SET value=GREATEST(value, ?) WHERE name='floor'"),
		deleteIdle: replace("DELETE FROM {lock} WHERE name IN (?names) AND x_id IS NULL AND readers=0 AND waiters=0 AND gone=0 AND trail='' AND fence<=?"),
		oldLog:     replace("SELECT MAX(id) FROM (SELECT id, at FROM {log} WHERE id>1 ORDER BY id LIMIT ?) AS l WHERE at < NOW(6) - INTERVAL ? MICROSECOND"),
		deleteLog:  replace("DELETE FROM {log} WHERE id>1 AND id<=?"),

		mine: replace(
			"SELECT name, x_id AS id FROM {lock} WHERE x_lease=?",
			"UNION ALL SELECT name, id FROM {hold} WHERE lease=?",
			"UNION ALL SELECT name, id FROM {queue} WHERE lease=?"),
	}
}

// in puts a list of names in the place of each ?names of a statement, and a
// lease in the place of each ?lease, and gives the arguments for these.
func in(query string, names []string, lease string) (string, []any) {
	list := marks(len(names), "?")
	var out strings.Builder
	var args []any
	for {
		before, after, found := strings.Cut(query, "?")
		out.WriteString(before)
		if !found {
			return out.String(), args
		}
		if query, found = strings.CutPrefix(after, "names"); found {
			out.WriteString(list)
			for _, n := range names {
				args = append(args, []byte(n))
			}
			continue
		}
		out.WriteString("?")
		if query, found = strings.CutPrefix(after, "lease"); found {
			args = append(args, []byte(lease))
		}
	}
}
