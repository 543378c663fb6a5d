package tables

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/locksidecar/locksidecar/backends/mysqllock/mydb"
	"github.com/locksidecar/locksidecar/lock"
)

// subject is what a transaction is about.
type subject struct {
	name      lock.Resource
	id, lease string // of who asks, or empty
	hasty     bool   // not to be tried again after a wait for the row
	exclusive bool   // id most likely has the exclusive hold, so there is less to read
}

// change runs one transaction on a resource: two round trips, one that locks
// the row and reads, one that writes and commits. In between decide says what to
// do; where it changes nothing, nothing is written.
//
// It is tried again where another transaction was in the way, until ctx ends.
// errNoRow: the resource has no row, so nobody holds or waits.
func (b *Backend) change(ctx context.Context, command string, sub subject, decide func(*state)) (*state, error) {
	var s *state
	var err error
	once := func() error {
		s, err = b.changeOnce(ctx, command, sub, decide)
		if sub.hasty && mydb.LockWait(err) {
			return nil
		}
		return err
	}
	_ = mydb.Retry(ctx, once)
	if err != nil {
		return nil, err
	}
	b.spread(s.news)
	return s, nil
}

func (b *Backend) changeOnce(ctx context.Context, command string, sub subject, decide func(*state)) (s *state, err error) {
	err = b.on(ctx, func(ctx context.Context, conn *sql.Conn) error {
		s, err = b.load(ctx, conn, command, sub)
		if sub.exclusive && err == nil && (s.x.id != sub.id || s.x.lease != sub.lease) {
			sub.exclusive = false // it is lost, so look again, at everything
			s, err = b.load(ctx, conn, command, sub)
		}
		if err != nil {
			drop(ctx, conn, err)
			return err
		}
		decide(s)
		query, args := "COMMIT", []any(nil)
		if s.dirty {
			s.logTrail()
			query, args = b.write(s)
		}
		_, err := b.pool.ExecOn(ctx, conn, command, query, args...)
		return err
	})
	return s, err
}

// load begins a transaction, locks the row of a resource, and reads.
func (b *Backend) load(ctx context.Context, conn *sql.Conn, command string, sub subject) (*state, error) {
	s := &state{name: sub.name}
	found := false
	var xLive bool
	name, id, lease := []byte(sub.name), []byte(sub.id), []byte(sub.lease)
	query, args, sets := b.sql.load, []any{name, name, id, name, name, id, lease, name, name, id}, []int{0, 1, 2, 3, 4}
	if sub.exclusive {
		query, args, sets = b.sql.loadExclusive, []any{name, name, lease, name}, []int{0, 2, 4}
	}
	scan := func(set int, rows *sql.Rows) error {
		switch sets[set] {
		case 0:
			found = true
			var xID, xLease, since sql.RawBytes
			var mark, grace sql.NullInt64
			if err := rows.Scan(&s.fence, &s.readers, &s.waiters, &s.gone, &s.tail, &xID, &xLease, &mark, &grace, &s.now, &s.xQuick, &since, &s.trail); err != nil {
				return err
			}
			s.x = member{id: string(xID), lease: string(xLease), mode: lock.Exclusive, mark: mark.Int64, grace: grace.Int64}
			s.xSince = string(since)
		case 1:
			h := member{mode: lock.Shared}
			var mark, grace sql.NullInt64
			if err := rows.Scan(&h.id, &h.lease, &h.fence, &mark, &grace, &h.live); err != nil {
				return err
			}
			h.mark, h.grace = mark.Int64, grace.Int64
			if h.id == sub.id {
				s.own = &h
			}
			if !h.live {
				s.dead = append(s.dead, h)
			}
		case 2:
			var w member
			var mode string
			if err := rows.Scan(&w.seq, &w.id, &w.lease, &mode, &w.live); err != nil {
				return err
			}
			w.mode = modeOf(mode)
			s.queue = append(s.queue, w)
		case 3:
			var w member
			var mode string
			if err := rows.Scan(&w.seq, &w.id, &w.lease, &mode); err != nil {
				return err
			}
			w.mode = modeOf(mode)
			s.place = &w
		case 4:
			return rows.Scan(&s.leaseLive, &xLive, &s.ownGone)
		}
		return nil
	}
	if err := b.pool.QueryOn(ctx, conn, command, scan, query, args...); err != nil {
		return nil, err
	}
	if !found {
		return nil, errNoRow
	}
	s.x.live = xLive
	s.xWas, s.fenceWas = s.x, s.fence
	return s, nil
}

func modeOf(s string) lock.Mode {
	if s == "S" {
		return lock.Shared
	}
	return lock.Exclusive
}

func modeLetter(m lock.Mode) string {
	if m == lock.Shared {
		return "S"
	}
	return "X"
}

// script is a request under construction.
type script struct {
	b    *Backend
	text strings.Builder
	args []any
}

func (w *script) add(statement string, args ...any) {
	w.text.WriteString(replaceNames(statement, w.b.cfg.Table))
	w.text.WriteString(";\n")
	w.args = append(w.args, args...)
}

// marks are n question marks, each as given.
func marks(n int, one string) string {
	return strings.TrimSuffix(strings.Repeat(one+",", n), ",")
}

// write makes the statements that write what was decided, and commit.
func (b *Backend) write(s *state) (string, []any) {
	w := &script{b: b}
	name := []byte(s.name)
	for _, h := range s.addHolds {
		id, lease := []byte(h.id), []byte(h.lease)
		switch {
		case h.fromX: // before the columns are cleared
			w.add("INSERT INTO {hold} (name, id, lease, owner, fence, since, mark, grace) SELECT name, x_id, x_lease, x_owner, fence, x_since, x_mark, x_grace FROM {lock} WHERE name=?", name)
		case h.fromQueue != 0:
			w.add("INSERT INTO {hold} (name, id, lease, owner, fence, since) SELECT name, id, lease, owner, ?, NOW(6) FROM {queue} WHERE name=? AND seq=?", h.fence, name, h.fromQueue)
		default:
			w.add("INSERT INTO {hold} (name, id, lease, owner, fence, since) VALUES (?, ?, ?, ?, ?, NOW(6))", name, id, lease, []byte(h.owner), h.fence)
		}
	}
	if len(s.delHolds) > 0 {
		args := []any{name}
		for _, id := range s.delHolds {
			args = append(args, []byte(id))
		}
		w.add("DELETE FROM {hold} WHERE name=? AND id IN ("+marks(len(s.delHolds), "?")+")", args...)
	}
	for _, h := range s.marks {
		w.add("UPDATE {hold} SET mark=NULLIF(?, 0), grace=? WHERE name=? AND id=?", h.mark, h.grace, name, []byte(h.id))
	}
	w.lockRow(s)
	if len(s.delSeqs) > 0 {
		args := []any{name}
		for _, seq := range s.delSeqs {
			args = append(args, seq)
		}
		w.add("DELETE FROM {queue} WHERE name=? AND seq IN ("+marks(len(s.delSeqs), "?")+")", args...)
	}
	if q := s.enqueue; q != nil {
		w.add("INSERT INTO {queue} (name, seq, id, lease, mode, owner, since) VALUES (?, ?, ?, ?, ?, ?, NOW(6))",
			name, s.tail, []byte(q.id), []byte(q.lease), []byte(modeLetter(q.mode)), []byte(q.owner))
	}
	w.tail(s)
	w.text.WriteString("COMMIT")
	return w.text.String(), w.args
}

// lockRow writes the row of the resource.
func (w *script) lockRow(s *state) {
	set := []string{"fence=?", "readers=?", "waiters=?", "gone=?", "tail=?", "trail=''", "x_quick=0"}
	args := []any{s.fence, s.readers, s.waiters, s.gone, s.tail}
	name := []byte(s.name)
	switch s.newX.kind {
	case xKeep:
	case xMark:
		set = append(set, "x_mark=NULLIF(?, 0)", "x_grace=?")
		args = append(args, s.x.mark, s.x.grace)
	case xClear:
		set = append(set, freeX)
	case xFromQueue:
		set = append(set, "x_id=?", "x_lease=?", "x_owner=(SELECT owner FROM {queue} q WHERE q.name=? AND q.seq=?)", "x_since=NOW(6)", "x_mark=NULL", "x_grace=NULL")
		args = append(args, []byte(s.x.id), []byte(s.x.lease), name, s.newX.seq)
	case xNew:
		set = append(set, "x_id=?", "x_lease=?", "x_owner=?", "x_since=NOW(6)", "x_mark=NULL", "x_grace=NULL")
		args = append(args, []byte(s.x.id), []byte(s.x.lease), []byte(s.newX.owner))
	}
	w.add("UPDATE {lock} SET "+strings.Join(set, ", ")+" WHERE name=?", append(args, name)...)
}

// tail writes what comes after the change itself: what is to be remembered,
// told and logged.
func (w *script) tail(s *state) {
	name := []byte(s.name)
	if g := s.addGone; g != nil {
		w.add("INSERT INTO {gone} (name, id, lease, at) VALUES (?, ?, ?, NOW(6))", name, []byte(g.id), []byte(g.lease))
	}
	var args []any
	rows := 0
	for _, n := range s.news {
		// A grant to a neighbour is told directly; if that is lost with the answer
		// of this request, recheck finds it.
		if n.kind == newsRevoked || w.b.local(n.lease) == nil {
			rows++
			args = append(args, []byte(n.lease), []byte(n.id), []byte{byte(n.kind)}, []byte(n.name), n.fence, n.grace)
		}
	}
	if rows > 0 {
		// The same again takes the place of what was there: another forced
		// release of a hold, with another grace.
		w.add("REPLACE INTO {news} (lease, id, kind, name, fence, grace, at) VALUES "+marks(rows, "(?, ?, ?, ?, ?, ?, NOW(6))"), args...)
	}
	args = nil
	for _, l := range s.log {
		args = append(args, l.args(s.name)...)
	}
	w.log(len(s.log), args)
}

// log writes n rows of the log.
func (w *script) log(n int, args []any) {
	if n > 0 && w.b.logKeep > 0 {
		w.add("INSERT INTO {log} "+logColumns+" VALUES "+marks(n, "(COALESCE(?, NOW(6)), ?, ?, ?, ?, ?, ?)"), args...)
	}
}

// create makes the row of a resource.
func (b *Backend) create(ctx context.Context, r lock.Resource) error {
	name := []byte(r)
	return mydb.Retry(ctx, func() error {
		if _, err := b.exec(ctx, "create", b.sql.create, name, name); err != nil {
			return fmt.Errorf("create row: %w", err)
		}
		return nil
	})
}

// settle cleans up at a resource and grants what can be granted.
func (b *Backend) settle(ctx context.Context, r lock.Resource) error {
	for {
		s, err := b.change(ctx, "settle", subject{name: r}, func(s *state) {
			s.clean()
			s.promote()
		})
		if errors.Is(err, errNoRow) {
			return nil
		}
		if err != nil {
			return err
		}
		if !s.more {
			return nil
		}
	}
}
