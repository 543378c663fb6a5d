package shedlock

import (
	"strings"

	"github.com/locksidecar/locksidecar/backends/leasekit"
	"github.com/locksidecar/locksidecar/backends/sqllock"
)

// Texts that stand in several statements. now is ShedLock's time: it is
// cut to milliseconds, so what is to last for a time gets one more.
const (
	now   = "UTC_TIMESTAMP(3)"
	until = "TIMESTAMPADD(MICROSECOND, ? + 1000, " + now + ")"

	// freed is what a release makes lock_until: not the time of the release, as
	// ShedLock does, but that of the grant. A heartbeat that began before the
	// release, and comes to the row after it, has an earlier now than the release
	// had: it would take the lock for held, and hold it for nobody.
	freed = "LEAST(locked_at, " + now + ")"

	by = "CAST(CONVERT(locked_by USING utf8mb4) AS BINARY)"
)

// statements are the texts of all requests. The columns of the row of a lock are
// compared with constants only, so that its collation and character set do not matter.
type statements struct {
	look, create, take, give           string
	takeLeast, last, leave             string
	extendLeast                        string
	lock, extend, holding, free, force string
	status, list                       string
}

func newStatements(table string) *statements {
	show := "SELECT CAST(CONVERT(name USING utf8mb4) AS BINARY), " + by + ", TIMESTAMPDIFF(MICROSECOND, locked_at, " + now + ") FROM " + table + " WHERE lock_until>" + now
	return &statements{
		look: "SELECT name, lock_until, locked_at, locked_by FROM " + table + " LIMIT 0",
		// As ShedLock leaves a row after unlocking.
		create: "INSERT IGNORE INTO " + table + " (name, lock_until, locked_at, locked_by) VALUES (?, " + now + ", " + now + ", '')",
		take: "UPDATE " + table + " SET lock_until=" + until + ", locked_at=IF(locked_by=?, locked_at, " + now + "), locked_by=? " +
			"WHERE name=? AND (lock_until<=" + now + " OR locked_by=?)",
		takeLeast: "UPDATE " + table + " SET lock_until=GREATEST(" + until + ", IF(locked_by=?, lock_until, " + now + ")), locked_at=IF(locked_by=?, locked_at, " + now + "), locked_by=? " +
			"WHERE name=? AND (lock_until<=" + now + " OR locked_by=?)",
		last: "UPDATE " + table + " SET lock_until=GREATEST(lock_until, TIMESTAMPADD(MICROSECOND, ? + 1000, locked_at)) WHERE name=? AND locked_by=? AND lock_until>" + now,
		// As ShedLock's unlock with lockAtLeastFor. With another locked_by, no heartbeat moves it any more.
		leave:       "UPDATE " + table + " SET lock_until=GREATEST(" + freed + ", TIMESTAMPADD(MICROSECOND, ? + 1000, locked_at)), locked_by=? WHERE name=? AND locked_by=? AND lock_until>" + now,
		extendLeast: "UPDATE " + table + " SET lock_until=GREATEST(lock_until, " + until + ") WHERE {in}",
		give:        "UPDATE " + table + " SET lock_until=" + freed + " WHERE name=? AND locked_by=? AND lock_until>" + now,
		lock:        "SELECT " + by + " FROM " + table + " WHERE lock_until>" + now + " AND {in} FOR UPDATE SKIP LOCKED",
		extend:      "UPDATE " + table + " SET lock_until=" + until + " WHERE {in}",
		holding:     "SELECT " + by + " FROM " + table + " WHERE lock_until>" + now + " AND {in}",
		free:        "UPDATE " + table + " SET lock_until=" + freed + " WHERE {in}",
		force:       "UPDATE " + table + " SET lock_until=" + freed + " WHERE name=? AND (locked_by LIKE ? OR locked_by LIKE ?) AND lock_until>" + now,
		status:      show + " AND name=?",
		list:        show,
	}
}

// of makes a statement one about the locks of some holds.
func (f *foreign) of(statement string, holds []leasekit.Ref, args ...any) sqllock.Statement {
	marks := strings.TrimSuffix(strings.Repeat("?,", len(holds)), ",")
	for _, h := range holds {
		args = append(args, string(h.Resource))
	}
	for _, h := range holds {
		args = append(args, f.by(h.ID))
	}
	return sqllock.Statement{SQL: strings.ReplaceAll(statement, "{in}", "name IN ("+marks+") AND locked_by IN ("+marks+")"), Args: args}
}
