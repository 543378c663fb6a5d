package caslock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
)

// A record is a key, and beside it stands one that sorts by the end of its time. The wall
// clocks of the sidecars count that time: the store has none.

var _ lock.Records = (*Backend)(nil)

// record is what the key of a record has.
type record struct {
	Version string `json:"version"`
	Value   []byte `json:"value"`
	Written int64  `json:"written"` // microseconds since the Unix epoch
	Ends    int64  `json:"ends"`
}

const endPrefix = "end/"

// endsBefore is the first key of those that end at a time, or later.
func endsBefore(micros int64) string { return fmt.Sprintf("%s%016x", endPrefix, micros) }

func endKey(r lock.Resource, micros int64) string { return endsBefore(micros) + "\x00" + string(r) }

func (r record) record(now int64) lock.Record {
	return lock.Record{Version: r.Version, Value: r.Value, Age: max(0, time.Duration(now-r.Written)*time.Microsecond)}
}

// readRecord gives a record as it stands, and whether its time is not over.
func (b *Backend) readRecord(ctx context.Context, r lock.Resource) (kv KV, rec record, valid bool, err error) {
	answer, err := b.inTurn(ctx, "record", Txn{Read: []Range{{Key: recordKey(r)}}})
	if err != nil {
		return kv, rec, false, err
	}
	kv, there := answer.Reads[0].one()
	rec = decode[record](kv)
	return kv, rec, there && rec.Ends > b.wall().UnixMicro(), nil
}

// ReadRecord implements lock.Records.
func (b *Backend) ReadRecord(ctx context.Context, r lock.Resource) (lock.Record, error) {
	_, rec, valid, err := b.readRecord(ctx, r)
	switch {
	case err != nil:
		return lock.Record{}, b.unavailable("read record", err)
	case !valid:
		return lock.Record{}, nil
	}
	return rec.record(b.wall().UnixMicro()), nil
}

// WriteRecord implements lock.Records.
func (b *Backend) WriteRecord(ctx context.Context, r lock.Resource, after string, next lock.Record, keep time.Duration) error {
	if err := next.Check(keep); err != nil {
		return err
	}
	return b.changeRecord(ctx, "write record", r, after, &next, keep)
}

// DeleteRecord implements lock.Records.
func (b *Backend) DeleteRecord(ctx context.Context, r lock.Resource, after string) error {
	return b.changeRecord(ctx, "delete record", r, after, nil, 0)
}

// changeRecord puts next in the place of a record; nil: nothing.
func (b *Backend) changeRecord(ctx context.Context, what string, r lock.Resource, after string, next *lock.Record, keep time.Duration) error {
	for {
		kv, rec, valid, err := b.readRecord(ctx, r)
		switch {
		case err != nil:
			return b.unavailable(what, err)
		case valid && next != nil && rec.Version == next.Version: // a call before this one did it
			return nil
		case !valid && next == nil:
			return nil
		case valid && rec.Version != after, !valid && after != "":
			return lock.ErrRecordChanged
		}
		t := Txn{If: []Cond{{Key: recordKey(r), Version: kv.Version}}}
		var end string
		if next != nil {
			now := b.wall().UnixMicro()
			put := record{Version: next.Version, Value: next.Value, Written: now, Ends: now + keep.Microseconds()}
			end = endKey(r, put.Ends)
			t.Then = append(t.Then, Write{Key: recordKey(r), Value: encode(put)}, Write{Key: end})
		} else {
			t.Then = append(t.Then, Write{Key: recordKey(r), Delete: true})
		}
		if was := endKey(r, rec.Ends); kv.Version > 0 && was != end {
			t.Then = append(t.Then, Write{Key: was, Delete: true})
		}
		answer, err := b.inTurn(ctx, "record", t)
		if err != nil {
			return b.unavailable(what, err)
		}
		if answer.Done {
			return nil
		}
	}
}

// ListRecords implements lock.Records.
func (b *Backend) ListRecords(ctx context.Context, prefix string, p lock.Page) ([]lock.NamedRecord, error) {
	p.Limit = p.Most()
	read := all(recordPrefix+prefix, min(p.Limit, page))
	if behind := recordKey(p.After) + "\x00"; p.After != "" && behind > read.Key {
		read.Key = behind
	}
	var found []lock.NamedRecord
	for read.Key < read.End {
		answer, err := b.inTurn(ctx, "record", Txn{Read: []Range{read}})
		if err != nil {
			return nil, b.unavailable("list records", err)
		}
		now, kvs := b.wall().UnixMicro(), answer.Reads[0].KVs
		for _, kv := range kvs {
			if rec := decode[record](kv); rec.Ends > now {
				name := lock.Resource(strings.TrimPrefix(kv.Key, recordPrefix))
				found = append(found, lock.NamedRecord{Resource: name, Record: rec.record(now)})
			}
			if len(found) == p.Limit {
				return found, nil
			}
		}
		if len(kvs) < read.Limit {
			break
		}
		read.Key = kvs[len(kvs)-1].Key + "\x00"
	}
	return found, nil
}

// reapAtATime bounds the records that are deleted in one of the keeper's rounds: each has two keys.
const reapAtATime = 50

// reapRecords deletes records whose time is over, the first that ended first. It tells whether
// there may be more.
func (b *Backend) reapRecords(ctx context.Context) (more bool, err error) {
	now := b.wall().UnixMicro()
	answer, err := b.do(ctx, "reap", Txn{Read: []Range{{Key: endPrefix, End: endsBefore(now), Limit: reapAtATime}}})
	if err != nil {
		return false, err
	}
	over := answer.Reads[0].KVs
	if len(over) == 0 {
		return false, nil
	}
	var read []Range
	for _, end := range over {
		read = append(read, Range{Key: recordKey(endsWith(end.Key))})
	}
	if answer, err = b.do(ctx, "reap", Txn{Read: read}); err != nil {
		return false, err
	}
	var t Txn
	for i, end := range over {
		name := endsWith(end.Key)
		kv, _ := answer.Reads[i].one()
		t.If = append(t.If, Cond{Key: recordKey(name), Version: kv.Version})
		t.Then = append(t.Then, Write{Key: end.Key, Delete: true})
		if kv.Version > 0 && endKey(name, decode[record](kv).Ends) == end.Key { // else it was written again
			t.Then = append(t.Then, Write{Key: recordKey(name), Delete: true})
		}
	}
	_, err = b.do(ctx, "reap", t) // where one has been written meanwhile, the next round does it
	return len(over) == reapAtATime, err
}

// endsWith is whose record an endKey is about.
func endsWith(key string) lock.Resource {
	_, name, _ := strings.Cut(key, "\x00")
	return lock.Resource(name)
}
