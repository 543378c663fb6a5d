package sqllock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/backends/queue"
	"github.com/locksidecar/locksidecar/lock"
)

const (
	// front is how much of a queue a transaction reads, and longFront how much where
	// there is more to be granted than that.
	front, longFront = 64, 500
	// maxPosition is the last place in a queue that is told.
	maxPosition = 1000
	// brief is how many holders a refused request is told of.
	brief = 8
)

// errNoRow: the resource has no row, so nobody holds or waits. errNoRowKept: where the server must not grant yet, it may also lack the
// row.
var (
	errNoRow     = errors.New("the resource has no row")
	errNoRowKept = fmt.Errorf("%w: %w", errNoRow, errKept)
)

// errKept: see mark.go.
var errKept = errors.New("another server has taken over, and may lack the last grants")

// transact carries out a batch of requests about a resource in one transaction: two
// trips, one that locks the row and reads, one that writes and commits. wait says
// whether it may wait for the row. Requests that cannot be carried out yet, because an
// app has locked the row of their hold, are given back.
func (b *Backend) transact(ctx context.Context, name lock.Resource, ops []*op, wait bool) (s *state, later []*op, err error) {
	c, err := b.pool.Conn(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer c.Close()
	command := ops[0].kind.String()
	step := front
	if ops[0].kind == opSettle {
		step = longFront
	}
	trusted := b.trusted()
	load, tells, ends := b.loading(name, ops, wait, step)
	res, err := c.Do(ctx, command, load...)
	if err != nil {
		return nil, nil, err
	}
	var permits []Row
	if has(res) > 0 { // one trip more
		all, err := c.Do(ctx, command, Statement{SQL: b.sql.permits, Args: []any{[]byte(name)}})
		if err != nil {
			return nil, nil, err
		}
		permits = all[0].Rows
	}
	s = loaded(res, permits, step)
	server, kept := answering(res)
	switch { // the transaction is rolled back
	case trusted != "" && server != trusted: // a pooler leads there, and no heartbeat has met it yet
		return nil, nil, &NotSentError{errOtherServer(server, trusted)}
	case s == nil && kept:
		return nil, nil, errNoRowKept
	case s == nil:
		return nil, nil, errNoRow
	}
	res = res[5:]
	if ends {
		ops, later = s.lockable(ops, res[0].Rows)
		res = res[1:]
	}
	if tells {
		for _, r := range res[0].Rows {
			s.ahead = append(s.ahead, r.Text(0))
		}
		tell(name, ops, res[1].Rows)
	}
	for _, o := range ops {
		o.by = server
		s.apply(o)
	}
	batch := b.writing(name, s)
	if s.crowdOf != "" { // one trip more
		if res, err = c.Do(ctx, command, append(batch, Statement{SQL: b.sql.readers, Args: []any{[]byte(name)}})...); err != nil {
			return nil, nil, err
		}
		batch = nil
		if ids := s.readers(res[len(res)-1].Rows); len(ids) > 0 {
			batch = append(batch, b.sql.wantS.with([]byte(name), ids, nil, 0))
		}
	}
	if _, err = c.Do(ctx, command, append(batch, Statement{SQL: "COMMIT"})...); err != nil {
		return nil, nil, err
	}
	return s, later, nil
}

// loading are the statements that begin a transaction, and read. ends: some request
// ends a hold; tells: some asks who is in the way.
func (b *Backend) loading(name lock.Resource, ops []*op, wait bool, step int) (batch []Statement, tells, ends bool) {
	q, n := b.sql, []byte(name)
	ids, leases := make([][]byte, 0, len(ops)), make([][]byte, 0, 1)
	for _, o := range ops {
		if o.id != "" {
			ids = append(ids, []byte(o.id))
		}
		if o.is != "" {
			ids = append(ids, []byte(o.is))
		}
		if of := o.lease + o.of; of != "" && (len(leases) == 0 || string(leases[len(leases)-1]) != of) { // one of them is empty
			leases = append(leases, []byte(of))
		}
		tells, ends = tells || o.tell, ends || o.kind != opAsk
	}
	if len(ids) == 0 {
		ids = append(ids, nil)
	}
	if len(leases) == 0 {
		leases = append(leases, nil)
	}
	row := q.lockRow
	if !wait {
		row = q.lockRowNow
	}
	limit := int64(len(ids) + 1)
	batch = []Statement{
		{SQL: "START TRANSACTION"},
		{SQL: row, Args: []any{n}},
		q.lookUp.with(n, ids, leases, limit),
		{SQL: q.front, Args: []any{n, step + 1}},
		q.leasts.with(n, ids, nil, 0),
	}
	if ends {
		batch = append(batch, q.lockHolds.with(n, ids, nil, 0))
	}
	if tells {
		batch = append(batch, Statement{SQL: q.ahead, Args: []any{n, maxPosition}}, Statement{SQL: q.brief, Args: []any{n, n, brief, n, brief}})
	}
	return batch, tells, ends
}

// answering is the server that has answered. kept: it must not grant now.
func answering(res []Result) (server string, kept bool) {
	for _, r := range res[2].Rows {
		if r.Text(0) == "s" {
			return r.Text(2), r.Text(1) != r.Text(2)
		}
	}
	return "", false
}

// loaded makes the state of what was read; nil: there is no row.
func loaded(res []Result, permits []Row, step int) *state {
	if len(res[1].Rows) == 0 {
		return nil
	}
	s := newState()
	row := res[1].Rows[0]
	s.fence, s.crowd = row.Int(0), row.Bool(1)
	xID, xLease, xShared := row.Text(2), row.Text(3), row.Bool(4)
	var holds, waits []Row
	var readers, notes int64
	for _, r := range res[2].Rows {
		id := r.Text(1)
		switch r.Text(0) {
		case "h":
			holds = append(holds, r)
		case "q":
			waits = append(waits, r)
		case "n":
			s.notes[id] = note{
				lease: r.Text(2), forced: r.Int(4) == noteForced,
				grace: time.Duration(r.Int(3)) * time.Microsecond, known: time.Duration(r.Int(5)) * time.Microsecond,
			}
		case "l":
			s.leases[id] = ending(r.Int(3))
		case "c":
			readers, notes, s.tail = r.Int(3), r.Int(4), r.Int(5)
		case "s":
			s.kept, s.now, s.since = r.Text(1) != r.Text(2), r.Int(3), r.Int(4)
		}
	}
	if xID != "" {
		room := queue.One
		if xShared {
			room = queue.Unlimited
		}
		m := member{lease: xLease, fence: s.fence, at: s.fence, place: onRow, several: row.Bool(5), wanted: row.Int(5) == isWanted}
		if s.lives(xLease) {
			s.x = s.put(xID, m, room)
			s.xWas = s.x
		} else {
			s.xWas = &entry{ID: lock.HoldID(xID), Value: m}
			s.note(s.leases[xLease].of(s.fence), xID, xLease, s.fence, "")
		}
	}
	if s.permit = has(res); s.permit > 0 {
		s.addPermits(permits)
	} else {
		for _, r := range holds {
			s.put(r.Text(1), member{lease: r.Text(2), fence: r.Int(3), at: r.Int(4), place: inHolds}, queue.Unlimited)
		}
		if readers > int64(len(holds)) {
			s.addOthers()
		}
	}
	s.addLeasts(res[4].Rows)
	if s.kept {
		s.keep()
	}
	s.noted = notes > int64(len(s.notes))
	s.addWaiters(res[3].Rows, waits, step)
	s.settleFront()
	return s
}

// addWaiters adds the front of the queue, and those behind that requests are about.
func (s *state) addWaiters(ahead, asked []Row, step int) {
	for i, r := range ahead {
		id := r.Text(1)
		if i == step {
			s.addRest()
			break
		}
		m := member{lease: r.Text(2), place: inQueue, several: r.Bool(5), least: r.Int(6)}
		if end := ending(r.Int(4)); end == notEnded {
			s.put(id, m, queue.RoomOf(lock.Mode(r.Int(3)))) //nolint:gosec // a mode
		} else {
			s.note(end.of(0), id, m.lease, 0, "")
			s.drop(id, inQueue)
			if m.least > 0 {
				s.forgetLeast(id)
			}
		}
		delete(s.behind, id)
	}
	for _, r := range asked {
		if id := r.Text(1); s.entries[id] == nil && s.rest != nil {
			s.behind[id] = r.Text(2)
		}
	}
}

// lockable splits requests: those that end a shared hold which an app's guard keeps
// locked come later. What could be locked was.
func (s *state) lockable(ops []*op, locked []Row) (now, later []*op) {
	free := make(map[string]bool, len(locked))
	for _, r := range locked {
		free[r.Text(0)] = true
	}
	now = ops[:0:0]
	for _, o := range ops {
		id := cmp.Or(o.is, o.id)
		if e := s.entries[id]; e != nil && e.Value.place == inHolds && !free[id] && o.kind != opAsk {
			later = append(later, o)
			continue
		}
		now = append(now, o)
	}
	return now, later
}

// writing are the statements that write what was decided.
func (b *Backend) writing(name lock.Resource, s *state) []Statement {
	q, n := b.sql, []byte(name)
	var batch []Statement
	add := func(sql string, args ...any) { batch = append(batch, Statement{SQL: sql, Args: args}) }
	var asked, queued []any
	var moved [][]byte
	var fence int64
	newHolds, newWaits := 0, 0
	batch = append(batch, b.writingDetached(n, s)...)
	for e := range s.q.Holders() {
		m := e.Value
		switch {
		case e == s.x || e == s.rest || m.place == inLeast || m.fence == 0 && m.place != inQueue || e.Waiting():
		case m.place == nowhere:
			asked = append(asked, n, []byte(e.ID), []byte(m.lease), []byte(m.owner), m.fence, m.at)
			newHolds++
		case m.place == inQueue && m.fence != 0 && isPermit(e): // each has its own fence
			batch = append(batch, q.moving(s.now).with(n, [][]byte{[]byte(e.ID)}, nil, m.fence))
			s.goneWaits = append(s.goneWaits, string(e.ID))
		case m.place == inQueue && m.fence != 0:
			moved, fence = append(moved, []byte(e.ID)), m.fence
		}
	}
	for e := range s.q.Waiters() {
		if m := e.Value; m.place == nowhere && m.lease != "" {
			s.tail++
			queued = append(queued, n, s.tail, []byte(e.ID), []byte(m.lease), int64(e.Room().Mode()), []byte(m.owner))
			newWaits++
		}
	}
	if newHolds > 0 {
		add(q.addHolds+list(newHolds, "(?, ?, ?, ?, ?, ?)", q), asked...)
	}
	if len(moved) > 0 {
		batch = append(batch, q.moving(s.now).with(n, moved, nil, fence))
	}
	if len(s.goneHolds) > 0 {
		batch = append(batch, q.delHolds.with(n, texts(s.goneHolds), nil, 0))
	}
	batch = append(batch, b.writingPost(s)...)
	batch = append(batch, b.writingRow(n, s)...)
	for _, e := range s.regranted { // it may have ended in the same batch
		text := q.regrantS
		if e.Value.place == onRow {
			text = q.regrantX
		}
		if add(text, e.Value.fence, n, []byte(e.ID)); e.Value.ends > 0 {
			add(q.grantLeast, e.Value.fence, e.Value.ends, n, []byte(e.ID))
		}
	}
	batch = append(batch, b.writingPermits(n, s)...)
	batch = append(batch, b.writingLeasts(n, s)...)
	batch = append(batch, b.writingHandles(n, s)...)
	if s.wantX != "" {
		add(q.wantX, n, []byte(s.wantX))
	}
	if e := s.x; e != nil && e.Value.place == inQueue {
		moved = append(moved, []byte(e.ID))
	}
	if moved = append(moved, texts(s.goneWaits)...); len(moved) > 0 {
		batch = append(batch, q.delWaits.with(n, moved, nil, 0))
	}
	if newWaits > 0 {
		add(q.addWaits+list(newWaits, "(?, ?, ?, ?, ?, ?, {now})", q), queued...)
	}
	var changed [][]byte
	for id := range s.newNotes {
		changed = append(changed, []byte(id))
	}
	if changed = append(changed, texts(s.delNotes)...); len(changed) > 0 {
		batch = append(batch, q.delNotes.with(n, changed, nil, 0))
	}
	var notes []any
	for id, m := range s.newNotes {
		kind, known := noteGone, any(nil)
		if m.forced {
			kind = noteForced
		}
		if m.known >= 0 {
			known = m.known.Microseconds()
		}
		notes = append(notes, n, []byte(id), []byte(m.lease), int64(kind), m.grace.Microseconds(), known)
	}
	if len(notes) > 0 {
		add(q.addNotes+list(len(s.newNotes), "(?, ?, ?, ?, ?, ?, (SELECT value FROM {meta} WHERE name='era'))", q), notes...)
	}
	return batch
}

// writingRow writes the row of the resource, if it must be.
func (b *Backend) writingRow(n []byte, s *state) []Statement {
	q, x, crowd := b.sql, s.x, int64(0)
	if s.crowded() {
		crowd = 1
	}
	switch {
	case x == nil && s.xWas != nil:
		if s.xWas.Room() != queue.One { // shared ones beside it may have had a fence from nextShared that the row has not
			s.fence = max(s.fence, s.since)
		}
		return []Statement{{SQL: q.clearX, Args: []any{s.fence, crowd, n}}}
	case x == s.xWas && s.shared:
		return []Statement{{SQL: q.shareX, Args: []any{n}}}
	case x == s.xWas:
		if x == nil && s.raised {
			return []Statement{{SQL: q.clearX, Args: []any{s.fence, crowd, n}}}
		}
		if x == nil && (crowd == 1) != s.crowd {
			return []Statement{{SQL: q.setCrowd, Args: []any{crowd, n}}}
		}
		return nil
	}
	args := []any{s.fence, []byte(x.ID), []byte(x.Value.lease)}
	if x.Value.place == inQueue {
		return []Statement{{SQL: q.moveX, Args: append(args, n, []byte(x.ID), n)}}
	}
	return []Statement{{SQL: q.setX, Args: append(args, []byte(x.Value.owner), n)}}
}

// tell gives the requests that ask for it who is in the way.
func tell(name lock.Resource, ops []*op, holders []Row) {
	st := lock.Status{Resource: name}
	for _, r := range holders {
		st.Holders = append(st.Holders, holding(r))
	}
	for _, o := range ops {
		if o.tell {
			o.status = st
		}
	}
}

// list is n times one, with commas in between.
func list(n int, one string, q *statements) string {
	return strings.TrimSuffix(strings.Repeat(q.words(one)+", ", n), ", ")
}

func texts(all []string) [][]byte {
	out := make([][]byte, len(all))
	for i, s := range all {
		out[i] = []byte(s)
	}
	return out
}

// create makes the row of a resource.
func (b *Backend) create(ctx context.Context, name lock.Resource) error {
	_, err := b.pool.Do(ctx, "create", Statement{SQL: b.sql.create, Args: []any{[]byte(name)}})
	return err
}

// Kinds of notes.
const (
	noteGone   = 1
	noteForced = 2
)
