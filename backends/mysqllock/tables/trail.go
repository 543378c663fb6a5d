package tables

import (
	"bytes"
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// This file is about how holds that nobody waits for are logged.
//
// A row of the log for each grant and each release would make these twice as
// dear, and they are most of all. So the statement that releases such a hold
// notes it on the row of the resource, in the column trail: it writes that row
// anyway. From there it is moved to the log: by the next transaction about the
// resource that takes the long way; by the sidecar that released it, many
// resources at a time; or by the reaper, where that sidecar died. Nothing is lost
// in between, as everything is committed with what it tells of.

const (
	// maxTrail is how long a trail may be for one more to be added: the column has
	// room for that.
	maxTrail = 3600
	// moveEvery is about how late the log is.
	moveEvery = 500 * time.Millisecond
	// moveAtATime bounds a transaction that moves.
	moveAtATime = 100
	// oldTrail is how old a trail is when somebody else moves it.
	oldTrail = time.Minute
	// timeLength is that of a DATETIME(6) as text.
	timeLength = len("2006-01-02 15:04:05.000000")
)

// trailOf is what a trail begins with: who had the hold. The server adds whether
// the log has not got its grant, when that was, what time it is, and ";".
func trailOf(id lock.HoldID, lease lock.LeaseID, fence int64) []byte {
	t := []byte{byte(len(id))} //nolint:gosec // at most maxID
	t = append(t, id...)
	t = append(t, byte(len(lease))) //nolint:gosec // as we made it
	t = append(t, lease...)
	t = strconv.AppendInt(t, fence, 10)
	return append(t, ' ')
}

// readTrail gives the rows of the log that are in a trail. Whatever cannot be
// read ends it.
func readTrail(t []byte) (log []logged) {
	text := func() (string, bool) {
		if len(t) == 0 || len(t) < 1+int(t[0]) {
			return "", false
		}
		s := string(t[1 : 1+t[0]])
		t = t[1+t[0]:]
		return s, true
	}
	for {
		id, ok := text()
		if !ok {
			return log
		}
		lease, ok := text()
		number, rest, found := bytes.Cut(t, []byte(" "))
		fence, err := strconv.ParseInt(string(number), 10, 64)
		if !ok || !found || err != nil || len(rest) < 2+2*timeLength {
			return log
		}
		since, until := string(rest[1:1+timeLength]), string(rest[1+timeLength:1+2*timeLength])
		l := logged{at: since, event: "acquire", id: id, lease: lease, fence: fence}
		if rest[0] == '1' {
			log = append(log, l)
		}
		l.at, l.event = until, "release"
		log = append(log, l)
		t = rest[2+2*timeLength:]
	}
}

// logTrail puts what the log has not got yet before what a transaction logs.
func (s *state) logTrail() {
	before := readTrail(s.trail)
	if s.xQuick {
		before = append(before, logged{at: s.xSince, event: "acquire", id: s.xWas.id, lease: s.xWas.lease, fence: s.fenceWas})
	}
	s.log = append(before, s.log...)
}

// trailed notes that a resource has a trail.
func (k *keeper) trailed(r lock.Resource) {
	if k.l.b.logKeep == 0 {
		return
	}
	k.mu.Lock()
	k.trails[r] = true
	k.mu.Unlock()
}

// moveTrails moves trails to the log.
func (k *keeper) moveTrails(ctx context.Context) {
	k.mu.Lock()
	trails := k.trails
	k.trails = make(map[lock.Resource]bool)
	k.mu.Unlock()
	var names []lock.Resource
	for r := range trails {
		names = append(names, r)
	}
	if err := k.l.b.moveTrails(ctx, names); err != nil {
		for _, r := range names {
			k.trailed(r)
		}
	}
}

// moveTrails moves the trails of some resources to the log. A row that is locked
// by others is left to them, or to the reaper.
func (b *Backend) moveTrails(ctx context.Context, names []lock.Resource) error {
	for len(names) > 0 {
		some := names[:min(len(names), moveAtATime)]
		names = names[len(some):]
		if err := mydb.Retry(ctx, func() error { return b.moveSome(ctx, some) }); err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) moveSome(ctx context.Context, names []lock.Resource) error {
	query, args := in(b.sql.trails, texts(names), "")
	return b.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
		var moved []string
		var log []any
		n := 0
		err := b.pool.QueryOn(ctx, conn, "log", func(_ int, rows *sql.Rows) error {
			var name string
			var trail []byte
			if err := rows.Scan(&name, &trail); err != nil {
				return err
			}
			moved = append(moved, name)
			for _, l := range readTrail(trail) {
				n++
				log = append(log, l.args(lock.Resource(name))...)
			}
			return nil
		}, query, args...)
		if err != nil {
			drop(ctx, conn, err)
			return err
		}
		w := &script{b: b}
		if len(moved) > 0 {
			update, args := in(b.sql.trailsMoved, moved, "")
			w.text.WriteString(update)
			w.args = args
			w.log(n, log)
		}
		w.text.WriteString("COMMIT")
		_, err = b.pool.ExecOn(ctx, conn, "log", w.text.String(), w.args...)
		return err
	})
}

// reapTrails moves trails that nobody else has moved.
func (b *Backend) reapTrails(ctx context.Context) error {
	var names []lock.Resource
	if err := b.query(ctx, "reap", func(_ int, rows *sql.Rows) error {
		var r lock.Resource
		if err := rows.Scan(&r); err != nil {
			return err
		}
		names = append(names, r)
		return nil
	}, b.sql.oldTrails, oldTrail.Microseconds(), reapAtATime); err != nil {
		return err
	}
	return b.moveTrails(ctx, names)
}
