package shedlock

import "strings"

// Texts that stand in several statements. now is ShedLock's time: it is
// cut to milliseconds, so what is to last for a time gets one more.
const (
	now     = "UTC_TIMESTAMP(3)"
	fineNow = "UTC_TIMESTAMP(6)"
	micros  = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + fineNow + ")"
	until   = "TIMESTAMPADD(MICROSECOND, ? + 1000, " + now + ")"
	alive   = "EXISTS (SELECT 1 FROM {shed_lease} WHERE id=? AND until>" + fineNow + ")"

	// freed is what a release makes lock_until: not the time of the release, as
	// ShedLock does, but that of the grant. A heartbeat that began before the
	// release, and comes to the row after it, has an earlier now than the release
	// had: it would take the lock for held, and hold it for nobody.
	freed = "LEAST(locked_at, " + now + ")"

	// free is ShedLock's condition, or the lock is of a lease that has ended: that
	// one cannot come back, so there is no need to wait for the rest of the time.
	free = "(lock_until<=" + now + " OR locked_by IN (SELECT h.locked_by FROM {shed_hold} AS h " +
		"LEFT JOIN {shed_lease} AS l ON l.id=h.lease AND l.until>" + fineNow + " WHERE h.name=? AND l.id IS NULL))"
	// earlier is whoever waits for longer, of the leases that live. A request that
	// has no place yet comes after all who have.
	earlier = "EXISTS (SELECT 1 FROM {shed_hold} AS w JOIN {shed_lease} AS l ON l.id=w.lease AND l.until>" + fineNow +
		" WHERE w.name=? AND w.fence=0 AND w.seq<?)"
)

// statements are the texts of all requests, with the names of the tables. The
// columns of the row of a lock are compared with constants only, so that its
// collation and character set do not matter.
type statements struct {
	look string

	open      string
	heartbeat string // and for holds:
	extend    string
	closing   string
	unlock    string
	sweep     string

	take     string
	state    string
	queue    string
	begin    string // of take
	beginNew string // the same, for a lock without a row
	place    string
	giveUp   string
	release  string
	forget   string
	alive    string
	poll     string
	owned    string
	news     string
	known    string
	reap     string
	status   string
	list     string
	find     string
	mark     string
	forceOut string
	undo     string
	held     string
}

func newStatements(name func(table string) string) statements {
	t := func(text ...string) string { return replaceNames(strings.Join(text, ""), name) }
	// One statement, so that it sees both tables at one moment. It is not sorted:
	// that would take a temporary table, with large objects in it.
	status := func(hold, lock string) string {
		return t("SELECT 0 AS kind, h.name AS name, h.id, h.locked_by, h.fence, TIMESTAMPDIFF(MICROSECOND, h.since, ", fineNow, "), ",
			"h.lease, COALESCE(l.sidecar, ''), h.owner, h.grace IS NOT NULL, l.id IS NOT NULL, h.seq AS seq ",
			"FROM {shed_hold} AS h LEFT JOIN {shed_lease} AS l ON l.id=h.lease AND l.until>", fineNow, " WHERE ", hold,
			" UNION ALL SELECT 1, CAST(CONVERT(name USING utf8mb4) AS BINARY), '', CAST(CONVERT(locked_by USING utf8mb4) AS BINARY), 0, ",
			"TIMESTAMPDIFF(MICROSECOND, locked_at, ", now, "), '', '', '', 0, 1, 0 FROM {shedlock} WHERE lock_until>", now, lock)
	}
	return statements{
		look: t("SELECT name, lock_until, locked_at, locked_by FROM {shedlock} LIMIT 0; SELECT id, sidecar, until FROM {shed_lease} LIMIT 0; ",
			"SELECT name, fence FROM {shed_fence} LIMIT 0; SELECT id, lease FROM {shed_gone} LIMIT 0; ",
			"SELECT id, seq, name, lease, locked_by, fence, since, grace, known, owner FROM {shed_hold} LIMIT 0"),
		open:      t("INSERT INTO {shed_lease} (id, sidecar, until) VALUES (?, ?, ", fineNow, " + INTERVAL ? MICROSECOND)"),
		heartbeat: t("UPDATE {shed_lease} SET until=", fineNow, " + INTERVAL ? MICROSECOND WHERE id=? AND until>", fineNow),
		extend:    t("UPDATE {shedlock} SET lock_until=", until, " WHERE lock_until>", now, " AND ", alive),
		closing:   t("DELETE FROM {shed_lease} WHERE id=?"),
		sweep:     t("DELETE FROM {shed_hold} WHERE lease=?; DELETE FROM {shed_gone} WHERE lease=?"),
		unlock:    t("UPDATE {shedlock} SET lock_until=", freed, " WHERE lock_until>", now),

		// One transaction in one request, so that a sidecar that is stopped in
		// between keeps nobody from the row. The conditions of the update are read
		// when the row is locked already, by a statement of their own: Release
		// writes to shed_gone before it touches the row, so either this sees that,
		// or Release sees the grant. ROW_COUNT is of the statement before.
		take: t("SELECT 1 FROM {shedlock} WHERE name=? FOR UPDATE; ",
			"UPDATE {shedlock} SET lock_until=", until, ", locked_at=", now, ", locked_by=? WHERE name=? AND ", free, " AND ", alive,
			" AND NOT EXISTS (SELECT 1 FROM {shed_gone} WHERE id=?) AND NOT ", earlier, "; ",
			"INSERT INTO {shed_fence} (name, fence) SELECT ?, LAST_INSERT_ID(", micros, ") FROM DUAL WHERE ROW_COUNT()>0 ",
			"ON DUPLICATE KEY UPDATE fence=LAST_INSERT_ID(GREATEST(fence+1, VALUES(fence))); ",
			"INSERT INTO {shed_hold} (id, name, lease, locked_by, owner, fence, since) SELECT ?,?,?,?,?,LAST_INSERT_ID(),", fineNow,
			" FROM DUAL WHERE ROW_COUNT()>0 ON DUPLICATE KEY UPDATE fence=VALUES(fence), since=VALUES(since); COMMIT"),
		state: t("SELECT ", alive, ", EXISTS (SELECT 1 FROM {shed_gone} WHERE id=?), EXISTS (SELECT 1 FROM {shedlock} WHERE name=?), ",
			"EXISTS (SELECT 1 FROM {shedlock} WHERE name=? AND locked_by=? AND lock_until>", now, "), ",
			"COALESCE((SELECT fence FROM {shed_hold} WHERE id=?), -1)"),
		// The row of the lock is locked, so that places are seen in their order.
		queue: t("START TRANSACTION; SELECT 1 FROM {shedlock} WHERE name=? FOR UPDATE; ",
			"INSERT INTO {shed_hold} (id, name, lease, locked_by, owner, fence, since) SELECT ?,?,?,?,?,0,", fineNow,
			" FROM DUAL WHERE ", alive, " AND NOT EXISTS (SELECT 1 FROM {shed_gone} WHERE id=?) ",
			"ON DUPLICATE KEY UPDATE fence=0, seq=LAST_INSERT_ID(seq); COMMIT"),
		begin: "START TRANSACTION; ",
		// As ShedLock leaves a row after unlocking.
		beginNew: t("START TRANSACTION; INSERT IGNORE INTO {shedlock} (name, lock_until, locked_at, locked_by) VALUES (?, ", now, ", ", now, ", ''); "),
		place: t("SELECT COUNT(*) FROM {shed_hold} AS w JOIN {shed_lease} AS l ON l.id=w.lease AND l.until>", fineNow,
			" WHERE w.name=? AND w.fence=0 AND w.seq<=?"),
		giveUp: t("INSERT IGNORE INTO {shed_gone} (id, lease) SELECT ?, id FROM {shed_lease} WHERE id=?; "),
		release: t("START TRANSACTION; UPDATE {shedlock} SET lock_until=", freed, " WHERE name=? AND locked_by=? AND lock_until>", now, " AND ", alive, "; ",
			"DELETE FROM {shed_hold} WHERE id=? AND lease=? AND name=? AND fence=0 AND ", alive, "; ",
			"DELETE FROM {shed_hold} WHERE id=? AND lease=? AND name=?; COMMIT"),
		forget: t("DELETE FROM {shed_hold} WHERE id=? AND lease=?"),
		alive:  t("SELECT ", alive),
		poll:   t("SELECT ? FROM {shedlock} WHERE name=? AND ", free, " AND NOT ", earlier),
		owned:  t("SELECT locked_by FROM {shedlock} WHERE lock_until>", now),
		news: t("SELECT id, grace, COALESCE(known, -1) FROM {shed_hold} WHERE lease=? AND grace IS NOT NULL ",
			"UNION ALL SELECT id, -1, -1 FROM {shed_gone} WHERE lease=?"),
		known: t("UPDATE {shed_hold} SET known=? WHERE id=? AND lease=? AND (known IS NULL OR known>?)"),
		// Long after, so that a lease that was not told yet can still be.
		reap: t("DELETE FROM {shed_lease} WHERE until<", fineNow, " - INTERVAL 1 MINUTE; ",
			"DELETE FROM {shed_hold} WHERE lease NOT IN (SELECT id FROM {shed_lease}); ",
			"DELETE FROM {shed_gone} WHERE lease NOT IN (SELECT id FROM {shed_lease})"),
		status: status("h.name=?", " AND name=?"),
		list:   status("h.name>=? AND h.name<? AND h.name>?", ""),
		find: t("SELECT h.locked_by, h.lease, h.fence=0 FROM {shed_hold} AS h JOIN {shed_lease} AS l ON l.id=h.lease AND l.until>", fineNow,
			" WHERE h.id=? AND h.name=? AND (h.fence=0 OR h.locked_by IN (SELECT locked_by FROM {shedlock} WHERE name=? AND lock_until>", now, "))"),
		mark:     t("UPDATE {shed_hold} SET grace=LEAST(COALESCE(grace, ?), ?) WHERE id=? AND fence>0"),
		forceOut: t("INSERT IGNORE INTO {shed_gone} (id, lease) VALUES (?, ?); DELETE FROM {shed_hold} WHERE id=? AND fence=0"),
		undo:     t("DELETE FROM {shed_gone} WHERE id=?"),
		held: t("SELECT COALESCE(h.known, -1) FROM {shed_hold} AS h JOIN {shed_lease} AS l ON l.id=h.lease AND l.until>", fineNow,
			" WHERE h.id=? AND h.locked_by IN (SELECT locked_by FROM {shedlock} WHERE name=? AND lock_until>", now, ")"),
	}
}

// in makes a condition on many locks at once.
func in(holds []holdKey) (condition string, args []any) {
	marks := strings.TrimSuffix(strings.Repeat("?,", len(holds)), ",")
	args = make([]any, 0, 2*len(holds))
	for _, h := range holds {
		args = append(args, h.name)
	}
	for _, h := range holds {
		args = append(args, h.by)
	}
	return " AND name IN (" + marks + ") AND locked_by IN (" + marks + ")", args
}

// holdKey is a lock and who holds it, as ShedLock's table has them.
type holdKey struct{ name, by string }
