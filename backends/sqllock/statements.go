package sqllock

import (
	"slices"
	"strconv"
	"strings"
)

// statements are the texts of statements, as the server takes them. They are common
// to all servers but for the Words of the dialect.
//
// Two rules hold for all that change something about a resource:
//
//   - They lock its row in the table lock first, so any two of them about one resource
//     come one after the other, and deadlocks are rare.
//   - What decides is on that row, or is read by a later statement. A statement
//     reads other tables as they were when it began, and it may have waited for
//     the row since.
type statements struct {
	w Words

	version                           string
	open, beat, beaten, revoked, end  string
	close, ack, probe, probeNow       string
	take, first, lockX, give, create  string
	lockRow, lockRowNow, front, ahead string
	brief, permits, setPermits        string
	clearX, setCrowd, shareX          string
	moveX, setX, regrantX, regrantS   string
	addHolds, addWaits, addNotes      string

	describeX, describeS, readers, behind, wantX string

	leasts, shareLeasts, delLeasts                                    listed
	addLeast, grantLeast, moveLeast, lapsed                           string
	detach, handle, addHandle                                         string
	delHandles                                                        listed
	lookUp, lockHolds, moveHolds, delHolds, delWaits, delNotes, wantS listed

	hanging                                          listed
	heldWaits, heldRows, heldHolds, heldNotes        string
	alive, notesOf                                   string
	waiting, marks, granted                          listed
	keeper, takeOver, round, leases                  string
	mark, setMark, doubt                             string
	names                                            string
	status                                           listed
	forced, guardX, guardS                           string
	lockRows, clearRows, leftRows                    listed
	forgetLease                                      string
	idle, raiseFloor, floor, era, raiseEra, oldNotes string
	deleteRow                                        string
	lockIdle                                         listed
	log, logEnd, logOld, deleteLog                   string
	addPost, posts, floorPost                        string

	record recordStatements
}

// listed is a statement with lists: ?n is the name, ?ids and ?leases are lists, ?k is
// a number.
type listed string

// with fills in what is listed.
func (l listed) with(name []byte, ids, leases [][]byte, k int64) Statement {
	var text strings.Builder
	var args []any
	put := func(all [][]byte) {
		for i, a := range all {
			if i > 0 {
				text.WriteByte(',')
			}
			text.WriteByte('?')
			args = append(args, a)
		}
	}
	for rest := string(l); ; {
		before, after, found := strings.Cut(rest, "?")
		text.WriteString(before)
		if !found {
			return Statement{SQL: text.String(), Args: args}
		}
		switch {
		case strings.HasPrefix(after, "ids"):
			put(ids)
			rest = after[len("ids"):]
		case strings.HasPrefix(after, "leases"):
			put(leases)
			rest = after[len("leases"):]
		case strings.HasPrefix(after, "k"):
			text.WriteByte('?')
			args = append(args, k)
			rest = after[1:]
		case strings.HasPrefix(after, "n"):
			put([][]byte{name})
			rest = after[1:]
		default:
			panic("a statement with a list has a plain ?: " + string(l))
		}
	}
}

// words puts the dialect's words and names in.
func (q *statements) words(text string) string {
	return braced(text, func(word string) (string, bool) {
		switch {
		case word == "now":
			return q.w.Now, true
		case word == "server":
			return q.w.Server, true
		case word == "readonly":
			return q.w.ReadOnly, true
		case slices.Contains(tableNames, word):
			return q.w.Table(word), true
		}
		return "", false
	})
}

// Numbered puts numbered arguments, such as $1, in the place of each ?.
func Numbered(text string) string {
	var out strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(text, "?")
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString("$" + strconv.Itoa(n))
		text = after
	}
}

func newStatements(w Words) *statements {
	q := &statements{w: w}
	t := func(lines ...string) string { return q.words(strings.Join(lines, " ")) }
	l := func(lines ...string) listed { return listed(t(lines...)) }

	const (
		// The heartbeat has copied the mark of mark.go to the row of the lease. Behind a pooler
		// another server may answer before a heartbeat has met it: so the sidecar names the one that it trusts.
		live   = "EXISTS (SELECT 1 FROM {lease} WHERE id=? AND ended=0 AND server={server} AND server=?)"
		marked = "(SELECT text FROM {meta} WHERE name='server')"
		alone  = "AND NOT EXISTS (SELECT 1 FROM {queue} q WHERE q.name=l.name) AND NOT EXISTS (SELECT 1 FROM {note} n WHERE n.name=l.name)" +
			" AND NOT EXISTS (SELECT 1 FROM {least} k WHERE k.name=l.name)"
		// The server that answers, if it may grant.
		granting = "(SELECT text FROM {meta} WHERE name='server' AND text={server})"
		since    = "(SELECT value FROM {meta} WHERE name='server')"
		freeX    = "x_id=NULL, x_lease=NULL, x_owner=NULL, x_since=NULL, x_shared=0"
		age      = "{now}-"
	)
	next, nextTail := w.Returning("GREATEST(fence+2, {now})", "fence")
	begin, beginTail := w.Returning("GREATEST({now}, m.value)", "fence")

	q.version = t("SELECT value FROM {meta} WHERE name='schema'")
	q.open = t("INSERT INTO {lease} (id, beat, ttl_ms, server, sidecar, opened, renewed) VALUES (?, ?, ?, " + marked + ", ?, {now}, {now})")
	q.beat = t("UPDATE {lease} SET beat=?, renewed={now}, server=" + marked + " WHERE id=? AND ended=0")
	q.beaten = t("SELECT {server}, {readonly}, k.value, k.text, e.beat, e.ttl_ms, s.text={server},",
		"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {lock} WHERE x_lease=? LIMIT 5001) AS t)",
		"+(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {hold} WHERE lease=? LIMIT 5001) AS t)",
		"+(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {queue} WHERE lease=? LIMIT 5001) AS t)",
		"FROM {meta} k JOIN {meta} s ON s.name='server' LEFT JOIN {lease} e ON e.id=k.text AND e.ended=0 WHERE k.name='keeper'")
	q.revoked = t("SELECT name, id, grace FROM {note} WHERE lease=? AND kind=2 AND (known IS NULL OR known>grace) LIMIT 1000")
	q.ack = t("UPDATE {note} SET known=? WHERE name=? AND id=? AND lease=? AND kind=2 AND (known IS NULL OR known>?)")
	q.end = t("UPDATE {lease} SET ended=1 WHERE id=? AND beat=? AND ended=0")
	q.close = t("UPDATE {lease} SET ended=? WHERE id=? AND ended=0")
	q.probe = t("SELECT id FROM {lease} WHERE id=? FOR UPDATE")
	q.probeNow = q.probe + " NOWAIT"

	q.take = t("UPDATE {lock} SET fence="+next+", x_id=?, x_lease=?, x_owner=?, x_since={now}, x_shared=0",
		"WHERE name=? AND x_id IS NULL AND crowd=0 AND "+live+nextTail)
	q.first = t(w.InsertNew("{lock} (name, fence, x_id, x_lease, x_owner, x_since) SELECT ?, "+begin+", ?, ?, ?, {now} FROM {meta} m WHERE m.name='floor' AND "+live) + beginTail)
	q.create = t(w.InsertNew("{lock} (name, fence) SELECT ?, GREATEST({now}, m.value) FROM {meta} m WHERE m.name='floor'"))
	q.lockX = t("SELECT 1 FROM {lock} WHERE name=? FOR UPDATE")
	same, sameTail := w.Returning("fence", "fence")
	q.give = t("UPDATE {lock} AS l SET fence="+same+", "+freeX+" WHERE l.name=? AND x_id=? AND x_lease=? AND x_shared=0", alone+sameTail)

	q.lockRow = t("SELECT fence, crowd, x_id, x_lease, x_shared, " + q.severalText("x_owner") + " FROM {lock} WHERE name=? FOR UPDATE")
	q.lockRowNow = q.lockRow + " NOWAIT"
	// It is sent after lockRow, so its time is one at which the row is locked: lockRow may have waited for it.
	q.lookUp = l("SELECT 'h', id, lease, fence, since, 0 FROM {hold} WHERE name=?n AND id IN (?ids)",
		"UNION ALL SELECT 'q', id, lease, seq, mode, 0 FROM {queue} WHERE name=?n AND id IN (?ids)",
		"UNION ALL SELECT 'n', id, lease, grace, kind, COALESCE(known, -1) FROM {note} WHERE name=?n AND id IN (?ids)",
		"UNION ALL SELECT 'l', id, id, ended, 0, 0 FROM {lease} WHERE id IN (?leases)",
		"UNION ALL SELECT 'l', e.id, e.id, e.ended, 0, 0 FROM {lock} l JOIN {lease} e ON e.id=l.x_lease WHERE l.name=?n",
		"UNION ALL SELECT 'c', name, name, (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {hold} WHERE name=?n LIMIT ?k) AS t),",
		"(SELECT COUNT(*) FROM (SELECT 1 AS one FROM {note} WHERE name=?n LIMIT ?k) AS t), COALESCE((SELECT MAX(seq) FROM {queue} WHERE name=?n), 0)",
		"FROM {lock} WHERE name=?n",
		"UNION ALL SELECT 's', text, {server}, {now}, value, 0 FROM {meta} WHERE name='server'")
	q.front = t("SELECT q.seq, q.id, q.lease, q.mode, COALESCE(e.ended, 1), "+q.severalText("q.owner")+", COALESCE(k.asked, 0)",
		"FROM {queue} q LEFT JOIN {lease} e ON e.id=q.lease LEFT JOIN {least} k ON k.name=q.name AND k.id=q.id WHERE q.name=? ORDER BY q.seq LIMIT ?")
	lasting := "SELECT k.id, k.mode, k.fence, k.ends, d.hash FROM {least} k LEFT JOIN {handle} d ON d.name=k.name AND d.id=k.id WHERE k.name=?n AND "
	q.leasts = l(lasting+"k.id IN (?ids)", "UNION ("+lasting+"k.ends>0 ORDER BY k.ends DESC LIMIT "+strconv.Itoa(maxLeasts)+")")
	q.addLeast = t("INSERT INTO {least} (name, id, mode, asked, fence, sidecar, owner, since, ends)",
		"VALUES (?, ?, ?, ?, ?, COALESCE((SELECT sidecar FROM {lease} WHERE id=?), ''), ?, {now}, ?)")
	q.grantLeast = t("UPDATE {least} SET fence=?, since={now}, ends=? WHERE name=? AND id=?")
	q.moveLeast = t("UPDATE {least} SET ends=? WHERE name=? AND id=?")
	q.detach = t("INSERT INTO {least} (name, id, mode, asked, fence, sidecar, owner, since, ends)",
		"SELECT ?, ?, ?, 0, ?, COALESCE((SELECT e.sidecar FROM {lease} e WHERE e.id=h.lease), ''), h.owner, h.since, ?",
		"FROM (SELECT x_lease AS lease, x_owner AS owner, x_since AS since FROM {lock} WHERE name=? AND x_id=?",
		"UNION ALL SELECT lease, owner, since FROM {hold} WHERE name=? AND id=?) AS h")
	q.handle = t("SELECT {server}, (SELECT id FROM {handle} WHERE name=? AND hash=? LIMIT 1)")
	q.addHandle = t("INSERT INTO {handle} (name, id, hash) VALUES (?, ?, ?)")
	q.delHandles = l("DELETE FROM {handle} WHERE name=?n AND id IN (?ids)")
	q.shareLeasts = l("UPDATE {least} SET mode=2 WHERE name=?n AND id IN (?ids)")
	q.delLeasts = l("DELETE FROM {least} WHERE name=?n AND id IN (?ids)")
	q.lapsed = t("SELECT name, id, ends FROM {least} WHERE ends>=? AND ends<={now} AND NOT (ends=? AND (name<? OR name=? AND id<=?)) ORDER BY ends, name, id LIMIT ?")
	q.lockHolds = l("SELECT id FROM {hold} WHERE name=?n AND id IN (?ids) FOR UPDATE SKIP LOCKED")
	q.permits = t("SELECT id, lease, fence, since FROM {hold} WHERE name=?")
	q.setPermits = t("UPDATE {lock} SET fence=?, x_shared=?, crowd=? WHERE name=?")
	q.ahead = t("SELECT id FROM {queue} WHERE name=? ORDER BY seq LIMIT ?")

	q.addHolds = t("INSERT INTO {hold} (name, id, lease, owner, fence, since) VALUES ")
	q.moveHolds = l("INSERT INTO {hold} (name, id, lease, owner, fence, since) SELECT name, id, lease, owner, ?k, {at} FROM {queue} WHERE name=?n AND id IN (?ids)")
	q.delHolds = l("DELETE FROM {hold} WHERE name=?n AND id IN (?ids)")
	q.addWaits = t("INSERT INTO {queue} (name, seq, id, lease, mode, owner, since) VALUES ")
	q.delWaits = l("DELETE FROM {queue} WHERE name=?n AND id IN (?ids)")
	q.addNotes = t("INSERT INTO {note} (name, id, lease, kind, grace, known, era) VALUES ")
	q.delNotes = l("DELETE FROM {note} WHERE name=?n AND id IN (?ids)")
	q.clearX = t("UPDATE {lock} SET fence=?, " + freeX + ", crowd=? WHERE name=?")
	q.setCrowd = t("UPDATE {lock} SET crowd=? WHERE name=?")
	q.shareX = t("UPDATE {lock} SET x_shared=1 WHERE name=?")
	q.setX = t("UPDATE {lock} SET fence=?, x_id=?, x_lease=?, x_owner=?, x_since={now}, x_shared=0, crowd=0 WHERE name=?")
	q.moveX = t("UPDATE {lock} SET fence=?, x_id=?, x_lease=?, x_owner=(SELECT owner FROM {queue} WHERE name=? AND id=?), x_since={now}, x_shared=0, crowd=0 WHERE name=?")
	q.regrantX = t("UPDATE {lock} SET fence=? WHERE name=? AND x_id=?")
	q.regrantS = t("UPDATE {hold} SET fence=? WHERE name=? AND id=?")

	q.describeX = t("UPDATE {lock} SET x_owner=" + q.describedText("x_owner") + " WHERE name=? AND x_id=? AND x_lease=?")
	q.describeS = t("UPDATE {hold} SET owner=" + q.describedText("owner") + " WHERE name=? AND id=? AND lease=?")
	q.wantX = t("UPDATE {lock} SET x_owner=" + q.wantedText("x_owner") + " WHERE name=? AND x_id=?")
	q.wantS = l("UPDATE {hold} SET owner=" + q.wantedText("owner") + " WHERE name=?n AND id IN (?ids)")
	q.readers = t("SELECT id, lease FROM {hold} WHERE name=? AND "+q.severalText("owner")+"="+strconv.Itoa(hasCohort), "LIMIT", strconv.Itoa(brief))
	// Who is next to what a lease has: what stands further back is told to that one.
	follower := func(of, behind string) string {
		return "(SELECT q.lease FROM {queue} q WHERE q.name=" + of + ".name" + behind + " ORDER BY q.seq LIMIT 1) AS follower"
	}
	some := strconv.Itoa(counted)
	q.behind = t("SELECT name, id FROM (SELECT l.name, l.id, l.several,", follower("l", ""),
		"FROM (SELECT name, x_id AS id,", q.severalText("x_owner"), "AS several FROM {lock} WHERE x_lease=? LIMIT", some+") l",
		"UNION ALL SELECT h.name, h.id, h.several,", follower("h", ""),
		"FROM (SELECT name, id,", q.severalText("owner"), "AS several FROM {hold} WHERE lease=? LIMIT", some+") h",
		"UNION ALL SELECT w.name, w.id, 0,", follower("w", " AND q.seq>w.seq"), "FROM (SELECT name, id, seq FROM {queue} WHERE lease=? LIMIT", some+") w",
		") t WHERE several="+strconv.Itoa(isWanted), "OR follower<>? LIMIT", strconv.Itoa(behindAtATime))

	hangs := func(table, lease string) string {
		return "EXISTS (SELECT 1 FROM " + table + " WHERE " + lease + " IN (?leases))"
	}
	q.hanging = l("SELECT", hangs("{queue}", "lease"), "OR", hangs("{lock}", "x_lease"), "OR", hangs("{hold}", "lease"), "OR", hangs("{note}", "lease"))
	// Who waits comes first: who is granted meanwhile is then seen twice, and not missed.
	q.heldWaits = t("SELECT name, id, seq FROM {queue} WHERE lease=? AND name>=? AND NOT (name=? AND seq<=?) ORDER BY name, seq LIMIT ?")
	q.heldRows = t("SELECT name, x_id FROM {lock} WHERE x_lease=? AND name>? ORDER BY name LIMIT ?")
	byID := func(table string) string {
		return t("SELECT name, id FROM " + table + " WHERE lease=? AND name>=? AND NOT (name=? AND id<=?) ORDER BY name, id LIMIT ?")
	}
	q.heldHolds, q.heldNotes = byID("{hold}"), byID("{note}")

	// What a lease has to know of itself, and of what it waits for.
	q.alive = t("SELECT 1 FROM {lease} WHERE id=? AND ended=0")
	q.notesOf = t("SELECT name, id, kind, grace FROM {note} WHERE lease=? AND (known IS NULL OR known>grace) LIMIT 1000")
	q.waiting = l("SELECT l.name, l.x_id, l.fence, l.x_lease, e.beat, e.ttl_ms, h.lease, r.beat, r.ttl_ms, w.lease, f.beat, f.ttl_ms,", granting+",",
		"COALESCE((SELECT MIN(k.ends) FROM {least} k WHERE k.name=l.name AND k.ends>{now})-{now}, 0),", since,
		"FROM {lock} l LEFT JOIN {lease} e ON e.id=l.x_lease AND e.ended=0",
		"LEFT JOIN {hold} h ON h.name=l.name AND h.id=(SELECT id FROM {hold} WHERE name=l.name ORDER BY id LIMIT 1)",
		"LEFT JOIN {lease} r ON r.id=h.lease AND r.ended=0",
		"LEFT JOIN {queue} w ON w.name=l.name AND w.seq=(SELECT MIN(seq) FROM {queue} WHERE name=l.name)",
		"LEFT JOIN {lease} f ON f.id=w.lease AND f.ended=0 WHERE l.name IN (?ids)")
	q.marks = l("SELECT name, id, known FROM {note} WHERE name IN (?ids) AND kind=2 AND known IS NOT NULL")
	q.granted = l("SELECT id, fence, since,", granting+",", since, "FROM {hold} WHERE name=?n AND id IN (?ids)")

	q.keeper = t("SELECT k.value, k.text, e.beat, e.ttl_ms FROM {meta} k LEFT JOIN {lease} e ON e.id=k.text AND e.ended=0 WHERE k.name='keeper'")
	q.takeOver = t("UPDATE {meta} SET value=?, text=? WHERE name='keeper' AND value=? AND text=?")
	q.round = t("UPDATE {meta} SET value=? WHERE name='keeper' AND text=?")
	q.leases = t("SELECT id, beat, ttl_ms, ended, opened FROM {lease}")
	q.mark = t("SELECT text, {server} FROM {meta} WHERE name='server'")
	q.doubt = t("UPDATE {meta} SET text=? WHERE name='server' AND text={server}")
	q.setMark = t("UPDATE {meta} SET text={server}, value=GREATEST(value, {now}) WHERE name='server' AND text=? AND {server}=?")

	// One statement, so that all is as of one moment: who moves from the queue to the
	// holders is in exactly one of them.
	row := func(seq, id, mode, fence, lease, owner, name, from, as string) string {
		return "SELECT " + name + ", " + seq + ", " + id + ", " + mode + ", " + fence + ", " + lease + ", " + owner + ", e.sidecar, " + as +
			", CASE WHEN EXISTS (SELECT 1 FROM {note} n WHERE n.name=" + name + " AND n.id=" + id + " AND n.kind=2) THEN 1 ELSE 0 END, 0, 0 FROM " + from
	}
	onRow := row("0", "l.x_id", "1+l.x_shared", "l.fence", "l.x_lease", "l.x_owner", "l.name", "{lock} l JOIN {lease} e ON e.id=l.x_lease AND e.ended=0", age+"l.x_since")
	mode := "CASE WHEN h.fence>=" + strconv.FormatInt(wholeFence, 10) + " THEN (SELECT p.x_shared FROM {lock} p WHERE p.name=h.name) ELSE 2 END"
	held := row("0", "h.id", mode, "h.fence", "h.lease", "h.owner", "h.name", "{hold} h JOIN {lease} e ON e.id=h.lease AND e.ended=0", age+"h.since")
	queued := row("q.seq", "q.id", "q.mode", "0", "q.lease", "q.owner", "q.name", "{queue} q JOIN {lease} e ON e.id=q.lease AND e.ended=0", age+"q.since")
	kept := "SELECT k.name, 0, k.id, k.mode, k.fence, '', k.owner, k.sidecar, " + age + "k.since, 0, k.ends-{now}," +
		" CASE WHEN EXISTS (SELECT 1 FROM {handle} d WHERE d.name=k.name AND d.id=k.id) THEN 1 ELSE 0 END FROM {least} k"
	unheld := " AND k.ends>{now} AND NOT EXISTS (SELECT 1 FROM {lock} l JOIN {lease} e ON e.id=l.x_lease AND e.ended=0 WHERE l.name=k.name AND l.x_id=k.id)" +
		" AND NOT EXISTS (SELECT 1 FROM {hold} h JOIN {lease} e ON e.id=h.lease AND e.ended=0 WHERE h.name=k.name AND h.id=k.id)"
	q.status = l(onRow+" WHERE l.name IN (?ids)", "UNION ALL "+held+" WHERE h.name IN (?ids)", "UNION ALL "+queued+" WHERE q.name IN (?ids)",
		"UNION ALL "+kept+" WHERE k.name IN (?ids)"+unheld)
	q.brief = t(onRow+" WHERE l.name=?", "UNION ALL (", held+" WHERE h.name=? LIMIT ?", ") UNION ALL (", kept+" WHERE k.name=?"+unheld, "LIMIT ?", ")")
	q.names = t("SELECT name FROM {lock} WHERE name>? AND name>=? AND name<? AND (x_id IS NOT NULL OR crowd=1) ORDER BY name LIMIT ?")

	q.forced = t("SELECT {server}, (SELECT COALESCE(n.known, -1) FROM {note} n WHERE n.name=? AND n.id=? AND n.kind=2 AND n.grace>0",
		"AND (EXISTS (SELECT 1 FROM {lock} l JOIN {lease} e ON e.id=l.x_lease AND e.ended=0 WHERE l.name=? AND l.x_id=?)",
		"OR EXISTS (SELECT 1 FROM {hold} h JOIN {lease} e ON e.id=h.lease AND e.ended=0 WHERE h.name=? AND h.id=?)))")
	q.guardX, q.guardS = q.guardText("lock", "x_id", "fence"), q.guardText("hold", "id", "since")

	q.lockRows = l("SELECT l.name, l.x_id, l.fence, COALESCE((SELECT e.ended FROM {lease} e WHERE e.id=l.x_lease), 1) FROM {lock} l WHERE l.name IN (?ids) AND l.x_lease=?n AND l.x_shared=0",
		alone, "FOR UPDATE SKIP LOCKED")
	q.leftRows = l("SELECT name, x_id FROM {lock} WHERE name IN (?ids) AND x_lease=?n")
	q.clearRows = l("UPDATE {lock} AS l SET "+freeX+" WHERE name IN (?ids) AND x_lease=?n AND x_shared=0", alone)
	// Until the server may grant, its TTL counts.
	q.forgetLease = t("DELETE FROM {lease} WHERE id=? AND ended>0 AND {server}=? AND EXISTS", granting)

	// A shared hold has had fence+1 at most.
	q.idle = t("SELECT name, CASE WHEN x_id IS NULL AND crowd=0 AND fence<?-1 THEN 1 ELSE 0 END FROM {lock} WHERE name>? ORDER BY name LIMIT ?")
	q.lockIdle = l("SELECT name FROM {lock} WHERE name IN (?ids) AND x_id IS NULL AND crowd=0 AND fence<?k-1 AND {server}=?n FOR UPDATE SKIP LOCKED")
	q.deleteRow = t("DELETE FROM {lock} WHERE name=?")
	q.raiseFloor = t("UPDATE {meta} SET value=GREATEST(value, {now}-?) WHERE name='floor'")
	q.floor = t("SELECT value, {server} FROM {meta} WHERE name='floor'")
	q.era = t("SELECT value, {server} FROM {meta} WHERE name='era'")
	q.raiseEra = t("UPDATE {meta} SET value=value+1 WHERE name='era' AND value=? AND {server}=?")
	q.oldNotes = t("SELECT name, id FROM {note} WHERE era<? LIMIT ?")

	q.log = t("INSERT INTO {log} (at, event, name, hold, lease, fence, note) VALUES ")
	q.logEnd = t("SELECT MIN(id), MAX(id), {now} FROM {log}")
	q.logOld = t("SELECT id, at FROM {log} ORDER BY id LIMIT ?")
	q.deleteLog = t("DELETE FROM {log} WHERE id<=?")
	q.record = newRecordStatements(q)
	q.addPosts()
	return q
}
