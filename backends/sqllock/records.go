package sqllock

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// A record is a row of the table record. An app may have locked it with its RecordGuard, in
// a transaction that is open for long. So no request waits for a row: it says NOWAIT, and
// comes again without a connection in its hands.

var _ lock.RecordGuarder = (*Backend)(nil)

// recordStatements are the statements about records.
type recordStatements struct {
	server, read, list          string
	lock, insert, replace, over string
	delete                      string
	anyEnded, ended, forget     string
}

func newRecordStatements(q *statements) recordStatements {
	const set = "version=?, value=?, written={now}, ends={now}+?"
	return recordStatements{
		server:   q.words("SELECT {server}"),
		read:     q.words("SELECT version, value, {now}-written FROM {record} WHERE name=? AND ends>{now}"),
		list:     q.words("SELECT version, value, {now}-written, name FROM {record} WHERE name>? AND name>=? AND name<? AND ends>{now} ORDER BY name LIMIT ?"),
		lock:     q.words("SELECT 1 FROM {record} WHERE name=? FOR UPDATE NOWAIT"),
		insert:   q.words(q.w.InsertNew("{record} (name, version, value, written, ends) VALUES (?, ?, ?, {now}, {now}+?)")),
		replace:  q.words("UPDATE {record} SET " + set + " WHERE name=? AND version=? AND ends>{now}"),
		over:     q.words("UPDATE {record} SET " + set + " WHERE name=? AND ends<={now}"),
		delete:   q.words("DELETE FROM {record} WHERE name=? AND version=?"),
		anyEnded: q.words("SELECT 1 FROM {record} WHERE ends<={now} LIMIT 1"),
		ended:    q.words("SELECT name FROM {record} WHERE ends<={now} ORDER BY ends LIMIT ? FOR UPDATE SKIP LOCKED"),
		forget:   q.words("DELETE FROM {record} WHERE name=?"),
	}
}

// onRecords asks about records until the answer is clear or ctx ends. Behind a pooler another server may answer than
// that of the heartbeats. What it says does not count: it may lack records, or soon be gone with what was written there.
func (b *Backend) onRecords(ctx context.Context, what string, batch ...Statement) ([]Result, error) {
	const at = 1 // behind START TRANSACTION, or the question
	batch = slices.Insert(batch, at, Statement{SQL: b.sql.record.server})
	type answer struct {
		res []Result
		err error
	}
	answered := make(chan answer, 1)
	b.routines.Go(func() {
		var a answer
		if a.err = b.once(&b.checked, func() error { return b.checkTables(ctx) }); a.err == nil {
			a.err = b.retry(ctx, func() (err error) { a.res, err = b.pool.Do(ctx, "record", batch...); return err })
		}
		answered <- a
	})
	select { // a request that was sent is not cut short, but nobody has to wait for it
	case a := <-answered:
		if a.err == nil {
			a.err = b.notElsewhere(a.res[at].Rows[0].Text(0))
		}
		if a.err != nil {
			return nil, b.unavailable(what, a.err)
		}
		return slices.Delete(a.res, at, at+1), nil
	case <-ctx.Done():
		return nil, b.unavailable(what, context.Cause(ctx))
	}
}

func recordOf(r Row) lock.Record {
	return lock.Record{Version: r.Text(0), Value: []byte(r.Text(1)), Age: max(0, time.Duration(r.Int(2))*time.Microsecond)}
}

// ReadRecord implements lock.Records.
func (b *Backend) ReadRecord(ctx context.Context, r lock.Resource) (rec lock.Record, err error) {
	res, err := b.onRecords(ctx, "read record", Statement{SQL: b.sql.record.read, Args: []any{[]byte(r)}})
	if err == nil && len(res[0].Rows) > 0 {
		rec = recordOf(res[0].Rows[0])
	}
	return rec, err
}

// WriteRecord implements lock.Records.
func (b *Backend) WriteRecord(ctx context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	if err := next.Check(keep); err != nil {
		return err
	}
	q, name, version, value, micros := &b.sql.record, []byte(r), []byte(next.Version), next.Value, keep.Microseconds()
	if value == nil {
		value = []byte{}
	}
	change := []Statement{{SQL: q.replace, Args: []any{version, value, micros, name, []byte(after)}, Count: true}}
	if after == "" {
		change = []Statement{
			{SQL: q.over, Args: []any{version, value, micros, name}, Count: true},
			{SQL: q.insert, Args: []any{name, version, value, micros}, Count: true},
		}
	}
	return b.changeRecord(ctx, "write record", r, next.Version, change...)
}

// DeleteRecord implements lock.Records.
func (b *Backend) DeleteRecord(ctx context.Context, r lock.Resource, after string) error {
	return b.changeRecord(ctx, "delete record", r, "",
		Statement{SQL: b.sql.record.delete, Args: []any{[]byte(r), []byte(after)}, Count: true})
}

// changeRecord changes one row. Where it could not, that may have been done before: then
// the record has that version.
func (b *Backend) changeRecord(ctx context.Context, what string, r lock.Resource, version string, change ...Statement) error {
	batch := []Statement{{SQL: "START TRANSACTION"}, {SQL: b.sql.record.lock, Args: []any{[]byte(r)}, Ignore: true}}
	res, err := b.onRecords(ctx, what, append(append(batch, change...), Statement{SQL: "COMMIT"})...)
	if err != nil {
		return err
	}
	for _, changed := range res[len(batch) : len(batch)+len(change)] {
		if changed.Affected > 0 {
			return nil
		}
	}
	is, err := b.ReadRecord(ctx, r)
	if err == nil && is.Version != version {
		err = fmt.Errorf("%s of %q: %w", what, string(r), lock.ErrRecordChanged)
	}
	return err
}

// ListRecords implements lock.Records.
func (b *Backend) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	limit := p.Most()
	end := append([]byte(prefix), 0xff) // is in no name
	res, err := b.onRecords(ctx, "list records", Statement{SQL: b.sql.record.list, Args: []any{[]byte(p.After), []byte(prefix), end, limit}})
	if err != nil {
		return nil, err
	}
	list := make([]lock.NamedRecord, len(res[0].Rows))
	for i, r := range res[0].Rows {
		list[i] = lock.NamedRecord{Resource: lock.Resource(r.Text(3)), Record: recordOf(r)}
	}
	return list, nil
}

// RecordGuard implements lock.RecordGuarder. As for the guard of a hold, arguments are
// hexadecimal, and the row is written and not only locked.
func (b *Backend) RecordGuard(r lock.Resource, after string, next lock.Record, keep time.Duration) *lock.Guard {
	text := strings.NewReplacer("{now}+?", "{now}+"+strconv.FormatInt(keep.Microseconds(), 10), "=?", "="+b.sql.w.Unhex).
		Replace("UPDATE {record} SET version=?, value=?, written={now}, ends={now}+? WHERE name=? AND version=? AND ends>{now}")
	g := &lock.Guard{Dialect: b.d.Kind(), SQL: b.sql.words(text)}
	for _, arg := range [][]byte{[]byte(next.Version), next.Value, []byte(r), []byte(after)} {
		g.Args = append(g.Args, hex.EncodeToString(arg))
	}
	return g
}

// recordsAtATime is how many records that are over one transaction deletes.
const recordsAtATime = 100

// reapRecords deletes records that are over, but for those that an app has locked.
func (r *reaper) reapRecords(ctx context.Context) error {
	q := &r.l.b.sql.record
	for range reapSteps * reapStep / recordsAtATime {
		n, err := r.l.b.deleteFree(ctx, Statement{SQL: q.ended, Args: []any{recordsAtATime}}, q.forget)
		if err != nil || n < recordsAtATime {
			return err
		}
	}
	return nil
}
